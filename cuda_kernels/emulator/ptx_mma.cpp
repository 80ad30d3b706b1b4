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

uint32_t pack_f16(float low, float high) { return static_cast<uint32_t>(round_to_f16(low) | round_to_f16(high) << 16); }

uint32_t pack_bf16(float low, float high) {
  return static_cast<uint32_t>(round_to_bf16(low) | round_to_bf16(high) << 16);
}

}  // namespace ptx
