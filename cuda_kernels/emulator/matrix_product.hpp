// The arithmetic of mma.m16n8k16: D[16, 8] += A[16, 16] B[16, 8], spread over the registers of a warp.
//
// Order of the sum: d = (((d + a0 b0) + a1 b1) + ...), each step rounded to fp32, to nearest even. A product of two
// 16-bit floats has at most 22 significant bits, so short of underflow it is exact in fp32, with or without a fused
// multiply-add, and the result is the same on every processor. The hardware adds in another order and truncates: the
// two agree bit for bit where every partial sum is exact, as for small integers, and differ in the last bits elsewhere.
#pragma once

#include <cstdint>

#include "half.hpp"
#include "warp.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
// Compiled twice; the processor decides when the library is loaded.
#define HGEMM_FOR_WIDE_VECTORS __attribute__((target_clones("default", "arch=haswell")))
#else
#define HGEMM_FOR_WIDE_VECTORS
#endif

namespace hgemm::emulator {

struct MmaArguments {
  float* d;           // [4]
  const uint32_t* a;  // [4]
  uint32_t b0, b1;
};

using Widen = void (*)(const Words8&, Floats8&);

// Lane l = 4 g + t holds, two values to a register: of A the rows g and g + 8 at k = 2t, 2t + 1 and 2t + 8, 2t + 9; of
// B the column g at the same k; of D the rows g and g + 8 at columns 2t, 2t + 1 (PTX ISA, "Matrix Fragments for
// mma.m16n8k16 with floating point type").
template <Widen widen>
inline __attribute__((always_inline)) void multiply_fragments(void* const* arguments) {
  union Row {
    Words8 vector;
    uint32_t word[8];
    float value[8];
    Floats8 values;
  };
  Row a[16], b[8], d[16];  // a[m].word[j]: k = 2j, 2j + 1;  b[j].word[n]: the same of column n
  for (uint32_t lane = 0; lane < LANES; ++lane) {
    const MmaArguments& from = *static_cast<const MmaArguments*>(arguments[lane]);
    const uint32_t g = lane / 4, t = lane % 4;
    a[g].word[t] = from.a[0];
    a[g + 8].word[t] = from.a[1];
    a[g].word[t + 4] = from.a[2];
    a[g + 8].word[t + 4] = from.a[3];
    b[t].word[g] = from.b0;
    b[t + 4].word[g] = from.b1;
    for (uint32_t i = 0; i < 4; ++i) d[g + i / 2 * 8].value[2 * t + i % 2] = from.d[i];
  }
  Floats8 b_rows[16];
  for (uint32_t j = 0; j < 8; ++j) {
    widen(b[j].vector & 0xffffu, b_rows[2 * j]);
    widen(b[j].vector >> 16, b_rows[2 * j + 1]);
  }
  for (uint32_t m = 0; m < 16; ++m) {
    Floats8 even, odd, sum = d[m].values;
    widen(a[m].vector & 0xffffu, even);
    widen(a[m].vector >> 16, odd);
    for (uint32_t j = 0; j < 8; ++j) {
      sum += even[j] * b_rows[2 * j];
      sum += odd[j] * b_rows[2 * j + 1];
    }
    d[m].values = sum;
  }
  for (uint32_t lane = 0; lane < LANES; ++lane) {
    float* to = static_cast<const MmaArguments*>(arguments[lane])->d;
    const uint32_t g = lane / 4, t = lane % 4;
    for (uint32_t i = 0; i < 4; ++i) to[i] = d[g + i / 2 * 8].value[2 * t + i % 2];
  }
}

HGEMM_FOR_WIDE_VECTORS static void multiply_f16(void* const* arguments) { multiply_fragments<widen_f16>(arguments); }

HGEMM_FOR_WIDE_VECTORS static void multiply_bf16(void* const* arguments) { multiply_fragments<widen_bf16>(arguments); }

}  // namespace hgemm::emulator
