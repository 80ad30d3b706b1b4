// launch.cuh for the emulator: the same names, and a launch returns when its last block has.
#pragma once

#include <cstdint>

namespace hgemm {
namespace emulator {

enum class Order { behind, overlapping, cooperative };  // behind the last launch, or while it still runs

// Runs a kernel on the calling thread and others. Returns nullptr, or the first thing that was found and how many more.
const char* run(uint32_t cluster, uint32_t blocks, int threads, int shared_bytes, Order order,
                void (*kernel)(const void*), const void* arguments);

// How many blocks of a kernel the device holds, as the session was told.
uint32_t resident_blocks();

template <auto Kernel, class... Arguments>
const char* run(uint32_t cluster, uint32_t blocks, int threads, int shared_bytes, Order order,
                const Arguments&... arguments) {
  const auto call = [&] { Kernel(arguments...); };
  using Call = decltype(call);
  return run(cluster, blocks, threads, shared_bytes, order, [](const void* it) { (*static_cast<Call*>(it))(); }, &call);
}

}  // namespace emulator

#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
const char* message(const char* format, ...);

template <auto Kernel, class... Arguments>
const char* launch(uint32_t blocks, int threads, int shared_bytes, void*, const Arguments&... arguments) {
  return emulator::run<Kernel>(1, blocks, threads, shared_bytes, emulator::Order::behind, arguments...);
}

template <auto Kernel, class... Arguments>
const char* launch_clusters(uint32_t cluster, uint32_t blocks, int threads, int shared_bytes, void*,
                            const Arguments&... arguments) {
  return emulator::run<Kernel>(cluster, blocks, threads, shared_bytes, emulator::Order::behind, arguments...);
}

template <auto Kernel, class... Arguments>
const char* launch_dependent(uint32_t blocks, int threads, int shared_bytes, void*, const Arguments&... arguments) {
  return emulator::run<Kernel>(1, blocks, threads, shared_bytes, emulator::Order::overlapping, arguments...);
}

// All blocks are resident together: they may wait for each other.
template <auto Kernel, class... Arguments>
const char* launch_cooperative(uint32_t blocks, int threads, int shared_bytes, void*, const Arguments&... arguments) {
  return emulator::run<Kernel>(1, blocks, threads, shared_bytes, emulator::Order::cooperative, arguments...);
}

// There is no compiler for a GPU here and no multiprocessor: only what the launch itself says is known.
template <auto Kernel>
const char* resources(int threads, int shared_bytes, HgemmResources* result) {
  *result = {0, 0, shared_bytes, threads, 0};
  return nullptr;
}

template <auto Kernel>
const char* resident_blocks(int, int, uint32_t* blocks) {
  *blocks = emulator::resident_blocks();
  return nullptr;
}

// A cluster takes the place of as many blocks; at least one fits.
template <auto Kernel>
const char* resident_clusters(uint32_t cluster, int, int, uint32_t* clusters) {
  *clusters = emulator::resident_blocks() / cluster;
  if (!*clusters) *clusters = 1;
  return nullptr;
}

// Refuses what cuTensorMapEncodeTiled refuses, and says why.
const char* encode_tensor_map(TensorMap* map, const Matrices& matrices, const Box& box);

}  // namespace hgemm
