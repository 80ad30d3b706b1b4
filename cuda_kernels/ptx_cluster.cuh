// The PTX instructions by which the blocks of a cluster reach each other (compute capability 9.0), as in ptx.cuh.
//
// The blocks of a cluster are neighbours in the grid, run at the same time, and may read each other's shared memory. In
// a kernel that was launched without clusters each block is a cluster of its own.
#pragma once

#include "ptx.cuh"

#ifndef HGEMM_EMULATOR

namespace ptx {

// ---- which block, and when all are there ----

// The block's place among the blocks of its cluster.
HGEMM_DEVICE uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// barrier.cluster: all threads of the cluster's blocks arrive, and go on; whoever then waits goes on once all have.
// What a thread did before it arrived, and what it knows that others did, is ordered before what follows the others'
// wait. Behind a first such barrier the other blocks have begun, and their shared memory is there to be read. It is
// until they end: a block waits at a last one, at which whoever reads from it arrives when it has read. Whole warps
// execute both.
HGEMM_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
HGEMM_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The compiler makes the release a fence of the whole device (MEMBAR.ALL.GPU), since what was written may lie in global
// memory. The next two arrivals take none.

// Shows the others only what this thread has written to its own block's shared memory, for which a fence of the block
// is enough, where the compiler knows it (PTX ISA 8.6, CUDA 12.7).
HGEMM_DEVICE void cluster_arrive_shared() {
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1207
  asm volatile(
      "fence.release.sync_restrict::shared::cta.cluster;\n"
      "barrier.cluster.arrive.relaxed.aligned;" ::
          : "memory");
#else
  cluster_arrive();
#endif
}

// Shows nobody what was written. It tells that the warp has read: it comes only after every lane has computed `loaded`,
// since they wait for each other with a mask that is made to depend on it. By itself an arrival does not wait for a
// load in flight.
HGEMM_DEVICE void cluster_arrive_after(float loaded) {
  asm volatile(
      "bar.warp.sync %0;\n"
      "barrier.cluster.arrive.relaxed.aligned;" ::"r"(after(__float_as_uint(loaded), 0xffffffff))
      : "memory");
}

// ---- another block's shared memory ----

// mapa: where `address`, of this block's shared memory, lies in that of the cluster's block `rank`; an address for
// ld_shared_cluster_v4 and mbarrier_arrive_cluster_after (`.shared::cluster` state space) alone.
HGEMM_DEVICE uint32_t mapa(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// One 16-byte load from the shared memory of a block of the cluster; `address` is 16-byte aligned.
HGEMM_DEVICE void ld_shared_cluster_v4(float (&value)[4], uint32_t address) {
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
               : "r"(address)
               : "memory");
}

// mbarrier_arrive_after on an mbarrier of any block of the cluster: `barrier` is an address of mapa, and lanes may name
// different ones. It tells another block that values have been read, and is no way to show it what was written: that
// takes `.release.cluster`, for which the compiler puts a fence of the whole device (MEMBAR.ALL.GPU) in front.
HGEMM_DEVICE void mbarrier_arrive_cluster_after(bool arrives, uint32_t barrier, uint32_t loaded) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %0, 0;\n"
      "@p mbarrier.arrive.shared::cluster.b64 _, [%1];\n"
      "}" ::"r"(static_cast<uint32_t>(arrives)),
      "r"(after(loaded, barrier))
      : "memory");
}

// tma_load_3d into every block of the cluster whose bit is set in `blocks`: at the same place of its shared memory as
// `destination` has in this block's, and counted by the mbarrier at the place of `barrier`. L2 is read once for all.
// A block may be sent bytes before it has announced them, as long as the arrival that announces them is missing.
HGEMM_DEVICE void tma_load_3d_multicast(uint32_t destination, const hgemm::TensorMap* map, uint32_t barrier, int column,
                                        int row, int batch, uint32_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4, %5}], [%2], %6;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(batch), "h"(static_cast<uint16_t>(blocks))
      : "memory");
}

}  // namespace ptx

#endif  // HGEMM_EMULATOR
