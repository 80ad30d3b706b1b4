// The most that mma.sync can do: the same instruction as the kernels, on operands that stay in registers.
//
// No kernel built on mma.sync can be faster on this device at this clock, so every figure of the study is quoted as a
// share of this rate, measured in the same run. The operands are real data: a tensor core that multiplies zeros draws
// less power and clocks higher.
#pragma once

#include "dtype.cuh"
#include "launch.cuh"

namespace hgemm {

// A warp's 64x64 tile: 4 x 8 independent accumulators, so that no mma waits for the one before it; 8 warps a
// multiprocessor keep its four tensor cores busy.
struct Ceiling {
  static constexpr int ROW_FRAGMENTS = 4, COLUMN_FRAGMENTS = 8, WARPS = 8, THREADS = WARPS * 32;
  static constexpr int OPERAND_WORDS = (ROW_FRAGMENTS * 4 + COLUMN_FRAGMENTS * 2) * THREADS;
  static constexpr int64_t FLOPS_PER_BLOCK = int64_t{2} * 16 * 8 * 16 * ROW_FRAGMENTS * COLUMN_FRAGMENTS * WARPS;
};

// `operands`: OPERAND_WORDS words of two elements each. `sums`: one word a thread of the block.
template <class T>
HGEMM_KERNEL(Ceiling::THREADS, 1)
mma_sync_ceiling(const uint32_t* operands, uint32_t* sums, const int iterations) {
  uint32_t a[Ceiling::ROW_FRAGMENTS][4], b[Ceiling::COLUMN_FRAGMENTS][2];
  float accumulators[Ceiling::ROW_FRAGMENTS][Ceiling::COLUMN_FRAGMENTS][4] = {};
  const uint32_t* mine = operands + ptx::thread_index();
#pragma unroll
  for (int i = 0; i < Ceiling::ROW_FRAGMENTS; ++i)
#pragma unroll
    for (int word = 0; word < 4; ++word, mine += Ceiling::THREADS) a[i][word] = ptx::ld_global_b32(mine);
#pragma unroll
  for (int j = 0; j < Ceiling::COLUMN_FRAGMENTS; ++j)
#pragma unroll
    for (int word = 0; word < 2; ++word, mine += Ceiling::THREADS) b[j][word] = ptx::ld_global_b32(mine);

  for (int iteration = 0; iteration < iterations; ++iteration)
#pragma unroll
    for (int i = 0; i < Ceiling::ROW_FRAGMENTS; ++i)
#pragma unroll
      for (int j = 0; j < Ceiling::COLUMN_FRAGMENTS; ++j) T::mma(accumulators[i][j], a[i], b[j][0], b[j][1]);

  // Every accumulator reaches memory in some bit, so that the compiler has to compute them all.
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < Ceiling::ROW_FRAGMENTS; ++i)
#pragma unroll
    for (int j = 0; j < Ceiling::COLUMN_FRAGMENTS; ++j)
      sum ^=
          T::pack(accumulators[i][j][0], accumulators[i][j][1]) ^ T::pack(accumulators[i][j][2], accumulators[i][j][3]);
  ptx::st_global_b32(sums + ptx::thread_index(), sum);
}

}  // namespace hgemm

// The exported functions of a ceiling unit, which ceilings.py generates.
#define HGEMM_EXPORT_CEILING(T)                                                                                  \
  extern "C" {                                                                                                   \
  int64_t hgemm_ceiling_flops_per_block(void) { return hgemm::Ceiling::FLOPS_PER_BLOCK; }                        \
  int64_t hgemm_ceiling_operand_words(void) { return hgemm::Ceiling::OPERAND_WORDS; }                            \
  const char* hgemm_ceiling_launch(const void* operands, void* sums, int iterations, int blocks, void* stream) { \
    return hgemm::launch<hgemm::mma_sync_ceiling<T>>(blocks, hgemm::Ceiling::THREADS, 0, stream,                 \
                                                     static_cast<const uint32_t*>(operands),                     \
                                                     static_cast<uint32_t*>(sums), iterations);                  \
  }                                                                                                              \
  }
