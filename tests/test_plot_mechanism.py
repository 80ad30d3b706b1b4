"""The numbers behind the pictures of how it works, against what is worked out by hand, and that these are drawn."""

import dataclasses
import itertools
from collections import Counter

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hgemm.bench.suites import Shape
from hgemm.cuda_kernels.configs import FAMILIES
from hgemm.plot import pipeline, raster, swizzle
from hgemm.plot.mechanism import Functions, Options, board, kernel
from hgemm.plot.source import NothingToDraw

mpl.use("Agg")

TMA_64, TMA_32 = "cuda_tma:128x128x64_s3_w64x32", "cuda_tma:128x128x32_s3_w64x32"
NOSWIZZLE = "cuda_cp_async:128x128x32_s3_w64x32_noswizzle"
MULTICAST = "cuda_tma:256x128x64_s4_w64x64_producer_persistent_multicast"
TAIL = "cuda_tma:256x128x64_s4_w64x64_rotate_persistent_tail"
KERNELS = [f"{family.backend}:{config.name}" for family in FAMILIES.values() for config in family.configs]


def texts(figure: Figure) -> list[mpl.text.Text]:
    figure.canvas.draw()
    return [text for text in figure.findobj(mpl.text.Text) if text.get_text() and text.get_visible()]


# ---- swizzle ----


def documented_swizzle(span: int, offset: int) -> int:
    """As NVIDIA documents it: which address bits are replaced by their exclusive or with which."""
    for low, high in {128: ((4, 7), (5, 8), (6, 9)), 64: ((4, 7), (5, 8)), 0: ()}[span]:
        offset ^= (offset >> high & 1) << low
    return offset


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        (range(0, 8 * 128, 128), 8),  # a column of rows of 128 bytes: all in banks 0 to 3
        (range(0, 8 * 64, 64), 4),  # of 64 bytes: every other one half a line further on
        (range(0, 8 * 32, 32), 2),
        (range(0, 8 * 144, 144), 1),  # each row 16 bytes further on
        (range(0, 128, 16), 1),
        ([0] * 8, 1),  # the same bytes for all: delivered once
        ([0, 0, 0, 0, 128, 128, 16, 32], 2),
    ],
)
def test_passes_are_the_most_reads_of_one_group_of_banks(offsets, expected: int) -> None:
    assert swizzle.passes(tuple(offsets)) == expected


@pytest.mark.parametrize("name", KERNELS)
def test_every_lane_names_the_row_of_its_8x8_matrix(name: str) -> None:
    functions, shape = Functions(kernel(name)), kernel(name).config.config
    swizzled = "noswizzle" not in shape.flags
    fragments_a, fragments_b = (range(min(4, extent // 16)) for extent in (shape.warp_m, shape.warp_n))
    lanes = itertools.product(range(shape.warps), range(32), range(4), range(shape.tile_k // 16))
    row_bytes = min(128, 2 * shape.tile_k)  # of A: a longer tile is boxes of 64 elements along K, one behind the other
    for warp, lane, fragment, step in lanes:
        matrix, row = divmod(lane, 8)
        # A: matrices (rows 0-7, k 0-7), (rows 8-15, k 0-7), (rows 0-7, k 8-15), (rows 8-15, k 8-15), K contiguous.
        # Of 96 rows each warp takes 32 in turn.
        piece = 32 if shape.warp_m == 96 else shape.warp_m
        first = warp // (shape.tile_n // shape.warp_n) * piece + 16 * fragment // piece * 64 + 16 * fragment % piece
        m = first + 8 * (matrix % 2) + row
        k = 16 * step + 8 * (matrix // 2)
        plain = k // 64 * (128 * shape.tile_m) + m * row_bytes + k % 64 * 2
        expected = documented_swizzle(row_bytes if swizzled else 0, plain)
        if fragment in fragments_a:
            assert functions.ldmatrix_offset("A", warp, lane, fragment, step) == expected
        # B: (k 0-7, columns 0-7), (k 8-15, columns 0-7), then columns 8-15, N contiguous in boxes of 64 columns.
        n = warp % (shape.tile_n // shape.warp_n) * shape.warp_n + 16 * fragment + 8 * (matrix // 2)
        k = 16 * step + 8 * (matrix % 2) + row
        plain = n // 64 * (128 * shape.tile_k) + k * 128 + n % 64 * 2
        if fragment in fragments_b:
            assert functions.ldmatrix_offset("B", warp, lane, fragment, step) == documented_swizzle(
                128 if swizzled else 0, plain
            )


@pytest.mark.parametrize("where", [(8, 0, 0, 0), (0, 32, 0, 0), (0, 0, 4, 0), (0, 0, 0, 4), (-1, 0, 0, 0)])
def test_lanes_that_are_not_there_are_refused(where: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=f"{TMA_64} has no warp {where[0]}, lane {where[1]}"):
        Functions(kernel(TMA_64)).ldmatrix_offset("A", *where)


def test_plain_rows_conflict_and_swizzled_ones_do_not() -> None:
    operands = swizzle.picture(Options()).facts["operands"]
    assert [(each["operand"], each["row_bytes"]) for each in operands] == [("A", 128), ("A", 64), ("B", 128)]
    assert [each["plain"]["passes"] for each in operands] == [8, 4, 8]
    assert [each["swizzled"]["passes"] for each in operands] == [1, 1, 1]
    assert operands[0]["plain"]["offsets"] == operands[2]["plain"]["offsets"] == [128 * row for row in range(8)]
    assert operands[0]["swizzled"]["offsets"] == operands[2]["swizzled"]["offsets"] == [144 * row for row in range(8)]
    assert operands[1]["plain"]["offsets"] == [64 * row for row in range(8)]
    assert operands[1]["swizzled"]["offsets"] == [0, 64, 128 + 16, 192 + 16, 256 + 32, 320 + 32, 384 + 48, 448 + 48]
    # 8 warps of 64x32 with 4 phases an ldmatrix: of A 4 fragments, of B 2, in each of the 4 (2) k-steps of 16.
    phases = [8 * 4 * 4 * 4, 8 * 4 * 2 * 4, 8 * 2 * 4 * 4]
    assert [each["plain"]["phases_by_passes"] for each in operands] == [
        {count: number} for count, number in zip((8, 4, 8), phases, strict=True)
    ]
    assert [each["swizzled"]["phases_by_passes"] for each in operands] == [{1: number} for number in phases]


def filled(axes: mpl.axes.Axes, colour: str) -> set[tuple[float, float]]:
    rectangles = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return {patch.get_xy() for patch in rectangles if to_hex(patch.get_facecolor()) == colour.lower()}


def test_the_grids_show_the_banks_that_are_touched() -> None:
    panels = swizzle.picture(Options()).figure.axes
    diagonal = {(row, row) for row in range(8)}
    # Rows of 64 bytes: two in a line of the grid, the chunk moved by half the row's index.
    halves = {(row % 2 * 4 + row // 2, row // 2) for row in range(8)}
    plain = [{(0, row) for row in range(8)}, {(row % 2 * 4, row // 2) for row in range(8)}]
    assert [filled(axes, swizzle.BAD) for axes in panels[::2]] == [plain[0], plain[1], plain[0]]
    assert [filled(axes, swizzle.GOOD) for axes in panels[1::2]] == [diagonal, halves, diagonal]
    for axes in panels:  # every 16 bytes of a row is somewhere, the first of it under its lane's name
        words = Counter(text.get_text() for text in axes.texts)
        assert all(words[f"lane {lane}"] == 1 for lane in range(8))


def test_the_chosen_kernel_is_said_to_be_swizzled_or_not() -> None:
    for name, storage in (
        (NOSWIZZLE, "plain (this kernel): 4 passes"),
        (TMA_64, "128-byte swizzle (this kernel): 1 pass"),
    ):
        picture = swizzle.picture(Options(config=kernel(name)))
        marked = [text.get_text() for text in texts(picture.figure) if "(this kernel)" in text.get_text()]
        assert len(marked) == 2
        assert marked[0].startswith(storage)
        assert {each["kernel"] for each in picture.facts["operands"]} == {name}


# ---- pipeline ----


def test_a_trace_becomes_uses_of_stages() -> None:
    trace = [
        *[(1, "issued", 0), (1, "landed", 0), (2, "issued", 0), (3, "issued", 1), (4, "landed", 0)],
        *[(5, "read", 0), (9, "read", 0), (10, "issued", 0), (11, "landed", 1), (12, "read", 1)],
        *[(13, "issued", 7), (14, "landed", 0), (15, "read", 0), (16, "issued", 1)],
    ]
    assert pipeline.fills(trace, 2) == (
        pipeline.Fill(stage=0, k_tile=0, issued=1, landed=4, first_read=5, last_read=9),
        pipeline.Fill(stage=1, k_tile=1, issued=3, landed=11, first_read=12, last_read=12),
        pipeline.Fill(stage=0, k_tile=2, issued=10, landed=14, first_read=15, last_read=15),
    )


def test_time_for_a_copy_is_that_of_copies_issued_during_the_work() -> None:
    times = [(0, 8, 10, 19), (1, 14, 20, 29), (2, 16, 30, 39), (21, 39, 40, 49), (31, 49, 50, 59)]
    fills = tuple(pipeline.Fill(number % 3, number, *each) for number, each in enumerate(times))
    found = pipeline.Run(kernel(TMA_32), "lazy", fills)
    assert (found.period, found.end) == (10, 59)
    assert found.slack == 1.8  # two of 18 steps


@pytest.mark.parametrize("schedule", ["lazy", "eager"])
@pytest.mark.parametrize("name", KERNELS)
def test_stages_are_used_in_turn_and_never_two_ways_at_once(name: str, schedule: str) -> None:
    found = pipeline.run(kernel(name), schedule)
    stages = kernel(name).config.config.stages
    assert [fill.k_tile for fill in found.fills] == list(range(pipeline.K_TILES))
    assert [fill.stage for fill in found.fills] == [tile % stages for tile in range(pipeline.K_TILES)]
    for fill in found.fills:
        assert fill.issued <= fill.landed <= fill.first_read < fill.last_read
    for earlier, later in zip(found.fills, found.fills[stages:], strict=False):
        assert earlier.last_read < later.issued


@pytest.mark.parametrize(("stages", "tiles"), [(2, 1), (3, 2)])
def test_cp_async_gives_a_copy_all_but_one_stage_of_time(stages: int, tiles: int) -> None:
    found = pipeline.run(kernel(f"cuda_cp_async:128x128x32_s{stages}_w64x32"), "lazy")
    assert found.slack == pytest.approx(tiles, abs=0.1)
    # A warp: 2 k-steps of 4 + 2 ldmatrix and 16 mma, 4 cp.async, commit, wait, barrier; eight of them.
    assert found.period == 8 * (2 * (4 + 2 + 16) + 4 + 3)
    # The next copy starts behind the barrier, before this tile is read.
    for now, ahead in zip(found.fills, found.fills[stages - 1 :], strict=False):
        assert ahead.issued < now.first_read


def test_tma_refills_a_stage_once_it_is_read() -> None:
    found = pipeline.run(kernel(TMA_32), "lazy")
    assert found.slack == pytest.approx(2, abs=0.1)
    # A warp: 2 k-steps as above, barrier, wait; and one of them elects, announces and copies three boxes.
    assert found.period == 8 * (2 * (4 + 2 + 16) + 2) + 5
    for now, refill in zip(found.fills, found.fills[3:], strict=False):
        assert now.last_read < refill.issued < found.fills[now.k_tile + 1].first_read


def test_what_lands_at_once_waits_in_its_stage() -> None:
    lazy, eager = (pipeline.run(kernel(TMA_32), schedule) for schedule in ("lazy", "eager"))
    for fill in eager.fills:  # three boxes in three instructions
        assert fill.landed - fill.issued == 2
    for late, early in zip(lazy.fills[3:], eager.fills[3:], strict=True):
        assert late.first_read - late.landed < 10
        assert early.first_read - early.landed > 1.5 * eager.period


def test_bars_are_the_runs() -> None:
    picture = pipeline.picture(Options())
    assert [(run["kernel"], run["schedule"]) for run in picture.facts["runs"]] == list(pipeline.DEFAULT)
    for axes, run in zip(picture.figure.axes, picture.facts["runs"], strict=True):
        bars = [patch for patch in axes.patches if to_hex(patch.get_facecolor()) == pipeline.READ["facecolor"].lower()]
        drawn = [(bar.get_x(), bar.get_x() + bar.get_width(), int(bar.get_y())) for bar in bars]
        assert drawn == [(fill["first_read"], fill["last_read"], fill["stage"]) for fill in run["fills"]]
        loading = [patch for patch in axes.patches if patch.get_hatch()]
        assert {(bar.get_x(), bar.get_x() + bar.get_width()) for bar in loading} == {
            (fill["issued"], fill["landed"]) for fill in run["fills"]
        }
    (axes,) = picture.figure.axes[-1:]
    assert axes.get_xlabel() == "steps of the emulator"


def test_stages_that_another_block_fills_are_not_drawn() -> None:
    with pytest.raises(NothingToDraw, match=r"multicast: 2 blocks fill each other's stages"):
        pipeline.picture(Options(config=kernel(MULTICAST)))


def test_a_chosen_kernel_runs_late_and_early() -> None:
    runs = pipeline.picture(Options(config=kernel(TMA_64))).facts["runs"]
    assert [(run["kernel"], run["schedule"]) for run in runs] == [(TMA_64, "lazy"), (TMA_64, "eager")]


# ---- raster ----


def waves(gpu: str, M: int, N: int, name: str = TMA_64) -> raster.Waves:
    return raster.waves(Functions(kernel(name)), board(gpu), Shape(M, N, 64))


@pytest.mark.parametrize(
    ("gpu", "name", "blocks", "filled"),
    [
        # 1024 tiles. 98,328 bytes: one block in the 102,400 of an RTX 5090, two in the 233,472 of an H200.
        ("RTX 5090", TMA_64, 1, (170,) * 6 + (4,)),
        ("H200", TMA_64, 2, (264,) * 3 + (232,)),
        # 49,176 bytes: two on both, and no more than it is compiled for.
        ("RTX 5090", TMA_32, 2, (340,) * 3 + (4,)),
        ("H200", TMA_32, 2, (264,) * 3 + (232,)),
        ("RTX 5060", TMA_64, 1, (30,) * 34 + (4,)),
    ],
)
def test_waves_of_4096(gpu: str, name: str, blocks: int, filled: tuple[int, ...]) -> None:
    found = waves(gpu, 4096, 4096, name)
    assert found.blocks == blocks
    assert found.filled == filled
    assert found.count == len(filled)
    assert found.used == 1024 / (len(filled) * filled[0])


@pytest.mark.parametrize(("M", "N"), [(4096, 4096), (1000, 1500), (128, 128), (1, 4096), (4096, 1), (1153, 640)])
def test_every_tile_has_exactly_one_block(M: int, N: int) -> None:
    found = waves("H200", M, N)
    tiles = list(itertools.product(range((M + 127) // 128), range((N + 127) // 128)))
    assert sorted(found.order) == tiles
    assert sum(found.filled) == len(tiles)
    assert found.tiles == (tiles[-1][0] + 1, tiles[-1][1] + 1)


def test_bands_of_eight_rows_are_walked_column_by_column() -> None:
    order = waves("H200", 1280, 384).order  # 10 x 3 tiles: a band of 8 rows, one of 2
    assert order[:9] == (*((row, 0) for row in range(8)), (0, 1))
    assert order[24:] == ((8, 0), (9, 0), (8, 1), (9, 1), (8, 2), (9, 2))


def test_the_blocks_of_a_cluster_are_side_by_side() -> None:
    # 9 x 3 tiles of 256 x 128: two columns of pairs, the last half outside of C, in bands of eight rows.
    found = waves("H200", 9 * 256, 384, MULTICAST)
    assert found.order[:18] == (*((row, column) for row in range(8) for column in (0, 1)), (0, 2), (0, 3))
    assert found.order[32:] == ((8, 0), (8, 1), (8, 2), (8, 3))
    assert (found.tiles, found.filled, found.blocks) == ((9, 4), (36,), 1)


def test_a_tile_whose_k_is_split_takes_the_places_of_a_cluster() -> None:
    # 264 places on an H200. Of the 170 of an RTX 5090 a few are left over: a cluster lies within one GPC.
    assert waves("H200", 4096, 4096, f"{TMA_64}_split2").filled == (132,) * 7 + (100,)
    assert 150 // 4 <= waves("RTX 5090", 4096, 4096, f"{TMA_64}_split4").size < 170 // 4


@pytest.mark.parametrize(
    ("options", "remark"),
    [
        (
            Options(config=kernel(MULTICAST), gpu=board("H200"), mnk=Shape(2304, 384, 64)),
            "The last column lies outside",
        ),
        (Options(config=kernel(TAIL), gpu=board("H200"), mnk=Shape(2304, 384, 64)), "cut along K and shared out"),
    ],
)
def test_what_is_not_a_tile_for_a_block_is_told(options: Options, remark: str) -> None:
    assert [text for text in texts(raster.picture(options).figure) if remark in text.get_text()]
    other = dataclasses.replace(options, mnk=Shape(256 * 66, 256 * 2, 64))  # two whole waves of whole clusters
    assert not [text for text in texts(raster.picture(other).figure) if remark in text.get_text()]


def test_the_last_partly_filled_wave_is_hatched_and_named() -> None:
    picture = raster.picture(Options())
    figure = picture.figure
    hatched = {patch.get_xy() for patch in figure.axes[0].patches if patch.get_hatch()}
    assert hatched == {(31, row) for row in range(28, 32)}
    words = [text.get_text() for text in texts(figure)]
    assert "Waves of tiles, RTX 5090, 4096³: the last of 7 is 2% full" in words
    assert "wave 7: 1020 - 1023" in words
    assert "86% of all places used" in words  # 1024 of 7 x 170
    # The numbers of the waves stand on tiles of their own.
    tile_of = {tile: index for index, tile in enumerate(map(tuple, picture.facts["order"]))}
    named = [text for text in figure.axes[0].texts if text.get_text().isdigit()]
    assert [text.get_text() for text in named] == [str(number) for number in range(1, 8)]
    for text in named:
        x, y = text.get_position()
        assert tile_of[int(y), int(x)] // 170 == int(text.get_text()) - 1


def test_a_full_last_wave_is_not_hatched() -> None:
    picture = raster.picture(Options(gpu=board("H200"), mnk=Shape(128 * 8, 128 * 33, 64)))  # 264 tiles
    assert not [patch for patch in picture.figure.axes[0].patches if patch.get_hatch()]
    assert "Waves of tiles, H200, 1024 x 4224 x 64: a single one, 100% full" in [
        text.get_text() for text in texts(picture.figure)
    ]


def test_few_tiles_hold_the_numbers_of_their_blocks() -> None:
    picture = raster.picture(Options(mnk=Shape(1280, 384, 64)))
    numbers = {text.get_text(): text.get_position() for text in picture.figure.axes[0].texts}
    assert len(numbers) == 30
    for index, (row, column) in enumerate(picture.facts["order"]):
        x, y = numbers[str(index)]
        assert (int(x), int(y)) == (column, row)


def test_what_a_gpu_cannot_run_is_not_drawn() -> None:
    with pytest.raises(NothingToDraw, match=r"196,640 bytes of shared memory a block, more than RTX 5090 has"):
        waves("RTX 5090", 4096, 4096, "cuda_tma:256x128x64_s4_w64x64")
    ampere = dataclasses.replace(board("RTX 5090"), title="an RTX 3090", compute_capability=(8, 6))
    with pytest.raises(NothingToDraw, match=r"cuda_tma needs compute capability 9\.0, an RTX 3090 has 8\.6"):
        raster.waves(Functions(kernel(TMA_64)), ampere, Shape(4096, 4096, 64))
    with pytest.raises(NothingToDraw, match=r"is 65,792 tiles of 128 x 128, and a picture shows at most 65,536"):
        waves("H200", 257 * 128, 256 * 128)


# ---- all ----


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (swizzle, Options()),
        (swizzle, Options(config=kernel(NOSWIZZLE))),
        (pipeline, Options()),
        (pipeline, Options(config=kernel("cuda_tma:256x128x64_s4_w64x64"))),
        (raster, Options()),
        (raster, Options(gpu=board("RTX 5060 Laptop"), mnk=Shape(16384, 16384, 16384))),
        (raster, Options(gpu=board("RTX PRO 6000 Max-Q"), mnk=Shape(1, 128, 64))),
        (raster, Options(mnk=Shape(8192, 1, 64))),
        (raster, Options(config=kernel(MULTICAST), gpu=board("H200"), mnk=Shape(2304, 384, 64))),
        (raster, Options(config=kernel(TAIL), gpu=board("H200"))),
        (raster, Options(config=kernel(f"{TMA_64}_split4"), gpu=board("RTX PRO 6000 Max-Q"))),
    ],
)
def test_texts_stay_inside_and_do_not_collide(module, options: Options) -> None:
    figure = module.picture(options).figure
    shown = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    names, boxes = [name for name, _ in shown], np.array([box.extents for _, box in shown])
    width, height = figure.bbox.size
    outside = (boxes[:, :2] < 0).any(axis=1) | (boxes[:, 2] > width) | (boxes[:, 3] > height)
    assert not [names[index] for index in np.flatnonzero(outside)]
    low, high = boxes[:, :2], boxes[:, 2:]
    overlap = np.minimum(high[:, None], high[None]) - np.maximum(low[:, None], low[None])
    # A few pixels of slack in height: boxes include the space above capitals and below the line.
    touching = np.triu((overlap > (1, 3)).all(axis=2), 1)
    assert not [(names[first], names[second]) for first, second in np.argwhere(touching)]
