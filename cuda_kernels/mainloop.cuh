// What one warp does with a staged tile: ldmatrix the operands into registers, mma.sync them into its part of C.
#pragma once

#include "layout.cuh"

namespace hgemm {

// The 16 bytes that a lane names to ldmatrix in its warp's first fragment, as a byte offset in the tile of A or of B.
// `moved` leads on from there to the other fragments and k-steps.
//
// A fragment is four 8x8 matrices, and lanes 8i to 8i+7 name the rows of the i-th. mma wants those of A in the order
// (rows 0-7, k 0-7), (rows 8-15, k 0-7), (rows 0-7, k 8-15), (rows 8-15, k 8-15); of B first both halves of k for
// columns 0-7, then for columns 8-15: two fragments by one ldmatrix.
template <class Config>
struct LaneOffset {
  using A = typename Stage<Config>::A;
  using B = typename Stage<Config>::B;

  HGEMM_HOST_DEVICE uint32_t a(int warp, int lane) {
    const int row_half = lane / 8 % 2, k_half = lane / 16;
    return A::offset(Config::first_row(warp) + A::lane_outer(row_half, lane), A::lane_k(k_half, lane));
  }

  HGEMM_HOST_DEVICE uint32_t b(int warp, int lane) {
    const int k_half = lane / 8 % 2, column_half = lane / 16;
    return B::offset(Config::first_column(warp) + B::lane_outer(column_half, lane), B::lane_k(k_half, lane));
  }
};

// The addresses that a lane names to ldmatrix, from LaneOffset on, for `Extent` rows of A or columns of B. They differ
// by a turn of the swizzle, of which a row has up to four, and by a distance, which the instruction adds by itself.
//
// With a register for each turn no address takes an instruction: the tile's is added by ldmatrix too, since it is the
// same for all lanes, and may be added behind a turn, since it is a multiple of the swizzle's pattern. The compiler
// would rather turn anew for every ldmatrix than keep the registers; a shuffle, for which the whole warp comes here,
// each thread with its own `lane`, hides from it what they hold.
template <class Tile, int Extent, bool RegisterEach>
struct LaneAddresses {
  static constexpr uint32_t TURN = 16 * ELEMENT_BYTES;
  static constexpr int TURNS = RegisterEach ? Tile::BOX_COLUMNS / 16 : 1;

  uint32_t turned[TURNS];

  HGEMM_MEMBER LaneAddresses(uint32_t offset, int lane) {
    turned[0] = offset;
#pragma unroll
    for (int i = 1; i < TURNS; ++i) turned[i] = ptx::shuffle_index(offset ^ i * TURN, lane);
  }

  HGEMM_MEMBER uint32_t address(uint32_t tile, int outer, int k) const {
    if constexpr (RegisterEach) return tile + turned[Tile::turn(outer, k) / TURN] + Tile::distance(outer, k);
    // Of an extent of 64 with four turns along it, these would be worked out ahead of the loop over K and kept after
    // all, if each were not turned last.
    if constexpr (!Tile::K_CONTIGUOUS && Extent > 32)
      return (tile + turned[0] + Tile::distance(outer, k)) ^ Tile::turn(outer, k);
    return moved<Tile>(tile + turned[0], outer, k);
  }
};

// A warp's WARP_M x WARP_N part of the block's tile: accumulators and fragments. It has two forms, which differ in how
// many fragments they hold; both load the next k-step, of this tile of K or of the next one, while the tensor cores
// work on this one:
//
//   load_first(a_tile, b_tile)                       the first step of a tile
//   begin(step, a_tile)                              multiplies, as far as it needs no fragment of the next step
//   loaded()                                         in between: a word that depends on all fragments of this step
//   finish(step, next_a_tile, next_b_tile, next)     loads step `next`, and multiplies what is left
//
// Steps are compile-time constants after unrolling, so that the fragments stay in registers.
template <class T, class Config, bool Rolling = Config::ROLLING>
struct WarpTile;

template <class Config>
struct WarpAccumulators {
  using A = typename Stage<Config>::A;
  using B = typename Stage<Config>::B;
  static constexpr int ROW_FRAGMENTS = Config::WARP_M / 16;    // 16x16 of A, one ldmatrix each
  static constexpr int COLUMN_FRAGMENTS = Config::WARP_N / 8;  // 16x8 of B, two by one ldmatrix
  static constexpr int K_STEPS = Config::TILE_K / 16;
  // Two blocks of 64x32 warp tiles leave no registers, nor do the accumulators of 96x64. Of few rows memory is waited
  // for.
  static constexpr bool REGISTER_EACH_TURN = Config::WARP_M * Config::WARP_N == 64 * 64;

  float accumulators[ROW_FRAGMENTS][COLUMN_FRAGMENTS][4];
  LaneAddresses<A, Config::WARP_M, REGISTER_EACH_TURN> a_lane;
  LaneAddresses<B, Config::WARP_N, REGISTER_EACH_TURN> b_lane;

  HGEMM_MEMBER WarpAccumulators(int warp, int lane)
      : a_lane(LaneOffset<Config>::a(warp, lane), lane), b_lane(LaneOffset<Config>::b(warp, lane), lane) {
    clear();
  }

  HGEMM_MEMBER void clear() {
#pragma unroll
    for (int i = 0; i < ROW_FRAGMENTS; ++i)
#pragma unroll
      for (int j = 0; j < COLUMN_FRAGMENTS; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) accumulators[i][j][e] = 0.0f;
  }

  // The fragments of B in the order in which a row of A meets them: to and fro, so that each mma of a k-step but the
  // first has an operand of the one before. The last row goes forward: fragments of B that roll give way in that order.
  HGEMM_HOST_DEVICE int turning(int row, int column) {
    return (ROW_FRAGMENTS - row) % 2 ? column : COLUMN_FRAGMENTS - 1 - column;
  }

  HGEMM_MEMBER void load_a(uint32_t (&fragment)[4], uint32_t a_tile, int i, int step, uint32_t loaded = 0) {
    A::ldmatrix(fragment, ptx::after(loaded, a_lane.address(a_tile, Config::row_distance(i * 16), step * 16)));
  }
  HGEMM_MEMBER void load_b(uint32_t (&fragments)[4], uint32_t b_tile, int j, int step) {
    B::ldmatrix(fragments, b_lane.address(b_tile, j * 16, step * 16));
  }
};

// Two sets of fragments, one for the step that is multiplied and one for the next.
//
// Registers of a 64x32 warp tile: 64 accumulators + 2 * (16 of A + 8 of B) = 112 of the 128 that two blocks of
// 256 threads leave each thread.
template <class T, class Config>
struct WarpTile<T, Config, false> : WarpAccumulators<Config> {
  using Base = WarpAccumulators<Config>;
  using Base::ROW_FRAGMENTS, Base::COLUMN_FRAGMENTS, Base::K_STEPS;
  static_assert(K_STEPS % 2 == 0, "the two sets of fragments alternate, also from one stage to the next");

  uint32_t a[2][ROW_FRAGMENTS][4];
  uint32_t b[2][COLUMN_FRAGMENTS / 2][4];

  HGEMM_MEMBER WarpTile(int warp, int lane) : Base(warp, lane) {}

  HGEMM_MEMBER void load_first(uint32_t a_tile, uint32_t b_tile) { load(0, a_tile, b_tile, 0); }
  HGEMM_MEMBER void begin(int, uint32_t) {}
  HGEMM_MEMBER void finish(int step, uint32_t next_a_tile, uint32_t next_b_tile, int next) {
    load((step + 1) % 2, next_a_tile, next_b_tile, next);
    multiply(step % 2);
  }

  // Loads the fragments of k-step `step` into set `set`.
  HGEMM_MEMBER void load(int set, uint32_t a_tile, uint32_t b_tile, int step) {
#pragma unroll
    for (int i = 0; i < ROW_FRAGMENTS; ++i) Base::load_a(a[set][i], a_tile, i, step);
#pragma unroll
    for (int j = 0; j < COLUMN_FRAGMENTS / 2; ++j) Base::load_b(b[set][j], b_tile, j, step);
  }

  // Depends on the fragments of both sets: whoever uses it has waited for every ldmatrix that loaded them.
  HGEMM_MEMBER uint32_t loaded() const {
    uint32_t word = 0;
#pragma unroll
    for (int set = 0; set < 2; ++set) {
#pragma unroll
      for (int i = 0; i < ROW_FRAGMENTS; ++i) word |= a[set][i][0];
#pragma unroll
      for (int j = 0; j < COLUMN_FRAGMENTS / 2; ++j) word |= b[set][j][0];
    }
    return word;
  }

  HGEMM_MEMBER void multiply(int set) {
#pragma unroll
    for (int i = 0; i < ROW_FRAGMENTS; ++i)
#pragma unroll
      for (int column = 0; column < COLUMN_FRAGMENTS; ++column) {
        const int j = Base::turning(i, column);
        T::mma(Base::accumulators[i][j], a[set][i], b[set][j / 2][j % 2 * 2], b[set][j / 2][j % 2 * 2 + 1]);
      }
  }
};

// The fragments of one step of B, and of A those of two rows: the next row is loaded while one is multiplied. While the
// last row is multiplied each fragment of B, used for the last time, gives way to that of the next step.
//
// Registers of a 96x64 warp tile: 192 accumulators + 8 of A + 16 of B = 216 of 255. Two sets of all would be 272.
template <class T, class Config>
struct WarpTile<T, Config, true> : WarpAccumulators<Config> {
  using Base = WarpAccumulators<Config>;
  using Base::ROW_FRAGMENTS, Base::COLUMN_FRAGMENTS, Base::K_STEPS;
  static constexpr int LAST_ROW = ROW_FRAGMENTS - 1;
  static_assert(ROW_FRAGMENTS % 2 == 0, "the two rows of A alternate, also from one step to the next");

  uint32_t a[2][4];
  uint32_t b[COLUMN_FRAGMENTS / 2][4];

  HGEMM_MEMBER WarpTile(int warp, int lane) : Base(warp, lane) {}

  HGEMM_MEMBER void load_first(uint32_t a_tile, uint32_t b_tile) {
    Base::load_a(a[0], a_tile, 0, 0);
#pragma unroll
    for (int j = 0; j < COLUMN_FRAGMENTS / 2; ++j) Base::load_b(b[j], b_tile, j, 0);
  }

  // In the last step, behind which the stage is freed, a row is asked for when the one before has arrived, so that the
  // last one to arrive stands for all. In the others the compiler may load several rows ahead.
  HGEMM_MEMBER void begin(int step, uint32_t a_tile) {
#pragma unroll
    for (int i = 0; i < LAST_ROW; ++i) {
      Base::load_a(a[(i + 1) % 2], a_tile, i + 1, step, step + 1 == K_STEPS ? a[i % 2][0] : 0);
#pragma unroll
      for (int column = 0; column < COLUMN_FRAGMENTS; ++column) multiply(i, Base::turning(i, column));
    }
  }

  HGEMM_MEMBER uint32_t loaded() const {
    uint32_t word = a[LAST_ROW % 2][0];
#pragma unroll
    for (int j = 0; j < COLUMN_FRAGMENTS / 2; ++j) word |= b[j][0];
    return word;
  }

  HGEMM_MEMBER void finish(int, uint32_t next_a_tile, uint32_t next_b_tile, int next) {
    Base::load_a(a[0], next_a_tile, 0, next);
#pragma unroll
    for (int j = 0; j < COLUMN_FRAGMENTS / 2; ++j) {
      multiply(LAST_ROW, 2 * j);
      multiply(LAST_ROW, 2 * j + 1);
      Base::load_b(b[j], next_b_tile, j, next);
    }
  }

 private:
  HGEMM_MEMBER void multiply(int i, int j) {
    T::mma(Base::accumulators[i][j], a[i % 2], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
  }
};

}  // namespace hgemm
