// TMA without a barrier for the whole block in the main loop: the warps take turns at issuing copies, and every stage
// has a second mbarrier that tells when all warps have read it.
//
// Runs from compute capability 9.0, as tma.cuh does. It wants four stages: two that are copied ahead, and between a
// stage's release and its refill LAG tiles, in which a slower warp catches up before anyone has to wait for it.
//
//   start copying tiles 0 .. S-LAG-1
//   wait for tile 0; load its first fragments
//   for each tile of K:
//     the warp whose turn it is: wait until all have freed tile - LAG; start copying tile + S-LAG into its stage
//     for each k-step of 16 but the last: load the next fragments, multiply these
//     wait for the next tile; load its first fragments
//     multiply the last step
//     free the tile, behind the arrival of its last fragments in this warp's registers
//   C by shuffles in 16-byte stores, or by TMA from staging memory behind the ring
//
// With the flag `tail` the sums of the last wave's tiles go to the workspace, see tail.cuh.
//
// A persistent block goes on with another tile of C. Tiles of K are counted across tiles of C, so that the copies of
// the next one are under way while this one is multiplied and stored.
#pragma once

#include "epilogue.cuh"
#include "pipeline.cuh"
#include "raster.cuh"
#include "store_by_tma.cuh"
#include "tail.cuh"
#include "tma_operands.cuh"

namespace hgemm {

template <class T, class Config>
struct TmaRotatingGemm {
  using Shape = Config;
  using Ring = Stage<Config>;
  using Epilogue = typename StoreOf<T, Config, StoreShuffled<T, Config>>::Policy;
  static constexpr int LAG = Config::STAGES - 2;
  static_assert(LAG >= 1, "whoever waits for a tile to be freed must have freed it before");
  static constexpr int BARRIER_BYTES = 8;  // two mbarriers a stage, behind the ring and what C is staged in
  static constexpr int SHARED_BYTES = Config::STAGES * (Ring::BYTES + 2 * BARRIER_BYTES) + Epilogue::BYTES;

  static size_t workspace_bytes(const HgemmProblem& problem);
  static const char* launch(const HgemmProblem& problem, void* workspace, void* stream);
  static const char* resources(HgemmResources* result);

 private:
  static const char* blocks(const HgemmProblem& problem, uint32_t* count, Tail* tail);
};

template <class T, class Config>
HGEMM_KERNEL(Config::THREADS, Config::BLOCKS_PER_MULTIPROCESSOR)
tma_rotating_gemm(const HGEMM_GRID_CONSTANT TensorMap a_map, const HGEMM_GRID_CONSTANT TensorMap b_map, const int K,
                  const HGEMM_GRID_CONSTANT typename TmaRotatingGemm<T, Config>::Epilogue::Destination c,
                  const bool a_batched, const bool b_batched, const Tail tail) {
  using Ring = Stage<Config>;
  using Warp = WarpTile<T, Config>;
  using Gemm = TmaRotatingGemm<T, Config>;
  constexpr int STAGES = Config::STAGES, LAG = Gemm::LAG, BARRIER_BYTES = Gemm::BARRIER_BYTES;
  const uint32_t lane = ptx::lane_index(), warp = ptx::warp_index();
  const uint32_t ring = ptx::shared_base();
  const uint32_t staging = ring + STAGES * Ring::BYTES;
  const uint32_t landed = staging + Gemm::Epilogue::BYTES;  // completed by the bytes of a tile
  const uint32_t freed = landed + STAGES * BARRIER_BYTES;   // completed by one arrival of every warp
  if (ring % 1024 != 0) ptx::trap();                        // TMA swizzles by absolute address

  const Schedule<Config> schedule{ptx::block_index(), ptx::grid_blocks(), static_cast<int>(tiles(K, Config::TILE_K)),
                                  tail};
  Work work;
  if (!schedule.first(work)) return;
  BlockTile tile = block_tile<Config>(work.number, c.M, c.N);

  // A `k_tile` past the end of this work belongs to what the block does next, or to nothing. Divisions stay in here:
  // one thread makes them, while the tensor cores work. `number` ends at 2^31 and the grid of a persistent kernel fits
  // the device, so that the next tiles' numbers do not overflow.
  auto copy_tile = [&](int stage, int k_tile) {
    BlockTile from = tile;
    Work ahead = work;
    if (k_tile >= work.count) {
      do {
        k_tile -= ahead.count;
        if (!schedule.next(ahead)) return;
      } while (k_tile >= ahead.count);
      from = block_tile<Config>(ahead.number, c.M, c.N);
    }
    // Outside A and B the copy engine fills in zeros, and counts the bytes of the whole box either way.
    const uint32_t barrier = landed + stage * BARRIER_BYTES;
    const int k0 = (ahead.first + k_tile) * Config::TILE_K;
    ptx::mbarrier_arrive_expect_tx(barrier, Ring::BYTES);
    copy_boxes<typename Ring::A>(Ring::a(ring, stage), &a_map, barrier, from.row, k0, a_batched ? from.batch : 0);
    copy_boxes<typename Ring::B>(Ring::b(ring, stage), &b_map, barrier, from.column, k0, b_batched ? from.batch : 0);
  };

  if (warp == 0 && ptx::elect_one()) {
    ptx::prefetch_tensor_map(&a_map);
    ptx::prefetch_tensor_map(&b_map);
    Gemm::Epilogue::prefetch(c);
    for (int stage = 0; stage < STAGES; ++stage) {
      ptx::mbarrier_init(landed + stage * BARRIER_BYTES, 1);
      ptx::mbarrier_init(freed + stage * BARRIER_BYTES, Config::WARPS);
    }
    ptx::fence_mbarrier_init();
    for (int k_tile = 0; k_tile < STAGES - LAG; ++k_tile) copy_tile(k_tile, k_tile);
  }
  ptx::barrier_sync();  // the mbarriers are initialised for everyone

  Warp warp_tile(warp, lane);
  RingPosition<STAGES> position;
  uint32_t issuer = 0;  // the warp whose turn it is
  auto load_first_step = [&] {
    ptx::mbarrier_wait_parity(landed + position.stage * BARRIER_BYTES, position.phase);
    warp_tile.load(0, Ring::a(ring, position.stage), Ring::b(ring, position.stage), 0);
  };

  load_first_step();
  for (;;) {
    Work next = work;
    const bool last_tile = !schedule.next(next);
    const int k_tiles = work.count;
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      // For the first LAG tiles the stage is new: the parity of a phase before the first counts as completed.
      if (warp == issuer && ptx::elect_one()) {
        const RingPosition<STAGES> refill = position.back(LAG);
        ptx::mbarrier_wait_parity(freed + refill.stage * BARRIER_BYTES, refill.phase);
        copy_tile(refill.stage, k_tile + STAGES - LAG);
      }
      issuer = (issuer + 1) % Config::WARPS;

#pragma unroll
      for (int step = 0; step + 1 < Warp::K_STEPS; ++step) {
        warp_tile.load((step + 1) % 2, Ring::a(ring, position.stage), Ring::b(ring, position.stage), step + 1);
        warp_tile.multiply(step % 2);
      }
      const uint32_t done = freed + position.stage * BARRIER_BYTES;

      // Behind the block's last tile its first fragments are loaded once more, and not used: a load that is skipped
      // would cost every tile a branch, before which the tensor cores run empty.
      if (!(last_tile && k_tile + 1 == k_tiles)) position.advance();
      load_first_step();
      warp_tile.multiply(1);

      // What all lanes have read is released by the arrival of one. Multiplying does not order it behind the last
      // loads, since the compiler may move it up to them; what it depends on does.
      ptx::warp_sync();
      if (lane == 0) ptx::mbarrier_arrive_after(done, warp_tile.loaded(1));
    }

    if (Config::TAIL && work.number >= tail.whole) {
      ptx::griddepcontrol_launch_dependents();
      const int64_t slot = tail.slot(work.number, ptx::block_index());
      PiecesOf<Config>::store(warp_tile, tail.workspace, slot, c.M, c.N, tile, warp, lane);
    } else {
      Gemm::Epilogue::store(warp_tile, staging, c, tile, warp, lane);
    }
    if (last_tile) break;
    work = next;
    tile = block_tile<Config>(work.number, c.M, c.N);
    warp_tile.clear();
  }
  Gemm::Epilogue::finish();
}

// Blocks of the grid, and what they share of the last wave.
template <class T, class Config>
const char* TmaRotatingGemm<T, Config>::blocks(const HgemmProblem& p, uint32_t* count, Tail* tail) {
  *count = block_count<Config>(p);
  uint32_t resident = *count;
  if (Config::PERSISTENT) {
    constexpr auto kernel = tma_rotating_gemm<T, Config>;
    if (const char* error = resident_blocks<kernel>(Config::THREADS, SHARED_BYTES, &resident)) return error;
  }
  *tail = tail_of<Config>(p, resident);
  if (resident < *count || tail->cut) *count = resident;
  return nullptr;
}

template <class T, class Config>
size_t TmaRotatingGemm<T, Config>::workspace_bytes(const HgemmProblem& p) {
  uint32_t count;
  Tail tail;
  return blocks(p, &count, &tail) ? 0 : tail_workspace_bytes<Config>(tail);  // a launch says why
}

template <class T, class Config>
const char* TmaRotatingGemm<T, Config>::launch(const HgemmProblem& p, void* workspace, void* stream) {
  TensorMap a_map, b_map;
  if (const char* error = encode_operands<T, Config>(p, &a_map, &b_map)) return error;
  typename Epilogue::Destination c;
  if (const char* error = Epilogue::describe(p, &c)) return error;
  uint32_t count;
  Tail tail;
  if (const char* error = blocks(p, &count, &tail)) return error;
  tail.workspace = static_cast<float*>(workspace);
  if (const char* error = hgemm::launch<tma_rotating_gemm<T, Config>>(
          count, Config::THREADS, SHARED_BYTES, stream, a_map, b_map, static_cast<int>(p.K), c, p.a_batch_stride != 0,
          p.b_batch_stride != 0, tail))
    return error;
  if constexpr (Config::TAIL)
    if (tail.cut) return launch_add_parts<T, Config>(c, tail, tail.cut, stream);
  return nullptr;
}

template <class T, class Config>
const char* TmaRotatingGemm<T, Config>::resources(HgemmResources* result) {
  return hgemm::resources<tma_rotating_gemm<T, Config>>(Config::THREADS, SHARED_BYTES, result);
}

}  // namespace hgemm
