// The main loop of a product on tiles that stay in shared memory: what a warp does there with its WarpTile, and no
// copies, no waiting, no C. It is slower than MmaCeiling by what ldmatrix costs, and faster than the product by what
// the rest of it costs.
//
// Two tiles are walked round and round, as the stages of a ring are: were the addresses always the same, the compiler
// could load once. The second begins 64 rows below the first, which is whole periods of the swizzle: two tiles apart
// from each other, of 192 and of 256 rows, do not fit the 101,376 bytes of sm_120.
#pragma once

#include "mainloop.cuh"
#include "pipeline.cuh"

namespace hgemm {

template <class T, int TileM, int TileN, int WarpM, int WarpN>
struct FragmentCeiling {
  struct Config : TileShape<TileM, TileN, 64, 2, WarpM, WarpN> {
    static constexpr bool A_K_CONTIGUOUS = true, B_K_CONTIGUOUS = true;
  };
  using Tile = Stage<Config>;
  static constexpr int THREADS = Config::THREADS, BLOCKS = 1;
  static constexpr int STEP_BYTES = 64 * Tile::A::ROW_BYTES;  // from one tile to the next
  static constexpr int SHARED_BYTES = Tile::BYTES + (Config::STAGES - 1) * STEP_BYTES;
  static constexpr int TILE_WORDS = SHARED_BYTES / 4;  // as they lie in shared memory, swizzled
  static constexpr int64_t WORK = int64_t{2} * TileM * TileN * Config::TILE_K;  // operations

  HGEMM_DEVICE uint32_t run(const uint32_t* data, uint32_t /*tiles*/, const int iterations) {
    const uint32_t base = ptx::shared_base();
    if (base % 1024 != 0) ptx::trap();
    for (uint32_t word = ptx::thread_index() * 4; word < TILE_WORDS; word += THREADS * 4) {
      uint32_t value[4];
      ptx::ld_global_v4(value, data + word);
      ptx::st_shared_v4(base + word * 4, value);
    }
    ptx::barrier_sync();

    using Warp = WarpTile<T, Config>;
    Warp warp_tile(ptx::warp_index(), ptx::lane_index());
    RingPosition<Config::STAGES> at;
    uint32_t tile = base;
    warp_tile.load_first(Tile::a(tile, 0), Tile::b(tile, 0));
#pragma unroll 1
    for (int iteration = 0; iteration < iterations; ++iteration) {
#pragma unroll
      for (int step = 0; step + 1 < Warp::K_STEPS; ++step) {
        warp_tile.begin(step, Tile::a(tile, 0));
        warp_tile.finish(step, Tile::a(tile, 0), Tile::b(tile, 0), step + 1);
      }
      warp_tile.begin(Warp::K_STEPS - 1, Tile::a(tile, 0));
      at.advance();
      tile = base + at.stage * STEP_BYTES;
      warp_tile.finish(Warp::K_STEPS - 1, Tile::a(tile, 0), Tile::b(tile, 0), 0);
    }

    uint32_t sum = 0;
#pragma unroll
    for (const auto& row : warp_tile.accumulators)
#pragma unroll
      for (const auto& sums : row) sum += T::pack(sums[0], sums[1]) + T::pack(sums[2], sums[3]);
    return sum;
  }
};

}  // namespace hgemm
