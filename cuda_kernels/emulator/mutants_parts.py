"""Faults planted in parts.cuh and where else K is cut: which part a block multiplies, leaves behind, and adds."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

SPLIT = "16x64x64_s7_w16x16_split4"
SHAPE = (20, 136, 520)
"""Six tiles of C, the last ones partly outside, and nine tiles of K: parts of two and three."""


def _parts(
    name: str,
    what: str,
    original: str,
    changed: str,
    *caught_by: str,
    file: str = "parts.cuh",
    shape: tuple[int, int, int] = SHAPE,
    batch: int = 1,
    order_matters: bool = False,
) -> Mutant:
    mutant = Mutant(f"parts-{name}", what, file, original, changed, caught_by, "tma", SPLIT, shape, batch)
    return Mutant(**{**vars(mutant), "order_matters": order_matters})


MUTANTS = (
    # which part of K a block multiplies
    _parts(
        "same-part",
        "every block multiplies the first part",
        "(k_range.first + k_tile)",
        "k_tile",
        VALUES,
        file="tma.cuh",
    ),
    _parts(
        "overlap",
        "a part takes along a tile of K that belongs to the next",
        "end = (part + 1) * k_tiles / parts;",
        "end = ((part + 1) * k_tiles + parts - 1) / parts;",
        VALUES,
        file="raster.cuh",
    ),
    _parts(
        "empty-part",
        "as many parts as the configuration says, also where K has fewer tiles",
        "return k_tiles < Config::PARTS ? k_tiles : Config::PARTS;",
        "return k_tiles < 0 ? k_tiles : Config::PARTS;",
        "deadlock",
        "in-flight",
        "mbarrier",
        "unfinished-copy",
        shape=(20, 136, 136),
    ),
    _parts(
        "wrong-part",
        "neighbours take the parts of a tile, but leave them as those of neighbouring tiles",
        "part = number / split.tiles;\n    number -= part * split.tiles;",
        "part = number % split.parts;\n    number /= split.tiles;",
        VALUES,
        "race",
        "uninitialised",
        file="tma.cuh",
    ),
    # what it leaves
    _parts(
        "one-slot",
        "the parts of a tile and of its neighbours share their places",
        "return int64_t{part} * tiles + tile;",
        "return int64_t{part} + tile;",
        "race",
    ),
    _parts(
        "workspace-too-small",
        "the workspace lacks the last part",
        "block_count<Config>(p) * part_count<Config>(p)",
        "block_count<Config>(p) * (part_count<Config>(p) - 1)",
        "out-of-bounds",
    ),
    _parts(
        "piece-in-place-of-another",
        "all pieces of a warp lie in one place",
        "const int piece = warp * OF_WARP + down;",
        "const int piece = down;",
        "race",
    ),
    # how it is added
    _parts(
        "no-wait-for-kernel",
        "adds what the first kernel may still be writing",
        "  ptx::griddepcontrol_wait();\n",
        "",
        "race",
    ),
    _parts(
        "one-part-less",
        "the last part is left out",
        "? slots.count : 0;",
        "? slots.count - 1 : 0;",
        VALUES,
    ),
    _parts(
        "one-part-more",
        "adds a part that nobody has written",
        "? slots.count : 0;",
        "? slots.count + 1 : 0;",
        "out-of-bounds",
        "uninitialised",
    ),
    _parts(
        "rows-past-the-last",
        "reads sums of rows that are not in C, which nobody leaves",
        "const uint32_t count = Pieces::reaches(c.M, c.N, place, lane) ? slots.count : 0;",
        "const uint32_t count = slots.count;",
        "uninitialised",
    ),
    _parts(
        "first-part-again",
        "adds the first part as often as there are parts",
        "(first + i) * slots.stride",
        "first * slots.stride",
        VALUES,
    ),
    _parts(
        "last-part-first",
        "adds the parts from the last to the first",
        "(first + i) * slots.stride",
        "(count - 1 - first - i) * slots.stride",
        VALUES,
        shape=(20, 136, 256),
        order_matters=True,
    ),
    _parts(
        "neighbours-swapped",
        "adds every second part before the one ahead of it",
        "(first + i) * slots.stride",
        "((first + i) ^ 1) * slots.stride",
        VALUES,
        shape=(20, 136, 256),
        order_matters=True,
    ),
    _parts(
        "adds-another-tile",
        "the sums of each batch go to the first",
        "            tile.batch};",
        "            0};",
        "unwritten-output",
        VALUES,
        batch=2,
    ),
)
