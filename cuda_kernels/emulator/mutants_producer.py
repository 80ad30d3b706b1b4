"""Faults planted in tma_producer.cuh."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

PERSISTENT = "256x128x64_s4_w64x64_producer_persistent"
SHAPE = (264, 264, 264)
"""Six tiles of C for two blocks, five tiles of K each: one more than there are stages."""
FREED = "        ring.wait_freed(position.back(Config::STAGES));\n"


def _producer(
    name: str, what: str, original: str, changed: str, *caught_by: str, file: str = "tma_producer.cuh"
) -> Mutant:
    return Mutant(f"producer-{name}", what, file, original, changed, caught_by, "tma", PERSISTENT, SHAPE)


MUTANTS = (
    _producer("no-wait-for-freed", "refills a stage without waiting for its readers", FREED, "", "race", "mbarrier"),
    _producer(
        "freed-wrong-parity",
        "waits for the release that is still to come",
        FREED,
        FREED.replace(".back(Config::STAGES)", ""),
        "deadlock",
    ),
    _producer(
        "nothing-freed",
        "the consumers never free a stage",
        "ptx::mbarrier_arrive_after(lane == 0,",
        "ptx::mbarrier_arrive_after(false,",
        "deadlock",
        file="tma_ring.cuh",
    ),
    _producer(
        "freed-without-dependency",
        "the arrival may overtake the last ldmatrix",
        "ptx::mbarrier_arrive_after(lane == 0, stage_freed, loaded);",
        "if (lane == 0) ptx::mbarrier_arrive(stage_freed);",
        "race",
        file="tma_ring.cuh",
    ),
    _producer(
        "every-lane-copies",
        "all lanes of the producer's warp issue copies",
        "if (role > Config::WARPS || !ptx::elect_one()) return;",
        "if (role > Config::WARPS) return;",
        "mbarrier",
        "in-flight",
        "race",
    ),
    _producer(
        "every-warp-copies",
        "all four warps of the producer's warpgroup issue copies",
        "if (role > Config::WARPS || !ptx::elect_one()) return;",
        "if (!ptx::elect_one()) return;",
        "mbarrier",
        "in-flight",
        "race",
    ),
    _producer(
        "barrier-in-one-role",
        "the consumers wait for threads that have ended or wait for them",
        "  ptx::setmaxnreg_inc<Gemm::CONSUMER_REGISTERS>();\n",
        "  ptx::named_barrier_sync(0, Gemm::THREADS);\n",
        "deadlock",
        "barrier",
    ),
    _producer(
        "stays-on-first-tile",
        "copies for the block's first tile of C again and again",
        "cluster_tile<Config>(work.number, ring.rank, c.M, c.N);\n      for",
        "cluster_tile<Config>(cluster, ring.rank, c.M, c.N);\n      for",
        VALUES,
    ),
    _producer(
        "skips-tiles",
        "leaves out every second of the block's tiles of C",
        "while (schedule.next(work));",
        "while (schedule.next(work) && schedule.next(work));",
        VALUES,
        "unfinished-copy",
        "deadlock",
    ),
    _producer("accumulators-not-cleared", "adds to the tile of C before", "    warp_tile.clear();\n", "", VALUES),
)
