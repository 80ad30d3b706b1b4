"""The numbers of a roofline's roofs: what was measured, the vendor's peaks at the observed clock, and their ridges."""

import dataclasses

import pytest
from made_up_results import COPY_GBS, L2_GBS, results, with_fragments, with_reads

from hgemm.bench.metrics import CEILING, L2
from hgemm.bench.schema import Results
from hgemm.plot import roofline
from hgemm.plot.levels import Level

MADE_UP = results(dtypes=("bf16", "fp16"))


def by_name(made_up: Results, dtype: str) -> dict[tuple[str, str], Level]:
    found = roofline.levels(made_up, dtype)
    assert len({(level.name, level.kind) for level in found}) == len(found)
    return {(level.name, level.kind): level for level in found}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_levels_are_the_roofs_of_products_that_accumulate_in_fp32(dtype: str) -> None:
    found = by_name(MADE_UP, dtype)
    assert list(found) == [
        ("mma.sync", "compute"),
        ("cublas", "compute"),
        ("copy", "bandwidth"),
        ("l2", "bandwidth"),
        ("vendor", "compute"),
        ("vendor", "bandwidth"),
    ]
    roofs = {r.name: r.value for r in MADE_UP.roofs if r.dtype in (dtype, None) and r.accumulator in ("float32", None)}
    for name in ("mma.sync", "cublas"):
        assert found[name, "compute"].value == roofs[name]
        assert found[name, "compute"].ridge == pytest.approx(roofs[name] * 1e12 / (roofs["copy"] * 1e9))
    assert found["copy", "bandwidth"].value == pytest.approx(COPY_GBS / 1000, rel=0.01)
    assert found["l2", "bandwidth"].value == pytest.approx(L2_GBS / 1000, rel=0.01)
    assert found["l2", "bandwidth"].text == f"L2 reads {roofs['l2'] / 1000:.3g} TB/s at 1980 MHz"
    assert [level.measured for level in found.values()] == [True] * 4 + [False] * 2


def test_the_vendor_s_peak_is_at_the_clock_of_mma_sync() -> None:
    made_up = results()
    for roof in made_up.roofs:
        roof.clock_mhz = 1500.0 if roof.name == CEILING else 1980.0
    peak = by_name(made_up, "bf16")["vendor", "compute"]
    # 132 multiprocessors x 4096 operations x 1500 MHz, over 4.8 TB/s.
    assert peak.value == pytest.approx(811.008)
    assert peak.ridge == pytest.approx(811.008 / 4.8)
    assert peak.text == "NVIDIA, dense, 811 TFLOPS at 1500 MHz (989.4 at 1830 MHz)"
    for roof in made_up.roofs:
        roof.clock_mhz = None
    found = by_name(made_up, "bf16")
    assert found["vendor", "compute"].value == pytest.approx(989.4, rel=1e-4)
    assert found["vendor", "compute"].text == "NVIDIA, dense, 989.4 TFLOPS at 1830 MHz"
    assert found["copy", "bandwidth"].text == "copy 4.1 TB/s"


def test_reads_of_memory_are_a_roof_beside_the_copy_s() -> None:
    before, found = by_name(MADE_UP, "bf16"), by_name(with_reads(results(dtypes=("bf16", "fp16")), 4440.0), "bf16")
    assert list(found)[2:5] == [("copy", "bandwidth"), ("read", "bandwidth"), ("l2", "bandwidth")]
    read = found.pop(("read", "bandwidth"))
    assert (read.value, read.text, read.measured) == (4.44, "memory reads 4.44 TB/s at 1980 MHz", True)
    assert found == before  # ridges are those of a copy, which products that also write are nearer to


@pytest.mark.parametrize(("tflops", "best"), [((590.0, 610.0), "96x64"), ((620.0, 610.0), "64x64")])
def test_of_the_warp_tiles_that_ldmatrix_feeds_the_fastest_is_a_roof(tflops: tuple[float, ...], best: str) -> None:
    before, found = by_name(MADE_UP, "fp16"), by_name(with_fragments(results(dtypes=("bf16", "fp16")), *tflops), "fp16")
    name = f"ldmatrix+mma.sync {best}"
    assert list(found)[:3] == [("mma.sync", "compute"), (name, "compute"), ("cublas", "compute")]
    fed = found.pop((name, "compute"))
    assert (fed.value, fed.text, fed.measured) == (max(tflops), f"{name}, {max(tflops):.0f} TFLOPS at 1980 MHz", True)
    assert fed.ridge == pytest.approx(max(tflops) / before["copy", "bandwidth"].value)
    assert found == before


def test_a_file_without_the_newer_roofs_has_the_others() -> None:
    older = results()
    older.roofs = [roof for roof in older.roofs if roof.name != L2]
    found = by_name(older, "bf16")
    assert ("l2", "bandwidth") not in found
    assert len(found) == 5
    bare = dataclasses.replace(older, roofs=[])
    assert list(by_name(bare, "bf16")) == [("vendor", "compute"), ("vendor", "bandwidth")]
    unknown = results(gpu="NVIDIA Unheard-of 9000")
    assert ("vendor", "compute") not in by_name(unknown, "bf16")
