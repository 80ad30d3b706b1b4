// TMA without a barrier for the whole block in the main loop: the warps take turns at issuing copies, and every stage
// has a second mbarrier that tells when all warps have read it.
//
// Runs from compute capability 9.0, as tma.cuh does. Between a stage's release and its refill LAG tiles pass, in which
// a slower warp catches up before anyone has to wait for it; S - LAG tiles are copied ahead.
//
//   start copying tiles 0 .. S-LAG-1
//   half of the warps: wait for tile 1, if there is one, so as to stay behind the others: stagger in tma_ring.cuh
//   wait for tile 0; load its first fragments
//   for each tile of K:
//     the warp whose turn it is: wait until all have freed tile - LAG; start copying tile + S-LAG into its stage
//     multiply it, free its stage, load the next one's first fragments: see tma_ring.cuh
//   C by shuffles in 16-byte stores, or by TMA from staging memory behind the ring
//
// With the flag `tail` the sums of the last wave's tiles go to the workspace, see tail.cuh.
//
// A persistent block goes on with another tile of C. Tiles of K are counted across tiles of C, so that the copies of
// the next one are under way while this one is multiplied and stored.
//
// With the flag `multicast` two blocks are a cluster, with neighbouring tiles in a row of C: each copies half of their
// common tile of A for both, see tma_ring.cuh. They have the same work, in the last wave too, so that both come to the
// same tile of K with the same stage and the same turn; whose turn it is waits for the warps of both.
#pragma once

#include "epilogue.cuh"
#include "raster.cuh"
#include "store_by_tma.cuh"
#include "tail.cuh"
#include "tma_ring.cuh"

namespace hgemm {

template <class T, class Config>
struct TmaRotatingGemm {
  using Shape = Config;
  using Ring = TmaRing<Config>;
  using Epilogue = typename StoreOf<T, Config, StoreShuffled<T, Config>>::Policy;
  static constexpr int LAG = Ring::LAG;
  static_assert(Config::STAGES >= 2, "a tile is copied while another one is multiplied");
  static constexpr int SHARED_BYTES = Ring::BYTES + Epilogue::BYTES + Ring::BARRIERS_BYTES;

  static size_t workspace_bytes(const HgemmProblem& problem);
  static const char* launch(const HgemmProblem& problem, void* workspace, void* stream);
  static const char* resources(HgemmResources* result);
};

template <class T, class Config>
HGEMM_KERNEL(Config::THREADS, Config::BLOCKS_PER_MULTIPROCESSOR)
tma_rotating_gemm(const HGEMM_GRID_CONSTANT TensorMap a_map, const HGEMM_GRID_CONSTANT TensorMap b_map, const int K,
                  const HGEMM_GRID_CONSTANT typename TmaRotatingGemm<T, Config>::Epilogue::Destination c,
                  const bool a_batched, const bool b_batched, const Tail tail) {
  using Gemm = TmaRotatingGemm<T, Config>;
  if (!ptx::has_shared_memory(Gemm::SHARED_BYTES)) return;
  constexpr int AHEAD = Config::STAGES - Gemm::LAG;
  const uint32_t lane = ptx::lane_index(), warp = ptx::warp_index();
  const uint32_t staging = ptx::shared_base() + Gemm::Ring::BYTES;
  const typename Gemm::Ring ring(ptx::shared_base(), staging + Gemm::Epilogue::BYTES);

  // Ahead of all that takes divisions: the descriptors are on their way meanwhile.
  if (warp == 0 && ptx::elect_one()) {
    ptx::prefetch_tensor_map(&a_map);
    ptx::prefetch_tensor_map(&b_map);
    Gemm::Epilogue::prefetch(c);
    ring.init();
  }

  const uint32_t cluster = ptx::block_index() / Config::CLUSTER, clusters = ptx::grid_blocks() / Config::CLUSTER;
  const Schedule<Config> schedule{cluster, clusters, static_cast<int>(tiles(K, Config::TILE_K)), tail};
  Work work;
  if (!schedule.first(work)) return;  // nor have the other blocks of the cluster
  BlockTile tile = cluster_tile<Config>(work.number, ring.rank, c.M, c.N);
  int end = work.first + work.count;  // of its tiles of K

  // A `k_tile` past the end of this work belongs to what the block does next, or to nothing. Divisions stay in here:
  // one thread makes them, while the tensor cores work. `number` ends at 2^31 and the grid of a persistent kernel fits
  // the device, so that the next tiles' numbers do not overflow.
  auto copy_tile = [&](int stage, int k_tile) {
    BlockTile from = tile;
    if (k_tile >= end) {
      Work ahead = work;
      ahead.count = end;
      do {
        k_tile -= ahead.count;
        if (!schedule.next(ahead)) return;
      } while (k_tile >= ahead.count);
      k_tile += ahead.first;
      from = cluster_tile<Config>(ahead.number, ring.rank, c.M, c.N);
    }
    ring.copy({&a_map, &b_map, a_batched, b_batched}, stage, from, k_tile * Config::TILE_K);
  };
  auto start_copying = [=] {
    for (int k_tile = 0; k_tile < AHEAD; ++k_tile) copy_tile(k_tile, work.first + k_tile);
  };

  if (Config::CLUSTER == 1 && warp == 0 && ptx::elect_one()) start_copying();  // the same lane as above
  ring.meet();  // the mbarriers are initialised for everyone
  if (Config::CLUSTER > 1 && warp == 0 && ptx::elect_one()) start_copying();

  // Behind `warp_tile` this wait would spill a warp tile of 96x64 where tiles are 32 deep. Ahead of it, the other
  // kernels would no longer keep their position in uniform registers.
  constexpr bool STAGGER_FIRST = Config::ROLLING && Config::TILE_K < 64;
  if (STAGGER_FIRST) ring.stagger(warp, work.count);
  WarpTile<T, Config> warp_tile(warp, lane);
  typename Gemm::Ring::Position position;
  uint32_t issuer = 0;  // the warp whose turn it is

  if (!STAGGER_FIRST) ring.stagger(warp, work.count);
  ring.load_first(warp_tile, position);
  for (;;) {
    Work next = work;
    const bool last_tile = !schedule.next(next);  // what is next is worked out anew behind the loop, see there
    for (int k_tile = work.first; k_tile < end; ++k_tile) {
      // For the first LAG tiles the stage is new: the parity of a phase before the first counts as completed.
      if (warp == issuer && ptx::elect_one()) {
        const auto refill = position.back(Gemm::LAG);
        ring.wait_freed(refill);
        copy_tile(refill.stage, k_tile + AHEAD);
      }
      issuer = (issuer + 1) % Config::WARPS;
      ring.multiply(warp_tile, position, last_tile && k_tile + 1 == end, lane);
    }

    if (Config::TAIL && work.number >= tail.whole) {
      ptx::griddepcontrol_launch_dependents();
      const int64_t slot = PiecesOf<Config>::slot(tail.slot(work.number, cluster), ring.rank);
      PiecesOf<Config>::store(warp_tile, tail.workspace, slot, c.M, c.N, tile, warp, lane);
    } else {
      Gemm::Epilogue::store(warp_tile, staging, c, tile, warp, lane);
    }
    if (last_tile) break;
    // Otherwise the compiler would keep `next` in registers through the main loop, which has none to spare.
    work.number = ptx::shuffle_index(work.number, 0);
    schedule.next(work);
    end = work.first + work.count;
    tile = cluster_tile<Config>(work.number, ring.rank, c.M, c.N);
    warp_tile.clear();
  }
  Gemm::Epilogue::finish();
  ring.leave();
}

template <class T, class Config>
size_t TmaRotatingGemm<T, Config>::workspace_bytes(const HgemmProblem& p) {
  constexpr auto kernel = tma_rotating_gemm<T, Config>;
  uint32_t clusters;
  Tail tail;
  if (share_out<Config, kernel>(p, Config::THREADS, SHARED_BYTES, &clusters, &tail)) return 0;  // a launch says why
  return tail_workspace_bytes<Config>(tail);
}

template <class T, class Config>
const char* TmaRotatingGemm<T, Config>::launch(const HgemmProblem& p, void* workspace, void* stream) {
  TensorMap a_map, b_map;
  if (const char* error = encode_operands<T, Config>(p, &a_map, &b_map)) return error;
  typename Epilogue::Destination c;
  if (const char* error = Epilogue::describe(p, &c)) return error;
  constexpr auto kernel = tma_rotating_gemm<T, Config>;
  uint32_t clusters;
  Tail tail;
  if (const char* error = share_out<Config, kernel>(p, Config::THREADS, SHARED_BYTES, &clusters, &tail)) return error;
  tail.workspace = static_cast<float*>(workspace);
  const int K = static_cast<int>(p.K);
  const bool a_batched = p.a_batch_stride != 0, b_batched = p.b_batch_stride != 0;
  constexpr uint32_t CLUSTER = Config::CLUSTER;
  if (const char* error = launch_clusters<kernel>(CLUSTER, CLUSTER * clusters, Config::THREADS, SHARED_BYTES, stream,
                                                  a_map, b_map, K, c, a_batched, b_batched, tail))
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
