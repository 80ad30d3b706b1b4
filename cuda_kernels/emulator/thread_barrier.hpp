// bar.sync: a numbered barrier at which a given number of threads meet, and learn all that the others know.
#pragma once

#include <cstdint>

#include "warp.hpp"

namespace hgemm::emulator {

struct ThreadBarrier {
  static constexpr uint32_t COUNT = 16;  // of a block

  uint32_t arrived = 0;
  uint32_t expected = 0;
  Knowledge meeting;

  void reset(size_t agents) {
    arrived = expected = 0;
    meeting.reset(agents);
  }
};

}  // namespace hgemm::emulator
