"""Faults planted where two blocks of a cluster share the tiles of A and their warps take turns at copying: who waits
for whom, when the blocks meet, and whose sums lie where when the last wave is cut."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

MULTICAST = "256x128x64_s3_w64x64_rotate_persistent_multicast_store-tma_tail"
WHOLE = (264, 264, 264)
"""Four tiles of C for one cluster, of which a block's half lies outside of C in two, and five tiles of K each."""
ALL_CUT = (500, 200, 1664)
"""Two tiles of C for three clusters, 26 tiles of K each: parts of 18 and 17, the second cluster's from both tiles."""
ROTATING, RING, OPERANDS, PARTS, TAIL = "tma_rotating.cuh", "tma_ring.cuh", "tma_operands.cuh", "parts.cuh", "tail.cuh"

FREE = "arrive_cluster_after(lane < CLUSTER, ptx::mapa(stage_freed, lane % CLUSTER), loaded);"
COUNT = "BARRIER_BYTES, Config::WARPS * CLUSTER);"
SEND = "ptx::tma_load_3d_multicast(tile + box * Tile::BOX_BYTES, map, barrier, column, row, batch, (1 << Cluster) - 1);"
MEET = "ring.meet();  // the mbarriers"
LEAVE = "  ring.leave();\n"
START_BEHIND = "  if (Config::CLUSTER > 1 && warp == 0 && ptx::elect_one()) start_copying();\n"
SLOT = "PiecesOf<Config>::slot(tail.slot(work.number, cluster), ring.rank);"


def _whole(
    name: str,
    what: str,
    file: str,
    original: str,
    changed: str,
    *caught_by: str,
    shape: tuple[int, int, int] = WHOLE,
) -> Mutant:
    return Mutant(f"shared-turns-{name}", what, file, original, changed, caught_by, "tma", MULTICAST, shape)


def _cut(name: str, what: str, file: str, original: str, changed: str, *caught_by: str) -> Mutant:
    name = f"shared-tail-{name}"
    return Mutant(name, what, file, original, changed, caught_by, "tma", MULTICAST, ALL_CUT, resident_blocks=6)


MUTANTS = (
    # when a stage is free
    _whole(
        "counts-one-block",
        "a stage is free when as many warps as one block has have read it",
        RING,
        COUNT,
        COUNT.replace(" * CLUSTER", ""),
        "race",
        "mbarrier",
    ),
    _whole(
        "frees-own-only",
        "a block does not tell the other that its stage is free",
        RING,
        FREE,
        FREE.replace("lane < CLUSTER", "lane == 0").replace("lane % CLUSTER", "rank"),
        "deadlock",
    ),
    _whole(
        "waits-for-own-only",
        "whose turn it is waits for its own block's warps alone, counted twice",
        RING,
        FREE,
        FREE.replace("lane % CLUSTER", "rank"),
        "race",
    ),
    _whole(
        "waits-for-other-only",
        "whose turn it is waits for the other block's warps alone, counted twice",
        RING,
        FREE,
        FREE.replace("lane % CLUSTER", "1 - rank"),
        "race",
    ),
    _whole(
        "arrive-without-dependency",
        "a block's arrivals at its own mbarrier may overtake the last ldmatrix",
        RING,
        f"ptx::mbarrier_{FREE}",
        f"{{ if (lane == rank) ptx::mbarrier_arrive(stage_freed); ptx::mbarrier_{FREE} }}".replace(
            "lane < CLUSTER", "lane == 1 - rank"
        ),
        "race",
    ),
    _whole(
        "no-wait-for-freed",
        "whose turn it is sends a tile before the warps of either block have freed its stage",
        ROTATING,
        "        ring.wait_freed(refill);\n",
        "",
        "race",
    ),
    # who copies what to whom
    _whole(
        "to-itself",
        "each block copies its half for itself alone",
        OPERANDS,
        SEND,
        SEND.replace("(1 << Cluster) - 1", "1 << ptx::cluster_rank()"),
        "deadlock",
    ),
    _whole(
        "to-the-other",
        "each block copies its half for the other alone",
        OPERANDS,
        SEND,
        SEND.replace("(1 << Cluster) - 1", "2 >> ptx::cluster_rank()"),
        "deadlock",
    ),
    _whole(
        "nothing-from-outside",
        "a block whose tile lies outside of C does not copy its half for the other",
        ROTATING,
        "    ring.copy({",
        "    if (from.column < c.N) ring.copy({",
        "deadlock",
    ),
    _whole(
        "ends-with-tile-outside",
        "a block whose first tile lies outside of C ends at once",
        ROTATING,
        "  int end = work",
        "  if (tile.column >= c.N) return;\n  int end = work",
        "deadlock",
        "race",
        shape=(264, 72, 264),
    ),
    _whole(
        "begins-with-a-second-tile-of-one",
        "half of both blocks' warps wait for a second tile where K has one",
        RING,
        " || count < 2) return;",
        ") return;",
        "deadlock",
        shape=(72, 200, 40),
    ),
    _whole(
        "next-tile-of-first-block",
        "both blocks copy ahead for the first one's next tile",
        ROTATING,
        "from = cluster_tile<Config>(ahead.number, ring.rank,",
        "from = cluster_tile<Config>(ahead.number, 0,",
        VALUES,
    ),
    _whole(
        "tiles-apart",
        "the blocks of a cluster begin with tiles that lie apart",
        ROTATING,
        "cluster = ptx::block_index() / Config::CLUSTER",
        "cluster = ptx::block_index()",
        VALUES,
        "deadlock",
    ),
    _whole(
        "skips-tiles",
        "a cluster goes on by as many tiles as there are blocks",
        ROTATING,
        "clusters = ptx::grid_blocks() / Config::CLUSTER",
        "clusters = ptx::grid_blocks()",
        "unwritten-output",
        VALUES,
    ),
    # when the blocks meet
    _whole(
        "sends-first",
        "a block sends to another before they have met",
        ROTATING,
        f"  {MEET} are initialised for everyone\n{START_BEHIND}",
        f"{START_BEHIND}  {MEET} are initialised for everyone\n",
        "mbarrier",
    ),
    _whole(
        "meets-own-block-first",
        "a block sends to another that may not have initialised its mbarriers",
        ROTATING,
        MEET,
        "ptx::barrier_sync();  // the mbarriers",
        "mbarrier",
    ),
    _whole(
        "no-last-barrier",
        "a block ends while the other may still arrive at its mbarriers",
        ROTATING,
        LEAVE,
        "",
        "race",
    ),
    _whole(
        "meets-own-block-last",
        "a block waits for its own warps alone before it ends",
        ROTATING,
        LEAVE,
        "  ptx::barrier_sync();\n",
        "race",
    ),
    _whole(
        "leaves-without-waiting",
        "a block arrives at the cluster's last barrier and ends",
        ROTATING,
        LEAVE,
        "  ptx::cluster_arrive();\n",
        "race",
    ),
    # the last wave, cut among clusters
    _cut(
        "slot-of-the-other",
        "a block leaves its sums where those of the other belong",
        ROTATING,
        SLOT,
        SLOT.replace("ring.rank", "1 - ring.rank"),
        VALUES,
        "uninitialised",
    ),
    _cut(
        "one-slot-for-both",
        "both blocks of a cluster leave their sums in one place",
        ROTATING,
        SLOT,
        SLOT.replace("ring.rank", "0"),
        "race",
        "uninitialised",
    ),
    _cut(
        "slots-by-block",
        "the slot is that of a block, as if each had a share of its own",
        ROTATING,
        SLOT,
        SLOT.replace("number, cluster)", "number, ptx::block_index())"),
        "out-of-bounds",
        "uninitialised",
    ),
    _cut(
        "adds-parts-of-first-block",
        "the sums of the first block's tile are stored as those of both",
        PARTS,
        "Pieces::slot(slots.first + first + i, rank)",
        "Pieces::slot(slots.first + first + i, 0)",
        VALUES,
    ),
    _cut(
        "adds-into-first-block",
        "the sums of both blocks go to the first one's tile",
        PARTS,
        "cluster_tile<Pieces>(cut.tile(cut_tile), rank,",
        "cluster_tile<Pieces>(cut.tile(cut_tile), 0,",
        "race",
        "unwritten-output",
    ),
    _cut(
        "adds-one-block-only",
        "half of the pieces are added",
        PARTS,
        "tiles * Pieces::CLUSTER * Pieces::COUNT;",
        "tiles * Pieces::COUNT;",
        "unwritten-output",
    ),
    _cut(
        "workspace-for-one-block",
        "the workspace has room for the sums of one block of each cluster",
        TAIL,
        "(tail.blocks + tail.cut - 1) * Config::CLUSTER *",
        "(tail.blocks + tail.cut - 1) *",
        "out-of-bounds",
    ),
    _cut(
        "share-by-block",
        "the second block of a cluster multiplies the share of the cluster behind",
        ROTATING,
        "schedule{cluster, clusters,",
        "schedule{cluster + ring.rank, clusters,",
        VALUES,
        "deadlock",
        "unfinished-copy",
    ),
)
