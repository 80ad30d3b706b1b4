"""Counters of real kernels, where ncu may read them: what follows from the product must be what is counted."""

import json
from typing import Any

import pytest
import torch

from hgemm.bench.suites import Case, Shape
from hgemm.profile import __main__ as profile
from hgemm.profile.launch import Launch, call

pytestmark = pytest.mark.gpu

SIZE = 2048


def test_the_call_that_is_profiled_is_checked() -> None:
    case = Case(Shape(256, 512, 320), "fp16", "nt")
    assert call(Launch("torch", None, case, torch.cuda.current_device())).status == "ok"


def test_a_product_that_is_refused_is_not_called() -> None:
    answer = call(Launch("triton", "128x128x64_s3_w64x32", Case(Shape(64, 63, 64)), torch.cuda.current_device()))
    assert answer.status == "refused"
    assert "multiple of 8" in answer.reason


@pytest.mark.nvcc
def test_counters_of_the_swizzled_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("cuda_cp_async:128x128x32_s3_w64x32*", "torch")
    status = profile.main(["--mnk", f"{SIZE},{SIZE},{SIZE}", "--json", "--backend", *names])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == 0
    if found["counters"]["note"]:
        pytest.skip(found["counters"]["note"])
    by_name = {(row["backend"], row["config"]): row for row in found["contestants"]}
    for row in by_name.values():
        assert row["no_counters"] is None
        values = row["counted"]["values"]
        assert 0 < values["tensor pipe"] <= 100
        assert values["DRAM read"] >= 0.9 * 2 * 2 * SIZE * SIZE  # A and B
        assert row["counted"]["stalls"]
    tiled = by_name["cuda_cp_async", "128x128x32_s3_w64x32"]
    (facts,) = [facts for facts in tiled["facts"] if facts["gpu"]["title"] == profile._present()[0].title]
    values = tiled["counted"]["values"]
    assert values["registers launched"] == facts["code"]["registers"]
    assert values["threads launched"] == facts["code"]["threads"]
    assert values["grid"] == (SIZE // 128) ** 2
    # A warp loads 6 fragments in each step of 16 along K.
    assert values["ldmatrix instructions"] == (SIZE // 128) ** 2 * 8 * (SIZE // 16) * 6
    ratio = {config: ldmatrix_ratio(row) for (_, config), row in by_name.items() if config}
    assert ratio["128x128x32_s3_w64x32"] == pytest.approx(1.0, abs=0.01)
    assert ratio["128x128x32_s3_w64x32_noswizzle"] > 2


def ldmatrix_ratio(row: dict[str, Any]) -> float:
    """Wavefronts of ldmatrix for each that is needed."""
    return next(kind["ratio"] for kind in row["counted"]["shared"] if kind["kind"] == "ldmatrix")
