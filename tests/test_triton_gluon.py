"""The Gluon kernel, compiled with no GPU: the instructions of cuda_tma, in the order that makes its ring safe."""

import re
from collections.abc import Iterator

import pytest
import torch
import triton

import hgemm
from hgemm.backends import get
from hgemm.devices import LIMITS
from hgemm.problem import LAYOUTS
from hgemm.reference import exact_integers
from hgemm.triton_kernels import adapter
from hgemm.triton_kernels.compile_ahead import Compiled, compile_ahead
from hgemm.triton_kernels.configs import GLUON

BF16 = torch.bfloat16
SMALL = "128x128x32_s3_w64x32"
EVENT = {
    "B": r"bar\.sync",
    "X": r"mbarrier\.arrive\.expect_tx",
    "F": r"fence\.proxy\.async",
    "L": r"cp\.async\.bulk\.tensor\.2d\.shared::\w+\.global",
    "W": r"mbarrier\.try_wait\.parity",
    "l": r"ldmatrix",
    "m": r"mma\.sync",
    "I": r"mbarrier\.init",
    "V": r"mbarrier\.inval",
    "s": r"stmatrix|st\.shared\.v4",
    "S": r"cp\.async\.bulk\.tensor\.2d\.global\.shared",
    "E": r"cp\.async\.bulk\.wait_group\.read",
}
made_ones: dict[tuple[str, int, str], Compiled] = {}


@pytest.fixture(autouse=True, scope="module")
def kept_for_this_file(own_cache: None) -> Iterator[None]:
    yield
    made_ones.clear()


def made(config: str, target: int, layout: str = "nn") -> Compiled:
    key = config, target, layout
    if key not in made_ones:
        made_ones[key] = compile_ahead(GLUON, config, BF16, target, layout=layout)
    return made_ones[key]


def events(ptx: str) -> str:
    """The instructions of EVENT in the text's order, a letter each."""
    found = re.finditer("|".join(f"(?P<{name}>{pattern})" for name, pattern in EVENT.items()), ptx)
    return "".join(str(match.lastgroup) for match in found)


def parts(ptx: str) -> tuple[str, str, str]:
    """The events before the loop over K, in it, and after it."""
    label, body = max(
        re.findall(r"^(\$L__BB\w+):(.*?)\bbra(?:\.uni)?\s+\1;", ptx, re.MULTILINE | re.DOTALL),
        key=lambda found: found[1].count("mma.sync"),
    )
    before, _, after = ptx.partition(body)
    assert label
    return events(before), events(body), events(after)


@pytest.mark.parametrize(
    ("layout", "target"),
    [
        # With another Triton every layout, the targets in turn.
        pytest.param(layout, target, marks=[] if (row + column) % 2 == 0 else [pytest.mark.one_triton])
        for row, layout in enumerate(LAYOUTS)
        for column, target in enumerate((90, 120))
    ],
)
def test_every_layout_has_the_instructions_of_cuda_tma(layout: str, target: int) -> None:
    before, loop, after = parts(made(SMALL, target, layout).ptx)
    # A 64x32 warp tile, two k-steps of 16: 4 x 4 mma each, and 4 + 2 ldmatrix, transposing where K is not contiguous.
    assert (loop.count("m"), loop.count("l")) == (2 * 16, 2 * 6)
    assert (loop.count("L"), loop.count("X"), loop.count("W")) == (2, 2, 2)
    assert (before.count("I"), before.count("X"), before.count("L")) == (6, 6, 6)
    assert (after.count("m"), after.count("S")) == (2 * 16, 1)
    text = made(SMALL, target, layout).ptx
    assert "wgmma" not in text
    transposing = {"nn": "b", "nt": "", "tn": "ab", "tt": "a"}[layout]
    # k-steps: one loaded before the loop, two in it, one after it.
    assert text.count("x4.trans") == 4 * (4 * ("a" in transposing) + 2 * ("b" in transposing))
    assert len(re.findall(r"expect_tx\S* _, \[%r\d+\], 8192;", text)) == 4 * 2  # 128 x 32 elements, edge or not


@pytest.mark.parametrize("target", [90, 120])
@pytest.mark.parametrize("config", [entry.config.name for entry in GLUON.configs])
def test_a_stage_is_refilled_only_when_every_thread_has_read_it(config: str, target: int) -> None:
    if target not in GLUON.find(config).targets:
        return
    before, loop, after = parts(made(config, target).ptx)
    # The fragments of the last step, then fence and barrier, then the copies and one more barrier; the wait for the
    # next tile, directly behind it its first fragments, and the last multiplications, of what was loaded before.
    assert re.fullmatch(r"[lmB]*lB?l*m+B*(XB*){2}FB+LLB+W+l+m+", loop), loop
    assert loop.count("B") <= 6
    # The mbarriers are initialised for all before any copy and any wait; a copy waits for its fence and barrier.
    assert re.search(r"I[^LWX]*X", before)
    assert not re.search(r"L", before.partition("X")[0])
    assert re.search(r"FB+L[^F]*$", before) or re.search(r"FB+LL", before)
    assert re.search(r"W+B*l", before)
    assert after.count("V") == before.count("I") == 2 * GLUON.find(config).config.stages
    # C is written behind a barrier after the last read, seen by TMA behind a fence and one more, and read before the
    # end.
    assert re.search(r"l[^l]*B[^l]*V[^l]*B[^l]*s+FB+SE", after), after


@pytest.mark.parametrize("target", [90, 120])
def test_machine_code_fences_what_was_read_before_the_copy(target: int) -> None:
    text = made(SMALL, target).sass
    words = re.findall(r"\b(LDSM|MEMBAR|FENCE\.VIEW\.ASYNC|BAR\.SYNC|UTMALDG|HMMA|UTMASTG)", text)
    order = "".join({"LDSM": "l", "MEMBAR": "f", "BAR.SYNC": "B", "UTMALDG": "L"}.get(word, "") for word in words)
    assert re.search(r"lB*fB+L{2}B?l", order), order
    assert not re.search(r"l[B]*L", order)  # no read without a fence before the next copy


@pytest.mark.parametrize("target", [90, 120])
def test_the_ring_fits_and_nothing_spills(target: int) -> None:
    for entry in GLUON.configs:
        if target not in entry.targets:
            continue
        code = compile_ahead(GLUON, entry.config.name, torch.float16, target, layout="tn", batched=True)
        config = entry.config
        ring = config.stages * 2 * config.tile_k * (config.tile_m + config.tile_n)
        # Two mbarriers a stage; C, and the descriptors while they are made, lie where the ring was or will be.
        assert ring + 16 * config.stages <= code.shared_bytes <= ring + 64
        assert code.shared_bytes == GLUON.shared_bytes(config.name, target, "tn")
        assert code.shared_bytes <= LIMITS[divmod(target, 10)].shared_bytes_per_block
        assert code.spill_loads == 0
        assert code.threads == config.threads


def test_strides_beyond_32_bits_compile() -> None:
    code = compile_ahead(GLUON, SMALL, BF16, 90, wide=("stride_a", "stride_b", "stride_c", "batch_c"), batched=True)
    assert code.spill_loads == 0


def test_it_is_neither_interpreted_nor_for_every_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    record = get("triton_gluon")
    assert "no interpreter for Gluon; use a CUDA device" in (record.unavailable("cpu") or "")
    assert "CPU" not in record.requires[0]
    assert "CPU" in get("triton").requires[0]
    a = torch.ones(8, 8, dtype=BF16)
    with pytest.raises(hgemm.UnsupportedProblem, match="triton_gluon does not run on cpu tensors here: Triton has no"):
        hgemm.matmul(a, a, backend="triton_gluon")

    def lacking(module: str) -> None:
        raise ImportError("cannot import name 'mma_v2'")

    assert adapter._gluon_missing(GLUON.module) is None
    monkeypatch.setattr(adapter, "_compiled", lacking)
    adapter._gluon_missing.cache_clear()
    reason = adapter.unavailable(GLUON, "cuda") or ""
    adapter._gluon_missing.cache_clear()
    assert f"Triton {triton.__version__} lacks a part of Gluon that it uses (cannot import name 'mma_v2')" in reason


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", [entry.config.name for entry in GLUON.configs])
def test_every_length_of_the_ring_is_exact_each_time(config: str, layout: str) -> None:
    record = get("triton_gluon")
    if reason := record.unavailable("cuda"):
        pytest.skip(reason)
    tile = GLUON.find(config).config
    ring = tile.stages * tile.tile_k
    generator = torch.Generator("cuda").manual_seed(3)
    for K in (
        8,
        tile.tile_k,
        tile.tile_k + 8,
        ring - 8,
        ring,
        ring + 8,
        2 * ring,
        2 * ring + tile.tile_k,
        9 * ring + 8,
    ):
        a, b, expected = exact_integers(520, 776, K, BF16, "cuda", generator)
        a = a.t().contiguous().t() if layout[0] == "t" else a
        b = b.t().contiguous().t() if layout[1] == "t" else b
        for _ in range(20):
            out = torch.full_like(expected, torch.nan)
            record.run(a, b, out, config)
            assert torch.equal(out, expected), K
