"""Faults planted in tail.cuh and in how the rotating kernel follows it."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

TAIL = "256x128x64_s4_w64x64_rotate_persistent_tail"
ALL_CUT = (500, 72, 1664)
"""Two tiles of C for three blocks, 26 tiles of K each: parts of 18 and of 17, the second block's from both tiles."""
LAST_CUT = (1000, 72, 1472)
"""Four tiles of C, of which the fourth is cut: three blocks have 8, 8 and 7 of its 23 tiles of K."""


def _tail(
    name: str,
    what: str,
    original: str,
    changed: str,
    *caught_by: str,
    file: str = "tail.cuh",
    shape: tuple[int, int, int] = ALL_CUT,
) -> Mutant:
    return Mutant(f"tail-{name}", what, file, original, changed, caught_by, "tma", TAIL, shape, resident_blocks=3)


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
)
