// A ring of stages in which nobody waits for the whole block: each stage has two mbarriers, one that tells when its
// tile has landed, one that tells when all warps have read it.
//
// In a cluster each block copies a part of the rows of A, which is the same for all of them, into the shared memory of
// all (multicast): L2 is read once. So the rings are filled in step, and a stage is free when the warps of all blocks
// have read it: each tells all blocks, whose copies into it may come next. Each block announces a whole tile to its own
// mbarrier, whoever sends the bytes.
#pragma once

#include "mainloop.cuh"
#include "pipeline.cuh"
#include "ptx_cluster.cuh"
#include "tma_operands.cuh"

namespace hgemm {

// What the copy engine needs to know of A and B.
struct TmaOperands {
  const TensorMap *a_map, *b_map;
  bool a_batched, b_batched;
};

template <class Config>
struct TmaRing {
  using Tile = Stage<Config>;
  using Position = RingPosition<Config::STAGES>;
  static constexpr int CLUSTER = Config::CLUSTER;
  static constexpr int BYTES = Config::STAGES * Tile::BYTES;
  // Tiles from the one that frees a stage to the one during which it is refilled, for a slower warp to catch up in: of
  // four stages of 48 KB two are copied ahead, and that keeps the copy engine busy. Shallow tiles take half the time,
  // and want three ahead.
  static constexpr int LAG = Config::STAGES > 3 && Config::TILE_K >= 64 ? Config::STAGES - 2 : 1;
  static constexpr int BARRIER_BYTES = 8, BARRIERS_BYTES = 2 * Config::STAGES * BARRIER_BYTES;

  uint32_t tiles;
  uint32_t landed;  // an mbarrier a stage, completed by the bytes of a tile
  uint32_t freed;   // the same, completed by one arrival of every warp that multiplies, of all blocks of the cluster
  uint32_t rank;    // of this block among them

  HGEMM_MEMBER TmaRing(uint32_t tiles, uint32_t barriers)
      : tiles(tiles),
        landed(barriers),
        freed(barriers + Config::STAGES * BARRIER_BYTES),
        rank(CLUSTER > 1 ? ptx::cluster_rank() : 0) {
    if (tiles % 1024 != 0) ptx::trap();  // TMA swizzles by absolute address
  }

  // One thread; behind it all meet.
  HGEMM_MEMBER void init() const {
    for (int stage = 0; stage < Config::STAGES; ++stage) {
      ptx::mbarrier_init(landed + stage * BARRIER_BYTES, 1);
      ptx::mbarrier_init(freed + stage * BARRIER_BYTES, Config::WARPS * CLUSTER);
    }
    ptx::fence_mbarrier_init();
  }

  // All threads of the blocks that fill each other's stages: none copies to another before that has come here too.
  HGEMM_MEMBER void meet() const {
    if constexpr (CLUSTER == 1) return ptx::barrier_sync();
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }

  // All threads that multiply, last of all. A block that ends takes its mbarriers with it, at which the others may yet
  // arrive. That nothing is still sent to it, it knows by itself: it has waited for every tile that it announced.
  HGEMM_MEMBER void leave() const {
    if constexpr (CLUSTER > 1) meet();
  }

  HGEMM_MEMBER void wait_landed(const Position& at) const {
    ptx::mbarrier_wait_parity(landed + at.stage * BARRIER_BYTES, at.phase);
  }
  HGEMM_MEMBER void wait_freed(const Position& at) const {
    ptx::mbarrier_wait_parity(freed + at.stage * BARRIER_BYTES, at.phase);
  }

  // One thread starts copying the tile of K at `k0` for one tile of C. Outside A and B the copy engine fills in zeros,
  // and counts the bytes of the whole box either way.
  HGEMM_MEMBER void copy(const TmaOperands& from, int stage, const BlockTile& tile, int k0) const {
    const uint32_t barrier = landed + stage * BARRIER_BYTES;
    ptx::mbarrier_arrive_expect_tx(barrier, Tile::BYTES);
    using CopiedA = typename Tile::CopiedA;
    copy_boxes<CopiedA, CLUSTER>(Tile::a(tiles, stage) + rank * CopiedA::BYTES, from.a_map, barrier,
                                 tile.row + static_cast<int>(rank) * (Config::TILE_M / CLUSTER), k0,
                                 from.a_batched ? tile.batch : 0);
    copy_boxes<typename Tile::B>(Tile::b(tiles, stage), from.b_map, barrier, tile.column, k0,
                                 from.b_batched ? tile.batch : 0);
  }

  // Half of the warps, of eight one of each scheduler's two, begin when the second of the `count` tiles has landed.
  // From then on they are behind the others by some k-steps, so that not all store C, or wait for a tile, at the same
  // time. (Of four warps they are two schedulers' own.)
  HGEMM_MEMBER void stagger(int warp, int count) const {
    if (warp < Config::WARPS / 2 || count < 2) return;
    Position second;
    second.advance();
    wait_landed(second);
  }

  // A warp waits for the tile at `at` and loads its first fragments.
  template <class Warp>
  HGEMM_MEMBER void load_first(Warp& warp_tile, const Position& at) const {
    wait_landed(at);
    warp_tile.load_first(Tile::a(tiles, at.stage), Tile::b(tiles, at.stage));
  }

  // A warp multiplies the tile at `at`, whose first fragments it has, frees its stage, and goes on to the next tile:
  //
  //   for each k-step of 16 but the last: load the next fragments, multiply these
  //   where LAG is 1: free the stage
  //   wait for the next tile; load its first fragments; multiply the last step
  //   where it is more: free the stage
  //
  // The arrival that frees it stands behind that of its last fragments in this warp's registers. Where LAG is 1, the
  // copy that refills it is wanted at once. Else it is not, and the arrival, which has to wait for those fragments, had
  // better not stand between them and the tensor cores.
  //
  // Behind the block's last tile, `last`, its first fragments are loaded once more, and not used: a load that is
  // skipped would cost every tile a branch, before which the tensor cores run empty. They are read from a stage that
  // this warp may have freed, which nobody refills any more.
  static constexpr bool FREED_EARLY = LAG == 1;

  template <class Warp>
  HGEMM_MEMBER void multiply(Warp& warp_tile, Position& at, bool last, int lane) const {
    const uint32_t a_tile = Tile::a(tiles, at.stage), b_tile = Tile::b(tiles, at.stage);
#pragma unroll
    for (int step = 0; step + 1 < Warp::K_STEPS; ++step) {
      warp_tile.begin(step, a_tile);
      warp_tile.finish(step, a_tile, b_tile, step + 1);
    }
    warp_tile.begin(Warp::K_STEPS - 1, a_tile);

    const uint32_t stage_freed = freed + at.stage * BARRIER_BYTES, loaded = warp_tile.loaded();
    if (FREED_EARLY) free(stage_freed, loaded, lane);
    if (!last) at.advance();
    wait_landed(at);
    warp_tile.finish(Warp::K_STEPS - 1, Tile::a(tiles, at.stage), Tile::b(tiles, at.stage), 0);
    if (!FREED_EARLY) free(stage_freed, loaded, lane);
  }

 private:
  // What all lanes have read is freed by the arrival of one. Multiplying does not order it behind the last loads, since
  // the compiler may move it up to them; what it depends on does.
  HGEMM_MEMBER void free(uint32_t stage_freed, uint32_t loaded, int lane) const {
    ptx::warp_sync();
    if constexpr (CLUSTER == 1)
      ptx::mbarrier_arrive_after(lane == 0, stage_freed, loaded);
    else  // a lane for each block
      ptx::mbarrier_arrive_cluster_after(lane < CLUSTER, ptx::mapa(stage_freed, lane % CLUSTER), loaded);
  }
};

}  // namespace hgemm
