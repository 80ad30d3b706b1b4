// The state of an emulated thread (a lane) and of a warp.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "clocks.hpp"
#include "fiber.hpp"
#include "operations.hpp"
#include "register_loads.hpp"

namespace hgemm::emulator {

class Block;
struct Warp;

constexpr uint32_t LANES = 32;
constexpr uint32_t ALL_LANES = LANES;  // in place of a lane's index: what the whole warp does as one

// Why a lane does not run.
enum class Wait : uint8_t { nothing, warp, barrier, cluster, mbarrier, flag, exited };

// One cp.async under way.
struct CpAsync {
  uint32_t destination, bytes;
  const uint8_t* source;
  uint32_t source_bytes;
  uint32_t group;
  bool landed;  // the bytes are there, but nobody may know it yet
  Site site;
};

// One bulk store that has not been waited for.
struct BulkStore {
  uint64_t number;  // of the copy in its block
  uint32_t address, bytes;
};

struct Lane {
  Fiber fiber;
  Warp* warp = nullptr;
  uint32_t index = 0;

  Wait wait = Wait::exited;
  Operation operation = Operation::barrier_sync;  // what it waits in
  Site site;
  uint64_t wait_address = 0;  // mbarrier or flag; for a barrier its number
  uint32_t wait_parity = 0;

  std::vector<CpAsync> cp_asyncs;
  uint32_t cp_async_group = 0;
  std::vector<BulkStore> open_stores;               // not yet committed to a group
  std::deque<std::vector<BulkStore>> store_groups;  // committed and not yet waited for
  uint32_t first_unfenced_write = 0;                // epoch; 0: every write to shared memory is fenced

  bool waited_for_kernel = false;  // griddepcontrol_wait

  // The last poll of a flag: a second one that can see nothing new waits until something is stored.
  const void* polled = nullptr;
  uint64_t polled_version = 0;

  void reset(Warp* its_warp, uint32_t its_index, const Fiber& its_fiber) {
    *this = Lane();
    warp = its_warp;
    index = its_index;
    fiber = its_fiber;
    wait = Wait::nothing;
  }
};

struct Warp {
  Block* block = nullptr;
  uint32_t index = 0;        // in its block
  uint32_t block_index = 0;  // of that in the grid
  uint32_t agent = 0;        // index of its epochs in vector clocks
  Lane lanes[LANES];
  uint32_t present = 0;   // lanes that have not exited
  uint32_t ready = 0;     // lanes that can run
  uint32_t priority = 0;  // drawn, under a random schedule

  // What the warp does together: the lanes that have arrived, each with its arguments.
  uint32_t arrived = 0;
  Operation operation = Operation::warp_sync;
  Site site;
  void* arguments[LANES];

  // Lanes that wait at a bar.sync, which the warp has to reach as one: its number and its line.
  uint32_t at_barrier = 0, barrier_number = 0;
  Site barrier_site;

  // The phase of the cluster's barrier in which the warp arrived last, the epoch that began then, and whether it has
  // not waited since.
  static constexpr uint32_t NO_PHASE = ~0u;
  uint32_t cluster_phase = NO_PHASE, cluster_epoch = 0;
  bool at_cluster = false;

  Knowledge knows;
  uint32_t lanes_apart_since = 0;  // epoch from which on the lanes are told apart: they have not synchronised since
  RegisterLoads register_loads;

  uint32_t epoch() const { return knows.generic[agent]; }

  // From here on nothing that this warp does is covered by what it has passed on so far.
  void begin_epoch() {
    begin_epoch_of_fence();
    lanes_apart_since = epoch();
  }

  // The same behind a fence, which orders nothing between lanes.
  void begin_epoch_of_fence() { knows.set(agent, epoch() + 1); }

  // Takes in what a synchronisation object passes on. Its own epoch a warp knows best.
  void learn(const Knowledge& news) {
    const uint32_t own = epoch();
    knows.join(news);
    knows.set(agent, own);
  }
};

// Who accesses memory, with what, from where in the source.
struct Access {
  Warp& warp;
  uint32_t lane;  // ALL_LANES for what a warp does as one
  Operation operation;
  Site site;

  int reported_lane() const { return lane == ALL_LANES ? -1 : static_cast<int>(lane); }
};

}  // namespace hgemm::emulator
