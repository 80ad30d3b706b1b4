// Blocks that are resident together, and the scheduler of their threads.
//
// A plain launch is many groups of one block, a launch of clusters one group for each; a cooperative launch is one
// group of all its blocks, which may wait for each other. A group runs on one thread of the host. Its emulated threads
// run one at a time, each until it has to wait; a random schedule interrupts them elsewhere too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "block.hpp"
#include "cluster_barrier.hpp"
#include "control.h"
#include "global_memory.hpp"
#include "schedule.hpp"

namespace hgemm::emulator {

// What a run of the emulator is asked for.
struct Settings {
  Schedule schedule;
  uint32_t shared_base = 1024;
  int threads = 0;
  uint32_t trace_bytes = 0;      // HgemmEmulatorOptions
  uint32_t resident_blocks = 2;  // HgemmEmulatorOptions
  HgemmProgress* progress = nullptr;
};

class Group {
 public:
  Settings settings;
  GlobalMemory* memory = nullptr;
  Report report;
  Launch launch{};
  uint64_t store_version = 0;  // counts stores to global memory, for those that poll a flag

  // Runs blocks first .. first + count - 1 to their end. False if the launch should not go on.
  bool run(const Launch& its_launch, uint32_t first, uint32_t count);

  bool cooperative() const { return launch.cooperative; }
  Caller caller(const Access& by) const {
    const bool waited = by.warp.lanes[by.lane % LANES].waited_for_kernel;
    return {launch.number, by.warp.block->index, launch.together(), launch.dependent && !waited};
  }
  bool traced(const Block& block) const { return launch.number == 1 && block.index == 0; }
  bool copies_at_once() const { return settings.schedule.copies == Schedule::Copies::eager; }
  bool random() const { return settings.schedule.copies == Schedule::Copies::random; }
  bool toss() { return random_.below(2); }

  // The calling lane sleeps until it is woken.
  void suspend(Lane& lane, Wait wait, Operation operation, const Site& site, uint64_t address = 0, uint32_t parity = 0);
  void wake(Lane& lane);
  // A point at which a random schedule may turn to somebody else.
  void interrupt(Lane& lane);
  // The calling lane gives way to everyone who can run.
  void give_way(Lane& lane);
  // Ends the run from within a lane: what follows could only be nonsense.
  [[noreturn]] void stop(Lane& lane);
  bool cancelled() const;

  // Those of all threads of the largest launch so far.
  size_t stacks() const { return stacks_.count(); }

  // The calling lane meets the other threads at a bar.sync.
  void meet(Lane& lane, uint32_t number, uint32_t threads, Operation operation, const Site& site);
  // The blocks of a block's cluster, its place among them, and the barrier at which their threads meet.
  Block** cluster_of(const Block& block) { return &blocks_[block.slot / launch.cluster * launch.cluster]; }
  uint32_t cluster_rank(const Block& block) const { return block.slot % launch.cluster; }
  ClusterBarrier& cluster_barrier(const Block& block) { return cluster_barriers_[block.slot / launch.cluster]; }
  // Ends its phase if all threads of the cluster that are left have arrived, and wakes those that wait for it.
  void complete_cluster_phase(const Block& block);
  // Ends the phase if nothing is outstanding, and wakes whoever waits for that.
  void complete_phase(Block& block, Mbarrier& barrier);
  // Something was stored to global memory: pollers look again.
  void stored();
  // What has been left with a flag in global memory.
  Knowledge& flag(const void* address);

  void issue(Block& block, BulkCopy copy);
  // The copy with this number lands, if it has not yet.
  void land(Block& block, uint64_t number);

 private:
  uint32_t live() const;  // threads that have not exited
  uint32_t live_in_cluster(const Block& block);
  size_t agents() const { return blocks_.size() * (launch.warps() + Mbarriers::MOST); }
  static void enter_lane();
  void exit_lane(Lane& lane);
  void leave(Lane& lane);
  uint32_t pick_lane(uint32_t mask);
  Warp* pick_warp();
  void release_barrier(Block& block, uint32_t number);
  void land(Block& block, std::list<BulkCopy>::iterator copy);
  bool land_oldest();
  bool land_any();
  void check_end(Block& block);
  void report_bytes(const Block& block, const Mbarrier& barrier);
  void report_deadlock();
  std::string describe_waiting(const Lane& lane);

  std::vector<std::unique_ptr<Block>> pool_;
  std::vector<Block*> blocks_;  // those of the current run
  Stacks stacks_;
  std::vector<ClusterBarrier> cluster_barriers_;
  std::unordered_map<const void*, Knowledge> flags_;
  Random random_;
  Fiber scheduler_;
  Warp* running_ = nullptr;
  bool stopped_ = false;
};

// The lane that this thread of the host is running.
inline thread_local Lane* current_lane = nullptr;

}  // namespace hgemm::emulator
