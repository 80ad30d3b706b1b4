// ptx.hpp: where a thread is, and how threads wait for each other.
#include "ptx.hpp"

#include "calling_thread.hpp"

namespace ptx {

using namespace hgemm::emulator;

uint32_t thread_index() { return current_lane->warp->index * LANES + current_lane->index; }
uint32_t block_index() { return current_lane->warp->block->index; }
uint32_t lane_index() { return current_lane->index; }
uint32_t grid_blocks() { return current_lane->warp->block->group->launch.blocks; }

// A broadcast from lane 0: the warp has to be together, as for every shuffle.
uint32_t warp_index(Site site) {
  const CallingThread me(Operation::warp_index, site);
  me.together(nullptr, [](void* const*) {});
  return me.warp.index;
}

bool elect_one(Site site) {
  const CallingThread me(Operation::elect_one, site);
  // Decided while all are there: whoever runs on and ends would leave it to the next.
  uint32_t elected = 0;
  me.together(&elected, [&](void* const* lanes) {
    const uint32_t first = static_cast<uint32_t>(std::countr_zero(me.warp.present));
    for (uint32_t i = first; i < LANES; ++i)
      if (me.warp.present >> i & 1) *static_cast<uint32_t*>(lanes[i]) = first;
  });
  return me.lane.index == elected;
}

uint32_t after(uint32_t, uint32_t value) { return value; }

void trap(Site site) {
  const CallingThread me(Operation::trap, site);
  me.report(Kind::trap, Space::none, 0, [] { return std::string("the kernel stopped itself with trap"); });
  me.group.stop(me.lane);
}

void barrier_sync(Site site) {
  const CallingThread me(Operation::barrier_sync, site);
  me.group.meet(me.lane, 0, me.block.live, Operation::barrier_sync, site);
}

void barrier_sync_after(uint32_t, Site site) {
  const CallingThread me(Operation::barrier_sync, site);
  me.warp.register_loads.use_all(me.warp.epoch());
  me.group.meet(me.lane, 0, me.block.live, Operation::barrier_sync, site);
}

void named_barrier_sync(uint32_t number, uint32_t threads, Site site) {
  const CallingThread me(Operation::named_barrier_sync, site);
  if (number >= ThreadBarrier::COUNT || threads == 0 || threads % LANES) {
    me.report(Kind::barrier, Space::none, number, [&] {
      return format("barrier %u for %u threads: there are barriers 0 to 15, and whole warps of 32", number, threads);
    });
    me.group.stop(me.lane);
  }
  me.group.meet(me.lane, number, threads, Operation::named_barrier_sync, site);
}

// Orders the lanes' accesses among themselves: what comes after is in another epoch.
void warp_sync(Site site) {
  const CallingThread me(Operation::warp_sync, site);
  me.together(nullptr, [&](void* const*) {
    me.warp.begin_epoch();
    me.warp.register_loads.warp_synchronised();
    for (Lane& lane : me.warp.lanes) lane.first_unfenced_write = 0;  // a fence behind it covers it, whoever executes it
  });
}

namespace {

struct Shuffle {
  uint32_t value, source, result;
};

uint32_t shuffle(const CallingThread& me, uint32_t value, uint32_t source) {
  me.demand_all_lanes();
  Shuffle mine{value, source % LANES, 0};
  me.together(&mine, [](void* const* lanes) {
    for (uint32_t i = 0; i < LANES; ++i) {
      Shuffle& receiver = *static_cast<Shuffle*>(lanes[i]);
      receiver.result = static_cast<Shuffle*>(lanes[receiver.source])->value;
    }
  });
  return mine.result;
}

}  // namespace

uint32_t shuffle_xor(uint32_t value, int mask, Site site) {
  const CallingThread me(Operation::shuffle_xor, site);
  return shuffle(me, value, me.lane.index ^ static_cast<uint32_t>(mask));
}

uint32_t shuffle_index(uint32_t value, int lane, Site site) {
  return shuffle(CallingThread(Operation::shuffle_index, site), value, static_cast<uint32_t>(lane));
}

}  // namespace ptx
