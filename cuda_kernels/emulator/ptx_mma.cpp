// ptx.hpp: the matrix product and the rounding of its results.
#include "ptx.hpp"

#include "calling_thread.hpp"
#include "matrix_product.hpp"

namespace ptx {

using namespace hgemm::emulator;

namespace {

using Multiply = void (*)(void* const*);

void mma(Operation operation, Multiply multiply, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
         const Site& site) {
  const CallingThread me(operation, site);
  me.demand_all_lanes();
  MmaArguments mine{d, a, b0, b1};
  me.together(&mine, [&](void* const* lanes) {
    const MmaArguments& first = *static_cast<const MmaArguments*>(lanes[0]);
    me.warp.register_loads.use(first.a, first.b0, first.b1, me.warp.epoch());
    multiply(lanes);
    ++me.counter().executed;
  });
}

}  // namespace

void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site) {
  mma(Operation::mma_m16n8k16_f16, multiply_f16, d, a, b0, b1, site);
}

void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site) {
  mma(Operation::mma_m16n8k16_bf16, multiply_bf16, d, a, b0, b1, site);
}

// Summed in fp32 and rounded once.
void mma_m16n8k16_f16_f16(uint32_t& d0, uint32_t& d1, const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site) {
  Floats8 wide;
  widen_f16(Words8{d0 & 0xffffu, d0 >> 16, d1 & 0xffffu, d1 >> 16}, wide);
  float d[4] = {wide[0], wide[1], wide[2], wide[3]};
  mma(Operation::mma_m16n8k16_f16_f16, multiply_f16, d, a, b0, b1, site);
  d0 = pack_f16(d[0], d[1]);
  d1 = pack_f16(d[2], d[3]);
}

uint32_t pack_f16(float low, float high) { return static_cast<uint32_t>(round_to_f16(low) | round_to_f16(high) << 16); }

uint32_t pack_bf16(float low, float high) {
  return static_cast<uint32_t>(round_to_bf16(low) | round_to_bf16(high) << 16);
}

}  // namespace ptx
