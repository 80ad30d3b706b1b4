// Vector clocks: who knows how much of what whom has done.
//
// Every agent (a warp, or the copy engine's writes behind one mbarrier) counts its epochs. An access is stamped with
// its agent and the agent's epoch. Agents learn of each other's epochs only by synchronising; an access whose epoch the
// other side does not know yet is not ordered before what that side does: if one of the two writes, that is a race,
// whether or not it went well this time.
#pragma once

#include <cstdint>
#include <vector>

namespace hgemm::emulator {

class VectorClock {
 public:
  void reset(size_t agents) { epochs_.assign(agents, 0); }
  void clear() { reset(epochs_.size()); }
  uint32_t operator[](size_t agent) const { return epochs_[agent]; }
  uint32_t& operator[](size_t agent) { return epochs_[agent]; }

  // Learns all that `other` knows.
  void join(const VectorClock& other) {
    uint32_t* mine = epochs_.data();
    const uint32_t* theirs = other.epochs_.data();
    for (size_t i = 0, size = epochs_.size(); i < size; ++i) mine[i] = mine[i] < theirs[i] ? theirs[i] : mine[i];
  }

 private:
  std::vector<uint32_t> epochs_;
};

// What an agent knows, or what a synchronisation object passes on, for each of the two proxies. The generic proxy is
// ordinary loads and stores (and cp.async); the async proxy is TMA. A write by ordinary stores is known to the async
// proxy only once a fence.proxy.async has come behind it.
struct Knowledge {
  VectorClock generic, async;

  void reset(size_t agents) {
    generic.reset(agents);
    async.reset(agents);
  }
  void clear() {
    generic.clear();
    async.clear();
  }
  void join(const Knowledge& other) {
    generic.join(other.generic);
    async.join(other.async);
  }
};

}  // namespace hgemm::emulator
