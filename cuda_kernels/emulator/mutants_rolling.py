"""Faults planted in warp tiles of 96x64, whose rows lie in pieces and whose fragments do not fit twice."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

ROLLING = "192x256x32_s3_w96x64_rotate_persistent"
TAIL = "192x256x64_s4_w96x64_rotate_persistent_tail"
SHAPE = (200, 264, 200)
"""Four tiles of C for two blocks, seven tiles of K each."""
ALL_CUT = (380, 72, 1664)
"""Two tiles of C for three blocks, 26 tiles of K each."""


def _rolling(name: str, what: str, file: str, original: str, changed: str, *caught_by: str) -> Mutant:
    return Mutant(f"rolling-{name}", what, file, original, changed, caught_by, "tma", ROLLING, SHAPE)


FREE = "if (!FREED_EARLY) free(stage_freed, loaded, lane);"

MUTANTS = (
    _rolling(
        "freed-before-last-rows",
        "frees a stage whose last rows of A it reads only then",
        "tma_ring.cuh",
        FREE,
        f"{FREE}\n    warp_tile.begin(Warp::K_STEPS - 1, a_tile);",
        "race",
        "in-flight",
    ),
    _rolling(
        "b-gives-way-too-early",
        "the next step's fragments of B take the place of those that the last row still needs",
        "mainloop.cuh",
        "multiply(LAST_ROW, 2 * j + 1);\n      Base::load_b(b[j], next_b_tile, j, next);",
        "Base::load_b(b[j], next_b_tile, j, next);\n      multiply(LAST_ROW, 2 * j + 1);",
        VALUES,
    ),
    _rolling(
        "same-row-twice",
        "the row of A that is loaded ahead is the one that is multiplied",
        "mainloop.cuh",
        "a_tile, i + 1, step,",
        "a_tile, i, step,",
        VALUES,
    ),
    _rolling(
        "next-step-from-this-tile",
        "the first rows of A of the next step come from the wrong step",
        "mainloop.cuh",
        "Base::load_a(a[0], next_a_tile, 0, next);",
        "Base::load_a(a[0], next_a_tile, 0, 0);",
        VALUES,
    ),
    _rolling(
        "rows-in-one-piece",
        "C is stored as if a warp's rows lay in one piece",
        "epilogue.cuh",
        "Config::row_distance(i * 16)",
        "i * 16",
        VALUES,
    ),
    _rolling(
        "second-warp-at-row-96",
        "the second warp's rows begin where they would in one piece",
        "layout.cuh",
        "return warp / WARPS_N * ROWS_TOGETHER;",
        "return warp / WARPS_N * WarpM;",
        VALUES,
        "out-of-bounds",
        "unwritten-output",
    ),
    Mutant(
        "rolling-parts-in-one-piece",
        "the parts of a tile are added as if a warp's rows lay in one piece",
        "parts.cuh",
        "Tile::row_distance(down * 16)",
        "down * 16",
        (VALUES, "uninitialised", "unwritten-output"),
        "tma",
        TAIL,
        ALL_CUT,
        resident_blocks=3,
    ),
)
