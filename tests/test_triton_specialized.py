"""The specialised kernel of Hopper, compiled with no GPU: who copies, who multiplies, and what each waits for."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
from ptx_block import A, B, Block, Hang, Race, box_shapes
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hgemm.config import Config, warp_tile
from hgemm.devices import LIMITS
from hgemm.problem import LAYOUTS
from hgemm.triton_kernels.compile_ahead import Compiled, compile_ahead, disassemble, resource_usage
from hgemm.triton_kernels.configs import TMA
from hgemm.triton_kernels.shared_tiles import ROWS, add_shared_tiles
from hgemm.triton_kernels.specialized_configs import ALONE, SPECIALIZED, blocks, specialized_options

BF16, FP16 = torch.bfloat16, torch.float16
LARGEST = "128x256x64_s4_w64x64_specialized_tail"
SMALLEST = "64x128x128_s4_w64x32_specialized_tail"
THREE = "192x128x64_s4_w64x32_specialized_tail"
WIDE = "64x96x128_s5_w32x16_specialized"  # three side by side
SQUARE = "192x192x64_s4_w64x48_specialized_tail"  # each with two tensors of sums
# 192 sums a thread, which leave no registers for rounded ones: 64 rows, and half of the columns of 64 that are shared.
MOST = "192x256x64_s3_w96x64_specialized_tail"
# With another Triton: one warpgroup and two, below each other and side by side, three, a shared last wave and none.
ONE = (SMALLEST, "64x256x64_s5_w64x64_specialized_tail")
KINDS = (LARGEST, LARGEST.removesuffix("_tail"), *ONE, THREE, WIDE, SQUARE, MOST)


def with_any_triton(config: str, *more: str) -> Any:
    return pytest.param(config, *more, marks=[] if config in KINDS else [pytest.mark.one_triton])


EVERY = [with_any_triton(config) for config in ALONE]
EVENT = {
    "W": r"mbarrier\.try_wait\.parity",
    "m": r"wgmma\.mma_async",
    "c": r"wgmma\.commit_group",
    "1": r"wgmma\.wait_group\.sync\.aligned\s+1;",
    "2": r"wgmma\.wait_group\.sync\.aligned\s+2;",
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
def kept_for_this_file(own_cache: None) -> Iterator[None]:
    yield
    made_ones.clear()


def made(config: str, dtype: torch.dtype = BF16, layout: str = "nt") -> Compiled:
    key = config, dtype, layout
    if key not in made_ones:
        made_ones[key] = compile_ahead(TMA, config, dtype, 90, layout=layout)
    return made_ones[key]


# From 3.9 on a rounded sum that waits has a register of its own, and what ends the text of two warpgroups is one.
NEWER = not triton.__version__.startswith(("3.6.", "3.7.", "3.8."))


def spills(config: str) -> bool:
    """Whether it is known to: the two tensors of 192 x 192 leave the fewest registers."""
    return NEWER and config.startswith("192x192")


def events(ptx: str) -> str:
    """The instructions of EVENT in the text's order, a letter each."""
    found = re.finditer("|".join(f"(?P<e{ord(name)}>{pattern})" for name, pattern in EVENT.items()), ptx)
    return "".join(chr(int(str(match.lastgroup)[1:])) for match in found)


def loops(ptx: str) -> list[str]:
    """The events of the innermost loops: what lies between a label and a branch back to it, with no label of another
    loop between."""
    bodies = re.findall(r"^(\$L__BB\w+):((?:(?!^\$L__BB).)*?)\bbra(?:\.uni)?\s+\1;", ptx, re.MULTILINE | re.DOTALL)
    return [events(body) for _, body in bodies]


@pytest.mark.parametrize("config", EVERY)
def test_a_configuration_is_specialised_and_fits(config: str) -> None:
    code, parsed = made(config), Config.parse(config)
    assert "setmaxnreg.dec.sync.aligned.u32" in code.ptx
    registers = set(map(int, re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+);", code.ptx)))
    # Three warpgroups: 3 x 160 + 24 of the 4 x 128 that the block begins with.
    assert {4: {24}, 8: {24, 240}, 12: {24, 160}}[parsed.warps] <= registers
    assert code.threads == 32 * (parsed.warps + 4)  # the copying warp has a warpgroup's registers to itself
    assert code.spill_loads == code.stack_bytes == 0 or spills(config)
    assert code.shared_bytes == SPECIALIZED[config] == TMA.shared_bytes(config, 90, "nn")
    assert code.shared_bytes <= LIMITS[9, 0].shared_bytes_per_block
    assert code.registers * code.threads <= LIMITS[9, 0].registers_per_multiprocessor
    assert "tensormap.replace" not in code.ptx  # no descriptor is made on the device
    assert "HGMMA" in code.sass
    assert not re.search(r"\bHMMA", code.sass)


@pytest.mark.parametrize("config", EVERY)
def test_a_stage_is_given_back_when_its_product_is_done_and_refilled_when_all_gave_it_back(config: str) -> None:
    options = specialized_options(config)
    code = made(config)
    groups = options["DOWN"] * options["ACROSS"]
    # For each 16 of K and each 64 rows of a tensor of sums.
    products = options["BLOCK_K"] // 16 * (options["BLOCK_M"] // options["DOWN"] // 64)
    # That a warpgroup's sums are: 128 columns and 64, or 64 rows of its own and 64 of which it has half.
    tensors = 2 if options["BLOCK_N"] == 192 or config.startswith("192x256") else 1
    # A and B are stored along K: boxes of 64 elements. 192 rows are three, and so are 96 and 192 columns.
    parts = (3 if options["BLOCK_M"] == 192 else 1) + (3 if options["BLOCK_N"] % 3 == 0 else 1)
    copies = -(-options["BLOCK_K"] // 64) * parts
    multiplying = [loop for loop in loops(code.ptx) if "m" in loop]
    assert len(multiplying) == groups
    for loop in multiplying:
        assert re.fullmatch(rf"B*WB*(m{{{products}}}c){{{tensors}}}{tensors}B*A", loop), loop
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


def parts_of(config: str) -> list[list[tuple[range, range]]]:
    """Of each warpgroup the rows and columns of a tile that are its own, tensor by tensor of its sums."""
    parsed, groups = Config.parse(config), Config.parse(config).warps // 4
    m, n = parsed.tile_m, parsed.tile_n
    if (m, groups) == (192, 2):  # 64 rows each, and half of the columns of the last 64
        halves = range(n // 2), range(n // 2, n)
        return [[(range(64 * i, 64 * i + 64), range(n)), (range(128, 192), halves[i])] for i in range(2)]
    if m == 64:
        return [[(range(m), range(i * n // groups, (i + 1) * n // groups))] for i in range(groups)]
    return [[(range(i * m // groups, (i + 1) * m // groups), range(n))] for i in range(groups)]


def run_blocks(config: str, ptx: str, seed: int, layout: str = "nt") -> Iterator[Block]:
    """The blocks of a product of 3 x 3 tiles, the last ones partly full, with more steps of K than there are stages."""
    options = specialized_options(config)
    boxes = box_shapes(config, layout)
    M, N, K = 3 * options["BLOCK_M"] - 42, 3 * options["BLOCK_N"] - 8, 1000
    whole, parts = (8, 3) if config.endswith("_tail") else (9, 1)
    assert -(-K // options["BLOCK_K"]) > options["STAGES"]
    for program in range(PROGRAMS):
        block = Block(ptx, [M, N, K, whole, parts], boxes, program, PROGRAMS, PROGRAMS * seed + program)
        block.run()
        yield block


OTHERS = [(THREE, "tn"), (WIDE, "nn"), (SQUARE, "nn"), (SQUARE, "tn"), (SQUARE, "tt"), (MOST, "tn")]


@pytest.mark.parametrize(("config", "layout"), [*(with_any_triton(config, "nt") for config in ALONE), *OTHERS])
def test_a_ring_that_wraps_hands_every_warpgroup_its_part_of_every_tile(config: str, layout: str) -> None:
    options = specialized_options(config)
    tile_m, tile_n, step = options["BLOCK_M"], options["BLOCK_N"], options["BLOCK_K"]
    groups = parts_of(config)
    along_k = {A: layout[0] == "n", B: layout[1] == "t"}

    def products(turn: int, matrix: int, first: int, part: range, k: int) -> set[tuple[int, ...]]:
        """What starts each wgmma, for 16 of K, of a part of the rows or columns of a tile from ``first`` on: of rows
        along K in one of their 128 bytes, else in a row of its own."""
        firsts = range(first + part.start, first + part.stop, 64)
        if along_k[matrix]:
            return {(turn, matrix, k + more, first) for first in firsts for more in range(0, step, 64)}
        return {(turn, matrix, first, k + more) for first in firsts for more in range(0, step, 16)}

    def corner(block: Block, turn: int, matrix: int) -> tuple[int, int]:
        """The first row or column of a turn's tile, and its first of K."""
        x, y = min(box.corner for box in block.copies if (box.turn, box.matrix) == (turn, matrix))
        return (y, x) if along_k[matrix] else (x, y)

    multiplied: Counter[tuple[int, ...]] = Counter()
    stored: Counter[tuple[int, int]] = Counter()
    for block in run_blocks(config, made(config, layout=layout).ptx, 5, layout):
        turns: list[tuple[int, int, int]] = []
        for turn in range(1, block.turn + 1):
            (m, k), (n, k_of_b) = corner(block, turn, A), corner(block, turn, B)
            assert k == k_of_b
            turns.append((m, n, k))
        multiplied.update(turns)
        busy = [warp for warp in block.warps if warp.products]
        assert len(busy) == 4 * len(groups)
        for index, warp in enumerate(busy):
            parts = groups[index // 4]
            assert warp.products == [
                {place for rows, _ in parts for place in products(turn, A, m, rows, k)}
                | {place for _, columns in parts for place in products(turn, B, n, columns, k)}
                for turn, (m, n, k) in enumerate(turns, 1)
            ]
            corners = [(x % tile_n, y % tile_m) for x, y in warp.stores]
            assert all(any(x in columns and y == rows.start for rows, columns in parts) for x, y in corners)
            stored.update(warp.stores)
    steps = range(0, 1000, step)
    tiles = {(m * tile_m, n * tile_n, k) for m in range(3) for n in range(3) for k in steps}
    assert multiplied == Counter(tiles)
    pieces = {
        (n * tile_n + x, m * tile_m + rows.start)
        for parts in groups
        for rows, columns in parts
        for x in columns[::64]
        for m, n in itertools.product(range(3), repeat=2)
    }
    assert set(stored) <= pieces
    whole = 8 if config.endswith("_tail") else 9
    assert stored.total() == len(stored) == whole * len(pieces) // 9


@pytest.mark.one_triton
@pytest.mark.parametrize(
    ("config", "pattern", "replacement"),
    [
        # No arrival in the loop: what arrives is what is arrived at past the loop.
        (LARGEST, r"@%p\d+ (mbarrier\.arrive\.shared::cta\.b64 _, \[%r\d+\];)(?=(?:(?!\$L__BB).)*\bbra)", ""),
        # Two phases a lap of the ring: the parity that is waited for stays away.
        (LARGEST, r"(mbarrier\.init\S+ \[%r\d+\]), 2;", r"\1, 1;"),
        (LARGEST, r"(mbarrier\.init\S+ \[%r\d+\]), 2;", r"\1, 3;"),
        (THREE, r"(mbarrier\.init\S+ \[%r\d+\]), 3;", r"\1, 2;"),
        (THREE, r"(mbarrier\.init\S+ \[%r\d+\]), 3;", r"\1, 4;"),
        (LARGEST, r"expect_tx(\S+) _, \[(%r\d+)\], 49152", r"expect_tx\1 _, [\2], 49168"),
        (LARGEST, r"expect_tx(\S+) _, \[(%r\d+)\], 49152", r"expect_tx\1 _, [\2], 16384"),
        # Two of the three copies of A, and the one of B.
        (THREE, r"expect_tx(\S+) _, \[(%r\d+)\], 40960", r"expect_tx\1 _, [\2], 32768"),
        (SQUARE, r"expect_tx(\S+) _, \[(%r\d+)\], 49152", r"expect_tx\1 _, [\2], 40960"),
        # The copy of A, and two of the three of B.
        (WIDE, r"expect_tx(\S+) _, \[(%r\d+)\], 40960", r"expect_tx\1 _, [\2], 32768"),
        (WIDE, r"(mbarrier\.init\S+ \[%r\d+\]), 3;", r"\1, 2;"),
        (LARGEST, r"(wgmma\.wait_group\.sync\.aligned) 1;", r"\1 2;"),
        (THREE, r"(wgmma\.wait_group\.sync\.aligned) 1;", r"\1 2;"),
        (SQUARE, r"(wgmma\.wait_group\.sync\.aligned) 2;", r"\1 3;"),
        # Copies what the kernel in front may not have written yet.
        (LARGEST, r"griddepcontrol\.wait;", ""),
        (LARGEST, r"(setmaxnreg\.inc\.sync\.aligned\.u32\s+)240;", r"\g<1>248;"),
        (THREE, r"(setmaxnreg\.inc\.sync\.aligned\.u32\s+)160;", r"\g<1>168;"),
    ],
)
def test_a_ring_out_of_step_is_found(config: str, pattern: str, replacement: str) -> None:
    config = config.removesuffix("_tail")
    ptx, count = re.subn(pattern, replacement, made(config).ptx, flags=re.DOTALL)
    assert count
    with pytest.raises((Hang, Race)):
        for seed in range(8):
            list(run_blocks(config, ptx, seed))


@pytest.mark.parametrize("config", EVERY)
def test_c_leaves_in_pieces_by_tma_and_parts_by_stores(config: str) -> None:
    options, parts = specialized_options(config), parts_of(config)
    if NEWER and len(parts) == 3:
        pytest.skip("what ends the text of two warpgroups is one: test_triton_stored_later counts what is stored")
    ptx = made(config).ptx
    text = events(ptx)
    # Pieces of 64 columns, or all. One a step while the next tile is multiplied, or of 192 sums a thread those of the
    # second tensor; what waits is in the text once more, for the block's last tile.
    own = [[len(columns[::64]) for _, columns in group] for group in parts]
    at_once = 1 if config.startswith("192x256") else 0  # tensors of each warpgroup
    assert options["STORE_STEPS"] == (0 if at_once else sum(own[0]))
    pieces = sum(sum(group[:at_once]) + 2 * sum(group[at_once:]) for group in own)
    # Behind the read of the store that used the buffer before, and a barrier; seen by TMA behind fence and barrier.
    elements = len(parts[0][0][0]) * min(64, len(parts[0][0][1]))
    stored = re.findall(rf"rB(?:B*s{{{elements // 1024}}})FB+S", text)
    assert len(stored) == pieces == text.count("S")
    # The others of the warpgroup's buffers may still be read, until it returns.
    left = Counter(map(int, re.findall(r"bulk\.wait_group\.read\s+(\d+);", ptx)))
    assert left == Counter({options["C_BUFFERS"] - 1: pieces}) + Counter({0: len(parts)})
    assert ("g" in text) == config.endswith("_tail")
    assert re.findall(r"griddepcontrol\.(\w+)", ptx).count("launch_dependents") == 1
    assert set(re.findall(r"st\.global\.(\S+)", ptx)) <= {"v2.b32"}


@pytest.mark.parametrize(
    ("config", "dtype", "layout"),
    [
        # With another Triton each configuration in two layouts, and each layout twice.
        pytest.param(config, dtype, layout, marks=[] if (row + column) % 4 in (0, 3) else [pytest.mark.one_triton])
        for row, (config, dtype) in enumerate(
            [
                *((config, FP16) for config in (SMALLEST, MOST)),
                *((config, BF16) for config in (LARGEST, THREE, WIDE, SQUARE)),
                (MOST.removesuffix("_tail"), BF16),
            ]
        )
        for column, layout in enumerate(LAYOUTS)
    ],
    ids=str,
)
def test_every_layout_and_type_is_multiplied_from_shared_memory(config: str, dtype: torch.dtype, layout: str) -> None:
    code = made(config, dtype, layout)
    kind = "bf16" if dtype == BF16 else "f16"
    products = re.findall(
        r"wgmma\.mma_async\S+k16\.(\S+)\s[^;]*?\}, %rd\d+, %rd\d+, %p\d+, 1, 1, (\d), (\d);", code.ptx
    )
    # The two flags say that the operand is contiguous across K: a column-major A, a row-major B.
    expected = f"f32.{kind}.{kind}", "01"[layout[0] == "t"], "01"[layout[1] == "n"]
    assert len(products) == code.ptx.count("wgmma.mma_async")
    assert set(products) == {expected}
    assert code.spill_loads == code.stack_bytes == 0 or spills(config)


@pytest.mark.one_triton
@pytest.mark.parametrize("config", ALONE)
def test_warpgroups_share_a_tile_evenly(config: str) -> None:
    parsed, options = Config.parse(config), specialized_options(config)
    assert (parsed.warp_m, parsed.warp_n) == warp_tile(parsed.tile_m, parsed.tile_n, parsed.warps)
    assert options["DOWN"] * options["ACROSS"] * 4 == parsed.warps
    parts = parts_of(config)
    covered = Counter((m, n) for group in parts for rows, columns in group for m in rows[::32] for n in columns[::32])
    assert covered == Counter(itertools.product(range(0, parsed.tile_m, 32), range(0, parsed.tile_n, 32)))
    sums = {sum(len(rows) * len(columns) for rows, columns in group) for group in parts}
    assert sums == {parsed.tile_m * parsed.tile_n // len(parts)}
    assert sums.pop() <= 128 * {4: 128, 8: 192, 12: 96}[parsed.warps]  # of a thread
    for rows, columns in itertools.chain(*parts):
        assert len(rows) % 64 == 0
        assert 1 << len(columns).bit_length() - 1 <= 256  # of the wider tensor of sums, which one wgmma has
    rows, columns = parts[0][0]
    piece = len(rows), min(64, len(columns))
    # As many buffers as divide the pieces of a tile and are left room by the ring, but no more than four.
    pieces = sum(len(columns[::64]) for _, columns in parts[0])
    ring = 2 * parsed.stages * parsed.tile_k * (parsed.tile_m + parsed.tile_n)
    fit = [
        n for n in (1, 2, 3, 4) if ring + 2 * n * len(parts) * math.prod(piece) <= LIMITS[9, 0].shared_bytes_per_block
    ]
    assert options["C_BUFFERS"] == max(n for n in fit if pieces % n == 0)
    for layout in LAYOUTS:
        a, b, c = blocks(config, *layout)
        copied = 64 if parsed.tile_m == 192 else parsed.tile_m
        assert a == ((copied, parsed.tile_k) if layout[0] == "n" else (parsed.tile_k, copied))
        copied = {96: 32, 192: 64}.get(parsed.tile_n, parsed.tile_n)
        assert b == ((parsed.tile_k, copied) if layout[1] == "n" else (copied, parsed.tile_k))
        assert c == piece


@pytest.mark.parametrize("config", [case for case in EVERY if str(case.values[0]).endswith("_tail")])
def test_parts_are_added_16_bytes_a_thread(config: str) -> None:
    options = specialized_options(config)
    columns = {192: 64}.get(options["BLOCK_N"], options["BLOCK_N"])
    names = add_shared_tiles.arg_names
    constants = {name: options[name] for name in ("BLOCK_M", "BLOCK_N", "GROUP_M")} | {
        "PARTS": 2,
        "ROWS": ROWS,
        "COLUMNS": columns,
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
    assert loads == ["v4.b32"] * (2 * ROWS * columns // (4 * 128))
    assert set(re.findall(r"st\.global\.(\S+)", ptx)) == {"v4.b32"}
    assert "griddepcontrol.wait" in ptx
    assert resource_usage(code.asm["cubin"])["STACK"] == 0
    assert "LDL" not in disassemble(code.asm["cubin"])
