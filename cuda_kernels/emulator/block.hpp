// A block: its threads, its shared memory, and everything in it that threads wait for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <vector>

#include "banks.hpp"
#include "bulk_copies.hpp"
#include "mbarrier.hpp"
#include "remote_arrivals.hpp"
#include "shadow.hpp"
#include "thread_barrier.hpp"
#include "trace.hpp"
#include "warp.hpp"

namespace hgemm::emulator {

class Group;

// A kernel launch, whatever the kernel's parameters are.
struct Launch {
  uint32_t blocks, threads, shared_bytes;
  uint32_t cluster;  // blocks of one, 1 without clusters
  bool cooperative;  // all blocks are resident together and may wait for each other
  bool dependent;    // may begin before the kernel before it has ended
  void (*kernel)(const void* arguments);
  const void* arguments;
  uint32_t number = 0;  // among the launches of the session, from 1

  uint32_t warps() const { return (threads + LANES - 1) / LANES; }
  // Neighbouring blocks that run at the same time and may wait for each other.
  uint32_t together() const { return cooperative ? blocks : cluster; }
};

class Block {
 public:
  Group* group = nullptr;
  uint32_t index = 0;  // in the grid
  uint32_t slot = 0;   // in the group
  uint32_t live = 0;   // threads that have not exited
  std::vector<Warp> warps;
  std::vector<BankRecorder> banks;  // by warp
  SharedMemory shared;
  Mbarriers mbarriers;
  RemoteArrivals remote_arrivals;
  ThreadBarrier thread_barriers[ThreadBarrier::COUNT];
  std::list<BulkCopy> copies;  // under way, in the order of issue
  uint64_t copies_issued = 0;
  Trace trace;

  // `its_slot`: the block's place among the `slots` blocks that share vector clocks.
  void reset(Group* its_group, uint32_t its_index, uint32_t its_slot, uint32_t slots, const Launch& launch,
             uint32_t shared_base, const Stacks& stacks, void (*entry)(), Report* report) {
    group = its_group;
    index = its_index;
    slot = its_slot;
    live = launch.threads;
    const uint32_t warp_count = launch.warps(), first_agent = slot * warp_count;
    const size_t agents = size_t{slots} * (warp_count + Mbarriers::MOST);
    if (warps.size() != warp_count) warps = std::vector<Warp>(warp_count);
    banks.assign(warp_count, BankRecorder());
    for (uint32_t w = 0; w < warp_count; ++w) {
      Warp& warp = warps[w];
      const uint32_t lanes = std::min(LANES, launch.threads - w * LANES);
      warp.block = this;
      warp.index = w;
      warp.block_index = its_index;
      warp.agent = first_agent + w;
      warp.present = warp.ready = lanes == LANES ? ~0u : (1u << lanes) - 1;
      warp.arrived = 0;
      warp.at_barrier = 0;
      warp.cluster_phase = Warp::NO_PHASE;
      warp.at_cluster = false;
      warp.register_loads.reset();
      warp.knows.reset(agents);
      warp.begin_epoch();  // 0 stands for never
      for (uint32_t i = 0; i < LANES; ++i) {
        const bool exists = i < lanes;
        const size_t stack = size_t{slot} * launch.threads + w * LANES + i;
        warp.lanes[i].reset(&warp, i, exists ? stacks.make_fiber(stack, entry) : Fiber());
        if (!exists) warp.lanes[i].wait = Wait::exited;
      }
    }
    shared.reset(shared_base, launch.shared_bytes, warp_count, first_agent, index, agents, report);
    mbarriers.reset(slots * warp_count + slot * Mbarriers::MOST, agents);
    remote_arrivals.reset(agents);
    for (ThreadBarrier& barrier : thread_barriers) barrier.reset(agents);
    copies.clear();
    copies_issued = 0;
  }
};

}  // namespace hgemm::emulator
