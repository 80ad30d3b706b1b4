// Which output tile a block computes, and which part of its K.
#pragma once

#include "ptx.cuh"

namespace hgemm {

struct TileIndex {
  uint32_t m, n;
};

// Blocks run roughly in the order of their index, a few hundred at a time. In plain row order that wave would cover
// one or two rows of tiles and read nearly all of B. Here it covers a patch: the grid of tiles is cut into bands of
// RASTER_ROWS tile rows, each walked column by column, so that a wave shares a few rows of A and a few columns of B in
// L2. The last band may be lower than the others.
constexpr uint32_t RASTER_ROWS = 8;

HGEMM_HOST_DEVICE TileIndex raster(uint32_t index, uint32_t tiles_m, uint32_t tiles_n) {
  const uint32_t band_tiles = RASTER_ROWS * tiles_n;
  const uint32_t first_row = index / band_tiles * RASTER_ROWS;
  const uint32_t rows = tiles_m - first_row < RASTER_ROWS ? tiles_m - first_row : RASTER_ROWS;
  const uint32_t within = index % band_tiles;
  return {first_row + within % rows, within / rows};
}

// Tiles that cover `extent`. The grid is one-dimensional, since its other two axes end at 65,535 blocks.
HGEMM_HOST_DEVICE int64_t tiles(int64_t extent, int tile) { return (extent + tile - 1) / tile; }

// The tile of C that a block computes: its first row and column, and the batch it belongs to.
struct BlockTile {
  int row, column;
  uint32_t batch;
};

template <class Config>
HGEMM_DEVICE BlockTile block_tile(uint32_t block, int M, int N) {
  const uint32_t tiles_m = tiles(M, Config::TILE_M), tiles_n = tiles(N, Config::TILE_N);
  const uint32_t batch = block / (tiles_m * tiles_n);
  const TileIndex tile = raster(block - batch * tiles_m * tiles_n, tiles_m, tiles_n);
  return {static_cast<int>(tile.m) * Config::TILE_M, static_cast<int>(tile.n) * Config::TILE_N, batch};
}

// The columns of C that the blocks of a cluster compute together, side by side, as if they were one tile's.
template <class Config>
struct ClusterTile {
  static constexpr int TILE_M = Config::TILE_M, TILE_N = Config::CLUSTER * Config::TILE_N;
};

// The tile of the block `rank` of cluster `cluster`. At the right edge it may lie outside of C: the block then copies
// its part of A for the others, and stores nothing.
template <class Config>
HGEMM_DEVICE BlockTile cluster_tile(uint32_t cluster, uint32_t rank, int M, int N) {
  BlockTile tile = block_tile<ClusterTile<Config>>(cluster, M, N);
  tile.column += static_cast<int>(rank) * Config::TILE_N;
  return tile;
}

// Some of the tiles of K.
struct KRange {
  int first, count;
};

// Part `part` of `parts`, which have the same number of tiles or one more: none of them where there are more parts than
// tiles.
HGEMM_HOST_DEVICE KRange part_of_k(uint32_t part, uint32_t parts, uint32_t k_tiles) {
  const uint32_t first = part * k_tiles / parts, end = (part + 1) * k_tiles / parts;
  return {static_cast<int>(first), static_cast<int>(end - first)};
}

}  // namespace hgemm
