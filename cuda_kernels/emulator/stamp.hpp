// Who wrote four bytes of shared memory, and whether one who comes later may read or overwrite them.
#pragma once

#include <bit>
#include <cstdint>

#include "warp.hpp"

namespace hgemm::emulator {

enum class State : uint8_t { uninitialised, in_flight, valid, mbarrier };

// Who wrote four bytes. The agent is a warp or, for TMA, the mbarrier that counts the bytes.
struct Stamp {
  uint32_t epoch = 0;
  uint16_t agent = 0;
  uint8_t lane = ALL_LANES;
  State state = State::uninitialised;

  bool operator==(const Stamp& other) const { return std::bit_cast<uint64_t>(*this) == std::bit_cast<uint64_t>(other); }
};

// Whether the writer has been synchronised with, as seen by one lane that knows so much.
inline bool ordered(const Stamp& writer, const Access& access, const VectorClock& known) {
  if (writer.agent != access.warp.agent) return writer.epoch <= known[writer.agent];
  return writer.epoch < access.warp.lanes_apart_since || (writer.lane == access.lane && writer.lane != ALL_LANES);
}

// So that it may be overwritten.
inline bool ordered(const Stamp& writer, const Access& access) {
  return ordered(writer, access, access.warp.knows.generic);
}

// So that it may be read.
inline bool visible(const Stamp& writer, const Access& access) {
  return ordered(writer, access, access.warp.knows.visible());
}

}  // namespace hgemm::emulator
