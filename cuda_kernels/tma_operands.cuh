// A and B as the copy engine sees them: the descriptors that a launch encodes, and the boxes that make up a tile.
#pragma once

#include "launch.cuh"
#include "layout.cuh"
#include "ptx_cluster.cuh"
#include "raster.cuh"

namespace hgemm {

// Whether a tile is so flat that the time is that of reading B.
template <class Config>
constexpr bool few_rows = Config::TILE_M < 64;

// The boxes of one operand's tile, whose first element is (outer, k): into this block, or into all of a cluster.
template <class Tile, int Cluster = 1>
HGEMM_DEVICE void copy_boxes(uint32_t tile, const TensorMap* map, uint32_t barrier, int outer, int k, int batch) {
  static_assert(Tile::ROWS <= 256, "a box has at most 256 rows");
#pragma unroll
  for (int box = 0; box < Tile::BOXES; ++box) {
    const int column = (Tile::K_CONTIGUOUS ? k : outer) + box * Tile::BOX_COLUMNS;
    const int row = Tile::K_CONTIGUOUS ? outer : k;
    if constexpr (Cluster == 1)
      ptx::tma_load_3d(tile + box * Tile::BOX_BYTES, map, barrier, column, row, batch);
    else
      ptx::tma_load_3d_multicast(tile + box * Tile::BOX_BYTES, map, barrier, column, row, batch, (1 << Cluster) - 1);
  }
}

// Matrices as a descriptor wants them. The stride of an axis of size 1 means nothing and may be anything, but must be a
// multiple of 16 bytes there: it becomes that of a dense matrix. A matrix that all batches share is described once, and
// its batch coordinate stays 0.
inline Matrices described(const void* base, int64_t rows, int64_t columns, int64_t row_stride, int64_t batch,
                          int64_t batch_stride, bool bfloat16) {
  if (rows == 1) row_stride = tiles(columns, CHUNK_ELEMENTS) * CHUNK_ELEMENTS;
  if (batch_stride == 0) batch = 1;
  if (batch == 1) batch_stride = rows * row_stride;
  return {base, rows, columns, batch, row_stride, batch_stride, bfloat16};
}

// An operand as it lies in memory: rows of K elements, or K rows of `outer` elements.
template <class Tile>
Matrices stored(const void* base, int64_t outer, int64_t K, int64_t row_stride, int64_t batch, int64_t batch_stride,
                bool bfloat16) {
  const int64_t rows = Tile::K_CONTIGUOUS ? outer : K, columns = Tile::K_CONTIGUOUS ? K : outer;
  return described(base, rows, columns, row_stride, batch, batch_stride, bfloat16);
}

// Describes A and B to the copy engine, or says what it cannot address.
template <class T, class Config>
const char* encode_operands(const HgemmProblem& p, TensorMap* a_map, TensorMap* b_map) {
  using A = typename Stage<Config>::CopiedA;
  using B = typename Stage<Config>::B;
  const Matrices a = stored<A>(p.a, p.M, p.K, p.a_row_stride, p.batch, p.a_batch_stride, T::bfloat16);
  const Matrices b = stored<B>(p.b, p.N, p.K, p.b_row_stride, p.batch, p.b_batch_stride, T::bfloat16);
  for (const Matrices& matrix : {a, b})
    if (reinterpret_cast<uintptr_t>(matrix.base) % 16 || matrix.row_stride <= 0 || matrix.batch_stride <= 0 ||
        matrix.row_stride % CHUNK_ELEMENTS || matrix.batch_stride % CHUNK_ELEMENTS)
      return message("TMA needs 16-byte aligned matrices: base %p, row stride %lld and batch stride %lld elements",
                     matrix.base, (long long)matrix.row_stride, (long long)matrix.batch_stride);
  if (p.a_column_stride != 1 || p.b_column_stride != 1)
    return message("TMA needs contiguous rows: column strides %lld and %lld", (long long)p.a_column_stride,
                   (long long)p.b_column_stride);
  // Of few rows nothing but reading B takes time, and memory delivers most where it is asked for what is needed alone.
  const int fetched = few_rows<Config> ? 128 : 256;
  if (const char* error = encode_tensor_map(a_map, a, {A::ROWS, A::BOX_COLUMNS, A::SPAN, fetched})) return error;
  return encode_tensor_map(b_map, b, {B::ROWS, B::BOX_COLUMNS, B::SPAN, fetched});
}

}  // namespace hgemm
