// Starting a kernel: the one place that knows the CUDA runtime, with the emulator's twin behind the same names.
//
//   launch<kernel>(blocks, threads, shared_bytes, stream, arguments...)
//   launch_clusters<kernel>(cluster, the same): so many neighbouring blocks are a cluster; 1: plainly
//   launch_dependent<kernel>(the same): may begin before the kernel ahead of it on the stream has ended
//   encode_tensor_map(map, matrix, box)
//   resources<kernel>(threads, shared_bytes, result)
//   resident_blocks<kernel>(threads, shared_bytes, blocks)
//   resident_clusters<kernel>(cluster, threads, shared_bytes, clusters); 1: blocks
//
// Each returns nullptr, or a message that stays valid until this thread's next call.
#pragma once

#include "launch.h"
#include "tensor_map.h"

namespace hgemm {

// Row-major matrices of 16-bit elements in global memory. Strides count elements.
struct Matrices {
  const void* base;
  int64_t rows, columns, batch;
  int64_t row_stride, batch_stride;
  bool bfloat16;
};

// The part of it that one TMA instruction moves, and the swizzle it is stored with in shared memory: its span in bytes
// (128, 64, 32, or 0 for none). A box row of `columns` elements is at most one span wide.
struct Box {
  int rows, columns;
  int swizzle_span;
  int fetched = 256;  // bytes that L2 fetches from memory at a time
};

}  // namespace hgemm

#ifdef HGEMM_EMULATOR
#include "emulator/launch.hpp"
#else

#include <cuda_runtime.h>
#include <cudaTypedefs.h>
#include <stdio.h>

#include <atomic>

namespace hgemm {

// Formats into a buffer of this thread, so that a message can be returned through the C interface.
template <class... Arguments>
const char* message(const char* format, Arguments... arguments) {
  static thread_local char text[256];
  snprintf(text, sizeof text, format, arguments...);
  return text;
}

inline const char* describe(const char* what, cudaError_t error) {
  cudaGetLastError();  // the error is reported here: do not let it surface again in someone else's call
  return message("%s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

// A block may use more than 48 KB of shared memory only after its function has been allowed to, once on every device.
template <class Kernel>
const char* allow_shared_memory(Kernel kernel, int shared_bytes, std::atomic<uint64_t>& allowed_devices) {
  if (shared_bytes <= 48 * 1024) return nullptr;
  int device;
  if (cudaError_t error = cudaGetDevice(&device)) return describe("cudaGetDevice", error);
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (allowed_devices.load(std::memory_order_relaxed) & bit) return nullptr;
  if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes))
    return describe("allowing the kernel's shared memory", error);
  allowed_devices.fetch_or(bit, std::memory_order_relaxed);
  return nullptr;
}

// `Kernel` is a template argument, so that every kernel has its own record of the devices it was prepared for.
template <auto Kernel>
const char* prepare(int shared_bytes) {
  static std::atomic<uint64_t> allowed_devices{0};
  return allow_shared_memory(Kernel, shared_bytes, allowed_devices);
}

template <auto Kernel, class... Arguments>
const char* enqueue(const cudaLaunchAttribute* attribute, uint32_t blocks, int threads, int shared_bytes, void* stream,
                    const Arguments&... arguments) {
  if (const char* error = prepare<Kernel>(shared_bytes)) return error;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = const_cast<cudaLaunchAttribute*>(attribute);
  config.numAttrs = attribute ? 1 : 0;
  if (cudaError_t error = cudaLaunchKernelEx(&config, Kernel, arguments...))
    return describe("launching the kernel", error);
  return nullptr;
}

template <auto Kernel, class... Arguments>
const char* launch(uint32_t blocks, int threads, int shared_bytes, void* stream, const Arguments&... arguments) {
  return enqueue<Kernel>(nullptr, blocks, threads, shared_bytes, stream, arguments...);
}

inline cudaLaunchAttribute in_clusters(uint32_t cluster) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  return attribute;
}

// From compute capability 9.0, if `cluster` is more than 1. `blocks` is a multiple of it, and every such device takes
// clusters of up to 8.
template <auto Kernel, class... Arguments>
const char* launch_clusters(uint32_t cluster, uint32_t blocks, int threads, int shared_bytes, void* stream,
                            const Arguments&... arguments) {
  const cudaLaunchAttribute attribute = in_clusters(cluster);
  return enqueue<Kernel>(cluster > 1 ? &attribute : nullptr, blocks, threads, shared_bytes, stream, arguments...);
}

// Programmatic dependent launch, from compute capability 9.0: the kernel calls griddepcontrol_wait before it reads what
// the kernel ahead of it wrote.
template <auto Kernel, class... Arguments>
const char* launch_dependent(uint32_t blocks, int threads, int shared_bytes, void* stream,
                             const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return enqueue<Kernel>(&attribute, blocks, threads, shared_bytes, stream, arguments...);
}

template <auto Kernel>
const char* resources(int threads, int shared_bytes, HgemmResources* result) {
  if (const char* error = prepare<Kernel>(shared_bytes)) return error;
  cudaFuncAttributes attributes;
  if (cudaError_t error = cudaFuncGetAttributes(&attributes, Kernel)) return describe("cudaFuncGetAttributes", error);
  int blocks = 0;
  if (cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, Kernel, threads, shared_bytes))
    return describe("cudaOccupancyMaxActiveBlocksPerMultiprocessor", error);
  *result = {attributes.numRegs, static_cast<int>(attributes.localSizeBytes), shared_bytes, threads, blocks};
  return nullptr;
}

// Blocks that the current device holds at a time: its multiprocessors times those that fit one. They are asked for when
// the kernel first runs on a device, and remembered for devices 0 to 63.
template <auto Kernel>
const char* resident_blocks(int threads, int shared_bytes, uint32_t* blocks) {
  static std::atomic<uint32_t> known[64]{};
  int device;
  if (cudaError_t error = cudaGetDevice(&device)) return describe("cudaGetDevice", error);
  if (device < 64 && (*blocks = known[device].load(std::memory_order_relaxed))) return nullptr;
  int multiprocessors;
  if (cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device))
    return describe("cudaDeviceGetAttribute", error);
  HgemmResources fits;
  if (const char* error = resources<Kernel>(threads, shared_bytes, &fits)) return error;
  *blocks = static_cast<uint32_t>(multiprocessors) * fits.blocks_per_multiprocessor;
  if (*blocks == 0)
    return message("no block of %d threads with %d bytes of shared memory fits the device", threads, shared_bytes);
  if (device < 64) known[device].store(*blocks, std::memory_order_relaxed);
  return nullptr;
}

// The same for clusters of `cluster` blocks: clusters that the device holds at a time. Not simply its blocks by their
// number: a cluster lies within one cluster of the device's multiprocessors (GPC), of which some have fewer.
template <auto Kernel>
const char* resident_clusters(uint32_t cluster, int threads, int shared_bytes, uint32_t* clusters) {
  if (cluster == 1) return resident_blocks<Kernel>(threads, shared_bytes, clusters);
  static std::atomic<uint32_t> known[64]{};
  int device;
  if (cudaError_t error = cudaGetDevice(&device)) return describe("cudaGetDevice", error);
  if (device < 64 && (*clusters = known[device].load(std::memory_order_relaxed))) return nullptr;
  if (const char* error = prepare<Kernel>(shared_bytes)) return error;
  cudaLaunchAttribute attribute = in_clusters(cluster);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cluster);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  if (cudaError_t error = cudaOccupancyMaxActiveClusters(&count, Kernel, &config))
    return describe("cudaOccupancyMaxActiveClusters", error);
  if (count <= 0)
    return message("no cluster of %d blocks of %d threads with %d bytes of shared memory fits the device",
                   static_cast<int>(cluster), threads, shared_bytes);
  *clusters = static_cast<uint32_t>(count);
  if (device < 64) known[device].store(*clusters, std::memory_order_relaxed);
  return nullptr;
}

// The encoder lives in the driver. It is looked up through the runtime when first needed, so that nothing links to
// libcuda and the library loads on a machine without a driver. A failure is not remembered: a driver may appear.
inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static std::atomic<PFN_cuTensorMapEncodeTiled_v12000> found{nullptr};
  if (auto encoder = found.load(std::memory_order_relaxed)) return encoder;
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult status;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &status) ||
      status != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  found.store(reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry), std::memory_order_relaxed);
  return found.load(std::memory_order_relaxed);
}

// Encoding takes a fraction of a microsecond on the host. It is done anew for every launch: a cached descriptor would
// have to be keyed by address, shape, stride and dtype, and goes stale when memory is reused.
inline const char* encode_tensor_map(TensorMap* map, const Matrices& matrices, const Box& box) {
  const auto encode = tensor_map_encoder();
  if (!encode) return "the CUDA driver has no cuTensorMapEncodeTiled: TMA needs a driver for CUDA 12.0 or newer";
  const CUtensorMapSwizzle swizzle = box.swizzle_span == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : box.swizzle_span == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                     : box.swizzle_span == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                              : CU_TENSOR_MAP_SWIZZLE_NONE;
  const CUtensorMapL2promotion promotion =
      box.fetched == 256 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  const cuuint64_t size[3] = {static_cast<cuuint64_t>(matrices.columns), static_cast<cuuint64_t>(matrices.rows),
                              static_cast<cuuint64_t>(matrices.batch)};
  const cuuint64_t stride_bytes[2] = {static_cast<cuuint64_t>(matrices.row_stride) * 2,
                                      static_cast<cuuint64_t>(matrices.batch_stride) * 2};
  const cuuint32_t box_size[3] = {static_cast<cuuint32_t>(box.columns), static_cast<cuuint32_t>(box.rows), 1};
  const cuuint32_t element_stride[3] = {1, 1, 1};
  const auto attempt = [&] {
    return encode(reinterpret_cast<CUtensorMap*>(map),
                  matrices.bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
                  const_cast<void*>(matrices.base), size, stride_bytes, box_size, element_stride,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult error = attempt();
  if (error == CUDA_ERROR_INVALID_CONTEXT) {  // a thread has no context before its first call into the runtime
    int device;
    if (!cudaGetDevice(&device) && !cudaSetDevice(device)) error = attempt();
  }
  if (error != CUDA_SUCCESS)
    return message(
        "cuTensorMapEncodeTiled refused base %p, %lld x %lld x %lld elements, row stride %lld, batch stride %lld, "
        "box %d x %d (CUresult %d)",
        matrices.base, (long long)matrices.batch, (long long)matrices.rows, (long long)matrices.columns,
        (long long)matrices.row_stride, (long long)matrices.batch_stride, box.rows, box.columns, (int)error);
  return nullptr;
}

}  // namespace hgemm

#endif  // HGEMM_EMULATOR
