// TMA: one thread names the next tile, the copy engine fetches it, swizzled, and an mbarrier tells when it has landed.
//
// Runs from compute capability 9.0: the same TMA + ldmatrix + mma.sync on Hopper and on GeForce Blackwell.
//
//   start copying tiles 0 .. S-1
//   wait for tile 0; load its first fragments
//   for each tile of K:
//     for each k-step of 16 but the last: load the next fragments, multiply these
//     barrier, behind the arrival of the tile's last fragments in every warp's registers: its stage is free
//     start copying tile + S into that stage
//     wait for the next tile; load its first fragments
//     multiply the last step
//   C through shared memory, in 16-byte stores or by TMA; if K is split, the sum over the blocks of a cluster
//
// With the flag `tail` the sums of the last wave's tiles go to the workspace, see tail.cuh: behind the blocks of the
// whole tiles come those of the shares, and one of them may multiply a part of a second tile of C.
//
// So all S stages are in flight or being read, and the tensor cores have a k-step to work on during every wait.
#pragma once

#include "epilogue.cuh"
#include "pipeline.cuh"
#include "ptx_cluster.cuh"
#include "raster.cuh"
#include "split.cuh"
#include "store_by_tma.cuh"
#include "tail.cuh"
#include "tma_operands.cuh"

namespace hgemm {

template <class T, class Config>
struct TmaGemm {
  using Shape = Config;
  using Ring = Stage<Config>;
  using Epilogue =
      typename SumOf<T, Config, typename StoreOf<T, Config, StoreThroughShared<T, Config>>::Policy>::Policy;
  static constexpr int BARRIER_BYTES = 8;  // one mbarrier a stage, behind the ring
  static constexpr int SHARED_BYTES = Config::STAGES * (Ring::BYTES + BARRIER_BYTES);
  static_assert(Epilogue::BYTES <= Config::STAGES * Ring::BYTES, "C is staged in the ring");
  static_assert(!Config::TAIL || Config::PARTS == 1, "either every tile of C is cut or the last ones are");
  static_assert(!Config::TAIL || !few_rows<Config>, "which part of K comes first is not worked out anew");

  static size_t workspace_bytes(const HgemmProblem& problem);
  static const char* launch(const HgemmProblem& problem, void* workspace, void* stream);
  static const char* resources(HgemmResources* result);

 private:
  static const char* tail(const HgemmProblem& problem, Tail* tail);
};

template <class T, class Config>
HGEMM_KERNEL(Config::THREADS, Config::BLOCKS_PER_MULTIPROCESSOR)
tma_gemm(const HGEMM_GRID_CONSTANT TensorMap a_map, const HGEMM_GRID_CONSTANT TensorMap b_map, const int K,
         const HGEMM_GRID_CONSTANT typename TmaGemm<T, Config>::Epilogue::Destination c, const bool a_batched,
         const bool b_batched, const Tail tail) {
  using Ring = Stage<Config>;
  using Warp = WarpTile<T, Config>;
  using Epilogue = typename TmaGemm<T, Config>::Epilogue;
  if (!ptx::has_shared_memory(TmaGemm<T, Config>::SHARED_BYTES)) return;
  constexpr int STAGES = Config::STAGES, BARRIER_BYTES = TmaGemm<T, Config>::BARRIER_BYTES;
  const int lane = ptx::lane_index(), warp = ptx::warp_index();
  const uint32_t ring = ptx::shared_base();
  const uint32_t landed = ring + STAGES * Ring::BYTES;  // one mbarrier a stage
  if (ring % 1024 != 0) ptx::trap();                    // TMA swizzles by absolute address

  // Ahead of all that takes divisions: the descriptors are on their way meanwhile.
  if (warp == 0 && ptx::elect_one()) {
    ptx::prefetch_tensor_map(&a_map);
    ptx::prefetch_tensor_map(&b_map);
    Epilogue::prefetch(c);
    for (int stage = 0; stage < STAGES; ++stage) ptx::mbarrier_init(landed + stage * BARRIER_BYTES, 1);
    ptx::fence_mbarrier_init();
  }

  // The parts of a tile are neighbours in the grid, as the blocks of a cluster are: with P of them a wave of blocks
  // covers 1 / P of the tiles, each with all of its K.
  KRange k_range{0, static_cast<int>(tiles(K, Config::TILE_K))};
  if constexpr (Config::PARTS > 1) k_range = part_of_k(ptx::cluster_rank(), Config::PARTS, k_range.count);
  Work work{ptx::block_index() / Config::PARTS, k_range.first, k_range.count};
  const bool cut = Config::TAIL && work.number >= tail.whole;
  const uint32_t sharer = work.number - tail.whole;  // among the blocks of the shares
  if (cut) work = tail.first(sharer);
  BlockTile tile = block_tile<Config>(work.number, c.M, c.N);

  // Of few rows all blocks run at once, in step. Each column of tiles begins elsewhere in K and goes round, five tiles
  // of K from the one before: so they do not all want the same lines of A, nor such lines of B as lie a multiple of its
  // row's bytes apart. (Where the tiles are a multiple of five, a fifth of them are beginnings.)
  int first_k_tile = 0;
  if (few_rows<Config> && work.count > 0) first_k_tile = tile.column / Config::TILE_N * 5 % work.count;

  // Outside A and B the copy engine fills in zeros, and counts the bytes of the whole box either way.
  auto copy_tile = [&](int stage, int k_tile) {
    const uint32_t barrier = landed + stage * BARRIER_BYTES;
    int from = k_tile;
    if (few_rows<Config> && (from += first_k_tile) >= work.count) from -= work.count;
    const int k0 = (work.first + from) * Config::TILE_K;
    ptx::mbarrier_arrive_expect_tx(barrier, Ring::BYTES);
    copy_boxes<typename Ring::A>(Ring::a(ring, stage), &a_map, barrier, tile.row, k0, a_batched ? tile.batch : 0);
    copy_boxes<typename Ring::B>(Ring::b(ring, stage), &b_map, barrier, tile.column, k0, b_batched ? tile.batch : 0);
  };

  if (warp == 0 && ptx::elect_one())  // the same lane as above
    for (int k_tile = 0; k_tile < STAGES && k_tile < work.count; ++k_tile) copy_tile(k_tile, k_tile);
  ptx::barrier_sync();  // the mbarriers are initialised for everyone

  Warp warp_tile(warp, lane);
  RingPosition<STAGES> position;
  auto load_first_step = [&] {
    ptx::mbarrier_wait_parity(landed + position.stage * BARRIER_BYTES, position.phase);
    warp_tile.load(0, Ring::a(ring, position.stage), Ring::b(ring, position.stage), 0);
  };
  auto multiply_up_to_last_step = [&] {
#pragma unroll
    for (int step = 0; step + 1 < Warp::K_STEPS; ++step) {
      warp_tile.load((step + 1) % 2, Ring::a(ring, position.stage), Ring::b(ring, position.stage), step + 1);
      warp_tile.multiply(step % 2);
    }
  };

  for (;;) {
    if (Config::PARTS == 1 || work.count > 0) {  // there may be more parts than tiles of K
      load_first_step();
      for (int k_tile = STAGES; k_tile < STAGES + work.count - 1; ++k_tile) {  // the tile that refills this one's stage
        multiply_up_to_last_step();
        ptx::barrier_sync_after(warp_tile.loaded());
        if (k_tile < work.count && warp == 0 && ptx::elect_one()) copy_tile(position.stage, k_tile);
        position.advance();
        load_first_step();
        warp_tile.multiply(1);
      }
      multiply_up_to_last_step();
      ptx::barrier_sync_after(warp_tile.loaded());
      warp_tile.multiply(1);
    }
    if (!cut) break;

    // The last barrier above came after every warp's last read: the copies of a second part may land meanwhile.
    const BlockTile done = tile;
    const int64_t slot = tail.slot(work.number, sharer);
    const bool more = tail.next(sharer, work);
    if (more) {
      position.advance();
      tile = block_tile<Config>(work.number, c.M, c.N);
      if (warp == 0 && ptx::elect_one())
        for (int k_tile = 0; k_tile < STAGES && k_tile < work.count; ++k_tile)
          copy_tile((position.stage + k_tile) % STAGES, k_tile);
    }
    ptx::griddepcontrol_launch_dependents();
    PiecesOf<Config>::store(warp_tile, tail.workspace, slot, c.M, c.N, done, warp, lane);
    if (!more) return;
    warp_tile.clear();
  }

  // The ring becomes staging memory for C: the last barrier above came after every warp's last read of it, and every
  // copy that was started has been waited for.
  Epilogue::store(warp_tile, ring, c, tile, warp, lane);
  Epilogue::finish();
}

// What the blocks that the device holds at a time share of the last wave.
template <class T, class Config>
const char* TmaGemm<T, Config>::tail(const HgemmProblem& p, Tail* tail) {
  uint32_t resident = 1;
  if constexpr (Config::TAIL)
    if (const char* error = resident_blocks<tma_gemm<T, Config>>(Config::THREADS, SHARED_BYTES, &resident))
      return error;
  *tail = tail_of<Config>(p, resident);
  return nullptr;
}

template <class T, class Config>
size_t TmaGemm<T, Config>::workspace_bytes(const HgemmProblem& p) {
  Tail tail;
  return TmaGemm::tail(p, &tail) ? 0 : tail_workspace_bytes<Config>(tail);  // a launch says why
}

template <class T, class Config>
const char* TmaGemm<T, Config>::launch(const HgemmProblem& p, void* workspace, void* stream) {
  TensorMap a_map, b_map;
  if (const char* error = encode_operands<T, Config>(p, &a_map, &b_map)) return error;
  typename Epilogue::Destination c;
  if (const char* error = Epilogue::describe(p, &c)) return error;
  Tail tail;
  if (const char* error = TmaGemm::tail(p, &tail)) return error;
  tail.workspace = static_cast<float*>(workspace);
  constexpr auto kernel = tma_gemm<T, Config>;
  const uint32_t blocks = tail.whole * Config::PARTS + tail.blocks;
  const int K = static_cast<int>(p.K);
  const bool a_batched = p.a_batch_stride != 0, b_batched = p.b_batch_stride != 0;
  if (const char* error = launch_clusters<kernel>(Config::PARTS, blocks, Config::THREADS, SHARED_BYTES, stream, a_map,
                                                  b_map, K, c, a_batched, b_batched, tail))
    return error;
  if constexpr (Config::TAIL)
    if (tail.cut) return launch_add_parts<T, Config>(c, tail, tail.cut, stream);
  return nullptr;
}

template <class T, class Config>
const char* TmaGemm<T, Config>::resources(HgemmResources* result) {
  return hgemm::resources<tma_gemm<T, Config>>(Config::THREADS, SHARED_BYTES, result);
}

}  // namespace hgemm
