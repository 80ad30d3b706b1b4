"""Faults planted in what the families share: layout, main loop, pipeline, epilogue, raster."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

MUTANTS = (
    Mutant("phase-never-flips", "the ring's phase stays 0", "pipeline.cuh", "phase ^= 1;", "", ("in-flight", "race")),
    Mutant("wrong-swizzle", "rows are permuted by row / 2", "layout.cuh", "(offset >> 3)", "(offset >> 4)", (VALUES,)),
    Mutant(
        "fragments-of-b-swapped",
        "mma gets the halves of K of B in the wrong order",
        "mainloop.cuh",
        "b[set][j / 2][j % 2 * 2], b[set][j / 2][j % 2 * 2 + 1]",
        "b[set][j / 2][j % 2 * 2 + 1], b[set][j / 2][j % 2 * 2]",
        (VALUES,),
    ),
    Mutant(
        "same-fragments-twice",
        "multiplies one set of fragments only",
        "tma.cuh",
        "multiply(step % 2)",
        "multiply(0)",
        (VALUES,),
    ),
    Mutant(
        "c-no-warp-sync",
        "lanes read what other lanes are still to stage",
        "epilogue.cuh",
        "    ptx::warp_sync();\n",
        "",
        ("race", "uninitialised"),
    ),
    Mutant(
        "c-warps-share-staging",
        "all warps stage C in one place",
        "epilogue.cuh",
        "shared + warp * Staged::BYTES",
        "shared",
        ("race",),
    ),
    Mutant("c-rows-past-m", "stores rows below the matrix", "epilogue.cuh", "row >= c.M || ", "", ("out-of-bounds",)),
    Mutant(
        "c-columns-past-n",
        "stores whole chunks past the end of a row",
        "epilogue.cuh",
        "columns_left >= CHUNK_ELEMENTS",
        "columns_left > 0",
        ("out-of-bounds",),
        shape=(72, 132, 72),
        family="cp_async",
        config="128x128x32_s3_w64x32",
    ),
    Mutant(
        "c-stores-unaligned-rows",
        "16-byte stores to rows that are not aligned",
        "epilogue.cuh",
        "c.aligned && ",
        "",
        ("misaligned",),
        shape=(72, 132, 72),
        family="cp_async",
        config="128x128x32_s3_w64x32",
        aligned_rows=False,
    ),
    Mutant(
        "raster-last-band-too-high",
        "the last band of tiles is taken to be as high as the others",
        "raster.cuh",
        "tiles_m - first_row < RASTER_ROWS ? tiles_m - first_row : RASTER_ROWS",
        "RASTER_ROWS",
        ("unwritten-output",),
    ),
    Mutant(
        "raster-tiles-twice",
        "blocks of one column of tiles compute the same tile",
        "raster.cuh",
        "first_row + within % rows",
        "first_row",
        ("race",),
    ),
)
