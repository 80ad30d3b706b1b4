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
//
// Of what has happened the writes may not be visible: an arrival at another block's mbarrier releases to its own block
// alone. It tells that memory has been read and may be overwritten, and shows nobody what was written.
class Knowledge {
 public:
  VectorClock generic, async;

  // What of `generic` may be read.
  const VectorClock& visible() const { return unseen_ ? visible_ : generic; }

  void reset(size_t agents) {
    generic.reset(agents);
    async.reset(agents);
    unseen_ = false;
  }
  void clear() {
    generic.clear();
    async.clear();
    unseen_ = false;
  }
  void set(size_t agent, uint32_t epoch) {
    generic[agent] = epoch;
    if (unseen_) visible_[agent] = epoch;
  }
  void join(const Knowledge& other) {
    if (unseen_ || other.unseen_) {
      tell_apart();
      visible_.join(other.visible());
    }
    generic.join(other.generic);
    async.join(other.async);
  }
  // The same without its writes.
  void join_unseen(const Knowledge& other) {
    tell_apart();
    generic.join(other.generic);
    async.join(other.async);
  }

 private:
  void tell_apart() {
    if (!unseen_) visible_ = generic;
    unseen_ = true;
  }

  bool unseen_ = false;  // `visible_` is not all of `generic`
  VectorClock visible_;
};

}  // namespace hgemm::emulator
