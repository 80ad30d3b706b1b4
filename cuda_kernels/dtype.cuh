// The two half-precision input types: what differs between them is one mma instruction and one rounding.
#pragma once

#include "ptx.cuh"

namespace hgemm {

struct f16 {
  static constexpr bool bfloat16 = false;
  HGEMM_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
  HGEMM_DEVICE uint32_t pack(float low, float high) { return ptx::pack_f16(low, high); }
};

struct bf16 {
  static constexpr bool bfloat16 = true;
  HGEMM_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
  HGEMM_DEVICE uint32_t pack(float low, float high) { return ptx::pack_bf16(low, high); }
};

constexpr int ELEMENT_BYTES = 2;   // of both types
constexpr int CHUNK_ELEMENTS = 8;  // 16 bytes: one cp.async, one row of an 8x8 matrix, the unit of a swizzle

}  // namespace hgemm
