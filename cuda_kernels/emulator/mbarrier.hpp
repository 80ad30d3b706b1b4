// mbarriers: phases of arrivals and announced bytes, and the knowledge that passes through them.
//
// A phase is complete when its pending arrivals and its outstanding bytes are both zero. Whoever arrives leaves what it
// knows with the phase; whoever has waited for the phase takes it, and also learns of the TMA writes that the phase
// counted: those are stamped with the barrier as their agent and the number of the phase, counted from 1, as epoch.
#pragma once

#include <cstdint>
#include <vector>

#include "warp.hpp"

namespace hgemm::emulator {

struct Mbarrier {
  static constexpr int64_t MOST_ARRIVALS = (1 << 20) - 1;  // PTX ISA, "Contents of the mbarrier object"
  static constexpr int64_t MOST_BYTES = (1 << 20) - 1;

  uint32_t address = 0;
  uint32_t agent = 0;  // of the TMA writes that it counts
  int64_t expected = 0, pending = 0;
  int64_t bytes = 0;    // announced and not yet copied; copies may run ahead of the announcement
  uint32_t phases = 0;  // completed
  Knowledge arriving, completed;

  // Initialisation is an ordinary write: other warps must be synchronised with it, the copy engine needs a fence.
  uint32_t initialiser_warp = 0, initialiser_lane = 0, initialised_in = 0;
  bool fenced = false;

  Site announced_at;  // the last expect_tx

  // Waiting for parity p succeeds when the last completed phase has it: 0 for the first, 1 for the second.
  bool completed_parity(uint32_t parity) const { return (phases & 1) != (parity & 1); }

  // `shows`: whether those who wait see what has been written, too. An arrival of another block does not show it.
  void arrive(const Warp& warp, bool shows) {
    shows ? arriving.join(warp.knows) : arriving.join_unseen(warp.knows);
    --pending;
  }

  // Ends the phase if nothing is outstanding.
  bool try_complete() {
    if (pending > 0 || bytes != 0) return false;
    ++phases;
    pending = expected;
    completed.join(arriving);
    arriving.clear();
    return true;
  }

  // What a warp learns by waiting.
  void teach(Warp& warp) const {
    warp.learn(completed);
    if (warp.knows.visible()[agent] < phases) warp.knows.set(agent, phases);
  }
};

// The mbarriers of a block. Every one has an agent of its own in the vector clocks, so their number is limited.
class Mbarriers {
 public:
  static constexpr uint32_t MOST = 64;

  void reset(uint32_t first_agent, size_t agents) {
    barriers_.clear();
    barriers_.reserve(MOST);  // references stay valid
    first_agent_ = first_agent;
    agents_ = agents;
  }

  // nullptr if the block has no room for another.
  Mbarrier* create(uint32_t address) {
    if (barriers_.size() == MOST) return nullptr;
    Mbarrier& barrier = barriers_.emplace_back();
    barrier.address = address;
    barrier.agent = first_agent_ + static_cast<uint32_t>(barriers_.size()) - 1;
    barrier.arriving.reset(agents_);
    barrier.completed.reset(agents_);
    return &barrier;
  }

  Mbarrier* find(uint32_t address) {
    for (Mbarrier& barrier : barriers_)
      if (barrier.address == address) return &barrier;
    return nullptr;
  }

  std::vector<Mbarrier>& all() { return barriers_; }

 private:
  std::vector<Mbarrier> barriers_;
  uint32_t first_agent_ = 0;
  size_t agents_ = 0;
};

}  // namespace hgemm::emulator
