"""Faults planted in cp_async.cuh."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant


def _cp_async(name: str, what: str, original: str, changed: str, *caught_by: str) -> Mutant:
    return Mutant(name, what, "cp_async.cuh", original, changed, caught_by, "cp_async", "128x128x32_s3_w64x32")


MUTANTS = (
    _cp_async("cp-async-wait-one-less", "waits for one group fewer", "<STAGES - 2>", "<STAGES - 1>", "in-flight"),
    _cp_async(
        "cp-async-no-barrier",
        "no barrier between the wait and the reads of other threads' copies",
        "    ptx::cp_async_wait_group<STAGES - 2>();\n    ptx::barrier_sync();",
        "    ptx::cp_async_wait_group<STAGES - 2>();",
        "race",
        "in-flight",
    ),
    _cp_async(
        "cp-async-no-empty-groups",
        "commits no group past the end of K, so that the wait counts wrong ones",
        "copy_tile(free_stage, k_tile + STAGES - 1);\n    ptx::cp_async_commit_group();",
        "{\n      copy_tile(free_stage, k_tile + STAGES - 1);\n      ptx::cp_async_commit_group();\n    }",
        "in-flight",
    ),
    _cp_async(
        "cp-async-refills-live-stage",
        "copies into the stage that is being read",
        "copy_tile(free_stage, k_tile",
        "copy_tile(stage, k_tile",
        "race",
        "in-flight",
    ),
    Mutant(
        "cp-async-no-barrier-before-c",
        "stages C in the ring while other warps still read the last tile",
        "cp_async.cuh",
        "  ptx::cp_async_wait_group<0>();\n  ptx::barrier_sync();",
        "  ptx::cp_async_wait_group<0>();",
        ("race",),
        "cp_async",
        "128x128x32_s3_w64x32",
        shape=(200, 264, 424),  # the last tile lies in a stage that C is staged in; with K = 456 it does not
    ),
    _cp_async(
        "cp-async-skips-k-tail",
        "leaves out the last, partly filled tile of K",
        "tiles(p.K, TILE_K)",
        "p.K / TILE_K",
        VALUES,
    ),
    _cp_async(
        "cp-async-reads-past-rows",
        "does not stop at the last row",
        "down < rows_left ? columns_left : 0",
        "columns_left",
        "out-of-bounds",
    ),
    _cp_async(
        "cp-async-reads-past-columns",
        "copies whole chunks past the end of a row",
        "bytes < 0           ? 0",
        "bytes < 0           ? CopyBytes",
        "out-of-bounds",
    ),
    _cp_async(
        "cp-async-ring-one-too-long",
        "the ring wraps one stage late",
        "stage + 1 == STAGES ? 0",
        "stage == STAGES ? 0",
        "out-of-bounds",
    ),
    _cp_async(
        "cp-async-wrong-row-stride",
        "goes down by one row instead of a pass of them",
        "source + down * row_stride",
        "source + pass * row_stride",
        VALUES,
    ),
)
