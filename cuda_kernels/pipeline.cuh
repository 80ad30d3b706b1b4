// A position in a ring of buffers that is filled and emptied round after round.
#pragma once

#include "ptx.cuh"

namespace hgemm {

// `stage` says which buffer. `phase` is the parity of the round: it flips whenever the ring wraps, and is what tells an
// mbarrier's completion in this round from the one in the round before.
template <int Stages>
struct RingPosition {
  int stage = 0;
  uint32_t phase = 0;

  HGEMM_MEMBER void advance() {
    if (++stage == Stages) {
      stage = 0;
      phase ^= 1;
    }
  }

  // The position `count` tiles ago, at most Stages.
  HGEMM_MEMBER RingPosition back(int count) const {
    const bool wraps = stage < count;
    return {stage - count + (wraps ? Stages : 0), phase ^ wraps};
  }
};

}  // namespace hgemm
