// The emulated thread that executes an instruction, and how a warp executes one together.
#pragma once

#include "group.hpp"

namespace hgemm::emulator {

struct CallingThread {
  Lane& lane;
  Warp& warp;
  Block& block;
  Group& group;
  Access access;  // as this lane

  explicit CallingThread(Operation operation = Operation::barrier_sync, const Site& site = Site())
      : lane(*current_lane),
        warp(*lane.warp),
        block(*warp.block),
        group(*block.group),
        access{warp, lane.index, operation, site} {
    if (group.cancelled()) group.stop(lane);
    if (lane.index == 0) ++block.trace.step;
  }

  Access as_warp() const { return {warp, ALL_LANES, access.operation, access.site}; }
  OperationCounter& counter() const { return group.report.counters[access.operation]; }

  template <class Describe>
  void report(Kind kind, Space space, uint64_t address, Describe&& describe) const {
    group.report.add(kind, access.operation, access.site, block.index, static_cast<int>(warp.index),
                     static_cast<int>(lane.index), space, address, describe);
  }

  // The whole warp executes an instruction: every lane brings its arguments, and the last to arrive executes for all,
  // as execute(arguments of lane 0, of lane 1, ...). Whoever comes with another instruction has gone astray.
  template <class Execute>
  void together(void* arguments, Execute&& execute) const {
    if (!warp.arrived) {
      warp.operation = access.operation;
      warp.site = access.site;
    } else if (warp.operation != access.operation || !same_line(warp.site, access.site)) {
      report(Kind::divergence, Space::none, 0, [&] {
        return format("the lane is in %s while lanes 0x%x of its warp are in %s at %s", name(access.operation),
                      warp.arrived, name(warp.operation), place(warp.site).c_str());
      });
      group.stop(lane);
    }
    warp.arguments[lane.index] = arguments;
    warp.arrived |= 1u << lane.index;
    if (warp.arrived != warp.present) return group.suspend(lane, Wait::warp, access.operation, access.site);
    warp.arrived = 0;
    execute(warp.arguments);
    for (Lane& each : warp.lanes)
      if (each.wait == Wait::warp) each.wait = Wait::nothing;
    warp.ready |= warp.present;
    group.interrupt(lane);
  }

  // For instructions that move data between lanes: PTX demands all of them.
  void demand_all_lanes() const {
    if (warp.present == ~0u) return;
    report(Kind::divergence, Space::none, 0, [&] {
      return format("%s needs all 32 lanes of the warp, and only lanes 0x%x run", name(access.operation), warp.present);
    });
    group.stop(lane);
  }

  bool check_global_alignment(const void* address, int64_t alignment) const {
    if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(alignment) == 0) return true;
    report(Kind::misaligned, Space::global, reinterpret_cast<uintptr_t>(address), [&] {
      return format("%s at global address %p, which is no multiple of %lld", name(access.operation), address,
                    static_cast<long long>(alignment));
    });
    return false;
  }

  // Whether this thread may read or write `bytes` of global memory, by an instruction that wants `alignment`.
  bool may_access(const void* address, int64_t bytes, int64_t alignment, bool write) const {
    return check_global_alignment(address, alignment) &&
           group.memory->access(access, group.caller(access), address, bytes, write, group.report);
  }
};

}  // namespace hgemm::emulator
