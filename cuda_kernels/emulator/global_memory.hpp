// Global memory as a launch may use it: which accesses are in bounds, and whether other threads' are ordered with them.
//
// An access must lie within a row of one operand: between the end of a row and the start of the next may be somebody
// else's data. Operands that the kernel writes have a shadow of two words an element, so that two blocks that write the
// same element, or one that writes and one that reads it, without synchronising, are found. Blocks of a plain launch
// cannot synchronise; they run on several threads of the host, hence the atomic words. Launches follow each other, but
// for one that may begin before the last has ended: it is ordered behind it once it has waited.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "region.hpp"
#include "warp.hpp"

namespace hgemm::emulator {

// Who accessed an element, packed into 64 bits: number of the launch, from 1 (6), index of the block (20), agent (12),
// epoch (26). 0: nobody.
struct GlobalMark {
  static uint64_t pack(uint32_t launch, uint32_t block, uint32_t agent, uint32_t epoch) {
    return uint64_t{launch} << 58 | uint64_t{block} << 38 | uint64_t{agent} << 26 | epoch;
  }
  static uint32_t launch(uint64_t mark) { return static_cast<uint32_t>(mark >> 58); }
  static uint32_t block(uint64_t mark) { return mark >> 38 & 0xfffff; }
  static uint32_t agent(uint64_t mark) { return mark >> 26 & 0xfff; }
  static uint32_t epoch(uint64_t mark) { return mark & 0x3ffffff; }
};

// From where global memory is accessed.
struct Caller {
  uint32_t launch, block;
  uint32_t together;  // so many neighbouring blocks can synchronise with each other
  bool overlapping;   // whether the launch before may not have ended yet
};

class GlobalMemory {
 public:
  GlobalMemory() = default;
  GlobalMemory(const HgemmMemory* memories, size_t count) : regions_(memories, memories + count) {}

  void add(const HgemmMemory& memory) { regions_.emplace_back(memory); }

  // Whether the access is allowed; reports it otherwise. Without regions everything is.
  bool access(const Access& by, const Caller& caller, const void* pointer, int64_t bytes, bool write, Report& report) {
    if (regions_.empty() || bytes == 0) return true;
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    const int64_t count = (bytes + GLOBAL_UNIT - 1) / GLOBAL_UNIT;
    const Region* left = nullptr;  // in whose extent the access lies, without being one of its elements'
    const Region* input = nullptr;
    for (Region& region : regions_) {  // views of one tensor may lie in each other's gaps
      if (!region.contains(address)) continue;
      const int64_t first = region.find(address, count);
      if (first < 0) {
        left = &region;
      } else if (write && !region.writable) {
        input = &region;
      } else {
        if (region.writable) check_order(by, caller, region, first, count, write, report);
        return true;
      }
    }
    add(report, Kind::out_of_bounds, by, caller.block, address, [&] {
      const std::string where = input ? input->describe(address) + ", which is an input"
                                : left
                                    ? left->describe(address) + ", which leaves its " + left->shape()
                                    : format("global address %p, outside all operands (%s)", pointer, names().c_str());
      return format("%s %s %lld bytes at %s", name(by.operation), write ? "writes" : "reads",
                    static_cast<long long>(bytes), where.c_str());
    });
    return false;
  }

  // After all launches of a product: every element of the output "c" has been written.
  void check_written(Report& report) const {
    for (const Region& region : regions_) {
      if (!region.writable || region.name != "c") continue;
      size_t missing = 0, first = 0;
      for (size_t i = region.elements(); i-- > 0;)
        if (!region.writers[i].load(std::memory_order_relaxed)) ++missing, first = i;
      if (!missing) continue;
      const uintptr_t address = region.address_of(first);
      report.add({Kind::unwritten_output, Operation::st_global_v4, Site(), 0, -1, -1, Space::global, address,
                  format("%zu of the %zu elements of c were never written, the first of them %s", missing,
                         region.elements(), region.describe(address).c_str())});
    }
  }

 private:
  std::string names() const {
    std::string text;
    for (const Region& region : regions_) text += (text.empty() ? "" : ", ") + region.name;
    return text;
  }

  template <class Describe>
  static void add(Report& report, Kind kind, const Access& by, uint32_t block, uintptr_t address, Describe&& describe) {
    report.add(kind, by.operation, by.site, block, static_cast<int>(by.warp.index), by.reported_lane(), Space::global,
               address, describe);
  }

  // Whether nothing orders the access that left `mark` before this one; `known` is what the warp knows that counts.
  static bool unordered(const Access& by, const Caller& caller, uint64_t mark, const VectorClock& known) {
    if (!mark) return false;
    if (GlobalMark::launch(mark) != caller.launch) return caller.overlapping;
    if (GlobalMark::block(mark) / caller.together != caller.block / caller.together) return true;
    const uint32_t agent = GlobalMark::agent(mark);
    return agent != by.warp.agent && GlobalMark::epoch(mark) > known[agent];
  }

  static void check_order(const Access& by, const Caller& caller, const Region& region, int64_t first, int64_t count,
                          bool write, Report& report) {
    const uint64_t mine = GlobalMark::pack(caller.launch, caller.block, by.warp.agent, by.warp.epoch());
    for (int64_t i = first; i < first + count; ++i)
      check_element(by, caller, region, static_cast<size_t>(i), write, mine, report);
  }

  static void check_element(const Access& by, const Caller& caller, const Region& region, size_t element, bool write,
                            uint64_t mine, Report& report) {
    const auto fault = [&](Kind kind, const char* verb, const std::string& what) {
      const uintptr_t address = region.address_of(element);
      add(report, kind, by, caller.block, address, [&] {
        return format("%s %s %s, %s", name(by.operation), verb, region.describe(address).c_str(), what.c_str());
      });
    };
    const auto other = [&](const char* verb, uint64_t mark) {
      if (GlobalMark::launch(mark) != caller.launch)
        return format("which block %u of a kernel before has %s, and griddepcontrol_wait has not been called",
                      GlobalMark::block(mark), verb);
      return format("which block %u has %s, and nothing orders the two", GlobalMark::block(mark), verb);
    };
    const Knowledge& known = by.warp.knows;
    if (write) {
      const uint64_t writer = region.writers[element].exchange(mine, std::memory_order_relaxed);
      const uint64_t reader = region.readers[element].load(std::memory_order_relaxed);
      if (unordered(by, caller, writer, known.generic)) fault(Kind::race, "writes", other("written", writer));
      if (unordered(by, caller, reader, known.generic)) fault(Kind::race, "writes", other("read", reader));
    } else {
      const uint64_t writer = region.writers[element].load(std::memory_order_relaxed);
      region.readers[element].store(mine, std::memory_order_relaxed);
      if (!writer) fault(Kind::uninitialised, "reads", "which nobody has written");
      if (unordered(by, caller, writer, known.visible())) fault(Kind::race, "reads", other("written", writer));
    }
  }

  std::vector<Region> regions_;
};

}  // namespace hgemm::emulator
