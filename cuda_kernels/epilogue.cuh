// How the accumulators reach C in global memory.
#pragma once

#include "launch.h"
#include "mainloop.cuh"
#include "raster.cuh"

namespace hgemm {

// C[M, N] of each batch. Strides count elements.
struct Output {
  void* base;
  int M, N;
  int64_t row_stride, column_stride, batch_stride;
  bool aligned;  // columns are contiguous and every row starts on 16 bytes
};

inline Output output(const HgemmProblem& p) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(p.c) | static_cast<uint64_t>(p.c_row_stride | p.c_batch_stride) * 2;
  return {p.c,
          static_cast<int>(p.M),
          static_cast<int>(p.N),
          p.c_row_stride,
          p.c_column_stride,
          p.c_batch_stride,
          p.c_column_stride == 1 && bits % 16 == 0};
}

// Blocks of the grid: one for each tile of C of each batch.
template <class Config>
int64_t block_count(const HgemmProblem& p) {
  return p.batch * tiles(p.M, Config::TILE_M) * tiles(p.N, Config::TILE_N);
}

// Eight neighbouring columns of a row of C, as far as they lie inside it: in one store, or element by element at an
// edge that is not a multiple of 8 columns and in a C whose rows are not aligned.
HGEMM_DEVICE void store_chunk(const Output& c, char* base, int row, int column, const uint32_t (&value)[4]) {
  const int columns_left = c.N - column;
  if (row >= c.M || columns_left <= 0) return;
  char* const chunk = base + (row * c.row_stride + column * c.column_stride) * ELEMENT_BYTES;
  if (c.aligned && columns_left >= CHUNK_ELEMENTS) {
    ptx::st_global_v4(chunk, value);
  } else {
#pragma unroll
    for (int e = 0; e < CHUNK_ELEMENTS; ++e)
      if (e < columns_left)
        ptx::st_global_b16(chunk + e * c.column_stride * ELEMENT_BYTES, value[e / 2] >> (e % 2 * 16));
  }
}

// Rows of a warp's part of C, rounded, in shared memory: panels of `PanelColumns` columns, or of the fewer that a warp
// tile has, side by side. A panel is swizzled by the bytes of its row.
//
// mma leaves each lane two neighbouring columns, 4 bytes, of eight rows. Writing, the lanes of a warp hit (row, chunk ^
// row) = 32 different banks, in panels of 32 columns as of 64; reading chunk by chunk, eight lanes take whole rows =
// 128 consecutive bytes, permuted.
template <class T, class Config, int Rows, int PanelColumns>
struct StagedRows {
  static constexpr int PANEL_COLUMNS = Config::WARP_N < PanelColumns ? Config::WARP_N : PanelColumns;
  static constexpr int PANELS = Config::WARP_N / PANEL_COLUMNS;
  static constexpr int ROW_BYTES = PANEL_COLUMNS * ELEMENT_BYTES;  // one span of a swizzle
  static constexpr int CHUNKS = ROW_BYTES / 16;
  static constexpr int PANEL_BYTES = Rows * ROW_BYTES;
  static constexpr int BYTES = PANELS * PANEL_BYTES;
  static_assert(Rows % 16 == 0 && Config::WARP_M % Rows == 0, "whole fragments, and the same rows each time");

  // The rows of the warp tile from its `first_row` on.
  HGEMM_DEVICE void write(uint32_t staging, const WarpTile<T, Config>& warp_tile, int first_row, int lane) {
#pragma unroll
    for (int i = 0; i < Rows / 16; ++i)
#pragma unroll
      for (int j = 0; j < Config::WARP_N / 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // rows 0-7 and 8-15 of the fragment
          const float* value = &warp_tile.accumulators[first_row / 16 + i][j][half * 2];
          const int row = i * 16 + half * 8 + lane / 4;
          const int column = j * 8 + lane % 4 * 2;
          ptx::st_shared_b32(staging + offset(row, column), T::pack(value[0], value[1]));
        }
  }

  // Reads them back and stores them.
  HGEMM_DEVICE void store(uint32_t staging, const Output& c, const BlockTile& tile, int warp, int first_row, int lane) {
    const int top = tile.row + Config::first_row(warp);
    const int first_column = tile.column + Config::first_column(warp);
    char* const base = static_cast<char*>(c.base) + tile.batch * c.batch_stride * ELEMENT_BYTES;
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel)
#pragma unroll
      for (int i = 0; i < Rows * CHUNKS / 32; ++i) {
        const int row = (i * 32 + lane) / CHUNKS;
        const int column = panel * PANEL_COLUMNS + lane % CHUNKS * CHUNK_ELEMENTS;
        uint32_t value[4];
        ptx::ld_shared_v4(value, staging + offset(row, column));
        store_chunk(c, base, top + Config::row_distance(first_row + row), first_column + column, value);
      }
  }

 private:
  HGEMM_DEVICE uint32_t offset(int row, int column) {
    return column / PANEL_COLUMNS * PANEL_BYTES +
           swizzle(ROW_BYTES, row * ROW_BYTES + column % PANEL_COLUMNS * ELEMENT_BYTES);
  }
};

// What a policy offers. Two have nothing to do but to store; the third is in store_by_tma.cuh.
//
//   BYTES                     shared memory that the block needs for staging, 0 for none
//   Destination               what the kernel is told of C: an Output, or more
//   describe(problem, c)      fills it on the host; nullptr or a message
//   prefetch(c)               by one thread, before the first store
//   store(warp_tile, shared, c, tile, warp, lane)
//                             by every warp, with its accumulators of a tile; `shared` is the staging memory
//   finish()                  by every warp, before the block ends or the staging memory serves something else
struct PlainStore {
  using Destination = Output;
  static const char* describe(const HgemmProblem& p, Output* c) {
    *c = output(p);
    return nullptr;
  }
  HGEMM_DEVICE void prefetch(const Output&) {}
  HGEMM_DEVICE void finish() {}
};

// Through shared memory, in 16-byte stores.
//
// Stored directly, the 4 bytes that a lane holds of a row would touch eight rows with 16 bytes each, half a sector, in
// each of a warp's stores. Each warp instead lays its part of C into shared memory of its own and reads it back as
// whole 16-byte chunks, so that no two warps need wait for each other. The caller makes sure that the memory is free
// (nobody reads or copies into it any more).
template <class T, class Config>
struct StoreThroughShared : PlainStore {
  using Staged = StagedRows<T, Config, Config::WARP_M, 32>;
  static constexpr int BYTES = Config::WARPS * Staged::BYTES;

  HGEMM_DEVICE void store(const WarpTile<T, Config>& warp_tile, uint32_t shared, const Output& c, const BlockTile& tile,
                          int warp, int lane) {
    const uint32_t staging = shared + warp * Staged::BYTES;
    Staged::write(staging, warp_tile, 0, lane);
    ptx::warp_sync();
    Staged::store(staging, c, tile, warp, 0, lane);
  }
};

// By shuffles, in 16-byte stores, without shared memory: the tiles that come next may land in it meanwhile.
//
// The four lanes of a quad hold a row of four neighbouring 16x8 fragments, each lane 4 bytes of every fragment. They
// transpose these 4x4 words among themselves. Then each lane has the 16 bytes of one fragment, and a warp's store
// covers eight rows with 64 bytes, two whole sectors, each.
template <class T, class Config>
struct StoreShuffled : PlainStore {
  using Warp = WarpTile<T, Config>;
  static constexpr int BYTES = 0;
  static_assert(Warp::COLUMN_FRAGMENTS % 4 == 0, "whole groups of four fragments");

  HGEMM_DEVICE void store(const Warp& warp_tile, uint32_t, const Output& c, const BlockTile& tile, int warp, int lane) {
    const int first_row = tile.row + Config::first_row(warp) + lane / 4;
    const int first_column = tile.column + Config::first_column(warp) + lane % 4 * CHUNK_ELEMENTS;
    char* const base = static_cast<char*>(c.base) + tile.batch * c.batch_stride * ELEMENT_BYTES;
#pragma unroll
    for (int i = 0; i < Warp::ROW_FRAGMENTS; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)  // rows 0-7 and 8-15 of the fragments
#pragma unroll
        for (int j = 0; j < Warp::COLUMN_FRAGMENTS; j += 4) {
          uint32_t word[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float* value = &warp_tile.accumulators[i][j + e][half * 2];
            word[e] = T::pack(value[0], value[1]);
          }
          transpose(word, lane);
          store_chunk(c, base, first_row + Config::row_distance(i * 16) + half * 8, first_column + j * 8, word);
        }
  }

 private:
  // word[e] of lane q of a quad becomes what word[q] of lane e was: 2x2 blocks first, then words within the blocks.
  HGEMM_DEVICE void transpose(uint32_t (&word)[4], int lane) {
#pragma unroll
    for (int e = 0; e < 2; ++e) exchange(word[e], word[e + 2], lane, 2);
#pragma unroll
    for (int e = 0; e < 4; e += 2) exchange(word[e], word[e + 1], lane, 1);
  }

  // Between lanes whose indices differ in `bit`: the one without it gives its `second` for the other's `first`.
  HGEMM_DEVICE void exchange(uint32_t& first, uint32_t& second, int lane, int bit) {
    const bool has_bit = lane & bit;
    const uint32_t received = ptx::shuffle_xor(has_bit ? first : second, bit);
    first = has_bit ? received : first;
    second = has_bit ? second : received;
  }
};

}  // namespace hgemm
