// Running a group of blocks: whose turn it is.
#include "group.hpp"

#include <bit>

namespace hgemm::emulator {

bool Group::run(const Launch& its_launch, uint32_t first, uint32_t count) {
  launch = its_launch;
  stacks_.reserve(size_t{count} * launch.threads);
  random_.seed(settings.schedule.seed, first);
  scheduler_ = Fiber();
  stopped_ = false;
  blocks_.clear();
  flags_.clear();
  for (uint32_t slot = 0; slot < count; ++slot) {
    if (slot == pool_.size()) pool_.push_back(std::make_unique<Block>());
    Block& block = *blocks_.emplace_back(pool_[slot].get());
    block.reset(this, first + slot, slot, count, launch, settings.shared_base, stacks_, enter_lane, &report);
    block.trace.reset(traced(block) ? settings.trace_bytes : 0, settings.shared_base);
    for (Warp& warp : block.warps) warp.priority = random_.below(1000);
  }
  cluster_barriers_.resize(count / launch.cluster);
  for (ClusterBarrier& barrier : cluster_barriers_) barrier.reset(agents());

  while (!stopped_) {
    if (random() && random_.below(4) == 0 && land_any()) continue;
    running_ = pick_warp();
    if (running_) {
      current_lane = &running_->lanes[pick_lane(running_->ready)];
      switch_fiber(scheduler_, current_lane->fiber);
      current_lane = nullptr;
    } else if (!live() || !land_oldest()) {
      break;
    }
  }

  if (live() && !stopped_) report_deadlock();
  for (Block* block : blocks_) {
    if (!live() && !stopped_) check_end(*block);
    for (BankRecorder& recorder : block->banks) recorder.finish(report.counters);
    if (traced(*block)) report.trace = std::move(block->trace.entries);
  }
  report.blocks += count;
  return !live() && !stopped_;
}

uint32_t Group::live() const {
  uint32_t count = 0;
  for (const Block* block : blocks_) count += block->live;
  return count;
}

void Group::enter_lane() {
  Lane& lane = *current_lane;
  Group& group = *lane.warp->block->group;
  entered_fiber(group.scheduler_);
  group.launch.kernel(group.launch.arguments);
  group.exit_lane(lane);
  for (;;) group.leave(lane);
}

void Group::exit_lane(Lane& lane) {
  Warp& warp = *lane.warp;
  Block& block = *warp.block;
  const uint32_t bit = 1u << lane.index;
  const auto unfinished = [&](Operation operation, const Site& site, const char* sentence) {
    report.add(Kind::unfinished_copy, operation, site, block.index, static_cast<int>(warp.index),
               static_cast<int>(lane.index), Space::shared, 0, [&] { return std::string(sentence); });
  };
  if (!lane.cp_asyncs.empty())
    unfinished(Operation::cp_async, lane.cp_asyncs.front().site,
               "the thread exited with a cp.async that it never waited for");
  if (!lane.open_stores.empty() || !lane.store_groups.empty())
    unfinished(Operation::tma_store_3d, lane.site, "the thread exited before its bulk stores had read shared memory");

  lane.wait = Wait::exited;
  warp.present &= ~bit;
  warp.ready &= ~bit;
  --block.live;
  ClusterBarrier& cluster = cluster_barrier(block);
  if (warp.cluster_phase == cluster.phases) --cluster.arrived;
  complete_cluster_phase(block);
  if (!warp.present) {
    block.shared.leave(warp, block.live == 0);
    block.remote_arrivals.leave(warp);
    if (!block.live) block.remote_arrivals.end(block.index, report);
  }
  // Block barrier 0 waits for the threads that are left.
  ThreadBarrier& barrier = block.thread_barriers[0];
  if (barrier.arrived && barrier.arrived >= block.live) release_barrier(block, 0);
  if (warp.arrived && warp.arrived == warp.present) {
    report.add(Kind::divergence, warp.operation, warp.site, block.index, static_cast<int>(warp.index),
               static_cast<int>(lane.index), Space::none, 0, [&] {
                 return format("lane %u exited while lanes 0x%x of its warp wait for it in %s", lane.index,
                               warp.arrived, name(warp.operation));
               });
    stopped_ = true;
  }
}

void Group::suspend(Lane& lane, Wait wait, Operation operation, const Site& site, uint64_t address, uint32_t parity) {
  lane.wait = wait;
  lane.operation = operation;
  lane.site = site;
  lane.wait_address = address;
  lane.wait_parity = parity;
  lane.warp->ready &= ~(1u << lane.index);
  leave(lane);
}

void Group::wake(Lane& lane) {
  lane.wait = Wait::nothing;
  lane.warp->ready |= 1u << lane.index;
}

// Goes on with another lane of the same warp if there is one: lanes of a warp tend to need each other next.
void Group::leave(Lane& lane) {
  if (running_ == lane.warp && lane.warp->ready && !stopped_) {
    current_lane = &lane.warp->lanes[pick_lane(lane.warp->ready)];
    if (current_lane != &lane) switch_fiber(lane.fiber, current_lane->fiber);
  } else {
    switch_fiber(lane.fiber, scheduler_);
  }
  current_lane = &lane;
}

void Group::give_way(Lane& lane) {
  switch_fiber(lane.fiber, scheduler_);
  current_lane = &lane;
}

void Group::interrupt(Lane& lane) {
  if (random() && random_.below(16) == 0) give_way(lane);
}

void Group::stop(Lane& lane) {
  stopped_ = true;
  for (;;) switch_fiber(lane.fiber, scheduler_);
}

bool Group::cancelled() const {
  return settings.progress && __atomic_load_n(&settings.progress->cancel, __ATOMIC_RELAXED);
}

uint32_t Group::pick_lane(uint32_t mask) {
  if (random()) {
    const uint32_t from = mask & ~0u << random_.below(LANES);
    return static_cast<uint32_t>(std::countr_zero(from ? from : mask));
  }
  return static_cast<uint32_t>(settings.schedule.reversed ? 31 - std::countl_zero(mask) : std::countr_zero(mask));
}

// The first warp that can run, or the last; under a random schedule the one of the highest priority, which is now and
// then drawn anew, so that some runs let one warp run far ahead and others keep all together.
Warp* Group::pick_warp() {
  Warp* picked = nullptr;
  for (Block* block : blocks_) {
    if (!block->live) continue;
    for (Warp& warp : block->warps) {
      if (!warp.ready) continue;
      if (!picked || (random() ? warp.priority > picked->priority : settings.schedule.reversed)) picked = &warp;
    }
  }
  if (picked && random() && random_.below(8) == 0) picked->priority = random_.below(1000);
  return picked;
}

}  // namespace hgemm::emulator
