// What the emulated threads do, by the names of ptx.cuh, and how often they did it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>

namespace hgemm::emulator {

// The line of the kernel that calls a wrapper: every name of ptx.hpp takes it as its last, defaulted argument.
using Site = std::source_location;

inline bool same_line(const Site& a, const Site& b) {
  return a.line() == b.line() && (a.file_name() == b.file_name() || !std::strcmp(a.file_name(), b.file_name()));
}

// clang-format off
#define HGEMM_EMULATED_OPERATIONS(X)                                                                    \
  X(barrier_sync) X(named_barrier_sync) X(warp_sync) X(warp_index) X(elect_one) X(trap)                 \
  X(cluster_arrive) X(cluster_arrive_shared) X(cluster_arrive_after) X(cluster_wait)                    \
  X(mapa) X(ld_shared_cluster_v4)                                                                       \
  X(shuffle_xor) X(shuffle_index)                                                                       \
  X(st_shared_b32) X(st_shared_v4) X(ld_shared_v4) X(ldmatrix_x4) X(ldmatrix_x4_trans) X(stmatrix_x4)   \
  X(ld_global_b16) X(ld_global_b32) X(ld_global_v4) X(st_global_b16) X(st_global_b32) X(st_global_v4)   \
  X(ld_acquire_gpu) X(st_release_gpu) X(atomic_add_acq_rel_gpu)                                         \
  X(mma_m16n8k16_f16) X(mma_m16n8k16_bf16) X(mma_m16n8k16_f16_f16)                                      \
  X(cp_async) X(cp_async_wait_group)                                                                    \
  X(mbarrier_init) X(fence_mbarrier_init) X(mbarrier_arrive) X(mbarrier_arrive_after)                   \
  X(mbarrier_arrive_cluster_after) X(mbarrier_arrive_pending) X(mbarrier_arrive_expect_tx)              \
  X(mbarrier_wait_parity)                                                                               \
  X(griddepcontrol_wait)                                                                                \
  X(fence_proxy_async) X(tma_load_3d) X(tma_load_3d_multicast) X(tma_store_3d) X(bulk_wait_group_read)
// clang-format on

enum class Operation : uint8_t {
#define X(name) name,
  HGEMM_EMULATED_OPERATIONS(X)
#undef X
};

constexpr const char* OPERATION_NAMES[] = {
#define X(name) #name,
    HGEMM_EMULATED_OPERATIONS(X)
#undef X
};
constexpr size_t OPERATIONS = sizeof OPERATION_NAMES / sizeof *OPERATION_NAMES;

constexpr const char* name(Operation operation) { return OPERATION_NAMES[static_cast<size_t>(operation)]; }

// Sums over the threads of a launch.
struct OperationCounter {
  uint64_t executed = 0;      // once a warp for what a warp does together or accesses shared memory, else once a thread
  uint64_t shared_bytes = 0;  // read or written by the threads (not by TMA)
  uint64_t extra_wavefronts = 0;  // passes over shared memory beyond those that its 128 bytes a clock make necessary
  uint64_t global_bytes = 0;      // read or written, without what lies outside a tensor
};

struct Counters {
  OperationCounter of[OPERATIONS];

  OperationCounter& operator[](Operation operation) { return of[static_cast<size_t>(operation)]; }
  const OperationCounter& operator[](Operation operation) const { return of[static_cast<size_t>(operation)]; }

  void add(const Counters& other) {
    for (size_t i = 0; i < OPERATIONS; ++i) {
      of[i].executed += other.of[i].executed;
      of[i].shared_bytes += other.of[i].shared_bytes;
      of[i].extra_wavefronts += other.of[i].extra_wavefronts;
      of[i].global_bytes += other.of[i].global_bytes;
    }
  }
};

}  // namespace hgemm::emulator
