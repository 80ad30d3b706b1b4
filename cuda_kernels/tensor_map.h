// The 128-byte descriptor of a tensor in global memory that TMA reads (a CUtensorMap to the CUDA driver).
//
// Kernels only pass its address on, so it stays opaque here and needs no CUDA header. It travels as a
// `const __grid_constant__` kernel parameter: its address must be one that the copy engine can read.
#pragma once

#include <stdint.h>

namespace hgemm {

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

}  // namespace hgemm
