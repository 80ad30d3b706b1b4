// What the threads of a group wait for, and who wakes them.
#include "group.hpp"

namespace hgemm::emulator {

void Group::meet(Lane& lane, uint32_t number, uint32_t threads, Operation operation, const Site& site) {
  Warp& warp = *lane.warp;
  Block& block = *warp.block;
  ThreadBarrier& barrier = block.thread_barriers[number];
  const auto fault = [&](Kind kind, const std::string& sentence) {
    report.add(kind, operation, site, block.index, static_cast<int>(warp.index), static_cast<int>(lane.index),
               Space::none, number, [&] { return sentence; });
  };
  if (!warp.at_barrier) {
    warp.barrier_number = number;
    warp.barrier_site = site;
  } else if (warp.barrier_number != number || !same_line(warp.barrier_site, site)) {
    fault(Kind::divergence, format("the lane waits at barrier %u, others of its warp at barrier %u at %s", number,
                                   warp.barrier_number, place(warp.barrier_site).c_str()));
  }
  // Block barrier 0 waits for the threads that are left, fewer as time goes on: only named barriers can disagree.
  if (operation == Operation::named_barrier_sync && barrier.arrived && barrier.expected != threads)
    fault(Kind::barrier, format("barrier %u is entered for %u threads, and others wait at it for %u", number, threads,
                                barrier.expected));
  warp.at_barrier |= 1u << lane.index;
  barrier.expected = threads;
  barrier.meeting.join(warp.knows);
  ++barrier.arrived;
  if (barrier.arrived < threads) return suspend(lane, Wait::barrier, operation, site, number);
  lane.wait = Wait::barrier;
  lane.wait_address = number;
  release_barrier(block, number);
  interrupt(lane);
}

// Everyone who waits at the barrier learns what all who came to it knew, and begins an epoch: what a warp does from
// here on is not covered by what it passed on here.
void Group::release_barrier(Block& block, uint32_t number) {
  ThreadBarrier& barrier = block.thread_barriers[number];
  for (Warp& warp : block.warps) {
    uint32_t meeting = 0;
    for (Lane& lane : warp.lanes) {
      if (lane.wait != Wait::barrier || lane.wait_address != number) continue;
      lane.first_unfenced_write = 0;  // a fence behind the barrier covers it, whoever executes that
      meeting |= 1u << lane.index;
      wake(lane);
    }
    if (!meeting) continue;
    warp.at_barrier &= ~meeting;
    warp.learn(barrier.meeting);
    warp.begin_epoch();
    warp.register_loads.block_synchronised();
  }
  barrier.arrived = 0;
  barrier.meeting.clear();
}

uint32_t Group::live_in_cluster(const Block& block) {
  uint32_t live = 0;
  for (uint32_t rank = 0; rank < launch.cluster; ++rank) live += cluster_of(block)[rank]->live;
  return live;
}

void Group::complete_cluster_phase(const Block& block) {
  if (!cluster_barrier(block).try_complete(live_in_cluster(block))) return;
  Block** const cluster = cluster_of(block);
  for (uint32_t rank = 0; rank < launch.cluster; ++rank)
    for (Warp& warp : cluster[rank]->warps)
      for (Lane& lane : warp.lanes)
        if (lane.wait == Wait::cluster) wake(lane);
}

void Group::complete_phase(Block& block, Mbarrier& barrier) {
  if (!barrier.try_complete()) return;
  for (Warp& warp : block.warps)
    for (Lane& lane : warp.lanes)
      if (lane.wait == Wait::mbarrier && lane.wait_address == barrier.address &&
          barrier.completed_parity(lane.wait_parity))
        wake(lane);
}

void Group::stored() {
  ++store_version;
  if (!cooperative()) return;
  for (Block* block : blocks_)
    for (Warp& warp : block->warps)
      for (Lane& lane : warp.lanes)
        if (lane.wait == Wait::flag) wake(lane);
}

Knowledge& Group::flag(const void* address) {
  const auto [flag, is_new] = flags_.try_emplace(address);
  if (is_new) flag->second.reset(agents());
  return flag->second;
}

}  // namespace hgemm::emulator
