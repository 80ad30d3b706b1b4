// Split-K: a tile of C is computed by the blocks of a cluster, a part of K by each, in the order of their ranks.
//
//   a block multiplies its part of K                                      part_of_k of raster.cuh
//   its accumulators go to its own shared memory, in fp32
//   the blocks of the cluster meet
//   each warp of each adds a slice of the tile over all of their memories, in the order of K; stores C
//   the blocks meet again: none ends, and gives up its memory, while another may be reading it
//
// So every element is summed in one order, whichever block is the last, and rounded once; the sums never leave the
// multiprocessors, and there is one kernel.
#pragma once

#include "epilogue.cuh"
#include "ptx_cluster.cuh"

namespace hgemm {

// An epilogue policy, see PlainStore. A block whose part of K is empty has sums too: zeros.
template <class T, class Config>
struct StoreSumOfCluster : PlainStore {
  static constexpr int PARTS = Config::PARTS;
  static constexpr int ROWS = Config::WARP_M / PARTS < 16 ? 16 : Config::WARP_M / PARTS;  // of a slice
  static constexpr int OF_WARP = Config::WARP_M / ROWS;                                   // slices of a warp tile
  static constexpr int SLICES = Config::WARPS * OF_WARP;
  static constexpr int ROW_FRAGMENTS = ROWS / 16, COLUMN_FRAGMENTS = Config::WARP_N / 8;
  static_assert(PARTS <= 8, "clusters of up to 8 blocks run on every device that has clusters");
  static_assert(Config::WARP_M % ROWS == 0 && SLICES <= Config::WARPS * PARTS, "one slice a warp, or none");
  static_assert(Config::ROWS_TOGETHER == Config::WARP_M, "the rows of a slice are neighbours in C");
  static_assert(PARTS * ROW_FRAGMENTS * COLUMN_FRAGMENTS <= 16, "a warp holds a slice of all parts in registers");

  // A slice as a tile of C of its own, so that it is stored as one.
  struct Slice : TileShape<ROWS, Config::WARP_N, 64, 1, ROWS, Config::WARP_N> {
    static constexpr bool A_K_CONTIGUOUS = true, B_K_CONTIGUOUS = true;
  };
  using Store = StoreThroughShared<T, Slice>;
  static constexpr int SUMS_BYTES = Config::TILE_M * Config::TILE_N * 4;
  static constexpr int BYTES = SUMS_BYTES + Config::WARPS * Store::BYTES;  // C is not staged over sums still to be read

  HGEMM_DEVICE void store(const WarpTile<T, Config>& warp_tile, uint32_t shared, const Output& c, const BlockTile& tile,
                          int warp, int lane) {
#pragma unroll
    for (int i = 0; i < Config::WARP_M / 16; ++i)
#pragma unroll
      for (int j = 0; j < COLUMN_FRAGMENTS; ++j)
        ptx::st_shared_v4(shared + offset(warp * (Config::WARP_M / 16) + i, j, lane), warp_tile.accumulators[i][j]);
    ptx::cluster_arrive_shared();
    ptx::cluster_wait();

    // The slices of the tile are dealt out to the blocks in turn, so that a few of them are not all added by one.
    const int slice = warp * PARTS + static_cast<int>(ptx::cluster_rank());
    const int owner = slice / OF_WARP, down = slice % OF_WARP * ROWS;
    const BlockTile place{tile.row + Config::first_row(owner) + down, tile.column + Config::first_column(owner),
                          tile.batch};
    const bool in_c = slice < SLICES && place.row < c.M && place.column < c.N;
    WarpTile<T, Slice> sum(0, lane);
    if (in_c) add(sum, shared + offset(slice * ROW_FRAGMENTS, 0, lane));
    ptx::cluster_arrive_after(loaded(sum));  // this warp has read all that it reads of other blocks
    if (in_c) Store::store(sum, shared + SUMS_BYTES + warp * Store::BYTES, c, place, 0, lane);
  }

  HGEMM_DEVICE void finish() { ptx::cluster_wait(); }

 private:
  // Where a block leaves the sums of a lane: the 16x8 fragments of a warp tile as they lie in registers, row after row
  // of them, 16 bytes a lane. All 32 lanes write and read 512 bytes in a row.
  HGEMM_DEVICE uint32_t offset(int row, int column, int lane) {
    return (row * COLUMN_FRAGMENTS + column) * (16 * 8 * 4) + lane * 16;
  }

  // What is computed of every vector that was loaded.
  HGEMM_DEVICE float loaded(const WarpTile<T, Slice>& sum) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < ROW_FRAGMENTS; ++i)
#pragma unroll
      for (int j = 0; j < COLUMN_FRAGMENTS; ++j) total += sum.accumulators[i][j][0];
    return total;
  }

  // All parts are asked for before the first is added, so that the warp waits for other multiprocessors once.
  HGEMM_DEVICE void add(WarpTile<T, Slice>& sum, uint32_t address) {
    float part[PARTS][ROW_FRAGMENTS][COLUMN_FRAGMENTS][4];
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
      const uint32_t from = ptx::mapa(address, p);
#pragma unroll
      for (int i = 0; i < ROW_FRAGMENTS; ++i)
#pragma unroll
        for (int j = 0; j < COLUMN_FRAGMENTS; ++j) ptx::ld_shared_cluster_v4(part[p][i][j], from + offset(i, j, 0));
    }
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
#pragma unroll
      for (int i = 0; i < ROW_FRAGMENTS; ++i)
#pragma unroll
        for (int j = 0; j < COLUMN_FRAGMENTS; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) sum.accumulators[i][j][e] += part[p][i][j][e];
  }
};

// This policy where the configuration cuts K, else the one that its kernel has.
template <class T, class Config, class Otherwise, bool Cut = (Config::PARTS > 1)>
struct SumOf {
  using Policy = Otherwise;
};
template <class T, class Config, class Otherwise>
struct SumOf<T, Config, Otherwise, true> {
  using Policy = StoreSumOfCluster<T, Config>;
};

}  // namespace hgemm
