// Tiles of C whose K is cut among blocks that need not run at the same time, see tail.cuh: what they leave behind, and
// the kernel that adds it up.
//
//   a block multiplies its part of K
//   its accumulators go to the workspace, in fp32     Pieces::store
//   a second kernel, launched behind the first:
//     for each 16 rows of a warp tile: add the parts in the order of K; store C
//
// So every element is summed in one order, whichever block ends first, and rounded once. No counter in memory would
// have to be zero before, apart for each stream and graph. The second kernel's blocks are brought to the
// multiprocessors while the first one ends (programmatic dependent launch), and wait there.
#pragma once

#include "epilogue.cuh"
#include "launch.cuh"

namespace hgemm {

// The workspace holds tiles of sums, in slots, as they lie in the registers of a block that computes them: piece after
// piece, a piece being 16 rows of a warp tile, and of a piece fragment after fragment, 16 bytes a lane. What lies in
// rows past the last of C, or in a piece right of it, is neither written nor read.
template <class Tile, int Cluster>
struct Pieces {
  static constexpr int TILE_M = Tile::TILE_M, TILE_N = Tile::TILE_N, CLUSTER = Cluster;
  static constexpr int OF_WARP = Tile::WARP_M / 16;
  static constexpr int COUNT = Tile::WARPS * OF_WARP;  // in a tile
  static constexpr int FRAGMENTS = Tile::WARP_N / 8;
  static constexpr int FRAGMENT_FLOATS = 16 * 8;
  static constexpr int64_t TILE_FLOATS = TILE_M * TILE_N, TILE_BYTES = TILE_FLOATS * 4;

  // A piece as a tile of C of its own, so that it is stored as one.
  struct Shape : TileShape<16, Tile::WARP_N, 64, 1, 16, Tile::WARP_N> {
    static constexpr bool A_K_CONTIGUOUS = true, B_K_CONTIGUOUS = true;
  };

  HGEMM_DEVICE BlockTile place(const BlockTile& tile, int piece) {
    const int warp = piece / OF_WARP, down = piece % OF_WARP;
    return {tile.row + Tile::first_row(warp) + Tile::row_distance(down * 16), tile.column + Tile::first_column(warp),
            tile.batch};
  }

  // Whether a lane has sums in C: mma leaves it row `lane / 4` and the one eight rows further down.
  HGEMM_DEVICE bool reaches(int M, int N, const BlockTile& place, int lane) {
    return place.row + lane / 4 < M && place.column < N;
  }

  // Where blocks share tiles of A, the slot of the cluster's block `rank`: as many as it has blocks lie side by side.
  HGEMM_DEVICE int64_t slot(int64_t of_cluster, uint32_t rank) { return of_cluster * CLUSTER + rank; }

  HGEMM_DEVICE int64_t offset(int64_t slot, int piece, int lane) {
    return slot * TILE_FLOATS + piece * (FRAGMENTS * FRAGMENT_FLOATS) + lane * 4;
  }

  template <class Warp>
  HGEMM_DEVICE void store(const Warp& warp_tile, float* workspace, int64_t slot, int M, int N, const BlockTile& tile,
                          int warp, int lane) {
#pragma unroll
    for (int down = 0; down < OF_WARP; ++down) {
      const int piece = warp * OF_WARP + down;
      if (!reaches(M, N, place(tile, piece), lane)) break;  // what is further down reaches no further
      float* const to = workspace + offset(slot, piece, lane);
#pragma unroll
      for (int j = 0; j < FRAGMENTS; ++j) ptx::st_global_v4(to + j * FRAGMENT_FLOATS, warp_tile.accumulators[down][j]);
    }
  }
};

template <class Config>
using PiecesOf =
    Pieces<TileShape<Config::TILE_M, Config::TILE_N, 64, 1, Config::WARP_M, Config::WARP_N>, Config::CLUSTER>;

// Where the parts of one tile lie, or of a cluster's, one slot behind the other in the order of K.
struct Slots {
  int64_t first;
  uint32_t count;
};

constexpr int ADDING_WARPS = 4;  // of a block of add_parts, a piece each

// Adds the parts of the tiles that are cut. A warp asks for 16 vectors at a time, or for one part of a wide piece, so
// that it waits for memory once in as many parts as registers have room for.
template <class T, class Pieces, class Cut>
HGEMM_KERNEL(ADDING_WARPS * 32, 1)
add_parts(const Output c, const Cut cut, const uint32_t pieces) {
  using Shape = typename Pieces::Shape;
  constexpr int FRAGMENTS = Pieces::FRAGMENTS, TOGETHER = FRAGMENTS < 16 ? 16 / FRAGMENTS : 1;
  const int lane = ptx::lane_index(), warp = ptx::warp_index();
  const uint32_t index = ptx::block_index() * ADDING_WARPS + warp;
  if (index >= pieces) return;
  const uint32_t piece = index % Pieces::COUNT, rank = index / Pieces::COUNT % Pieces::CLUSTER;
  const uint32_t cut_tile = index / (Pieces::COUNT * Pieces::CLUSTER);
  const BlockTile place = Pieces::place(cluster_tile<Pieces>(cut.tile(cut_tile), rank, c.M, c.N), piece);
  if (place.row >= c.M || place.column >= c.N) return;
  const Slots slots = cut.slots(cut_tile);
  const uint32_t count = Pieces::reaches(c.M, c.N, place, lane) ? slots.count : 0;

  ptx::griddepcontrol_wait();
  WarpTile<T, Shape> sum(0, lane);
  for (uint32_t first = 0; first < count; first += TOGETHER) {
    float part[TOGETHER][FRAGMENTS][4];
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      const int64_t slot = Pieces::slot(slots.first + first + i, rank);
      const float* const from = cut.workspace + Pieces::offset(slot, piece, lane);
#pragma unroll
      for (int j = 0; j < FRAGMENTS; ++j)
        if (first + i < count) ptx::ld_global_v4(part[i][j], from + j * Pieces::FRAGMENT_FLOATS);
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i)
#pragma unroll
      for (int j = 0; j < FRAGMENTS; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (first + i < count) sum.accumulators[0][j][e] += part[i][j][e];
  }
  ptx::warp_sync();
  StoreShuffled<T, Shape>::store(sum, 0, c, place, 0, lane);
}

// Enqueues add_parts behind the kernel that fills the workspace. It needs no shared memory, so that its blocks find
// room beside those that they wait for.
template <class T, class Config, class Cut>
const char* launch_add_parts(const Output& c, const Cut& cut, uint32_t tiles, void* stream) {
  using Pieces = PiecesOf<Config>;
  const uint32_t pieces = tiles * Pieces::CLUSTER * Pieces::COUNT;
  return launch_dependent<add_parts<T, Pieces, Cut>>((pieces + ADDING_WARPS - 1) / ADDING_WARPS, ADDING_WARPS * 32, 0,
                                                     stream, c, cut, pieces);
}

}  // namespace hgemm
