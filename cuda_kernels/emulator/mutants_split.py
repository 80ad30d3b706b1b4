"""Faults planted in split.cuh and where else the blocks of a cluster share a tile of C: which part of K they multiply,
when they meet, and who adds what."""

from __future__ import annotations

from hgemm.cuda_kernels.emulator.mutant import VALUES, Mutant

SPLIT = "16x64x64_s7_w16x16_split4"
SHAPE = (20, 136, 520)
"""Six tiles of C, the last ones partly outside, and nine tiles of K: parts of two and three."""
TALL = "128x128x64_s3_w64x32_split2"
"""Two slices of 32 rows in each warp tile, where the other has one of 16."""

ADD = "if (in_c) add(sum, shared + offset(slice * ROW_FRAGMENTS, 0, lane));"
HAS_READ = "ptx::cluster_arrive_after(loaded(sum));"


def _split(
    name: str,
    what: str,
    original: str,
    changed: str,
    *caught_by: str,
    file: str = "split.cuh",
    config: str = SPLIT,
    shape: tuple[int, int, int] = SHAPE,
    part_starts: tuple[int, ...] = (),
) -> Mutant:
    mutant = Mutant(f"split-{name}", what, file, original, changed, caught_by, "tma", config, shape)
    return Mutant(**{**vars(mutant), "part_starts": part_starts})


def _order(name: str, what: str, rank: str) -> Mutant:
    """The parts are asked for in the order of `rank`. Four tiles of K are four parts."""
    changed = f"ptx::mapa(address, {rank})"
    return _split(name, what, "ptx::mapa(address, p)", changed, VALUES, shape=(20, 136, 256), part_starts=(0, 1, 2, 3))


MUTANTS = (
    # which part of K of which tile a block multiplies
    _split(
        "same-part",
        "every block multiplies the first part",
        "(work.first + from)",
        "k_tile",
        VALUES,
        file="tma.cuh",
    ),
    _split(
        "overlap",
        "a part takes along a tile of K that belongs to the next",
        "end = (part + 1) * k_tiles / parts;",
        "end = ((part + 1) * k_tiles + parts - 1) / parts;",
        VALUES,
        file="raster.cuh",
    ),
    _split(
        "empty-part",
        "a block without a tile of K waits for one",
        "Config::PARTS == 1 || work.count > 0",
        "Config::PARTS == 1 || work.count >= 0",
        "deadlock",
        file="tma.cuh",
        shape=(20, 136, 136),
    ),
    _split(
        "parts-of-other-tiles",
        "the blocks of one part are neighbours, and not those of one tile",
        "ptx::block_index() / Config::PARTS",
        "ptx::block_index() % (ptx::grid_blocks() / Config::PARTS)",
        VALUES,
        "race",
        file="tma.cuh",
    ),
    _split(
        "no-cluster",
        "a launch without clusters",
        "launch_clusters<kernel>(Config::PARTS,",
        "launch_clusters<kernel>(1,",
        "out-of-bounds",
        file="tma.cuh",
    ),
    # when the blocks meet
    _split(
        "no-barrier-before-the-reads",
        "adds what other blocks may still be multiplying",
        "    ptx::cluster_arrive_shared();\n    ptx::cluster_wait();\n",
        "",
        "race",
        "uninitialised",
        "in-flight",
    ),
    _split(
        "barrier-of-the-block-alone",
        "before it adds, a block waits for its own warps, and not for the others",
        "    ptx::cluster_arrive_shared();\n    ptx::cluster_wait();\n",
        "    ptx::barrier_sync();\n",
        "race",
        "uninitialised",
        "in-flight",
    ),
    _split(
        "shows-nothing",
        "the first arrival, too, tells only that a warp has read",
        "ptx::cluster_arrive_shared();",
        "ptx::cluster_arrive_after(0);",
        "race",
    ),
    _split(
        "no-last-wait",
        "a block ends while others may be reading its memory",
        "void finish() { ptx::cluster_wait(); }",
        "void finish() {}",
        "race",
    ),
    _split(
        "waits-twice",
        "a warp waits for the others once it has read, and again, without having arrived, before it ends",
        "    ptx::cluster_arrive_after(loaded(sum));  // this",
        "    ptx::cluster_arrive_after(loaded(sum)), ptx::cluster_wait();  // this",
        "barrier",
    ),
    _split(
        "arrives-before-it-has-read",
        "a warp tells the others that it has read, and reads",
        f"{ADD}\n    {HAS_READ}",
        f"{HAS_READ}\n    {ADD}",
        "race",
    ),
    _split(
        "staged-over-sums",
        "C is staged over sums that other blocks may be reading",
        "shared + SUMS_BYTES + warp * Store::BYTES",
        "shared + warp * Store::BYTES",
        "race",
    ),
    # what a block leaves
    _split(
        "fragment-in-place-of-another",
        "the first fragments of a warp tile lie in the place of all",
        "(row * COLUMN_FRAGMENTS + column) *",
        "(row * COLUMN_FRAGMENTS) *",
        VALUES,
    ),
    _split(
        "warps-in-one-place",
        "all warps leave their sums in one place",
        "offset(warp * (Config::WARP_M / 16) + i, j, lane)",
        "offset(i, j, lane)",
        "race",
    ),
    # who adds what
    _order("last-part-first", "adds the parts from the last to the first", "PARTS - 1 - p"),
    _order("neighbours-swapped", "adds every second part before the one ahead of it", "p ^ 1"),
    _order("own-part-first", "each block begins with the part of its own", "(p + ptx::cluster_rank()) % PARTS"),
    _split(
        "own-part-again",
        "adds the part of its own as often as there are parts",
        "ptx::mapa(address, p)",
        "ptx::mapa(address, ptx::cluster_rank())",
        VALUES,
    ),
    _split(
        "one-part-less",
        "the last part is left out",
        "    for (int p = 0; p < PARTS; ++p)\n",
        "    for (int p = 0; p < PARTS - 1; ++p)\n",
        VALUES,
    ),
    _split(
        "same-slice",
        "every block adds the slices of the first",
        "warp * PARTS + static_cast<int>(ptx::cluster_rank())",
        "warp * PARTS",
        "race",
        "unwritten-output",
    ),
    _split(
        "one-slice-less",
        "the last slice of a tile is left out",
        "slice < SLICES &&",
        "slice < SLICES - 1 &&",
        "unwritten-output",
    ),
    _split(
        "slices-past-the-last",
        "warps without a slice add what lies behind the sums",
        "slice < SLICES && ",
        "",
        "race",
        "uninitialised",
    ),
    _split(
        "in-place-of-another",
        "a slice is stored where the adding warp's own would be",
        "const int owner = slice / OF_WARP,",
        "const int owner = warp,",
        "race",
        "unwritten-output",
    ),
    _split(
        "slices-of-a-warp-on-top",
        "all slices of a warp tile are stored in its first rows",
        "slice % OF_WARP * ROWS;",
        "0;",
        "race",
        config=TALL,
        shape=(136, 136, 200),
    ),
    _split(
        "slices-overlap",
        "a slice is taken to begin 16 rows behind the one before it, and has 32",
        "slice * ROW_FRAGMENTS",
        "slice",
        VALUES,
        config=TALL,
        shape=(136, 136, 200),
    ),
)
