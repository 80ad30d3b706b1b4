// barrier.cluster: all threads of a cluster's blocks arrive, and wait for each other later. What they knew when they
// arrived passes on to those who wait.
#pragma once

#include <cstdint>

#include "warp.hpp"

namespace hgemm::emulator {

struct ClusterBarrier {
  uint32_t arrived = 0;  // threads, in this phase, that have not exited since
  uint32_t phases = 0;   // completed
  Knowledge arriving, completed;

  void reset(size_t agents) {
    arrived = phases = 0;
    arriving.reset(agents);
    completed.reset(agents);
  }

  // Ends the phase if all of the `live` threads have arrived.
  bool try_complete(uint32_t live) {
    if (!arrived || arrived < live) return false;
    ++phases;
    arrived = 0;
    completed = arriving;
    return true;
  }
};

}  // namespace hgemm::emulator
