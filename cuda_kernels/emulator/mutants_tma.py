"""Faults planted in tma.cuh and in what it shares with tma_rotating.cuh."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant


def _tma(name: str, what: str, original: str, changed: str, *caught_by: str) -> Mutant:
    return Mutant(name, what, "tma.cuh", original, changed, caught_by)


WAIT = "ptx::mbarrier_wait_parity(landed + position.stage * BARRIER_BYTES, position.phase);"
EXPECT = "ptx::mbarrier_arrive_expect_tx(barrier, Ring::BYTES);"
RELEASE = "        ptx::barrier_sync_after(warp_tile.loaded());\n        if"
REFILL = "if (k_tile < work.count && warp == 0 && ptx::elect_one()) copy_tile(position.stage, k_tile);"

MUTANTS = (
    # TMA: waits, phases, bytes
    _tma("tma-no-wait", "reads a tile without waiting for it", WAIT, "", "in-flight"),
    _tma(
        "tma-no-first-wait",
        "reads the first tile at once",
        "      load_first_step();\n      for",
        "  warp_tile.load(0, Ring::a(ring, 0), Ring::b(ring, 0), 0);\n  for",
        "in-flight",
    ),
    _tma(
        "tma-wrong-parity",
        "waits for the phase before",
        WAIT,
        WAIT.replace("position.phase", "position.phase ^ 1"),
        "in-flight",
        "deadlock",
    ),
    _tma(
        "tma-waits-for-other-stage",
        "waits for the stage after the one it reads",
        WAIT,
        WAIT.replace("position.stage", "(position.stage + 1) % STAGES"),
        "in-flight",
        "deadlock",
    ),
    _tma(
        "tma-expects-too-few-bytes",
        "announces 128 bytes fewer",
        EXPECT,
        EXPECT.replace("BYTES", "BYTES - 128"),
        "transaction-bytes",
    ),
    _tma(
        "tma-expects-too-many-bytes",
        "announces 128 bytes more",
        EXPECT,
        EXPECT.replace("BYTES", "BYTES + 128"),
        "transaction-bytes",
    ),
    _tma(
        "tma-expects-nothing",
        "arrives without announcing bytes",
        EXPECT,
        "ptx::mbarrier_arrive(barrier);",
        "transaction-bytes",
        "in-flight",
    ),
    # TMA: when a stage is free
    _tma("tma-no-release", "refills a stage without waiting for its readers", RELEASE, "    if", "race"),
    _tma(
        "tma-release-before-loads-are-back",
        "the barrier does not wait for the ldmatrix before it",
        RELEASE,
        "    ptx::barrier_sync();\n    if",
        "race",
    ),
    _tma(
        "tma-refills-too-early",
        "refills before the barrier that frees the stage",
        f"ptx::barrier_sync_after(warp_tile.loaded());\n        {REFILL}",
        f"{REFILL}\n        ptx::barrier_sync_after(warp_tile.loaded());",
        "race",
    ),
    _tma(
        "tma-refills-next-stage",
        "refills the stage that is read next",
        REFILL,
        REFILL.replace("(position.stage,", "((position.stage + 1) % STAGES,"),
        "race",
        "in-flight",
    ),
    Mutant(
        "tma-no-barrier-before-c",
        "stages C in the ring while other warps still read the last tile",
        "tma.cuh",
        "      ptx::barrier_sync_after(warp_tile.loaded());\n      warp_tile.multiply(1);",
        "      warp_tile.multiply(1);",
        ("race",),
        shape=(200, 264, 392),  # the last of seven tiles lies in the first stage, where C is staged
    ),
    # TMA: mbarriers
    _tma(
        "tma-no-init-fence",
        "no fence behind the initialisation of the mbarriers",
        "ptx::fence_mbarrier_init();",
        "",
        "mbarrier",
    ),
    _tma(
        "tma-no-init-barrier",
        "other warps may wait for mbarriers that are not initialised",
        "ptx::barrier_sync();  // the mbarriers are initialised for everyone",
        "",
        "mbarrier",
    ),
    _tma("tma-count-two", "an mbarrier waits for two arrivals", "BARRIER_BYTES, 1);", "BARRIER_BYTES, 2);", "deadlock"),
    _tma(
        "tma-every-lane-issues",
        "all lanes of warp 0 refill, not one",
        "warp == 0 && ptx::elect_one()) copy_tile",
        "warp == 0) copy_tile",
        "in-flight",
        "mbarrier",
    ),
    Mutant(
        "tma-copies-past-k",
        "fills all stages, also when K has fewer tiles",
        "tma.cuh",
        "k_tile < STAGES && k_tile < work.count; ++k_tile) copy_tile(k_tile,",
        "k_tile < STAGES; ++k_tile) copy_tile(k_tile,",
        ("unfinished-copy", "in-flight"),
        shape=(200, 264, 72),
    ),
    # TMA: boxes
    _tma(
        "tma-skips-k-tail",
        "leaves out the last, partly filled tile of K",
        "tiles(K, Config::TILE_K)",
        "K / Config::TILE_K",
        VALUES,
    ),
    Mutant(
        "tma-second-box-at-first-column",
        "both boxes of B come from the same columns",
        "tma_operands.cuh",
        "outer) + box * Tile::BOX_COLUMNS",
        "outer)",
        (VALUES,),
    ),
    Mutant(
        "tma-boxes-on-each-other",
        "both boxes of B land in one place",
        "tma_operands.cuh",
        "tma_load_3d(tile + box * Tile::BOX_BYTES,",
        "tma_load_3d(tile,",
        ("in-flight",),
    ),
    Mutant(
        "tma-a-not-swizzled",
        "the descriptor of A asks for no swizzle",
        "tma_operands.cuh",
        "A::BOX_COLUMNS, A::SPAN, fetched}",
        "A::BOX_COLUMNS, 0}",
        (VALUES,),
    ),
    Mutant(
        "tma-first-batch-only",
        "every batch multiplies the first A",
        "tma.cuh",
        "a_batched ? tile.batch : 0",
        "0",
        (VALUES,),
        batch=3,
        shape=(72, 72, 72),
    ),
)
