// What was found, as data: which rule, who broke it, where in the source, at which address, and a sentence about it.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "call_stack.hpp"
#include "operations.hpp"
#include "trace.hpp"

namespace hgemm::emulator {

enum class Kind : uint8_t {
  race,               // two accesses, one of them a write, that no synchronisation orders
  in_flight,          // bytes touched that an asynchronous copy is still writing
  uninitialised,      // bytes read that nobody wrote
  proxy_fence,        // ordinary writes handed to TMA without fence.proxy.async
  mbarrier,           // an mbarrier used before it is initialised, or against its count
  transaction_bytes,  // bytes announced to an mbarrier and bytes copied differ
  barrier,            // bar.sync with thread counts that disagree
  divergence,         // lanes of a warp in different places of what the warp must do together
  out_of_bounds,      // an address outside shared memory or outside the operands
  misaligned,         // an address that the instruction does not take
  unfinished_copy,    // a thread left while a copy it had to wait for was on its way
  unwritten_output,   // elements of C that no thread wrote
  deadlock,           // nothing can go on any more
  trap,               // the kernel's own check failed
  cancelled,          // stopped from outside
};

constexpr const char* KIND_NAMES[] = {
    "race",     "in-flight",  "uninitialised", "proxy-fence", "mbarrier",        "transaction-bytes",
    "barrier",  "divergence", "out-of-bounds", "misaligned",  "unfinished-copy", "unwritten-output",
    "deadlock", "trap",       "cancelled"};

constexpr const char* name(Kind kind) { return KIND_NAMES[static_cast<size_t>(kind)]; }

enum class Space : uint8_t { none, shared, global };

// Lanes of a warp that wait, for the description of a deadlock.
struct Waiter {
  uint32_t block, warp, lanes;  // lanes as a mask
  Operation operation;
  Site site;
  std::string sentence;
};

struct Event {
  Kind kind;
  Operation operation;
  Site site;
  uint32_t block;
  int warp, lane;  // -1: none in particular
  Space space;
  uint64_t address;
  std::string sentence;
  uint64_t count = 1;  // how often the same was seen at the same place
  std::vector<Waiter> waiters = {};
  std::vector<uintptr_t> stack = {};  // of the first time
};

#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
inline std::string format(const char* pattern, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

// "tma.cuh:57".
inline std::string place(const Site& site) {
  const std::string path = site.file_name();
  return path.substr(path.rfind('/') + 1) + ":" + std::to_string(site.line());
}

class Report {
 public:
  Counters counters;
  uint64_t blocks = 0;              // that ran to their end
  std::vector<Trace::Entry> trace;  // of block 0

  bool clean() const { return events_.empty(); }
  const std::map<std::tuple<Kind, Operation, std::string>, Event>& events() const { return events_; }

  // Of what is seen again at the same place only the number is kept. `describe` makes the sentence if one is needed.
  template <class Describe>
  void add(Kind kind, Operation operation, const Site& site, uint32_t block, int warp, int lane, Space space,
           uint64_t address, Describe&& describe) {
    const auto found = events_.find(key(kind, operation, site));
    if (found != events_.end()) {
      ++found->second.count;
      return;
    }
    add(Event{kind, operation, site, block, warp, lane, space, address, describe(), 1, {}, call_stack()});
  }

  void add(Event event) { events_.emplace(key(event.kind, event.operation, event.site), std::move(event)); }

  // Of two equal events the one of the lower block is kept, so that the result does not depend on which thread of the
  // host ran which block.
  void merge(const Report& other) {
    counters.add(other.counters);
    blocks += other.blocks;
    if (!other.trace.empty()) trace = other.trace;
    for (const auto& [key, event] : other.events_) {
      const auto [place, is_new] = events_.emplace(key, event);
      if (is_new) continue;
      const uint64_t count = place->second.count + event.count;
      if (event.block < place->second.block) place->second = event;
      place->second.count = count;
    }
  }

  // One line for the C interface; empty if nothing was found.
  std::string summary() const {
    if (clean()) return {};
    const Event& first = events_.begin()->second;
    std::string text = format("the emulator found %zu fault%s: [%s] block %u", events_.size(),
                              events_.size() == 1 ? "" : "s", name(first.kind), first.block);
    if (first.warp >= 0) text += format(" warp %d", first.warp);
    if (first.lane >= 0) text += format(" lane %d", first.lane);
    return text + " at " + place(first.site) + ": " + first.sentence;
  }

 private:
  static std::tuple<Kind, Operation, std::string> key(Kind kind, Operation operation, const Site& site) {
    return {kind, operation, place(site)};
  }

  // Ordered, and by contents alone, so that equal runs give equal reports.
  std::map<std::tuple<Kind, Operation, std::string>, Event> events_;
};

}  // namespace hgemm::emulator
