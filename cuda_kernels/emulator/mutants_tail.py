"""Faults planted in tail.cuh and in how the two kernels that share a last wave out follow it."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

TAIL = "256x128x64_s4_w64x64_rotate_persistent_tail"
ALL_CUT = (500, 72, 1664)
"""Two tiles of C for three blocks, 26 tiles of K each: parts of 18 and of 17, the second block's from both tiles."""
LAST_CUT = (1000, 72, 1472)
"""Four tiles of C, of which the fourth is cut: three blocks have 8, 8 and 7 of its 23 tiles of K."""
NOT_PERSISTENT = "128x256x64_s2_w64x64_tail"
TWO_PARTS = (200, 72, 1728)
"""Two of its tiles for three blocks, 27 tiles of K each: parts of 18 and of 9, the second block's from both tiles."""
ONE_OF_THE_SECOND = (378, 72, 832)
"""Three tiles for ten blocks, 13 tiles of K each: nine take four or five, of which the sixth has three of one tile and
one of the next, which comes into the second stage."""
LAST_OF_FOUR = (500, 72, 1472)
"""As LAST_CUT."""


def _tail(
    name: str,
    what: str,
    original: str,
    changed: str,
    *caught_by: str,
    file: str = "tail.cuh",
    shape: tuple[int, int, int] = ALL_CUT,
    config: str = TAIL,
    blocks: int = 3,
) -> Mutant:
    return Mutant(
        f"tail-{name}", what, file, original, changed, caught_by, "tma", config, shape, resident_blocks=blocks
    )


def _block(
    name: str,
    what: str,
    original: str,
    changed: str,
    *caught_by: str,
    shape: tuple[int, int, int] = TWO_PARTS,
    blocks: int = 3,
) -> Mutant:
    """Of the kernel whose shares are blocks of their own."""
    file, config = "tma.cuh", NOT_PERSISTENT
    return _tail(
        f"block-{name}", what, original, changed, *caught_by, file=file, shape=shape, config=config, blocks=blocks
    )


MUTANTS = (
    _tail(
        "goes-on-past-its-share",
        "a block multiplies to the end of the tile of C that it begins with",
        "(end < end_of_tile ? end : end_of_tile) - begin",
        "end_of_tile - begin",
        VALUES,
        "race",
        "deadlock",
    ),
    _tail(
        "one-tile-only",
        "a block leaves out what is its share of a second tile",
        "return work.count > 0;",
        "return false;",
        "uninitialised",
    ),
    _tail(
        "second-tile-from-within",
        "a second tile is not begun at its first tile of K",
        "    work.first = 0;\n",
        "",
        VALUES,
    ),
    _tail(
        "no-extra",
        "no block has one tile of K more than another, so that the last ones are left out",
        "(block < with_extra ? block : with_extra)",
        "0",
        VALUES,
        shape=LAST_CUT,
    ),
    _tail(
        "one-slot-a-tile",
        "all parts of a tile are left in one place",
        "int64_t{number} - whole + block;",
        "int64_t{number} - whole;",
        "race",
    ),
    _tail(
        "workspace-too-small",
        "the workspace lacks the last slot",
        "(tail.blocks + tail.cut - 1)",
        "(tail.blocks + tail.cut - 2)",
        "out-of-bounds",
    ),
    _tail("one-part-less", "the last part of each tile is left out", "last - first + 1};", "last - first};", VALUES),
    _tail(
        "wrong-tile",
        "the sums go to the first tiles of C",
        "return whole + index;",
        "return index;",
        "race",
        VALUES,
        shape=LAST_CUT,
    ),
    _tail(
        "from-first-tile-of-k",
        "every part after a block's first is multiplied from the first tile of K on",
        "      k_tile += ahead.first;\n",
        "",
        VALUES,
        file="tma_rotating.cuh",
        shape=LAST_CUT,
    ),
    _tail(
        "stores-part-as-tile",
        "a part of the sum is stored as the first of the cut tiles",
        "work.number >= tail.whole) {",
        "work.number > tail.whole) {",
        "race",
        file="tma_rotating.cuh",
        shape=LAST_CUT,
    ),
    # shares that are blocks of their own
    _block(
        "no-share",
        "the block of the first share multiplies its tile of C as a whole",
        "work.number >= tail.whole;",
        "work.number > tail.whole;",
        "uninitialised",
        "race",
        shape=LAST_OF_FOUR,
    ),
    _block(
        "shares-counted-from-the-first-block",
        "the shares are numbered as the blocks of the grid are",
        "sharer = work.number - tail.whole;",
        "sharer = work.number;",
        "uninitialised",
        "out-of-bounds",
        VALUES,
        shape=LAST_OF_FOUR,
    ),
    _block("one-missing", "the last share has no block", "+ tail.blocks;", "+ tail.blocks - 1;", "uninitialised"),
    _block(
        "second-part-over-the-first",
        "a second part is copied over tiles that other warps still read",
        "      ptx::barrier_sync_after(warp_tile.loaded());\n      warp_tile.multiply(1);\n    }\n    if (!cut)",
        "      warp_tile.multiply(1);\n    }\n    if (!cut)",
        "race",
    ),
    _block(
        "second-part-in-first-stage",
        "a second part is copied from the first stage on, wherever the first one ended",
        "(position.stage + k_tile) % STAGES",
        "k_tile",
        "deadlock",
        "in-flight",
        VALUES,
        shape=ONE_OF_THE_SECOND,
        blocks=10,
    ),
    _block(
        "second-part-in-last-stage",
        "a second part begins in the stage of the last tile of the first",
        "      position.advance();\n      tile",
        "      tile",
        "deadlock",
        "in-flight",
        "mbarrier",
    ),
    _block(
        "second-part-of-first-tile",
        "a second part is copied from the tile of C of the first",
        "      tile = block_tile<Config>(work.number, c.M, c.N);\n",
        "",
        VALUES,
    ),
    _block(
        "second-part-left-out",
        "a block ends behind its first part",
        "    if (!more) return;\n",
        "    return;\n",
        "uninitialised",
        "unfinished-copy",
    ),
    _block("not-cleared", "a second part is added to the first", "    warp_tile.clear();\n", "", VALUES),
    _block(
        "rows-of-the-next-tile",
        "of a first part those rows are left that the second one's tile has",
        "c.M, c.N, done, warp",
        "c.M, c.N, tile, warp",
        "uninitialised",
    ),
    _block(
        "slot-of-the-next-tile",
        "a part is left where the next one belongs",
        "tail.slot(work.number, sharer);",
        "tail.slot(work.number + 1, sharer);",
        "race",
        "out-of-bounds",
    ),
)
