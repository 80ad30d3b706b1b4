"""Faults planted in how a producer and those that multiply walk one schedule, the last wave of which is cut: which
tiles of K either takes, where a part ends, and whose sums lie where."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

TAIL = "256x128x64_s3_w64x64_producer_persistent_multicast_store-tma_tail"
ALL_CUT = (500, 200, 1664)
"""Two pairs of tiles of C for three clusters, 26 tiles of K each: parts of 18 and 17, the second cluster's from both
pairs."""
LAST_CUT = (1000, 200, 1472)
"""Four pairs of tiles, of which the fourth is cut: three clusters have 8, 8 and 7 of its 23 tiles of K."""
PRODUCER = "tma_producer.cuh"
COPIED = "k_tile = work.first; k_tile < work.first + work.count; ++k_tile)"
MULTIPLIED = "k_tile < work.count; ++k_tile)\n      ring.multiply"
SLOT = "PiecesOf<Config>::slot(tail.slot(work.number, cluster), ring.rank);"


def _cut(
    name: str,
    what: str,
    original: str,
    changed: str,
    *caught_by: str,
    file: str = PRODUCER,
    shape: tuple[int, int, int] = ALL_CUT,
    clusters: int = 3,
) -> Mutant:
    name, blocks = f"producer-tail-{name}", 2 * clusters
    return Mutant(name, what, file, original, changed, caught_by, "tma", TAIL, shape, resident_blocks=blocks)


MUTANTS = (
    # which tiles of K are copied, and which multiplied
    _cut(
        "copies-from-first-tile-of-k",
        "every part is copied from the first tile of K on",
        COPIED,
        "k_tile = 0; k_tile < work.count; ++k_tile)",
        VALUES,
    ),
    _cut(
        "copies-to-end-of-tile",
        "the producer copies to the end of the tile of C that a part is of",
        COPIED,
        COPIED.replace("work.first + work.count", "k_tiles"),
        "deadlock",
        "unfinished-copy",
        VALUES,
    ),
    _cut(
        "copies-one-tile-less",
        "the producer leaves out the last tile of K of a part",
        COPIED,
        COPIED.replace("work.count", "work.count - 1"),
        "deadlock",
    ),
    _cut(
        "copies-first-part-only",
        "the producer ends behind a cluster's part of the first tile of C",
        "while (schedule.next(work));",
        "while (false);",
        "deadlock",
    ),
    _cut(
        "multiplies-to-end-of-tile",
        "warps wait for tiles of K that are not of their part",
        MULTIPLIED,
        MULTIPLIED.replace("work.count", "k_tiles"),
        "deadlock",
    ),
    _cut(
        "goes-on-past-its-part",
        "behind its last part a warp waits for another tile, since it looks for the end of the tile of C",
        "k_tile + 1 == work.count, lane",
        "k_tile + 1 == k_tiles, lane",
        "deadlock",
    ),
    _cut(
        "multiplies-first-part-only",
        "warps end behind a cluster's part of the first tile of C",
        "last_tile = !schedule.next(next);",
        "last_tile = schedule.next(next) || true;",
        "deadlock",
    ),
    _cut(
        "stays-with-first-part",
        "the parts of a cluster are both left as parts of the first tile of C",
        "    schedule.next(work);\n    warp_tile",
        "    work.count = next.count;\n    warp_tile",
        "uninitialised",
        "race",
        VALUES,
    ),
    _cut("adds-to-part-before", "a part is added to the one before", "    warp_tile.clear();\n", "", VALUES),
    # who has a part
    _cut(
        "share-by-block",
        "the second block of a cluster takes the share of the cluster behind",
        "schedule{cluster, clusters,",
        "schedule{cluster + ring.rank, clusters,",
        VALUES,
        "deadlock",
        "unfinished-copy",
    ),
    _cut(
        "idle-cluster-goes-on",
        "a cluster without a share multiplies a tile outside of C, and leaves its sums",
        "  if (Config::TAIL && idle) return;",
        "",
        "out-of-bounds",
        shape=(250, 200, 1024),  # 16 tiles of K for at most four clusters
        clusters=5,
    ),
    _cut(
        "too-few-clusters",
        "a grid of as many clusters as there are tiles of C, fewer than have a share",
        "if (resident < *clusters || tail->cut)",
        "if (resident < *clusters)",
        "uninitialised",
        file="tail.cuh",
    ),
    # whose sums lie where
    _cut(
        "stores-part-as-tile",
        "a part of the sum is stored as the first of the cut tiles",
        "work.number >= tail.whole) {",
        "work.number > tail.whole) {",
        "race",
        "uninitialised",
        shape=LAST_CUT,
    ),
    _cut(
        "leaves-tile-as-part",
        "a whole tile is left in the workspace like a part",
        "Config::TAIL && work.number >= tail.whole)",
        "Config::TAIL && tail.cut)",
        "out-of-bounds",
        "unwritten-output",
        shape=LAST_CUT,
    ),
    _cut(
        "slot-of-the-other",
        "a block leaves its sums where those of the other belong",
        SLOT,
        SLOT.replace("ring.rank", "1 - ring.rank"),
        VALUES,
        "uninitialised",
    ),
    _cut(
        "slots-by-block",
        "the slot is that of a block, as if each had a share of its own",
        SLOT,
        SLOT.replace("number, cluster)", "number, ptx::block_index())"),
        "out-of-bounds",
        "uninitialised",
    ),
    _cut(
        "parts-not-added",
        "nothing adds the parts",
        "if (tail.cut) return launch_add_parts",
        "if (tail.cut > 2) return launch_add_parts",
        "unwritten-output",
    ),
)
