// Where an element of a staged tile lies in shared memory.
//
// ldmatrix reads eight rows of 16 bytes at a time and is free of bank conflicts if the eight lie in different groups of
// four banks, that is, at different (address / 16) % 8. Rows of 128 bytes stacked plainly put a column of chunks into
// one group: eight conflicts. A swizzle permutes the 16-byte chunks within a row by the row's index instead; TMA
// applies the very same permutation while it writes, so both families share these functions.
#pragma once

#include "dtype.cuh"

namespace hgemm {

// TMA's swizzle for rows of `span` bytes, on byte offsets from a tile that starts on a multiple of 8 spans:
//   128: chunk ^= row % 8          address bits 4-6 ^= bits 7-9
//    64: chunk ^= (row / 2) % 4    address bits 4-5 ^= bits 7-8
//    32: chunk ^= (row / 4) % 2    address bit  4   ^= bit  7
//     0: none
// In every case eight rows at one chunk index fall into eight different bank groups.
HGEMM_HOST_DEVICE constexpr uint32_t swizzle(uint32_t span, uint32_t offset) {
  return span == 0 ? offset : offset ^ ((offset >> 3) & (span - 16));
}

// A tile of one operand: `Outer` rows of A or columns of B, by `TileK` along K. Its two forms follow the matrix in
// global memory, whose rows are copied as they are. Both offer
//
//   ROWS, COLUMNS             the tile as stored: COLUMNS run along contiguous memory
//   BOX_COLUMNS, BOXES        a swizzled TMA box is at most one span wide, so a wide tile is several boxes side by side
//   offset(outer, k)          the byte offset of an element
//   turn(outer, k)            what leads to the element `outer` and `k` further on, both multiples of 16: within a row
//   distance(outer, k)        of the swizzle, and from row to row and box to box; see moved
//   ldmatrix(...)             a 16x16 fragment, delivered as mma wants it: K along the row of each 8x8 matrix
//   lane_outer, lane_k        the first element of the 16 bytes that this lane names to ldmatrix
template <bool KContiguous, int Outer, int TileK, bool Swizzled>
struct OperandTile;

// The address of the element `outer` and `k` further on than that at `address`, both multiples of 16. Sixteen rows on,
// the swizzle is the same. Along a row it permutes chunks: an exclusive or with bits that are clear in the unswizzled
// address moves the chunk just as an addition before the swizzle would have.
template <class Tile>
HGEMM_HOST_DEVICE constexpr uint32_t moved(uint32_t address, int outer, int k) {
  return (address ^ Tile::turn(outer, k)) + Tile::distance(outer, k);
}

// K is contiguous (row-major A, column-major B). A row of a box is one span: 64 bytes for TileK 32, else 128, of which
// a TileK of 128 has two boxes.
template <int Outer, int TileK, bool Swizzled>
struct OperandTile<true, Outer, TileK, Swizzled> {
  static constexpr bool K_CONTIGUOUS = true;
  static constexpr int ROWS = Outer, COLUMNS = TileK;
  static constexpr int BOX_COLUMNS = TileK < 64 ? TileK : 64, BOXES = COLUMNS / BOX_COLUMNS;
  static constexpr int ROW_BYTES = BOX_COLUMNS * ELEMENT_BYTES;
  static constexpr int BOX_BYTES = ROWS * ROW_BYTES, BYTES = BOXES * BOX_BYTES;
  static constexpr int SPAN = Swizzled ? ROW_BYTES : 0;
  static_assert(ROW_BYTES == 32 || ROW_BYTES == 64 || ROW_BYTES == 128, "a row of a box is one swizzle span");
  static_assert(COLUMNS % BOX_COLUMNS == 0, "the tile is whole boxes of 64 along K");

  HGEMM_HOST_DEVICE constexpr uint32_t offset(int outer, int k) {
    return k / BOX_COLUMNS * BOX_BYTES + swizzle(SPAN, outer * ROW_BYTES + k % BOX_COLUMNS * ELEMENT_BYTES);
  }
  HGEMM_HOST_DEVICE constexpr uint32_t turn(int, int k) { return k % BOX_COLUMNS * ELEMENT_BYTES; }
  HGEMM_HOST_DEVICE constexpr uint32_t distance(int outer, int k) {
    return outer * ROW_BYTES + k / BOX_COLUMNS * BOX_BYTES;
  }
  HGEMM_HOST_DEVICE int lane_outer(int half, int lane) { return half * 8 + lane % 8; }
  HGEMM_HOST_DEVICE int lane_k(int half, int) { return half * 8; }
  HGEMM_DEVICE void ldmatrix(uint32_t (&fragment)[4], uint32_t address) { ptx::ldmatrix_x4(fragment, address); }
};

// M or N is contiguous (column-major A, row-major B). The tile is a row of boxes, each 64 elements (128 bytes) wide, or
// the 16 or 32 that a narrow tile has, and TileK rows high, and ldmatrix transposes.
template <int Outer, int TileK, bool Swizzled>
struct OperandTile<false, Outer, TileK, Swizzled> {
  static constexpr bool K_CONTIGUOUS = false;
  static constexpr int ROWS = TileK, COLUMNS = Outer;
  static constexpr int BOX_COLUMNS = Outer < 64 ? Outer : 64, BOXES = COLUMNS / BOX_COLUMNS;
  static constexpr int ROW_BYTES = BOX_COLUMNS * ELEMENT_BYTES;
  static constexpr int BOX_BYTES = ROWS * ROW_BYTES, BYTES = BOXES * BOX_BYTES;
  static constexpr int SPAN = Swizzled ? ROW_BYTES : 0;
  static_assert(ROW_BYTES == 32 || ROW_BYTES == 64 || ROW_BYTES == 128, "a row of a box is one swizzle span");
  static_assert(COLUMNS % BOX_COLUMNS == 0, "the tile is whole boxes of 64 columns");

  HGEMM_HOST_DEVICE constexpr uint32_t offset(int outer, int k) {
    return outer / BOX_COLUMNS * BOX_BYTES + swizzle(SPAN, k * ROW_BYTES + outer % BOX_COLUMNS * ELEMENT_BYTES);
  }
  HGEMM_HOST_DEVICE constexpr uint32_t turn(int outer, int) { return outer % BOX_COLUMNS * ELEMENT_BYTES; }
  HGEMM_HOST_DEVICE constexpr uint32_t distance(int outer, int k) {
    return k * ROW_BYTES + outer / BOX_COLUMNS * BOX_BYTES;
  }
  HGEMM_HOST_DEVICE int lane_outer(int half, int) { return half * 8; }
  HGEMM_HOST_DEVICE int lane_k(int half, int lane) { return half * 8 + lane % 8; }
  HGEMM_DEVICE void ldmatrix(uint32_t (&fragment)[4], uint32_t address) { ptx::ldmatrix_x4_trans(fragment, address); }
};

// One configuration of a kernel in numbers, as its name in configs.py spells them, and the layout of its operands.
template <int TileM, int TileN, int TileK, int Stages, int WarpM, int WarpN>
struct TileShape {
  static constexpr int TILE_M = TileM, TILE_N = TileN, TILE_K = TileK, STAGES = Stages;
  static constexpr int WARP_M = WarpM, WARP_N = WarpN;
  static constexpr int WARPS_M = TileM / WarpM, WARPS_N = TileN / WarpN;
  static constexpr int WARPS = WARPS_M * WARPS_N, THREADS = WARPS * 32;
  static constexpr bool SWIZZLED = true;
  static constexpr bool PERSISTENT = false;  // as many blocks as the device holds, each computing tile after tile of C
  static constexpr int PARTS = 1;            // blocks that share a tile of C, a part of K each
  static constexpr int CLUSTER = 1;          // blocks side by side in C that share a tile of A, a part of its rows each
  static constexpr bool TAIL = false;        // the last, partly filled wave of tiles is cut along K
  static constexpr int STAGED_ROWS = 0;  // of each warp tile of C, staged at a time to be stored by TMA; 0: it is not

  // The warps take a tile's rows in turn, so many at a time: 96 in pieces of 32, since a piece that crossed from one
  // box of 64 into the next would not be where `moved` looks for it. Any other number in one piece.
  static constexpr int ROWS_TOGETHER = 64 % WarpM == 0 || WarpM % 64 == 0 ? WarpM : 32;
  HGEMM_HOST_DEVICE constexpr int first_row(int warp) { return warp / WARPS_N * ROWS_TOGETHER; }
  // From a warp's first row to the one that it counts as its `down`-th.
  HGEMM_HOST_DEVICE constexpr int row_distance(int down) {
    return ROWS_TOGETHER == WarpM ? down : down / ROWS_TOGETHER * (WARPS_M * ROWS_TOGETHER) + down % ROWS_TOGETHER;
  }
  HGEMM_HOST_DEVICE constexpr int first_column(int warp) { return warp % WARPS_N * WarpN; }

  // Of the larger warp tiles two sets of fragments do not fit into the registers beside the accumulators.
  static constexpr bool ROLLING = WarpM * WarpN > 64 * 64;

  static_assert(TileM % WarpM == 0 && TileN % WarpN == 0, "the warps tile the block");
  static_assert(ROWS_TOGETHER == WarpM || (WarpM % 32 == 0 && WARPS_M % 2 == 0),
                "from one piece to the next the distance is whole boxes of 64 rows");
  static_assert(64 % WarpN == 0 || WarpN % 64 == 0, "a warp's columns lie in whole boxes of 64 or in one of them");
  static_assert(WarpM % 16 == 0 && WarpN % 16 == 0, "one ldmatrix loads 16 rows of A or 16 columns of B");
};

// One stage of the ring: a tile of A, then a tile of B.
template <class Config>
struct Stage {
  using A = OperandTile<Config::A_K_CONTIGUOUS, Config::TILE_M, Config::TILE_K, Config::SWIZZLED>;
  using B = OperandTile<Config::B_K_CONTIGUOUS, Config::TILE_N, Config::TILE_K, Config::SWIZZLED>;
  static constexpr int BYTES = A::BYTES + B::BYTES;

  // What a block copies of A: all of it, or its part of what a cluster shares. The parts lie one behind the other.
  using CopiedA =
      OperandTile<Config::A_K_CONTIGUOUS, Config::TILE_M / Config::CLUSTER, Config::TILE_K, Config::SWIZZLED>;
  static_assert(Config::CLUSTER == 1 || !A::K_CONTIGUOUS || A::BOXES == 1, "rows of one box are in a row in memory");
  static_assert(A::BOX_BYTES % 1024 == 0 && B::BOX_BYTES % 1024 == 0,
                "each swizzled box starts on a 1024-byte boundary");

  HGEMM_DEVICE uint32_t a(uint32_t ring, int stage) { return ring + stage * BYTES; }
  HGEMM_DEVICE uint32_t b(uint32_t ring, int stage) { return ring + stage * BYTES + A::BYTES; }
};

}  // namespace hgemm
