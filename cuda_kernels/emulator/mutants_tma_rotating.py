"""Faults planted in tma_rotating.cuh and in what only it uses."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

PERSISTENT = "256x128x64_s4_w64x64_rotate_persistent"
SHAPE = (264, 264, 200)
"""Six tiles of C for two blocks, four tiles of K each."""


def _rotating(
    name: str,
    what: str,
    original: str,
    changed: str,
    *caught_by: str,
    file: str = "tma_rotating.cuh",
    shape: tuple[int, int, int] = SHAPE,
    batch: int = 1,
) -> Mutant:
    return Mutant(f"rotating-{name}", what, file, original, changed, caught_by, "tma", PERSISTENT, shape, batch)


RING = "tma_ring.cuh"
LANDED = "ptx::mbarrier_wait_parity(landed + at.stage * BARRIER_BYTES, at.phase);"
FREED = "ptx::mbarrier_wait_parity(freed + at.stage * BARRIER_BYTES, at.phase);"
STAGE = "stage_freed = freed + at.stage * BARRIER_BYTES"
LATE = "if (!FREED_EARLY) free(stage_freed, loaded, lane);"
TURN = "if (warp == issuer && ptx::elect_one()) {"
ADVANCE = "if (!last) at.advance();"
STAGGER = "if (warp < Config::WARPS / 2 || count < 2) return;"
SECOND = "    second.advance();\n"

MUTANTS = (
    # when a stage is free
    _rotating(
        "arrive-without-dependency",
        "the arrival may overtake the last ldmatrix, an mma in front of it or not",
        "ptx::mbarrier_arrive_after(lane == 0, stage_freed, loaded);",
        "if (lane == 0) ptx::mbarrier_arrive(stage_freed);",
        "race",
        file=RING,
    ),
    _rotating(
        "arrive-before-last-load",
        "frees a tile whose last fragments it loads only then",
        LATE,
        f"{LATE}\n    warp_tile.load(1, a_tile, b_tile, 3);",
        "race",
        "in-flight",
        file=RING,
    ),
    _rotating(
        "no-warp-sync",
        "one lane passes on what the others may still read",
        "    ptx::warp_sync();\n",
        "",
        "race",
        file=RING,
    ),
    _rotating(
        "every-lane-arrives",
        "all lanes free the tile, not one",
        "lane == 0, stage_freed",
        "true, stage_freed",
        "race",
        "deadlock",
        "mbarrier",
        file=RING,
    ),
    _rotating(
        "count-one-warp-less",
        "a stage is free while one warp still reads it",
        "BARRIER_BYTES, Config::WARPS * CLUSTER);",
        "BARRIER_BYTES, Config::WARPS * CLUSTER - 1);",
        "mbarrier",
        "race",
        file=RING,
    ),
    _rotating(
        "count-one-warp-more",
        "waits for a warp that does not exist",
        "BARRIER_BYTES, Config::WARPS * CLUSTER);",
        "BARRIER_BYTES, Config::WARPS * CLUSTER + 1);",
        "deadlock",
        file=RING,
    ),
    _rotating(
        "frees-next-tile",
        "frees the tile that it has only begun",
        STAGE,
        STAGE.replace("at.stage", "(at.stage + 1) % Config::STAGES"),
        "deadlock",
        "race",
        file=RING,
    ),
    # who refills it, when
    _rotating("no-wait-for-freed", "refills a stage without waiting for its readers", FREED, "", "race", file=RING),
    _rotating(
        "freed-wrong-parity",
        "waits for the release before, which has always been",
        FREED,
        FREED.replace("at.phase", "at.phase ^ 1"),
        "race",
        "deadlock",
        file=RING,
    ),
    _rotating(
        "back-keeps-phase",
        "the phase does not flip back where the ring wraps",
        "phase ^ wraps",
        "phase",
        "race",
        "deadlock",
        file="pipeline.cuh",
    ),
    _rotating(
        "lag-too-short",
        "copies into the stage after the one that is to be refilled",
        "position.back(Gemm::LAG);",
        "position.back(Gemm::LAG - 1);",
        "race",
        "in-flight",
        "deadlock",
    ),
    _rotating(
        "lag-too-long",
        "copies into the stage before the one that is to be refilled",
        "position.back(Gemm::LAG);",
        "position.back(Gemm::LAG + 1);",
        "race",
        "in-flight",
        "deadlock",
    ),
    _rotating(
        "copies-one-tile-further",
        "refills with the tile after the one that is due",
        "k_tile + AHEAD);",
        "k_tile + AHEAD + 1);",
        VALUES,
        "deadlock",
    ),
    _rotating(
        "turn-of-no-warp",
        "every ninth turn belongs to a warp that does not exist",
        "(issuer + 1) % Config::WARPS",
        "(issuer + 1) % (Config::WARPS + 1)",
        "deadlock",
    ),
    _rotating(
        "issuer-skips-a-tile",
        "the second tile's turn is left out",
        TURN,
        TURN.replace("&& ", "&& k_tile != 1 && "),
        "deadlock",
    ),
    _rotating(
        "every-warp-issues",
        "all warps refill, not the one whose turn it is",
        TURN,
        "if (ptx::elect_one()) {",
        "mbarrier",
        "in-flight",
    ),
    # what has landed
    _rotating("no-wait-for-landed", "reads a tile without waiting for it", LANDED, "", "in-flight", file=RING),
    _rotating(
        "landed-wrong-parity",
        "waits for the tile before",
        LANDED,
        LANDED.replace("at.phase", "at.phase ^ 1"),
        "in-flight",
        "deadlock",
        file=RING,
    ),
    _rotating(
        "waits-behind-last-tile",
        "waits for a tile behind the block's last",
        ADVANCE,
        "at.advance();",
        "deadlock",
        file=RING,
    ),
    _rotating(
        "stays-at-each-last-tile",
        "multiplies the last tile of K again as the first of the next tile of C",
        "last_tile && k_tile",
        "k_tile",
        VALUES,
        "deadlock",
    ),
    _rotating(
        "begins-with-a-second-tile-of-one",
        "half of the warps wait for a second tile where K has one",
        STAGGER,
        STAGGER.replace(" || count < 2", ""),
        "deadlock",
        file=RING,
        shape=(72, 72, 40),
    ),
    _rotating(
        "begins-with-a-third-tile-of-two",
        "half of the warps wait for the third tile where K has two",
        SECOND,
        2 * SECOND,
        "deadlock",
        file=RING,
        shape=(72, 72, 104),
    ),
    _rotating(
        "no-init-fence",
        "no fence behind the initialisation of the mbarriers",
        "ptx::fence_mbarrier_init();",
        "",
        "mbarrier",
        file=RING,
    ),
    _rotating(
        "no-init-barrier",
        "other warps may wait for mbarriers that are not initialised",
        "ring.meet();  // the mbarriers are initialised for everyone",
        "",
        "mbarrier",
    ),
    # from one tile of C to the next
    _rotating(
        "wrong-next-tile",
        "copies ahead from the neighbouring tile of C, not from the block's next",
        "from = cluster_tile<Config>(ahead.number, ring.rank, c.M, c.N);",
        "from = cluster_tile<Config>(work.number + 1, ring.rank, c.M, c.N);",
        VALUES,
    ),
    _rotating(
        "wraps-once",
        "takes every tile ahead to be of the very next tile of C",
        "} while (k_tile >= ahead.count);",
        "} while (false);",
        VALUES,
        shape=(264, 264, 40),
    ),
    _rotating(
        "copies-past-last-tile",
        "copies ahead also behind the block's last tile of C",
        "if (!schedule.next(ahead)) return;",
        "schedule.next(ahead);",
        "unfinished-copy",
    ),
    _rotating(
        "one-tile-too-many",
        "the block with number 0 goes on to a tile of C that does not exist",
        "work.number += blocks;\n      return work.number < tail.whole",
        "work.number += blocks;\n      return work.number <= tail.whole",
        "out-of-bounds",
        file="tail.cuh",
    ),
    _rotating(
        "accumulators-not-cleared",
        "adds to the tile of C before",
        "    warp_tile.clear();\n",
        "",
        VALUES,
    ),
    _rotating(
        "stores-first-tile-again",
        "every tile of C is stored in the place of the block's first",
        "    tile = cluster_tile<Config>(work.number, ring.rank, c.M, c.N);\n",
        "",
        "unwritten-output",
        VALUES,
    ),
    _rotating(
        "first-batch-only",
        "every batch multiplies the first A",
        "from.a_batched ? tile.batch : 0",
        "0",
        VALUES,
        file=RING,
        shape=(72, 72, 72),
        batch=5,
    ),
    # C by shuffles
    _rotating(
        "transposes-blocks-only",
        "words stay where they are within the 2x2 blocks",
        "    for (int e = 0; e < 4; e += 2) exchange(word[e], word[e + 1], lane, 1);\n",
        "    for (int e = 0; e < 0; ++e) exchange(word[e], word[e + 1], lane, 1);\n",
        VALUES,
        file="epilogue.cuh",
    ),
    _rotating(
        "exchanges-with-wrong-lane",
        "the 2x2 blocks are exchanged with the neighbour",
        "exchange(word[e], word[e + 2], lane, 2)",
        "exchange(word[e], word[e + 2], lane, 1)",
        VALUES,
        file="epilogue.cuh",
    ),
    _rotating(
        "gives-wrong-word",
        "a lane gives the word that it should keep",
        "has_bit ? first : second, bit",
        "has_bit ? second : first, bit",
        VALUES,
        file="epilogue.cuh",
    ),
)
