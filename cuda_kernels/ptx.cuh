// Every PTX instruction that the kernels use, wrapped once, under its own name; those of clusters in ptx_cluster.cuh.
//
// These two files are the only ones with inline assembly. Compiled with HGEMM_EMULATOR the same names come from the
// emulator, and the kernels above them run on a CPU. Addresses of shared memory are 32-bit (`.shared` state space),
// sizes are bytes.
#pragma once

#ifdef HGEMM_EMULATOR
#include "emulator/ptx.hpp"
#else

#include <stdint.h>

#include "tensor_map.h"

#define HGEMM_MEMBER __device__ __forceinline__
#define HGEMM_DEVICE static HGEMM_MEMBER
#define HGEMM_HOST_DEVICE static __host__ __device__ __forceinline__
// A kernel of at most `threads` threads a block, of which `blocks` shall fit a multiprocessor (this caps the
// registers).
#define HGEMM_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define HGEMM_GRID_CONSTANT __grid_constant__

// The one dynamic buffer of shared memory. TMA swizzles by absolute address, so the declaration asks for the alignment
// of the largest swizzle pattern: 8 rows of 128 bytes.
extern __shared__ __align__(1024) uint8_t dynamic_shared[];

namespace ptx {

// ---- where this thread is ----

HGEMM_DEVICE uint32_t thread_index() { return threadIdx.x; }
HGEMM_DEVICE uint32_t block_index() { return blockIdx.x; }
HGEMM_DEVICE uint32_t grid_blocks() { return gridDim.x; }
HGEMM_DEVICE uint32_t lane_index() { return threadIdx.x % 32; }

// Whether a block can have so much shared memory on the architecture that this is compiled for. A kernel that cannot be
// launched there returns at once, so that nothing of it is compiled.
HGEMM_DEVICE constexpr bool has_shared_memory(int bytes) {
#if __CUDA_ARCH__ >= 1200  // GeForce Blackwell
  return bytes <= 101'376;
#else
  return bytes <= 232'448;
#endif
}

// The warp's index, broadcast from lane 0 so that the compiler knows it to be the same in all lanes.
HGEMM_DEVICE uint32_t warp_index() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

// elect.sync: true in exactly one lane of a converged warp. The compiler trusts it to be one lane; with `lane == 0` it
// wraps the instruction that follows in a loop over the active lanes.
HGEMM_DEVICE bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// Stops the grid with an error instead of computing something wrong.
HGEMM_DEVICE void trap() { asm volatile("trap;"); }

// The value, which an instruction that uses it gets only after `loaded` has been computed: an always zero is made of
// it.
HGEMM_DEVICE uint32_t after(uint32_t loaded, uint32_t value) { return value + (loaded & (gridDim.z - 1)); }

// ---- thread barriers ----

// bar.sync 0: all threads of the block arrive; orders their shared and global memory accesses.
HGEMM_DEVICE void barrier_sync() { __syncthreads(); }

// The same, only after `loaded` has been computed. A barrier does not wait for an ldmatrix in flight, and the copy
// engine does not queue behind it as other shared memory accesses do: before TMA may refill what was read, every thread
// must hold its values. The barrier's number, always 0, is made to depend on them.
HGEMM_DEVICE void barrier_sync_after(uint32_t loaded) {
  asm volatile("bar.sync %0;" ::"r"(after(loaded, 0)) : "memory");
}

// bar.warp.sync: all lanes of the warp arrive; orders their memory accesses among themselves.
HGEMM_DEVICE void warp_sync() { __syncwarp(); }

// shfl.sync.bfly: each lane gets the value of the lane whose index differs from its own in the bits of `mask`. All
// lanes of the warp take part.
HGEMM_DEVICE uint32_t shuffle_xor(uint32_t value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

// shfl.sync.idx: each lane gets the value of lane `lane`. All lanes of the warp take part.
HGEMM_DEVICE uint32_t shuffle_index(uint32_t value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }

// setmaxnreg: the warp gives registers back to the multiprocessor's block, or waits until it has got more, so that each
// thread has `Registers`, a multiple of 8 from 24 to 256. All four warps of a warpgroup execute it. Only code for one
// architecture or family has it (sm_90a, sm_120f); elsewhere the registers stay as they were dealt out.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_SPECIFIC__) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
constexpr bool HAS_SETMAXNREG = true;
#else
constexpr bool HAS_SETMAXNREG = false;
#endif
template <int Registers>
HGEMM_DEVICE void setmaxnreg_inc() {
  if constexpr (HAS_SETMAXNREG) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
HGEMM_DEVICE void setmaxnreg_dec() {
  if constexpr (HAS_SETMAXNREG) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

// ---- shared memory access ----

HGEMM_DEVICE uint32_t shared_base() { return static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared)); }

HGEMM_DEVICE void st_shared_b32(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// One 16-byte store; `address` is 16-byte aligned.
HGEMM_DEVICE void st_shared_v4(uint32_t address, const uint32_t (&value)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value[0]), "r"(value[1]), "r"(value[2]),
               "r"(value[3])
               : "memory");
}

// The same of four floats, as they lie in registers.
HGEMM_DEVICE void st_shared_v4(uint32_t address, const float (&value)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value[0]), "f"(value[1]), "f"(value[2]),
               "f"(value[3])
               : "memory");
}

HGEMM_DEVICE void ld_shared_v4(uint32_t (&value)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
               : "r"(address)
               : "memory");
}

// ldmatrix: four 8x8 matrices of 16-bit elements. Lanes 8i to 8i+7 give the addresses of the eight 16-byte rows of
// matrix i; lane l receives elements (l / 4, 2 (l % 4)) and the one right of it of each matrix.
HGEMM_DEVICE void ldmatrix_x4(uint32_t (&matrices)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row_address)
               : "memory");
}

// The same with every 8x8 matrix transposed on the way.
HGEMM_DEVICE void ldmatrix_x4_trans(uint32_t (&matrices)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row_address)
               : "memory");
}

// ---- global memory access ----

HGEMM_DEVICE uint32_t ld_global_b16(const void* address) {
  uint16_t value;
  asm volatile("ld.global.b16 %0, [%1];" : "=h"(value) : "l"(address) : "memory");
  return value;
}

HGEMM_DEVICE uint32_t ld_global_b32(const void* address) {
  uint32_t value;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// One 16-byte load; `address` is 16-byte aligned. It is answered by L2 and never by L1.
HGEMM_DEVICE void ld_global_v4(uint32_t (&value)[4], const void* address) {
  asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
               : "l"(address)
               : "memory");
}

// Stores the low 16 bits.
HGEMM_DEVICE void st_global_b16(void* address, uint32_t value) {
  asm volatile("st.global.b16 [%0], %1;" ::"l"(address), "h"(static_cast<uint16_t>(value)) : "memory");
}

HGEMM_DEVICE void st_global_b32(void* address, uint32_t value) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// One 16-byte store; `address` is 16-byte aligned.
HGEMM_DEVICE void st_global_v4(void* address, const uint32_t (&value)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value[0]), "r"(value[1]), "r"(value[2]),
               "r"(value[3])
               : "memory");
}

// The same of four floats, as they lie in registers.
HGEMM_DEVICE void ld_global_v4(float (&value)[4], const void* address) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
               : "l"(address)
               : "memory");
}

HGEMM_DEVICE void st_global_v4(void* address, const float (&value)[4]) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(value[0]), "f"(value[1]), "f"(value[2]),
               "f"(value[3])
               : "memory");
}

// ---- kernels that overlap (compute capability 9.0) ----

// Lets a kernel that has been launched as this one's dependent begin, as soon as all blocks of this one have come here
// or ended: it then waits on the multiprocessors. Orders nothing.
HGEMM_DEVICE void griddepcontrol_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Waits until the kernel that this one depends on has ended and all that it wrote can be read; not at all in a kernel
// that was launched plainly.
HGEMM_DEVICE void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- matrix product ----

// D[16, 8] += A[16, 16] B[16, 8], one warp: A row-major, B column-major, fp32 accumulation.
HGEMM_DEVICE void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

HGEMM_DEVICE void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with fp16 accumulation: d0 and d1 hold two elements each, of the upper and of the lower eight rows.
HGEMM_DEVICE void mma_m16n8k16_f16_f16(uint32_t& d0, uint32_t& d1, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
               : "+r"(d0), "+r"(d1)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// cvt.rn: two floats rounded to nearest even and packed, `low` into bits 0-15.
HGEMM_DEVICE uint32_t pack_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

HGEMM_DEVICE uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// ---- cp.async (compute capability 8.0) ----

// Copies `source_bytes` (0 to Bytes) from global to shared memory asynchronously and fills the rest of the Bytes with
// zeros; with 0 the source is not read. Both addresses are multiples of Bytes: 16, 8 or 4. Visible to this thread after
// cp_async_wait_group, to others after a barrier behind it. The 16-byte form bypasses L1, which the others cannot.
template <int Bytes>
HGEMM_DEVICE void cp_async(uint32_t destination, const void* source, uint32_t source_bytes) {
  static_assert(Bytes == 16 || Bytes == 8 || Bytes == 4, "the sizes that cp.async copies");
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
                 "r"(source_bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(destination), "l"(source), "n"(Bytes),
                 "r"(source_bytes)
                 : "memory");
}

// Closes a group over all copies this thread has issued since the last one.
HGEMM_DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `Pending` of this thread's latest groups are still in flight.
template <int Pending>
HGEMM_DEVICE void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// ---- mbarrier (compute capability 9.0) ----

// An 8-byte barrier in shared memory whose phase completes after `arrivals` arrivals and all announced bytes.
HGEMM_DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised mbarriers visible to the copy engine. Other threads see them after a block barrier.
HGEMM_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// One arrival that also announces `bytes` of asynchronous copies to this phase.
HGEMM_DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// One arrival, if `arrives`, which releases what this thread has read and written, and what it knows that others have,
// only after `loaded` has been computed: an arrival does not wait for an ldmatrix in flight any more than barrier_sync
// does, and an mma in front of it does not hold it back either. The barrier's address is made to depend on `loaded`, by
// an always zero. Instead of a branch around it, behind which the compiler would keep all that `loaded` is computed
// from in registers, there is a predicate within.
HGEMM_DEVICE void mbarrier_arrive_after(bool arrives, uint32_t barrier, uint32_t loaded) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %0, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%1];\n"
      "}" ::"r"(static_cast<uint32_t>(arrives)),
      "r"(after(loaded, barrier))
      : "memory");
}

// Waits until the phase of the given parity has completed: 0 for the first, 1 for the second, 0 for the third, ...
// What was copied in that phase is visible afterwards.
HGEMM_DEVICE void mbarrier_wait_parity(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}

// ---- TMA (compute capability 9.0) ----

// Copies the box at (column, row, batch), in elements, of the tensor into shared memory; elements outside the tensor
// become zeros. The column is a multiple of 8, 16 bytes: with any other the device stops with an illegal instruction.
// The phase of `barrier` counts the box's full bytes when they have landed. One thread issues for all.
//
// The destination is spelt `.shared::cta` (PTX ISA 8.6, CUDA 12.8): with `.shared::cluster` the compiler guards every
// copy for sm_120 by a test whether the address belongs to another block, and the call behind it makes kernels spill.
HGEMM_DEVICE void tma_load_3d(uint32_t destination, const hgemm::TensorMap* map, uint32_t barrier, int column, int row,
                              int batch) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
          destination),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(batch)
      : "memory");
}

// Makes what this thread has written to shared memory with ordinary stores, and what it knows others have, visible to
// the copy engine. Comes after the writes and before the barrier behind which the copy is issued.
HGEMM_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copies a box from shared memory to (column, row, batch) of the tensor; what lies right of it or below is left out, in
// whole chunks of 16 bytes. The column is a multiple of 8 and, unlike a load's, not negative. Part of this thread's
// current bulk group.
HGEMM_DEVICE void tma_store_3d(const hgemm::TensorMap* map, uint32_t source, int column, int row, int batch) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(source), "r"(column), "r"(row), "r"(batch)
               : "memory");
}

// Closes a group over all bulk stores this thread has issued since the last one.
HGEMM_DEVICE void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most `Pending` of this thread's latest groups still have to read shared memory.
template <int Pending>
HGEMM_DEVICE void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// Brings the descriptor itself into its cache ahead of the first copy.
HGEMM_DEVICE void prefetch_tensor_map(const hgemm::TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace ptx

#endif  // HGEMM_EMULATOR
