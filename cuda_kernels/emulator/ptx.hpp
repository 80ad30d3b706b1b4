// The names of ptx.cuh for a CPU. What each instruction does is said there; how it is emulated is in ptx_*.cpp.
//
// The last argument of every function that can be at fault is the line that calls it, filled in by the compiler.
#pragma once

#include <cstdint>
#include <initializer_list>  // nvcc has it at hand for loops over { ... }

#include "../tensor_map.h"
#include "operations.hpp"

#define HGEMM_MEMBER inline
#define HGEMM_DEVICE static inline
#define HGEMM_HOST_DEVICE static inline
#define HGEMM_KERNEL(threads, blocks) void
#define HGEMM_GRID_CONSTANT

namespace ptx {

using hgemm::emulator::Site;

// ---- where this thread is ----
uint32_t thread_index();
uint32_t block_index();
uint32_t lane_index();
uint32_t warp_index(Site site = Site::current());
uint32_t grid_blocks();
constexpr bool has_shared_memory(int bytes) { return bytes <= 232'448; }
bool elect_one(Site site = Site::current());
[[noreturn]] void trap(Site site = Site::current());

uint32_t after(uint32_t loaded, uint32_t value);

// ---- thread barriers ----
void barrier_sync(Site site = Site::current());
void barrier_sync_after(uint32_t loaded, Site site = Site::current());
void named_barrier_sync(uint32_t number, uint32_t threads, Site site = Site::current());
void warp_sync(Site site = Site::current());
uint32_t shuffle_xor(uint32_t value, int mask, Site site = Site::current());
uint32_t shuffle_index(uint32_t value, int lane, Site site = Site::current());

// Registers move between warps of a GPU; here every thread has all it wants.
template <int Registers>
void setmaxnreg_inc() {}
template <int Registers>
void setmaxnreg_dec() {}

// ---- shared memory access ----
uint32_t shared_base();
void st_shared_b32(uint32_t address, uint32_t value, Site site = Site::current());
void st_shared_v4(uint32_t address, const uint32_t (&value)[4], Site site = Site::current());
void st_shared_v4(uint32_t address, const float (&value)[4], Site site = Site::current());
void ld_shared_v4(uint32_t (&value)[4], uint32_t address, Site site = Site::current());
void ldmatrix_x4(uint32_t (&matrices)[4], uint32_t row_address, Site site = Site::current());
void ldmatrix_x4_trans(uint32_t (&matrices)[4], uint32_t row_address, Site site = Site::current());
void stmatrix_x4(uint32_t row_address, const uint32_t (&matrices)[4], Site site = Site::current());

// ---- clusters ----
uint32_t cluster_rank();
void cluster_arrive(Site site = Site::current());
void cluster_arrive_shared(Site site = Site::current());
void cluster_arrive_after(float loaded, Site site = Site::current());
void cluster_wait(Site site = Site::current());
uint32_t mapa(uint32_t address, uint32_t rank, Site site = Site::current());
void ld_shared_cluster_v4(float (&value)[4], uint32_t address, Site site = Site::current());

// ---- global memory access ----
uint32_t ld_global_b16(const void* address, Site site = Site::current());
uint32_t ld_global_b32(const void* address, Site site = Site::current());
void ld_global_v4(uint32_t (&value)[4], const void* address, Site site = Site::current());
void st_global_b16(void* address, uint32_t value, Site site = Site::current());
void st_global_b32(void* address, uint32_t value, Site site = Site::current());
void st_global_v4(void* address, const uint32_t (&value)[4], Site site = Site::current());
void ld_global_v4(float (&value)[4], const void* address, Site site = Site::current());
void st_global_v4(void* address, const float (&value)[4], Site site = Site::current());
uint32_t ld_acquire_gpu(const uint32_t* address, Site site = Site::current());
void st_release_gpu(uint32_t* address, uint32_t value, Site site = Site::current());
uint32_t atomic_add_acq_rel_gpu(uint32_t* address, uint32_t value, Site site = Site::current());

// ---- matrix product ----
void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site = Site::current());
void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site = Site::current());
void mma_m16n8k16_f16_f16(uint32_t& d0, uint32_t& d1, const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                          Site site = Site::current());
uint32_t pack_f16(float low, float high);
uint32_t pack_bf16(float low, float high);

// ---- cp.async ----
void cp_async_bytes(uint32_t destination, const void* source, uint32_t bytes, uint32_t source_bytes, Site site);
template <int Bytes>
void cp_async(uint32_t destination, const void* source, uint32_t source_bytes, Site site = Site::current()) {
  static_assert(Bytes == 16 || Bytes == 8 || Bytes == 4, "the sizes that cp.async copies");
  cp_async_bytes(destination, source, Bytes, source_bytes, site);
}
void cp_async_commit_group();
void cp_async_wait_for(uint32_t pending, Site site);
template <int Pending>
void cp_async_wait_group(Site site = Site::current()) {
  cp_async_wait_for(Pending, site);
}

// ---- mbarrier ----
void mbarrier_init(uint32_t barrier, uint32_t arrivals, Site site = Site::current());
void fence_mbarrier_init(Site site = Site::current());
void mbarrier_arrive(uint32_t barrier, Site site = Site::current());
void mbarrier_arrive_after(bool arrives, uint32_t barrier, uint32_t loaded, Site site = Site::current());
void mbarrier_arrive_cluster_after(bool arrives, uint32_t barrier, uint32_t loaded, Site site = Site::current());
uint32_t mbarrier_arrive_pending(uint32_t barrier, Site site = Site::current());
void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes, Site site = Site::current());
void mbarrier_wait_parity(uint32_t barrier, uint32_t parity, Site site = Site::current());

// ---- kernels that overlap ----
void griddepcontrol_launch_dependents();
void griddepcontrol_wait(Site site = Site::current());

// ---- TMA ----
void fence_proxy_async(Site site = Site::current());
void tma_load_3d(uint32_t destination, const hgemm::TensorMap* map, uint32_t barrier, int column, int row, int batch,
                 Site site = Site::current());
void tma_load_3d_multicast(uint32_t destination, const hgemm::TensorMap* map, uint32_t barrier, int column, int row,
                           int batch, uint32_t blocks, Site site = Site::current());
void tma_store_3d(const hgemm::TensorMap* map, uint32_t source, int column, int row, int batch,
                  Site site = Site::current());
void bulk_commit_group();
void bulk_wait_for(uint32_t pending, Site site);
template <int Pending>
void bulk_wait_group_read(Site site = Site::current()) {
  bulk_wait_for(Pending, site);
}
void prefetch_tensor_map(const hgemm::TensorMap* map);

}  // namespace ptx
