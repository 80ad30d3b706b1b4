// What the other blocks of a cluster read of a block's shared memory: it must neither be overwritten nor given up while
// they may still be reading.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "report.hpp"
#include "warp.hpp"

namespace hgemm::emulator {

class RemoteReads {
 public:
  // A warp of another block, and what it read last.
  struct Reader {
    const Warp* warp;
    Operation operation;
    Site site;
    uint32_t address, epoch;
    std::vector<uint32_t> epochs;  // of its latest read of every unit
  };

  void reset(size_t agents) {
    readers_.clear();
    left_.reset(agents);
  }

  // Of the units `first` to `last` of `units`.
  void record(const Access& access, uint32_t address, uint32_t first, uint32_t last, uint32_t units) {
    const Warp& warp = access.warp;
    Reader& reader = readers_.try_emplace(warp.agent, Reader{&warp, {}, {}, 0, 0, {}}).first->second;
    reader.operation = access.operation;
    reader.site = access.site;
    reader.address = address;
    reader.epoch = warp.epoch();
    reader.epochs.resize(units);
    for (uint32_t i = first; i <= last; ++i) reader.epochs[i] = warp.epoch();
  }

  // The block writes the units, of which the first lies at `address`.
  void check_write(const Access& access, uint32_t address, uint32_t first, uint32_t last, Report& report) const {
    for (const auto& [agent, reader] : readers_)
      if (*std::max_element(&reader.epochs[first], &reader.epochs[last] + 1) > access.warp.knows.generic[agent])
        report.add(Kind::race, access.operation, access.site, access.warp.block_index,
                   static_cast<int>(access.warp.index), access.reported_lane(), Space::shared, address, [&] {
                     return format(
                         "%s writes shared address 0x%x, which warp %u of block %u may still be reading at %s",
                         name(access.operation), address, reader.warp->index, reader.warp->block_index,
                         place(reader.site).c_str());
                   });
  }

  // A warp of the block has ended. The block ends with the last, and knows what all of them knew.
  void leave(const Warp& warp) { left_.join(warp.knows.generic); }

  // The block ends.
  void end(uint32_t block, Report& report) const {
    for (const auto& [agent, reader] : readers_)
      if (reader.epoch > left_[agent])
        report.add(Kind::race, reader.operation, reader.site, reader.warp->block_index,
                   static_cast<int>(reader.warp->index), -1, Space::shared, reader.address, [&] {
                     return format("%s reads shared address 0x%x of block %u, which ends without waiting for that",
                                   name(reader.operation), reader.address, block);
                   });
  }

 private:
  std::map<uint32_t, Reader> readers_;  // by agent
  VectorClock left_;
};

}  // namespace hgemm::emulator
