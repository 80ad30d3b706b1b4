// C by TMA: each warp stages rows of its part of C, one of its lanes names them, and the copy engine takes them to
// global memory while the warp goes on with the next tile.
//
//   for each STAGED_ROWS rows of the warp tile:
//     wait until the copy engine has read what was staged before
//     stage the rows, swizzled; make them visible to the copy engine
//     one lane: start the store
//
// No warp waits for another, and in a persistent kernel none waits for its store either: before it stages again, a
// whole tile of C later, the copy engine has long read the memory.
//
// The copy engine leaves out what lies outside C, but in whole chunks of 16 bytes. Where the rows of C end within a
// chunk, it would overwrite what is right of a view: there the warps at the edge read back what they staged and store
// it themselves, and so do all of them where C is no matrix of aligned rows.
#pragma once

#include "epilogue.cuh"
#include "tma_operands.cuh"

namespace hgemm {

struct TmaOutput : Output {
  TensorMap map{};  // encoded if the rows are aligned
};

template <class T, class Config>
struct StoreByTma {
  static_assert(Config::WARP_M == 64 || Config::WARP_M == 32, "the rows of a warp tile are neighbours in C");
  static constexpr int ROWS = Config::STAGED_ROWS;
  using Staged = StagedRows<T, Config, ROWS, 64>;
  static constexpr int BYTES = Config::WARPS * Staged::BYTES;
  static_assert(Staged::PANELS == 1, "a row of a box is one swizzle span");
  static_assert(Staged::BYTES % 1024 == 0, "TMA swizzles by absolute address");

  using Destination = TmaOutput;
  static const char* describe(const HgemmProblem& p, TmaOutput* c) {
    static_cast<Output&>(*c) = output(p);
    if (!c->aligned) return nullptr;
    const Matrices matrices = described(p.c, p.M, p.N, p.c_row_stride, p.batch, p.c_batch_stride, T::bfloat16);
    return encode_tensor_map(&c->map, matrices, {ROWS, Staged::PANEL_COLUMNS, Staged::ROW_BYTES});
  }

  HGEMM_DEVICE void prefetch(const TmaOutput& c) { ptx::prefetch_tensor_map(&c.map); }

  // `shared` starts on 1024 bytes.
  HGEMM_DEVICE void store(const WarpTile<T, Config>& warp_tile, uint32_t shared, const TmaOutput& c,
                          const BlockTile& tile, int warp, int lane) {
    const uint32_t staging = shared + warp * Staged::BYTES;
    const int row = tile.row + warp / Config::WARPS_N * Config::WARP_M;
    const int column = tile.column + warp % Config::WARPS_N * Config::WARP_N;
    const bool ends_within_chunk = c.N % CHUNK_ELEMENTS != 0 && column + Config::WARP_N > c.N;
    const bool by_tma = c.aligned && !ends_within_chunk;
#pragma unroll
    for (int done = 0; done < Config::WARP_M; done += ROWS) {
      ptx::bulk_wait_group_read<0>();  // has something to wait for in the lane that issued
      ptx::warp_sync();                // and the others have read back what they stored
      Staged::write(staging, warp_tile, done, lane);
      ptx::fence_proxy_async();
      ptx::warp_sync();  // one lane speaks for all, or each reads what others wrote
      if (!by_tma) {
        Staged::store(staging, c, tile, warp, done, lane);
      } else if (ptx::elect_one()) {
        ptx::tma_store_3d(&c.map, staging, column, row + done, tile.batch);
        ptx::bulk_commit_group();
      }
    }
  }

  // A block that ends gives up its memory, which the copy engine may still be reading.
  HGEMM_DEVICE void finish() { ptx::bulk_wait_group_read<0>(); }
};

// This policy where the configuration asks for it, else the one that its kernel has.
template <class T, class Config, class Otherwise, bool ByTma = (Config::STAGED_ROWS > 0)>
struct StoreOf {
  using Policy = Otherwise;
};
template <class T, class Config, class Otherwise>
struct StoreOf<T, Config, Otherwise, true> {
  using Policy = StoreByTma<T, Config>;
};

}  // namespace hgemm
