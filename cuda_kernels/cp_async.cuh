// cp.async: every thread copies 16-byte chunks of A and B into a ring of stages while all warps multiply older ones.
//
// Runs from compute capability 8.0. Two stages are a double buffer; three keep one more tile in flight.
//
//   fill stages 0 .. S-2
//   for each tile of K:
//     wait until this tile has landed; barrier        (also: everyone has finished with the previous tile)
//     start copying tile + S-1 into the stage of the previous tile
//     for each k-step of 16: load the next fragments, multiply these
//   C through shared memory in 16-byte stores
//
// It takes every matrix: where rows are not aligned for 16-byte copies, the same kernel copies 8 or 4 bytes at a time,
// or loads element by element.
#pragma once

#include "epilogue.cuh"
#include "launch.cuh"
#include "raster.cuh"

namespace hgemm {

// An operand as it lies in memory: rows of K elements, or K rows of `outer` elements. Strides count elements. The
// column stride is 1 except where elements are loaded one by one.
struct CopySource {
  const void* base;
  int64_t row_stride, column_stride, batch_stride;
};

struct CpAsyncArguments {
  CopySource a, b;
  int K;
  Output c;
};

// Copies tile after tile of one operand. A thread takes the same 16-byte chunk of every ROWS_PER_PASS-th row of the
// tile, in pieces of CopyBytes: 16, 8 or 4 by cp.async, 2 by ordinary loads. What lies outside the matrix becomes
// zeros, which add nothing to C.
template <class Config, class Tile, int CopyBytes>
struct TileCopy {
  static constexpr int CHUNKS = Tile::COLUMNS / CHUNK_ELEMENTS;  // in a row of the tile
  static constexpr int ROWS_PER_PASS = Config::THREADS / CHUNKS;
  static constexpr int PASSES = Tile::ROWS / ROWS_PER_PASS;
  static_assert(Config::THREADS % CHUNKS == 0 && Tile::ROWS % ROWS_PER_PASS == 0, "whole passes over the tile");

  int row, column;  // of this thread's chunk in the first pass
  int outer_left;   // rows of A (columns of B) from the tile's first to the matrix's end
  int K;
  int64_t row_stride, column_stride;
  const char* chunk;  // in global memory, at k = 0

  HGEMM_MEMBER TileCopy(const CopySource& source, int64_t first_outer, int outer_extent, int k_extent, uint32_t batch,
                        int thread)
      : row(thread / CHUNKS),
        column(thread % CHUNKS * CHUNK_ELEMENTS),
        outer_left(outer_extent - static_cast<int>(first_outer)),
        K(k_extent),
        row_stride(source.row_stride),
        column_stride(CopyBytes == 2 ? source.column_stride : 1) {
    const int64_t first_row = Tile::K_CONTIGUOUS ? first_outer : 0;
    const int64_t first_column = Tile::K_CONTIGUOUS ? 0 : first_outer;
    const int64_t element =
        batch * source.batch_stride + (first_row + row) * row_stride + (first_column + column) * column_stride;
    chunk = static_cast<const char*>(source.base) + element * ELEMENT_BYTES;
  }

  HGEMM_MEMBER void copy(uint32_t tile, int k0) const {
    const int rows_left = (Tile::K_CONTIGUOUS ? outer_left : K - k0) - row;
    const int columns_left = (Tile::K_CONTIGUOUS ? K - k0 : outer_left) - column;
    const char* source = chunk + k0 * (Tile::K_CONTIGUOUS ? column_stride : row_stride) * ELEMENT_BYTES;
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
      const int down = pass * ROWS_PER_PASS;
      const int elements = down < rows_left ? columns_left : 0;  // valid ones from the chunk's first; may exceed it
      copy_chunk(tile + chunk_offset(row + down), source + down * row_stride * ELEMENT_BYTES, elements);
    }
  }

 private:
  HGEMM_MEMBER uint32_t chunk_offset(int stored_row) const {
    return Tile::K_CONTIGUOUS ? Tile::offset(stored_row, column) : Tile::offset(column, stored_row);
  }

  HGEMM_MEMBER void copy_chunk(uint32_t destination, const char* source, int elements) const {
    if constexpr (CopyBytes == 2) {
      uint32_t value[4];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const uint32_t low = element(source, 2 * word, elements), high = element(source, 2 * word + 1, elements);
        value[word] = low | high << 16;
      }
      ptx::st_shared_v4(destination, value);
    } else {
#pragma unroll
      for (int piece = 0; piece < 16 / CopyBytes; ++piece) {
        const int bytes = elements * ELEMENT_BYTES - piece * CopyBytes;
        ptx::cp_async<CopyBytes>(destination + piece * CopyBytes, source + piece * CopyBytes,
                                 bytes < 0           ? 0
                                 : bytes > CopyBytes ? CopyBytes
                                                     : bytes);
      }
    }
  }

  HGEMM_MEMBER uint32_t element(const char* source, int index, int elements) const {
    return index < elements ? ptx::ld_global_b16(source + index * column_stride * ELEMENT_BYTES) : 0;
  }
};

template <class T, class Config>
struct CpAsyncGemm {
  using Shape = Config;
  using Ring = Stage<Config>;
  using Epilogue = StoreThroughShared<T, Config>;
  static constexpr int RING_BYTES = Config::STAGES * Ring::BYTES;
  static constexpr int SHARED_BYTES = RING_BYTES > Epilogue::BYTES ? RING_BYTES : Epilogue::BYTES;

  static const char* launch(const HgemmProblem& problem, void* workspace, void* stream);
  static const char* resources(HgemmResources* result);
};

template <class T, class Config, int CopyBytes>
HGEMM_KERNEL(Config::THREADS, Config::BLOCKS_PER_MULTIPROCESSOR)
cp_async_gemm(const CpAsyncArguments p) {
  using Ring = Stage<Config>;
  using Warp = WarpTile<T, Config>;
  constexpr int STAGES = Config::STAGES, TILE_K = Config::TILE_K;
  const int thread = ptx::thread_index(), lane = ptx::lane_index(), warp = ptx::warp_index();
  const uint32_t ring = ptx::shared_base();
  const BlockTile tile = block_tile<Config>(ptx::block_index(), p.c.M, p.c.N);

  const TileCopy<Config, typename Ring::A, CopyBytes> a_copy(p.a, tile.row, p.c.M, p.K, tile.batch, thread);
  const TileCopy<Config, typename Ring::B, CopyBytes> b_copy(p.b, tile.column, p.c.N, p.K, tile.batch, thread);
  auto copy_tile = [&](int stage, int k_tile) {
    a_copy.copy(Ring::a(ring, stage), k_tile * TILE_K);
    b_copy.copy(Ring::b(ring, stage), k_tile * TILE_K);
  };

  // A group is committed for every tile, also for those past the end of K, so that "all but the latest S-2 groups"
  // always means "the tile that is multiplied next".
  const int k_tiles = tiles(p.K, TILE_K);
  for (int k_tile = 0; k_tile < STAGES - 1; ++k_tile) {
    if (k_tile < k_tiles) copy_tile(k_tile, k_tile);
    ptx::cp_async_commit_group();
  }

  Warp warp_tile(warp, lane);
  int stage = 0, free_stage = STAGES - 1;
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    ptx::cp_async_wait_group<STAGES - 2>();
    ptx::barrier_sync();

    if (k_tile + STAGES - 1 < k_tiles) copy_tile(free_stage, k_tile + STAGES - 1);
    ptx::cp_async_commit_group();

    const uint32_t a_tile = Ring::a(ring, stage), b_tile = Ring::b(ring, stage);
    warp_tile.load(0, a_tile, b_tile, 0);
#pragma unroll
    for (int step = 0; step < Warp::K_STEPS; ++step) {
      if (step + 1 < Warp::K_STEPS) warp_tile.load((step + 1) % 2, a_tile, b_tile, step + 1);
      warp_tile.multiply(step % 2);
    }
    free_stage = stage;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }

  ptx::cp_async_wait_group<0>();
  ptx::barrier_sync();  // the ring becomes staging memory for C: everyone has read the last tile
  CpAsyncGemm<T, Config>::Epilogue::store(warp_tile, ring, p.c, tile, warp, lane);
}

// The widest copy that every row of both operands is aligned for.
inline int copy_bytes(const HgemmProblem& p) {
  if (p.a_column_stride != 1 || p.b_column_stride != 1) return 2;
  const uint64_t bits =
      reinterpret_cast<uintptr_t>(p.a) | reinterpret_cast<uintptr_t>(p.b) |
      static_cast<uint64_t>(p.a_row_stride | p.b_row_stride | p.a_batch_stride | p.b_batch_stride) * ELEMENT_BYTES;
  return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 2;
}

template <class T, class Config>
const char* CpAsyncGemm<T, Config>::launch(const HgemmProblem& p, void*, void* stream) {
  const CpAsyncArguments arguments{{p.a, p.a_row_stride, p.a_column_stride, p.a_batch_stride},
                                   {p.b, p.b_row_stride, p.b_column_stride, p.b_batch_stride},
                                   static_cast<int>(p.K),
                                   output(p)};
  auto start = [&]<int CopyBytes>() {
    return hgemm::launch<cp_async_gemm<T, Config, CopyBytes>>(block_count<Config>(p), Config::THREADS, SHARED_BYTES,
                                                              stream, arguments);
  };
  switch (copy_bytes(p)) {
    case 16:
      return start.template operator()<16>();
    case 8:
      return start.template operator()<8>();
    case 4:
      return start.template operator()<4>();
    default:
      return start.template operator()<2>();
  }
}

template <class T, class Config>
const char* CpAsyncGemm<T, Config>::resources(HgemmResources* result) {
  return hgemm::resources<cp_async_gemm<T, Config, 16>>(Config::THREADS, SHARED_BYTES, result);
}

}  // namespace hgemm
