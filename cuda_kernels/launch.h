// The plain-C surface of a compiled unit: one kernel family, one dtype, one layout.
//
// configs.py generates a unit's translation unit, build.py compiles it into a shared library of its own, and every
// such library exports exactly the functions below. nvcc compiles them for the GPU; g++ compiles the same unit against
// the emulator, where `stream` is ignored. No torch, CUDA or C++ type appears here.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// C[M, N] = A[M, K] @ B[K, N] in 16-bit floats, for each of `batch` products.
//
// A and B are described as they lie in memory. The unit's layout says what a stored row is: "n" rows of the matrix as
// it is multiplied, "t" rows of its transpose. Strides count elements; a batch stride of 0 uses the same matrix for
// all. Column strides are 1 except where the backend accepts others.
typedef struct HgemmProblem {
  const void* a;
  const void* b;
  void* c;
  int64_t M, N, K, batch;
  int64_t a_row_stride, b_row_stride, c_row_stride;
  int64_t a_column_stride, b_column_stride, c_column_stride;
  int64_t a_batch_stride, b_batch_stride, c_batch_stride;
} HgemmProblem;

// What the compiler and the device make of one configuration.
typedef struct HgemmResources {
  int registers;                  // 32-bit registers a thread
  int spill_bytes;                // local memory a thread; 0 unless the compiler spilled
  int shared_bytes;               // dynamic shared memory a block
  int threads;                    // threads a block
  int blocks_per_multiprocessor;  // resident blocks on the current device
} HgemmResources;

// Configurations in the order of the table in configs.py.
int hgemm_config_count(void);
const char* hgemm_config_name(int config);

// Bytes of scratch memory that hgemm_launch needs for this problem, 0 for most configurations.
size_t hgemm_workspace_bytes(const HgemmProblem* problem, int config);

// Enqueues the product on `stream` (a cudaStream_t) of the current device and returns at once.
// Returns NULL, or a message that stays valid until this thread's next call; nothing was launched then.
const char* hgemm_launch(const HgemmProblem* problem, int config, void* workspace, size_t workspace_bytes,
                         void* stream);

// Fills `resources` for the current device. Returns NULL or a message, as hgemm_launch does.
const char* hgemm_resources(int config, HgemmResources* resources);

// The functions that the pictures draw; the kernels call the very same ones.
// Byte offset inside a swizzled tile whose rows are `span` bytes (32, 64 or 128; 0: no swizzle).
uint32_t hgemm_swizzle(uint32_t span, uint32_t offset);
// Byte offset, in the tile of A (operand 0) or of B (1) of one stage, of the 16 bytes that a lane names to ldmatrix in
// one of its warp's 16x16 fragments at k-step `step` (16 of K each). -1 if the configuration has no such lane.
int64_t hgemm_ldmatrix_offset(int config, int operand, int warp, int lane, int fragment, int step);
// The output tile that block `index` of a grid of tiles_m x tiles_n computes.
void hgemm_raster(int64_t index, int64_t tiles_m, int64_t tiles_n, int64_t* tile_m, int64_t* tile_n);

#ifdef __cplusplus
}
#endif
