"""The specialised kernel of Hopper, compiled with no GPU: who copies, who multiplies, and what each waits for."""

import re
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
import triton
from ptx_block import Block, Hang, Race
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hgemm.config import Config, warp_tile
from hgemm.devices import LIMITS
from hgemm.problem import LAYOUTS
from hgemm.triton_kernels.compile_ahead import Compiled, compile_ahead, disassemble
from hgemm.triton_kernels.configs import TMA
from hgemm.triton_kernels.shared_tiles import ROWS, add_shared_tiles
from hgemm.triton_kernels.specialized_configs import SPECIALIZED, blocks, specialized_options

BF16, FP16 = torch.bfloat16, torch.float16
LARGEST = "128x256x64_s4_w64x64_specialized_tail"
SMALLEST = "64x128x128_s4_w64x32_specialized_tail"
EVENT = {
    "W": r"mbarrier\.try_wait\.parity",
    "m": r"wgmma\.mma_async",
    "c": r"wgmma\.commit_group",
    "1": r"wgmma\.wait_group\.sync\.aligned\s+1;",
    "0": r"wgmma\.wait_group\.sync\.aligned\s+0;",
    "A": r"mbarrier\.arrive\.shared",
    "X": r"mbarrier\.arrive\.expect_tx",
    "L": r"cp\.async\.bulk\.tensor\.2d\.shared::\w+\.global",
    "r": r"cp\.async\.bulk\.wait_group\.read",
    "B": r"\bbar(?:rier)?\.sync\s+\w+, 128;",
    "s": r"stmatrix",
    "F": r"fence\.proxy\.async",
    "S": r"cp\.async\.bulk\.tensor\.2d\.global\.shared",
    "g": r"st\.global",
}
made_ones: dict[tuple[str, torch.dtype, str], Compiled] = {}


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is taken from the user's cache of kernels, nor left there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield
    made_ones.clear()


def made(config: str, dtype: torch.dtype = BF16, layout: str = "nt") -> Compiled:
    key = config, dtype, layout
    if key not in made_ones:
        made_ones[key] = compile_ahead(TMA, config, dtype, 90, layout=layout)
    return made_ones[key]


def events(ptx: str) -> str:
    """The instructions of EVENT in the text's order, a letter each."""
    found = re.finditer("|".join(f"(?P<e{ord(name)}>{pattern})" for name, pattern in EVENT.items()), ptx)
    return "".join(chr(int(str(match.lastgroup)[1:])) for match in found)


def loops(ptx: str) -> list[str]:
    """The events of the innermost loops: what lies between a label and a branch back to it, with no label of another
    loop between."""
    bodies = re.findall(r"^(\$L__BB\w+):((?:(?!^\$L__BB).)*?)\bbra(?:\.uni)?\s+\1;", ptx, re.MULTILINE | re.DOTALL)
    return [events(body) for _, body in bodies]


@pytest.mark.parametrize("config", SPECIALIZED)
def test_a_configuration_is_specialised_and_fits(config: str) -> None:
    code, parsed = made(config), Config.parse(config)
    assert "setmaxnreg.dec.sync.aligned.u32" in code.ptx
    registers = set(map(int, re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+);", code.ptx)))
    two = parsed.warps == 8
    assert {24, 240} <= registers if two else 24 in registers
    assert code.threads == 32 * (parsed.warps + 4)  # the copying warp has a warpgroup's registers to itself
    assert code.spill_loads == code.stack_bytes == 0
    assert code.shared_bytes == SPECIALIZED[config] == TMA.shared_bytes(config, 90, "n")
    assert code.shared_bytes <= LIMITS[9, 0].shared_bytes_per_block
    assert code.registers * code.threads <= LIMITS[9, 0].registers_per_multiprocessor
    assert "tensormap.replace" not in code.ptx  # no descriptor is made on the device
    assert "HGMMA" in code.sass
    assert not re.search(r"\bHMMA", code.sass)


@pytest.mark.parametrize("config", SPECIALIZED)
def test_a_stage_is_given_back_when_its_product_is_done_and_refilled_when_all_gave_it_back(config: str) -> None:
    options = specialized_options(config)
    code = made(config)
    groups = options["DOWN"] * options["ACROSS"]
    # For each 16 of K and each 64 rows of a warpgroup.
    products = options["BLOCK_K"] // 16 * (options["BLOCK_M"] // options["DOWN"] // 64)
    copies = -(-options["BLOCK_K"] // 64) * 2  # A and B are stored along K: boxes of 64 elements
    multiplying = [loop for loop in loops(code.ptx) if "m" in loop]
    assert len(multiplying) == groups
    for loop in multiplying:
        assert re.fullmatch(rf"B*WB*m{{{products}}}c1B*A", loop), loop
    copying = [loop for loop in loops(code.ptx) if "L" in loop]
    assert [re.sub("B", "", loop) for loop in copying] == ["WX" + copies * "L"]
    # What is left in flight at the end of a tile.
    assert len(re.findall("0B*A", events(code.ptx))) == groups
    # All bytes of a stage, and as many arrivals as there are warpgroups.
    stage_bytes = 2 * options["BLOCK_K"] * (options["BLOCK_M"] + options["BLOCK_N"])
    assert set(re.findall(r"expect_tx\S* _, \[%r\d+\], (\d+);", code.ptx)) == {str(stage_bytes)}
    counts = re.findall(r"mbarrier\.init\S+ \[%r\d+\], (\d+);", code.ptx)
    assert sorted(counts) == sorted(["1"] * options["STAGES"] + [str(groups)] * options["STAGES"])


PROGRAMS = 4


def run_blocks(config: str, ptx: str, seed: int) -> Iterator[Block]:
    """The blocks of a product of 3 x 3 tiles, the last ones partly full, with more steps of K than there are stages."""
    options = specialized_options(config)
    a, b, _ = blocks(config, "n", "t")
    M, N, K = 3 * a[0] - 42, 3 * b[0] - 8, 1000
    whole, parts = (8, 3) if config.endswith("_tail") else (9, 1)
    assert -(-K // options["BLOCK_K"]) > options["STAGES"]
    for program in range(PROGRAMS):
        # A box is 128 bytes of each stored row of a tile. Of what is passed for a descriptor it is the first of five.
        block = Block(ptx, [M, N, K, whole, parts], {0: 128 * a[0], 5: 128 * b[0]}, program, PROGRAMS, seed)
        block.run()
        yield block


@pytest.mark.parametrize("config", SPECIALIZED)
def test_a_ring_that_wraps_hands_every_tile_to_every_warpgroup(config: str) -> None:
    options = specialized_options(config)
    (tile_m, step), (tile_n, _), _ = blocks(config, "n", "t")
    multiplied: Counter[tuple[int, ...]] = Counter()
    for block in run_blocks(config, made(config).ptx, seed=5):
        corners: list[dict[int, tuple[int, int]]] = [{} for _ in range(block.turn)]
        for box in block.copies:
            of_turn = corners[box.turn - 1]
            of_turn[box.matrix] = min(of_turn.get(box.matrix, box.corner), box.corner)
        assert all(turn[0][0] == turn[5][0] for turn in corners)
        multiplied.update((turn[0][1], turn[5][1], turn[0][0]) for turn in corners)
        busy = [warp for warp in block.warps if warp.products]
        assert len(busy) == 4 * options["DOWN"] * options["ACROSS"]
        assert all(warp.products == [{turn + 1} for turn in range(block.turn)] for warp in busy)
    steps = range(0, 1000, step)
    tiles = {(m * tile_m, n * tile_n, k) for m in range(3) for n in range(3) for k in steps}
    assert multiplied == Counter(tiles)


@pytest.mark.parametrize(
    ("pattern", "replacement", "found"),
    [
        # No arrival in the loop: what arrives is what is arrived at past the loop.
        (r"@%p\d+ (mbarrier\.arrive\.shared::cta\.b64 _, \[%r\d+\];)(?=(?:(?!\$L__BB).)*\bbra)", "", Hang),
        # Two phases a lap of the ring: the parity that is waited for stays away.
        (r"(mbarrier\.init\S+ \[%r\d+\]), 2;", r"\1, 1;", Hang),
        (r"(mbarrier\.init\S+ \[%r\d+\]), 2;", r"\1, 3;", Hang),
        (r"expect_tx(\S+) _, \[(%r\d+)\], 49152", r"expect_tx\1 _, [\2], 49168", Hang),
        (r"expect_tx(\S+) _, \[(%r\d+)\], 49152", r"expect_tx\1 _, [\2], 16384", Race),
        (r"(wgmma\.wait_group\.sync\.aligned) 1;", r"\1 2;", Race),
        (r"(setmaxnreg\.inc\.sync\.aligned\.u32\s+)240;", r"\g<1>248;", Hang),
    ],
)
def test_a_ring_out_of_step_is_found(pattern: str, replacement: str, found: type[Exception]) -> None:
    config = LARGEST.removesuffix("_tail")
    ptx, count = re.subn(pattern, replacement, made(config).ptx, flags=re.DOTALL)
    assert count
    with pytest.raises(found):
        for seed in range(8):
            list(run_blocks(config, ptx, seed))


@pytest.mark.parametrize("config", SPECIALIZED)
def test_c_leaves_in_pieces_by_tma_and_parts_by_stores(config: str) -> None:
    options = specialized_options(config)
    text = events(made(config).ptx)
    groups, rows = options["DOWN"] * options["ACROSS"], options["BLOCK_M"] // options["DOWN"]
    pieces = options["BLOCK_N"] // options["ACROSS"] // 64
    # Behind the read of the store that used the buffer before, and a barrier; seen by TMA behind fence and barrier.
    stored = re.findall(rf"rB+s{{{rows // 16}}}FB+S", text)
    assert len(stored) == groups * pieces == text.count("S")
    assert pieces % options["C_BUFFERS"] == 0  # so that each tile begins with the first buffer
    assert ("g" in text) == config.endswith("_tail")
    assert ("griddepcontrol.launch_dependents" in made(config).ptx) == config.endswith("_tail")
    assert set(re.findall(r"st\.global\.(\S+)", made(config).ptx)) <= {"v2.b32"}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [FP16, BF16], ids=str)
def test_every_layout_and_type_is_multiplied_from_shared_memory(dtype: torch.dtype, layout: str) -> None:
    code = made(LARGEST if dtype == BF16 else SMALLEST, dtype, layout)
    kind = "bf16" if dtype == BF16 else "f16"
    products = re.findall(
        r"wgmma\.mma_async\S+k16\.(\S+)\s[^;]*?\}, %rd\d+, %rd\d+, %p\d+, 1, 1, (\d), (\d);", code.ptx
    )
    # The two flags say that the operand is contiguous across K: a column-major A, a row-major B.
    expected = f"f32.{kind}.{kind}", "01"[layout[0] == "t"], "01"[layout[1] == "n"]
    assert len(products) == code.ptx.count("wgmma.mma_async")
    assert set(products) == {expected}
    assert code.spill_loads == 0


@pytest.mark.parametrize("config", SPECIALIZED)
def test_warpgroups_share_a_tile_evenly(config: str) -> None:
    parsed, options = Config.parse(config), specialized_options(config)
    assert (parsed.warp_m, parsed.warp_n) == warp_tile(parsed.tile_m, parsed.tile_n, parsed.warps)
    assert options["DOWN"] * options["ACROSS"] * 4 == parsed.warps
    rows, columns = parsed.tile_m // options["DOWN"], parsed.tile_n // options["ACROSS"]
    assert rows % 64 == 0
    assert columns <= 256
    assert rows * columns <= 128 * 128  # sums of a thread
    for layout in LAYOUTS:
        a, b, c = blocks(config, *layout)
        assert a == ((parsed.tile_m, parsed.tile_k) if layout[0] == "n" else (parsed.tile_k, parsed.tile_m))
        assert b == ((parsed.tile_k, parsed.tile_n) if layout[1] == "n" else (parsed.tile_n, parsed.tile_k))
        assert c == (rows, 64)


@pytest.mark.parametrize("config", [name for name in SPECIALIZED if name.endswith("_tail")])
def test_parts_are_added_16_bytes_a_thread(config: str) -> None:
    options = specialized_options(config)
    names = add_shared_tiles.arg_names
    constants = {name: options[name] for name in ("BLOCK_M", "BLOCK_N", "GROUP_M")} | {
        "PARTS": 2,
        "ROWS": ROWS,
    }
    signature = {
        **dict.fromkeys(names, "i32"),
        "sums": "*fp32",
        "c": "*bf16",
        **dict.fromkeys(constants, "constexpr"),
    }
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in ("sums", "c")}
    source = ASTSource(add_shared_tiles, signature, constants, aligned)
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    ptx = code.asm["ptx"]
    loads = re.findall(r"ld\.global\S*\.(v\d\.b32)", ptx)
    assert loads == ["v4.b32"] * (2 * ROWS * options["BLOCK_N"] // (4 * 128))
    assert set(re.findall(r"st\.global\.(\S+)", ptx)) == {"v4.b32"}
    assert "griddepcontrol.wait" in ptx
    usage, sass = disassemble(code.asm["cubin"])
    assert usage["STACK"] == 0
    assert "LDL" not in sass
