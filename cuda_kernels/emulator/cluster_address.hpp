// Addresses of the `.shared::cluster` window: a block of the cluster, and a place in its shared memory.
#pragma once

#include <cstdint>

#include "group.hpp"

namespace hgemm::emulator {

// The rank of the block, counted from 1, is in bits 24 and up. 0: an address as the block's own loads and stores use
// it, which names its own memory here too.
struct ClusterAddress {
  static constexpr uint32_t RANK_BIT = 24, WITHIN_BLOCK = (1u << RANK_BIT) - 1;

  uint32_t address;

  static uint32_t of(uint32_t rank, uint32_t within) { return (within & WITHIN_BLOCK) + ((rank + 1) << RANK_BIT); }

  uint32_t within() const { return address & WITHIN_BLOCK; }

  // The block that it names to a thread of `own`; nullptr if the cluster has none of that rank, which mapa has
  // reported.
  Block* block(Block& own) const {
    const uint32_t rank = address >> RANK_BIT;
    if (!rank) return &own;
    return rank <= own.group->launch.cluster ? own.group->cluster_of(own)[rank - 1] : nullptr;
  }
};

}  // namespace hgemm::emulator
