"""Faults planted in store_by_tma.cuh and in how kernels call it: C leaves by TMA while the next tile arrives."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

PERSISTENT = "256x128x64_s3_w64x64_rotate_persistent_store-tma"
HALVES = "256x128x64_s4_w64x64_rotate_persistent_store-tma"
"""Stages a half of each warp tile at a time."""
SHAPE = (264, 264, 200)
"""Six tiles of C for two blocks, four tiles of K each."""


def _store(
    name: str,
    what: str,
    original: str,
    changed: str,
    *caught_by: str,
    file: str = "store_by_tma.cuh",
    config: str = PERSISTENT,
    shape: tuple[int, int, int] = SHAPE,
    batch: int = 1,
) -> Mutant:
    return Mutant(f"store-{name}", what, file, original, changed, caught_by, "tma", config, shape, batch)


WAIT = "      ptx::bulk_wait_group_read<0>();  // has something to wait for in the lane that issued\n"
OTHERS_WAIT = "      ptx::warp_sync();                // and the others have read back what they stored\n"
TOGETHER = "      ptx::warp_sync();  // one lane speaks for all, or each reads what others wrote\n"
FENCE = "      ptx::fence_proxy_async();\n"

MUTANTS = (
    # between the warp's writes and the copy engine
    _store("no-fence", "the copy engine does not see what was staged", FENCE, "", "proxy-fence"),
    _store(
        "fence-before-writes",
        "the fence comes before the writes",
        f"      Staged::write(staging, warp_tile, done, lane);\n{FENCE}",
        f"{FENCE}      Staged::write(staging, warp_tile, done, lane);\n",
        "proxy-fence",
    ),
    _store("no-warp-sync", "stores what other lanes are still to stage", TOGETHER, "", "race", "uninitialised"),
    # before the memory is written again
    _store("no-wait", "stages the next tile over one that may still be read", WAIT, "", "race"),
    _store(
        "no-wait-between-halves",
        "stages the second half over the first",
        WAIT,
        "      if (done == 0) ptx::bulk_wait_group_read<0>();\n",
        "race",
        config=HALVES,
    ),
    _store("others-do-not-wait", "only the lane that stored waits", OTHERS_WAIT, "", "race"),
    _store("no-commit", "waits for a group that was never closed", "        ptx::bulk_commit_group();\n", "", "race"),
    _store(
        "all-warps-in-one-place",
        "all warps stage C in one place",
        "shared + warp * Staged::BYTES",
        "shared",
        "race",
    ),
    _store(
        "staged-in-ring",
        "stages C where the next tile of A and B arrives",
        "Epilogue::store(warp_tile, staging, c",
        "Epilogue::store(warp_tile, ptx::shared_base(), c",
        "race",
        "in-flight",
        file="tma_rotating.cuh",
    ),
    # before the block ends
    _store(
        "no-finish",
        "the block ends while its memory may still be read",
        "  Gemm::Epilogue::finish();\n",
        "",
        "unfinished-copy",
        file="tma_rotating.cuh",
    ),
    _store(
        "no-finish-of-one-tile",
        "the block ends while its memory may still be read",
        "  Epilogue::finish();\n",
        "",
        "unfinished-copy",
        file="tma.cuh",
        config="128x128x64_s3_w64x32_store-tma",
    ),
    # the edge
    _store(
        "edge-by-tma",
        "whole chunks overwrite what is right of a view",
        "c.N % CHUNK_ELEMENTS != 0 && column + Config::WARP_N > c.N",
        "false",
        "out-of-bounds",
        shape=(72, 132, 72),
    ),
    _store(
        "last-whole-warp-tile-by-tma",
        "takes an edge within the warp tile for one at its end",
        "column + Config::WARP_N > c.N",
        "column + Config::WARP_N > c.N + 60",
        "out-of-bounds",
        shape=(72, 132, 72),
    ),
    Mutant(
        "store-unaligned-rows-by-tma",
        "a C that the copy engine cannot address is not stored otherwise",
        "store_by_tma.cuh",
        "c.aligned && ",
        "",
        ("misaligned",),
        config=PERSISTENT,
        shape=(72, 132, 72),  # two warp tiles lie inside
        aligned_rows=False,
    ),
    # what is stored where
    _store("not-swizzled", "the descriptor of C asks for no swizzle", "Staged::ROW_BYTES});", "0});", VALUES),
    _store(
        "halves-in-one-place",
        "both halves of a warp tile are stored in the rows of the first",
        "column, row + done, tile.batch);\n        ptx",
        "column, row, tile.batch);\n        ptx",
        "race",
        "unwritten-output",
        VALUES,
        config=HALVES,
    ),
    _store(
        "edge-rows-in-one-place",
        "both halves at the edge are stored in the rows of the first",
        "Staged::store(staging, c, tile, warp, done, lane)",
        "Staged::store(staging, c, tile, warp, 0, lane)",
        "race",
        "unwritten-output",
        VALUES,
        config=HALVES,
        shape=(264, 132, 72),
    ),
    _store(
        "first-batch-only",
        "every batch is stored in the first C",
        "row + done, tile.batch);\n        ptx",
        "row + done, 0);\n        ptx",
        "race",
        "unwritten-output",
        shape=(72, 72, 72),
        batch=3,
    ),
)
