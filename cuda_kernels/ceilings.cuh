// What the device can do at most, one kernel a limit, written with the same instructions as the products.
//
//   MmaCeiling       mma.sync on operands that stay in registers: no kernel built on it can be faster at this clock
//   FragmentCeiling  ldmatrix and mma.sync on tiles that stay in shared memory: fragment_ceiling.cuh
//   L2Ceiling        reads that L2 answers
//   ReadCeiling      reads of device memory
//   SharedCeiling    reads of shared memory
//
// Every figure of the study is quoted beside these, measured in the same run. The data is real, not zeros, with which a
// device draws less power and clocks higher. All results flow into one word a thread that is stored, so that the
// compiler has to keep every instruction; what that word is can be computed, so a test knows that the work was done.
#pragma once

#include "dtype.cuh"
#include "fragment_ceiling.cuh"
#include "launch.cuh"

namespace hgemm {

// ---- tensor cores ----

// One 16x8 accumulator as mma.sync leaves it in a warp's registers. word() is made of all its bits.
template <class T>
struct Float32Accumulator {
  float sums[4] = {};
  HGEMM_MEMBER void mma(const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { T::mma(sums, a, b0, b1); }
  HGEMM_MEMBER uint32_t word() const { return T::pack(sums[0], sums[1]) + T::pack(sums[2], sums[3]); }
};

// fp16 operands and fp16 accumulation: twice as fast on GeForce, equally fast on data-centre devices.
struct Float16Accumulator {
  uint32_t upper = 0, lower = 0;  // rows
  HGEMM_MEMBER void mma(const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    ptx::mma_m16n8k16_f16_f16(upper, lower, a, b0, b1);
  }
  HGEMM_MEMBER uint32_t word() const { return upper + lower; }
};

// A warp's 64x64 tile: 4 x 8 independent accumulators, so that no mma waits for the one before it; 8 warps a
// multiprocessor keep its four tensor cores busy.
template <class Accumulator>
struct MmaCeiling {
  static constexpr int ROW_FRAGMENTS = 4, COLUMN_FRAGMENTS = 8, WARPS = 8;
  static constexpr int THREADS = WARPS * 32, BLOCKS = 1, SHARED_BYTES = 0;
  // The operands of a block, two elements a word: each thread's words of A, then of B, word by word.
  static constexpr int TILE_WORDS = (ROW_FRAGMENTS * 4 + COLUMN_FRAGMENTS * 2) * THREADS;
  static constexpr int64_t WORK = int64_t{2} * 16 * 8 * 16 * ROW_FRAGMENTS * COLUMN_FRAGMENTS * WARPS;  // operations

  HGEMM_DEVICE uint32_t run(const uint32_t* data, uint32_t /*tiles*/, const int iterations) {
    uint32_t a[ROW_FRAGMENTS][4], b[COLUMN_FRAGMENTS][2];
    Accumulator accumulators[ROW_FRAGMENTS][COLUMN_FRAGMENTS];
    const uint32_t* mine = data + ptx::thread_index();
#pragma unroll
    for (int i = 0; i < ROW_FRAGMENTS; ++i)
#pragma unroll
      for (int word = 0; word < 4; ++word, mine += THREADS) a[i][word] = ptx::ld_global_b32(mine);
#pragma unroll
    for (int j = 0; j < COLUMN_FRAGMENTS; ++j)
#pragma unroll
      for (int word = 0; word < 2; ++word, mine += THREADS) b[j][word] = ptx::ld_global_b32(mine);

    // Every other time the fragments of B change places in pairs. Where one of a pair is the other with its sign
    // turned, sums go back to where they were instead of growing for ever, which float16 cannot hold.
    const auto multiply = [&](const int other) {
#pragma unroll
      for (int i = 0; i < ROW_FRAGMENTS; ++i)
#pragma unroll
        for (int j = 0; j < COLUMN_FRAGMENTS; ++j) accumulators[i][j].mma(a[i], b[j ^ other][0], b[j ^ other][1]);
    };
#pragma unroll 2
    for (int pair = 0; pair < iterations / 2; ++pair) {
      multiply(0);
      multiply(1);
    }
    if (iterations % 2) multiply(0);

    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < ROW_FRAGMENTS; ++i)
#pragma unroll
      for (int j = 0; j < COLUMN_FRAGMENTS; ++j) sum += accumulators[i][j].word();
    return sum;
  }
};

// ---- memory ----

// 16-byte loads that a thread issues before it uses the first of them.
constexpr int LOADS = 8;

HGEMM_DEVICE uint32_t sum_of(const uint32_t (&values)[LOADS][4]) {
  uint32_t sum = 0;
#pragma unroll
  for (int load = 0; load < LOADS; ++load)
#pragma unroll
    for (int word = 0; word < 4; ++word) sum += values[load][word];
  return sum;
}

// What the next two share: a block reads a tile of 64 KB at a time, and next(tile) is the one to go on with. L1 has no
// part in it, whatever its size: the loads pass it by.
//
// With two blocks a multiprocessor has 128 KB of loads in flight. At 64 bytes a clock, the width of its port to L2,
// that is 2,048 clocks, several times the latency of L2, and more than that of device memory.
struct TileReads {
  static constexpr int THREADS = 512, BLOCKS = 2, SHARED_BYTES = 0;
  static constexpr int TILE_WORDS = THREADS * LOADS * 4;
  static constexpr int64_t WORK = int64_t{4} * TILE_WORDS;  // bytes read

  template <class Next>
  HGEMM_DEVICE uint32_t stream(const uint32_t* data, uint32_t tile, const int iterations, const Next next) {
    uint32_t sum = 0;
#pragma unroll 2
    for (int iteration = 0; iteration < iterations; ++iteration) {
      const uint32_t* mine = data + size_t{tile} * TILE_WORDS + ptx::thread_index() * 4;
      uint32_t values[LOADS][4];
#pragma unroll
      for (int load = 0; load < LOADS; ++load) ptx::ld_global_v4(values[load], mine + load * THREADS * 4);
      sum += sum_of(values);
      tile = next(tile);
    }
    return sum;
  }
};

// Every block streams over all the data and begins where no other does as long as there are tiles enough. The caller
// makes the data a quarter of L2: where L2 has two partitions, a line that both halves of the device read may be held
// by both, which leaves half of the capacity, and lines do not spread evenly over its sets.
struct L2Ceiling : TileReads {
  HGEMM_DEVICE uint32_t run(const uint32_t* data, const uint32_t tiles, const int iterations) {
    const auto next = [&](const uint32_t tile) { return tile + 1 == tiles ? 0 : tile + 1; };
    return stream(data, ptx::block_index() % tiles, iterations, next);
  }
};

// The blocks share the tiles out: each is read once before any is read again. The caller makes the data many times L2,
// so that nothing of a tile is left in it by then, and the number of tiles a multiple of the number of blocks. Where
// some blocks are done before others, these have loads enough in flight to keep the memory busy.
struct ReadCeiling : TileReads {
  HGEMM_DEVICE uint32_t run(const uint32_t* data, const uint32_t tiles, const int iterations) {
    const uint32_t first = ptx::block_index(), blocks = ptx::grid_blocks();
    const auto next = [&](const uint32_t tile) { return tile + blocks < tiles ? tile + blocks : first; };
    return stream(data, first, iterations, next);
  }
};

// The lanes of a warp read 512 bytes that lie side by side, as an ldmatrix of four swizzled matrices does: four passes
// over the 32 banks without a conflict, so 128 bytes a clock and multiprocessor are all there can be. The 16 warps of a
// multiprocessor have far more loads in flight than its latency needs.
struct SharedCeiling {
  static constexpr int THREADS = 256, BLOCKS = 2;
  static constexpr int TILE_WORDS = THREADS * LOADS * 4;  // LOADS rows of one vector a thread
  static constexpr int SHARED_BYTES = 4 * TILE_WORDS;
  static constexpr int64_t WORK = int64_t{4} * TILE_WORDS;  // bytes read

  HGEMM_DEVICE uint32_t run(const uint32_t* data, uint32_t /*tiles*/, const int iterations) {
    const uint32_t base = ptx::shared_base();
    for (uint32_t vector = ptx::thread_index(); vector < THREADS * LOADS; vector += THREADS) {
      uint32_t value[4];
      ptx::ld_global_v4(value, data + vector * 4);
      ptx::st_shared_v4(base + vector * 16, value);
    }
    ptx::barrier_sync();
    // A warp moves on by its own width every time. Were the addresses always the same, the compiler could read once.
    uint32_t place = ptx::thread_index(), sum = 0;
#pragma unroll 2
    for (int iteration = 0; iteration < iterations; ++iteration) {
      uint32_t values[LOADS][4];
#pragma unroll
      for (int load = 0; load < LOADS; ++load) ptx::ld_shared_v4(values[load], base + (load * THREADS + place) * 16);
      sum += sum_of(values);
      place = (place + 32) % THREADS;
    }
    return sum;
  }
};

// ---- the kernel around them ----

// `data`: `tiles` tiles of TILE_WORDS words. `sums`: one word a thread of the grid.
template <class Ceiling>
HGEMM_KERNEL(Ceiling::THREADS, Ceiling::BLOCKS)
ceiling(const uint32_t* data, const uint32_t tiles, uint32_t* sums, const int iterations) {
  const uint32_t sum = Ceiling::run(data, tiles, iterations);
  ptx::st_global_b32(sums + size_t{ptx::block_index()} * Ceiling::THREADS + ptx::thread_index(), sum);
}

}  // namespace hgemm

// The exported functions of a ceiling unit, which ceilings.py generates. Work: floating-point operations or bytes of
// one block in one iteration.
#define HGEMM_EXPORT_CEILING(...)                                                                                   \
  using Ceiling = __VA_ARGS__;                                                                                      \
  extern "C" {                                                                                                      \
  int hgemm_ceiling_threads(void) { return Ceiling::THREADS; }                                                      \
  int hgemm_ceiling_blocks_per_multiprocessor(void) { return Ceiling::BLOCKS; }                                     \
  int64_t hgemm_ceiling_tile_bytes(void) { return int64_t{4} * Ceiling::TILE_WORDS; }                               \
  int64_t hgemm_ceiling_work(void) { return Ceiling::WORK; }                                                        \
  const char* hgemm_ceiling_launch(const void* data, int tiles, void* sums, int iterations, int blocks,             \
                                   void* stream) {                                                                  \
    return hgemm::launch<hgemm::ceiling<Ceiling>>(blocks, Ceiling::THREADS, Ceiling::SHARED_BYTES, stream,          \
                                                  static_cast<const uint32_t*>(data), static_cast<uint32_t>(tiles), \
                                                  static_cast<uint32_t*>(sums), iterations);                        \
  }                                                                                                                 \
  }
