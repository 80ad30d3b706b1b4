// When the copies of the copy engine land.
#include "group.hpp"

namespace hgemm::emulator {

void Group::issue(Block& block, BulkCopy copy) {
  copy.number = block.copies_issued++;
  block.copies.push_back(std::move(copy));
  if (copies_at_once()) land(block, std::prev(block.copies.end()));
}

void Group::land(Block& block, uint64_t number) {
  for (auto copy = block.copies.begin(); copy != block.copies.end(); ++copy)
    if (copy->number == number) return land(block, copy);
}

void Group::land(Block& block, std::list<BulkCopy>::iterator position) {
  const BulkCopy copy = *position;
  block.copies.erase(position);
  const auto may_access = [&](const uint8_t* address, int64_t bytes) {
    return memory->access(copy.issuer, caller(copy.issuer), address, bytes, !copy.load, report);
  };
  OperationCounter& counter = report.counters[copy.issuer.operation];
  if (!copy.load) {
    counter.global_bytes += land_store(copy, block.shared, may_access);
    return stored();
  }
  const Warp& warp = copy.issuer.warp;
  const auto fault = [&](Kind kind, auto&& describe) {
    report.add(kind, copy.issuer.operation, copy.issuer.site, warp.block_index, static_cast<int>(warp.index),
               copy.issuer.reported_lane(), Space::shared, copy.shared_address, describe);
  };
  if (!block.live)
    fault(Kind::unfinished_copy, [&] {
      return format("block %u ended while the TMA load was on its way: nobody waited for it", block.index);
    });
  const uint64_t moved = land_load(copy, block.shared, may_access);
  if (copy.counts_global) counter.global_bytes += moved;
  block.trace.note(Happening::landed, copy.shared_address);
  Mbarrier& barrier = *copy.mbarrier;
  const uint32_t phase = barrier.phases + 1;
  block.shared.finish_tma_load(barrier.agent, phase, copy.shared_address, copy.map.box_bytes());
  if (warp.block != &block && block.live)
    block.remote_arrivals.record(copy.issuer, copy.shared_address, barrier.agent, phase);
  barrier.bytes -= copy.map.box_bytes();
  if (barrier.bytes < -Mbarrier::MOST_BYTES)
    fault(Kind::transaction_bytes, [&] {
      return format("%lld bytes have come to the mbarrier at 0x%x ahead of their announcement: it counts to 2^20 - 1",
                    static_cast<long long>(-barrier.bytes), barrier.address);
    });
  complete_phase(block, barrier);
}

// When nobody can go on, time passes until a load has landed. A store is not made to land: it may take as long as its
// issuer does not wait for it. The copies into one block land before those into another.
bool Group::land_oldest() {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Block* block = blocks_[settings.schedule.reversed ? blocks_.size() - 1 - i : i];
    for (auto copy = block->copies.begin(); copy != block->copies.end(); ++copy) {
      if (!copy->load) continue;
      if (random()) return land_any();
      land(*block, copy);
      return true;
    }
  }
  return false;
}

bool Group::land_any() {
  uint32_t count = 0;
  for (const Block* block : blocks_) count += static_cast<uint32_t>(block->copies.size());
  if (!count) return false;
  uint32_t drawn = random_.below(count);
  for (Block* block : blocks_) {
    const uint32_t size = static_cast<uint32_t>(block->copies.size());
    if (drawn < size) {
      land(*block, std::next(block->copies.begin(), drawn));
      return true;
    }
    drawn -= size;
  }
  return false;
}

}  // namespace hgemm::emulator
