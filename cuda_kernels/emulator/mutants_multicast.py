"""Faults planted where two blocks of a cluster share the tiles of A: who copies which half to whom, who frees a stage
for whom, and when the blocks meet."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

MULTICAST = "256x128x64_s4_w64x64_producer_persistent_multicast"
SHAPE = (264, 264, 264)
"""Four tiles of C for a cluster, of which a block's half lies outside of C in two, and five tiles of K each."""
RING, PRODUCER, OPERANDS = "tma_ring.cuh", "tma_producer.cuh", "tma_operands.cuh"
FREE = "arrive_cluster_after(lane < CLUSTER, ptx::mapa(stage_freed, lane % CLUSTER), loaded);"
COUNT = "BARRIER_BYTES, Config::WARPS * CLUSTER);"
SEND = "ptx::tma_load_3d_multicast(tile + box * Tile::BOX_BYTES, map, barrier, column, row, batch, (1 << Cluster) - 1);"


def _multicast(name: str, what: str, file: str, original: str, changed: str, *caught_by: str) -> Mutant:
    return Mutant(f"multicast-{name}", what, file, original, changed, caught_by, "tma", MULTICAST, SHAPE)


MUTANTS = (
    # who frees a stage for whom
    _multicast(
        "frees-own-only",
        "a block does not tell the other that its stage is free",
        RING,
        FREE,
        FREE.replace("lane < CLUSTER", "lane == 0").replace("lane % CLUSTER", "rank"),
        "deadlock",
    ),
    _multicast(
        "waits-for-own-only",
        "a block waits for its own warps alone, counted twice",
        RING,
        FREE,
        FREE.replace("lane % CLUSTER", "rank"),
        "race",
    ),
    _multicast(
        "frees-other-only",
        "a block waits for the other's warps alone, counted twice",
        RING,
        FREE,
        FREE.replace("lane % CLUSTER", "1 - rank"),
        "race",
    ),
    _multicast(
        "frees-first-block",
        "all arrive at the mbarriers of the first block",
        RING,
        FREE,
        FREE.replace("lane % CLUSTER", "0"),
        "deadlock",
        "mbarrier",
    ),
    _multicast(
        "every-lane-pair-arrives",
        "two lanes arrive for each block",
        RING,
        FREE,
        FREE.replace("lane < CLUSTER", "lane < 2 * CLUSTER"),
        "mbarrier",
        "race",
    ),
    _multicast(
        "lane-alone",
        "a lane frees what the others of its warp may still read",
        RING,
        "    ptx::warp_sync();\n    if constexpr (CLUSTER == 1)",
        "    if constexpr (CLUSTER == 1)",
        "race",
    ),
    _multicast(
        "counts-one-block",
        "a stage is free when as many warps as one block has have read it",
        RING,
        COUNT,
        COUNT.replace(" * CLUSTER", ""),
        "race",
        "mbarrier",
    ),
    _multicast(
        "counts-threads",
        "a stage waits for every thread that multiplies",
        RING,
        COUNT,
        COUNT.replace("WARPS", "THREADS"),
        "deadlock",
    ),
    # who copies what to whom
    _multicast(
        "announces-own-bytes",
        "a block announces what it copies, not what it receives",
        RING,
        "arrive_expect_tx(barrier, Tile::BYTES);",
        "arrive_expect_tx(barrier, Tile::CopiedA::BYTES + Tile::B::BYTES);",
        "race",
        "in-flight",
    ),
    _multicast(
        "to-itself",
        "each block copies its half for itself alone",
        OPERANDS,
        SEND,
        SEND.replace("(1 << Cluster) - 1", "1 << ptx::cluster_rank()"),
        "deadlock",
    ),
    _multicast(
        "to-first-block",
        "both halves are copied to the first block alone",
        OPERANDS,
        SEND,
        SEND.replace("(1 << Cluster) - 1", "1"),
        "deadlock",
    ),
    _multicast(
        "to-one-block-more",
        "the halves are copied to a block that the cluster does not have",
        OPERANDS,
        SEND,
        SEND.replace("(1 << Cluster) - 1", "(1 << (Cluster + 1)) - 1"),
        "out-of-bounds",
    ),
    _multicast(
        "all-of-b",
        "tiles of B, of which each block has its own, are copied to both",
        RING,
        "copy_boxes<typename Tile::B>(",
        "copy_boxes<typename Tile::B, CLUSTER>(",
        "in-flight",
        "race",
    ),
    _multicast(
        "halves-swapped",
        "each block copies the rows of the other's half",
        RING,
        "tile.row + static_cast<int>(rank)",
        "tile.row + static_cast<int>(CLUSTER - 1 - rank)",
        VALUES,
    ),
    _multicast(
        "same-rows",
        "both blocks copy the upper half of the rows",
        RING,
        "tile.row + static_cast<int>(rank) * (Config::TILE_M / CLUSTER)",
        "tile.row",
        VALUES,
    ),
    _multicast(
        "same-place",
        "both halves land in the place of the first",
        RING,
        "Tile::a(tiles, stage) + rank * CopiedA::BYTES",
        "Tile::a(tiles, stage)",
        "in-flight",
        "race",
    ),
    _multicast(
        "whole-boxes",
        "the descriptor of A has a box of all rows of the tile",
        OPERANDS,
        "using A = typename Stage<Config>::CopiedA;",
        "using A = typename Stage<Config>::A;",
        "in-flight",
        "race",
    ),
    _multicast(
        "nothing-from-outside",
        "a block whose tile lies outside of C does not copy its half for the other",
        PRODUCER,
        "        ring.copy(",
        "        if (tile.column < c.N) ring.copy(",
        "deadlock",
    ),
    # which tile of C
    _multicast(
        "same-columns",
        "both blocks compute the same tile of C",
        "raster.cuh",
        "tile.column += static_cast<int>(rank) * Config::TILE_N;",
        "",
        VALUES,
        "race",
    ),
    _multicast(
        "tiles-apart",
        "the blocks of a cluster begin with tiles that lie apart",
        PRODUCER,
        "cluster = ptx::block_index() / Config::CLUSTER",
        "cluster = ptx::block_index()",
        VALUES,
        "deadlock",
    ),
    _multicast(
        "skips-tiles",
        "a cluster goes on by as many tiles as there are blocks",
        PRODUCER,
        "clusters = ptx::grid_blocks() / Config::CLUSTER",
        "clusters = ptx::grid_blocks()",
        "unwritten-output",
        VALUES,
    ),
    # when the blocks meet
    _multicast(
        "no-cluster",
        "a launch without clusters",
        PRODUCER,
        "launch_clusters<kernel>(CLUSTER,",
        "launch_clusters<kernel>(1,",
        "out-of-bounds",
    ),
    _multicast(
        "meets-own-block-first",
        "a block sends to another that may not have initialised its mbarriers",
        PRODUCER,
        "  ring.meet();  // the mbarriers",
        "  ptx::barrier_sync();  // the mbarriers",
        "mbarrier",
    ),
    _multicast(
        "arrives-first",
        "the blocks do not wait for each other behind the initialisation",
        PRODUCER,
        "  ring.meet();  // the mbarriers",
        "  ptx::cluster_arrive();\n  ptx::barrier_sync();  // the mbarriers",
        "mbarrier",
        "barrier",
    ),
    _multicast(
        "no-last-barrier",
        "a block ends while the other may still arrive at its mbarriers",
        PRODUCER,
        "  ring.leave();\n",
        "",
        "race",
    ),
    _multicast(
        "meets-own-block-last",
        "a block waits for its own warps alone before it ends",
        PRODUCER,
        "  ring.leave();\n",
        "  ptx::named_barrier_sync(1, Config::THREADS);\n",
        "race",
    ),
    _multicast(
        "leaves-without-waiting",
        "a block arrives at the cluster's last barrier and ends",
        PRODUCER,
        "  ring.leave();\n",
        "  ptx::cluster_arrive();\n",
        "race",
    ),
)
