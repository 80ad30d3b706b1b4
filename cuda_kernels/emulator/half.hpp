// Conversions between fp32 and the two 16-bit types, one value at a time or eight, without help from the processor.
#pragma once

#include <bit>
#include <cstdint>

namespace hgemm::emulator {

// Eight values in one vector register, or in two where the processor's are shorter (GCC's and Clang's vector
// extension).
typedef float Floats8 __attribute__((vector_size(32)));
typedef uint32_t Words8 __attribute__((vector_size(32)));
typedef int32_t Mask8 __attribute__((vector_size(32)));

// Eight fp16 values in the low halves of `bits`, exactly. An fp16 number is sign, 5 bits of exponent (bias 15) and 10
// of fraction; fp32 has 8 (bias 127) and 23, so exponents shift by 112. A subnormal, fraction * 2^-24, is put behind
// the leading bit of 2^-14, which is subtracted again; infinities and NaNs take the largest exponent.
inline void widen_f16(const Words8& bits, Floats8& values) {
  constexpr uint32_t ONE = 1u << 23;  // in the exponent of fp32
  const Words8 magnitude = (bits & 0x7fffu) << 13;
  const Words8 exponent = magnitude & (31u << 23);
  const Floats8 subnormal = (Floats8)(magnitude + 113u * ONE) - 0x1p-14f;
  const Mask8 is_subnormal = exponent == 0u, is_special = exponent == (31u << 23);
  const Words8 normal = magnitude + 112u * ONE + ((Words8)is_special & 112u * ONE);
  const Words8 pattern = ((Words8)(subnormal) & (Words8)is_subnormal) | (normal & ~(Words8)is_subnormal);
  values = (Floats8)(pattern | (bits & 0x8000u) << 16);
}

// Eight bf16 values: the upper half of an fp32.
inline void widen_bf16(const Words8& bits, Floats8& values) { values = (Floats8)(bits << 16); }

constexpr uint16_t CANONICAL_NAN = 0x7fff;  // what cvt.rn makes of every NaN

// cvt.rn.f16.f32: to nearest, ties to even.
inline uint16_t round_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return CANONICAL_NAN;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves multiples of 2^-24 in the fraction, rounded by the addition itself.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

// cvt.rn.bf16.f32.
inline uint16_t round_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return CANONICAL_NAN;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

}  // namespace hgemm::emulator
