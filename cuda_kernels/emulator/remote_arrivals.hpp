// What the other blocks of a cluster send into a block: bytes by multicast, and arrivals at its mbarriers. It must not
// end before it knows that they have come, since its shared memory may be another block's from then on.
#pragma once

#include <cstdint>
#include <map>

#include "report.hpp"
#include "warp.hpp"

namespace hgemm::emulator {

class RemoteArrivals {
 public:
  void reset(size_t agents) {
    latest_.clear();
    known_.reset(agents);
  }

  // Something has come to `address`. The block knows of it when it knows that epoch of that agent: of the warp that has
  // arrived, or of the mbarrier that has counted the bytes.
  void record(const Access& sender, uint32_t address, uint32_t agent, uint32_t epoch) {
    latest_.erase(agent);
    latest_.emplace(agent, Arrival{sender, address, epoch});
  }

  // A warp of the block has ended. The block ends with the last, and knows what all of them knew.
  void leave(const Warp& warp) { known_.join(warp.knows.generic); }

  // The block ends.
  void end(uint32_t block, Report& report) const {
    for (const auto& [agent, arrival] : latest_) {
      if (arrival.epoch <= known_[agent]) continue;
      const Access& sender = arrival.sender;
      report.add(Kind::race, sender.operation, sender.site, sender.warp.block_index,
                 static_cast<int>(sender.warp.index), sender.reported_lane(), Space::shared, arrival.address, [&] {
                   return format("%s comes to shared address 0x%x of block %u, which ends without waiting for that",
                                 name(sender.operation), arrival.address, block);
                 });
    }
  }

 private:
  struct Arrival {
    Access sender;
    uint32_t address, epoch;
  };

  std::map<uint32_t, Arrival> latest_;  // by agent
  VectorClock known_;
};

}  // namespace hgemm::emulator
