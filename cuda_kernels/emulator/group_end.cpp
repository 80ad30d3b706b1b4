// How a run ends: what must not be left over, and who waits for ever.
#include "group.hpp"

#include <cstdlib>

namespace hgemm::emulator {

void Group::check_end(Block& block) {
  while (!block.copies.empty()) land(block, block.copies.begin());
  for (const Mbarrier& barrier : block.mbarriers.all())
    if (barrier.bytes) report_bytes(block, barrier);
}

void Group::report_bytes(const Block& block, const Mbarrier& barrier) {
  report.add(Kind::transaction_bytes, Operation::mbarrier_arrive_expect_tx, barrier.announced_at, block.index, -1, -1,
             Space::shared, barrier.address, [&] {
               return format("the mbarrier at 0x%x has had %lld bytes %s than it was told to expect", barrier.address,
                             static_cast<long long>(std::abs(barrier.bytes)), barrier.bytes > 0 ? "fewer" : "more");
             });
}

void Group::report_deadlock() {
  Event event{Kind::deadlock, Operation::barrier_sync, Site(), 0, -1, -1, Space::none, 0, {}};
  uint32_t waiting = 0;
  for (Block* block : blocks_) {
    for (Warp& warp : block->warps) {
      const size_t first = event.waiters.size();
      for (Lane& lane : warp.lanes) {
        if (lane.wait == Wait::exited) continue;
        ++waiting;
        const std::string sentence = describe_waiting(lane);
        size_t i = first;
        while (i < event.waiters.size() &&
               (!same_line(event.waiters[i].site, lane.site) || event.waiters[i].sentence != sentence))
          ++i;
        if (i == event.waiters.size())
          event.waiters.push_back({block->index, warp.index, 0, lane.operation, lane.site, sentence});
        event.waiters[i].lanes |= 1u << lane.index;
      }
    }
    for (const Mbarrier& barrier : block->mbarriers.all())
      if (barrier.bytes && barrier.pending == 0) report_bytes(*block, barrier);
  }
  const Waiter& first = event.waiters.front();
  event.operation = first.operation;
  event.site = first.site;
  event.block = first.block;
  event.warp = static_cast<int>(first.warp);
  event.sentence = format("%u threads wait and nothing can wake them: no thread can run and no load is on its way; %s",
                          waiting, first.sentence.c_str());
  report.add(std::move(event));
}

std::string Group::describe_waiting(const Lane& lane) {
  Block& block = *lane.warp->block;
  switch (lane.wait) {
    case Wait::mbarrier: {
      const Mbarrier& barrier = *block.mbarriers.find(static_cast<uint32_t>(lane.wait_address));
      return format(
          "waits for parity %u of the mbarrier at 0x%x, which has completed %u phases; in this one %lld of %lld "
          "arrivals and %lld bytes are missing",
          lane.wait_parity, barrier.address, barrier.phases, static_cast<long long>(barrier.pending),
          static_cast<long long>(barrier.expected), static_cast<long long>(barrier.bytes));
    }
    case Wait::barrier: {
      const ThreadBarrier& barrier = block.thread_barriers[lane.wait_address];
      return format("waits at barrier %u, where %u of %u threads have arrived",
                    static_cast<uint32_t>(lane.wait_address), barrier.arrived, barrier.expected);
    }
    case Wait::cluster:
      return format("waits at the barrier of the cluster, where %u of %u threads have arrived",
                    cluster_barrier(block).arrived, live_in_cluster(block));
    case Wait::warp:
      return format("waits for lanes 0x%x of its warp in %s", lane.warp->present & ~lane.warp->arrived,
                    name(lane.operation));
    case Wait::flag:
      return format("polls global address 0x%llx, which nobody will store to any more%s",
                    static_cast<unsigned long long>(lane.wait_address),
                    cooperative() ? "" : "; blocks of a plain launch cannot wait for each other");
    default:
      return "was interrupted";
  }
}

}  // namespace hgemm::emulator
