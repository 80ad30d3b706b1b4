// What one warp does with a staged tile: ldmatrix the operands into registers, mma.sync them into its part of C.
#pragma once

#include "layout.cuh"

namespace hgemm {

// The 16 bytes that a lane names to ldmatrix in its warp's first fragment, as a byte offset in the tile of A or of B.
// A::moved and B::moved lead on from there to the other fragments and k-steps.
//
// A fragment is four 8x8 matrices, and lanes 8i to 8i+7 name the rows of the i-th. mma wants those of A in the order
// (rows 0-7, k 0-7), (rows 8-15, k 0-7), (rows 0-7, k 8-15), (rows 8-15, k 8-15); of B first both halves of k for
// columns 0-7, then for columns 8-15: two fragments by one ldmatrix.
template <class Config>
struct LaneOffset {
  using A = typename Stage<Config>::A;
  using B = typename Stage<Config>::B;

  HGEMM_HOST_DEVICE uint32_t a(int warp, int lane) {
    const int row = warp / Config::WARPS_N * Config::WARP_M;
    const int row_half = lane / 8 % 2, k_half = lane / 16;
    return A::offset(row + A::lane_outer(row_half, lane), A::lane_k(k_half, lane));
  }

  HGEMM_HOST_DEVICE uint32_t b(int warp, int lane) {
    const int column = warp % Config::WARPS_N * Config::WARP_N;
    const int k_half = lane / 8 % 2, column_half = lane / 16;
    return B::offset(column + B::lane_outer(column_half, lane), B::lane_k(k_half, lane));
  }
};

// A warp's WARP_M x WARP_N part of the block's tile: accumulators, and two sets of fragments so that the next k-step is
// loaded while the tensor cores work on this one.
//
// Registers of a 64x32 warp tile: 64 accumulators + 2 * (16 of A + 8 of B) = 112 of the 128 that two blocks of
// 256 threads leave each thread.
template <class T, class Config>
struct WarpTile {
  using A = typename Stage<Config>::A;
  using B = typename Stage<Config>::B;
  static constexpr int ROW_FRAGMENTS = Config::WARP_M / 16;    // 16x16 of A, one ldmatrix each
  static constexpr int COLUMN_FRAGMENTS = Config::WARP_N / 8;  // 16x8 of B, two by one ldmatrix
  static constexpr int K_STEPS = Config::TILE_K / 16;
  static_assert(K_STEPS % 2 == 0, "the two sets of fragments alternate, also from one stage to the next");

  float accumulators[ROW_FRAGMENTS][COLUMN_FRAGMENTS][4];
  uint32_t a[2][ROW_FRAGMENTS][4];
  uint32_t b[2][COLUMN_FRAGMENTS / 2][4];
  uint32_t a_lane, b_lane;  // LaneOffset

  HGEMM_MEMBER WarpTile(int warp, int lane)
      : a_lane(LaneOffset<Config>::a(warp, lane)), b_lane(LaneOffset<Config>::b(warp, lane)) {
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

  // Loads the fragments of k-step `step` into set `set`. Both are compile-time constants after unrolling, so that the
  // fragments stay in registers.
  HGEMM_MEMBER void load(int set, uint32_t a_tile, uint32_t b_tile, int step) {
#pragma unroll
    for (int i = 0; i < ROW_FRAGMENTS; ++i) A::ldmatrix(a[set][i], A::moved(a_tile + a_lane, i * 16, step * 16));
#pragma unroll
    for (int j = 0; j < COLUMN_FRAGMENTS / 2; ++j) B::ldmatrix(b[set][j], B::moved(b_tile + b_lane, j * 16, step * 16));
  }

  // A word that depends on all fragments of both sets: whoever uses it has waited for every ldmatrix before it.
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
      for (int j = 0; j < COLUMN_FRAGMENTS; ++j)
        T::mma(accumulators[i][j], a[set][i], b[set][j / 2][j % 2 * 2], b[set][j / 2][j % 2 * 2 + 1]);
  }
};

}  // namespace hgemm
