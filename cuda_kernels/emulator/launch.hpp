// launch.cuh for the emulator: the same names, and a launch returns when its last block has.
#pragma once

#include <cstdint>

namespace hgemm {
namespace emulator {

// Runs a kernel on the calling thread and others. Returns nullptr, or the first thing that was found and how many more.
const char* run(uint32_t blocks, int threads, int shared_bytes, bool cooperative, void (*kernel)(const void*),
                const void* arguments);

template <auto Kernel, class... Arguments>
const char* run(uint32_t blocks, int threads, int shared_bytes, bool cooperative, const Arguments&... arguments) {
  const auto call = [&] { Kernel(arguments...); };
  using Call = decltype(call);
  return run(blocks, threads, shared_bytes, cooperative, [](const void* it) { (*static_cast<Call*>(it))(); }, &call);
}

}  // namespace emulator

#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
const char* message(const char* format, ...);

template <auto Kernel, class... Arguments>
const char* launch(uint32_t blocks, int threads, int shared_bytes, void*, const Arguments&... arguments) {
  return emulator::run<Kernel>(blocks, threads, shared_bytes, false, arguments...);
}

// All blocks are resident together: they may wait for each other.
template <auto Kernel, class... Arguments>
const char* launch_cooperative(uint32_t blocks, int threads, int shared_bytes, void*, const Arguments&... arguments) {
  return emulator::run<Kernel>(blocks, threads, shared_bytes, true, arguments...);
}

// There is no compiler for a GPU here and no multiprocessor: only what the launch itself says is known.
template <auto Kernel>
const char* resources(int threads, int shared_bytes, HgemmResources* result) {
  *result = {0, 0, shared_bytes, threads, 0};
  return nullptr;
}

// Few, so that a persistent kernel has several tiles for each block to go through.
template <auto Kernel>
const char* resident_blocks(int, int, uint32_t* blocks) {
  *blocks = 2;
  return nullptr;
}

// Refuses what cuTensorMapEncodeTiled refuses, and says why.
const char* encode_tensor_map(TensorMap* map, const Matrices& matrices, const Box& box);

}  // namespace hgemm
