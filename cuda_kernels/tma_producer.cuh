// TMA issued by warps that do nothing else: one thread copies as fast as stages become free, eight warps multiply.
//
// Runs from compute capability 9.0. Threads of a block start with equal shares of the registers: 168 with four warps
// more, too few for a warp tile of 64x64. So the producers are a whole warpgroup, which can give registers away
// (setmaxnreg, in code for sm_90a and sm_120f; elsewhere the kernel is right and spills).
//
//   producer: for each tile of K: wait until all have freed its stage; start copying
//   consumers: wait for tile 0; load its first fragments
//     for each tile of K: multiply it, free its stage, load the next one's first fragments: see tma_ring.cuh
//     C by shuffles in 16-byte stores, or by TMA from staging memory behind the ring
//
// A persistent block goes on with another tile of C: the producer runs ahead into it by as many tiles of K as there are
// stages, without knowing that it is another one. With the flag `tail` it may be a part of one: both roles walk the
// same schedule, and the sums of the last wave's tiles go to the workspace, see tail.cuh.
//
// With the flag `multicast` two blocks are a cluster, with neighbouring tiles in a row of C: each copies half of their
// common tile of A for both, see tma_ring.cuh. Their rings are one another's business from the cluster's first barrier
// to its last. They have the same work, in the last wave too.
#pragma once

#include "epilogue.cuh"
#include "raster.cuh"
#include "store_by_tma.cuh"
#include "tail.cuh"
#include "tma_ring.cuh"

namespace hgemm {

template <class T, class Config>
struct TmaProducerGemm {
  using Shape = Config;
  using Ring = TmaRing<Config>;
  using Epilogue = typename StoreOf<T, Config, StoreShuffled<T, Config>>::Policy;
  static constexpr int THREADS = Config::THREADS + 128;
  static constexpr int CONSUMER_REGISTERS = 232, PRODUCER_REGISTERS = 40;
  static_assert(Config::THREADS * CONSUMER_REGISTERS + 128 * PRODUCER_REGISTERS <= 65536, "of a multiprocessor");
  static_assert(Config::WARPS % 4 == 0, "setmaxnreg takes whole warpgroups");
  static constexpr int SHARED_BYTES = Ring::BYTES + Epilogue::BYTES + Ring::BARRIERS_BYTES;

  static size_t workspace_bytes(const HgemmProblem& problem);
  static const char* launch(const HgemmProblem& problem, void* workspace, void* stream);
  static const char* resources(HgemmResources* result);
};

template <class T, class Config>
HGEMM_KERNEL((TmaProducerGemm<T, Config>::THREADS), 1)
tma_producer_gemm(const HGEMM_GRID_CONSTANT TensorMap a_map, const HGEMM_GRID_CONSTANT TensorMap b_map,
                  const int k_tiles,
                  const HGEMM_GRID_CONSTANT typename TmaProducerGemm<T, Config>::Epilogue::Destination c,
                  const bool a_batched, const bool b_batched, const Tail tail) {
  using Gemm = TmaProducerGemm<T, Config>;
  using Ring = typename Gemm::Ring;
  if (!ptx::has_shared_memory(Gemm::SHARED_BYTES)) return;
  const uint32_t role = ptx::warp_index();
  const uint32_t cluster = ptx::block_index() / Config::CLUSTER, clusters = ptx::grid_blocks() / Config::CLUSTER;
  const uint32_t staging = ptx::shared_base() + Ring::BYTES;
  const Ring ring(ptx::shared_base(), staging + Gemm::Epilogue::BYTES);
  if (role == 0 && ptx::elect_one()) ring.init();
  const Schedule<Config> schedule{cluster, clusters, k_tiles, tail};
  Work work;
  const bool idle = !schedule.first(work);  // and so are the other blocks of the cluster
  if (Config::TAIL && idle) return;         // else the grid has no more clusters than there are tiles of C
  ring.meet();  // the mbarriers are initialised for everyone, and the last barrier that producers come to

  if (role >= Config::WARPS) {
    ptx::setmaxnreg_dec<Gemm::PRODUCER_REGISTERS>();
    if (role > Config::WARPS || !ptx::elect_one()) return;
    ptx::prefetch_tensor_map(&a_map);
    ptx::prefetch_tensor_map(&b_map);
    Gemm::Epilogue::prefetch(c);
    typename Ring::Position position;
    do {
      const BlockTile tile = cluster_tile<Config>(work.number, ring.rank, c.M, c.N);
      for (int k_tile = work.first; k_tile < work.first + work.count; ++k_tile) {
        // In the first round the stage is new: the parity of a phase before the first counts as completed.
        ring.wait_freed(position.back(Config::STAGES));
        ring.copy({&a_map, &b_map, a_batched, b_batched}, position.stage, tile, k_tile * Config::TILE_K);
        position.advance();
      }
    } while (schedule.next(work));
    return;
  }

  ptx::setmaxnreg_inc<Gemm::CONSUMER_REGISTERS>();
  const uint32_t warp = ptx::warp_index();  // anew: what spans the change of registers is spilled
  const uint32_t lane = ptx::lane_index();
  WarpTile<T, Config> warp_tile(warp, lane);
  typename Ring::Position position;
  ring.load_first(warp_tile, position);
  for (;;) {
    Work next = work;
    const bool last_tile = !schedule.next(next);
    for (int k_tile = 0; k_tile < work.count; ++k_tile)
      ring.multiply(warp_tile, position, last_tile && k_tile + 1 == work.count, lane);

    // Where there are two ways to leave the sums, the compiler works out places in the staging memory ahead of the main
    // loop, and keeps `next`. That has no registers to spare, so what both follow from is shuffled, behind the loop.
    const uint32_t leaving = Config::TAIL ? ptx::shuffle_index(lane, lane) : lane;
    const BlockTile tile = cluster_tile<Config>(work.number, ring.rank, c.M, c.N);
    if (Config::TAIL && work.number >= tail.whole) {
      ptx::griddepcontrol_launch_dependents();
      const int64_t slot = PiecesOf<Config>::slot(tail.slot(work.number, cluster), ring.rank);
      PiecesOf<Config>::store(warp_tile, tail.workspace, slot, c.M, c.N, tile, warp, leaving);
    } else {
      Gemm::Epilogue::store(warp_tile, staging, c, tile, warp, leaving);
    }
    if (last_tile) break;
    if (Config::TAIL) work.number = ptx::shuffle_index(work.number, 0);
    schedule.next(work);
    warp_tile.clear();
  }
  Gemm::Epilogue::finish();
  ring.leave();
}

template <class T, class Config>
size_t TmaProducerGemm<T, Config>::workspace_bytes(const HgemmProblem& p) {
  constexpr auto kernel = tma_producer_gemm<T, Config>;
  uint32_t clusters;
  Tail tail;
  if (share_out<Config, kernel>(p, THREADS, SHARED_BYTES, &clusters, &tail)) return 0;  // a launch says why
  return tail_workspace_bytes<Config>(tail);
}

template <class T, class Config>
const char* TmaProducerGemm<T, Config>::launch(const HgemmProblem& p, void* workspace, void* stream) {
  TensorMap a_map, b_map;
  if (const char* error = encode_operands<T, Config>(p, &a_map, &b_map)) return error;
  typename Epilogue::Destination c;
  if (const char* error = Epilogue::describe(p, &c)) return error;
  constexpr auto kernel = tma_producer_gemm<T, Config>;
  uint32_t clusters;
  Tail tail;
  if (const char* error = share_out<Config, kernel>(p, THREADS, SHARED_BYTES, &clusters, &tail)) return error;
  tail.workspace = static_cast<float*>(workspace);
  const int k_tiles = static_cast<int>(tiles(p.K, Config::TILE_K));
  const bool a_batched = p.a_batch_stride != 0, b_batched = p.b_batch_stride != 0;
  constexpr uint32_t CLUSTER = Config::CLUSTER;
  if (const char* error = launch_clusters<kernel>(CLUSTER, CLUSTER * clusters, THREADS, SHARED_BYTES, stream, a_map,
                                                  b_map, k_tiles, c, a_batched, b_batched, tail))
    return error;
  if constexpr (Config::TAIL)
    if (tail.cut) return launch_add_parts<T, Config>(c, tail, tail.cut, stream);
  return nullptr;
}

template <class T, class Config>
const char* TmaProducerGemm<T, Config>::resources(HgemmResources* result) {
  return hgemm::resources<tma_producer_gemm<T, Config>>(THREADS, SHARED_BYTES, result);
}

}  // namespace hgemm
