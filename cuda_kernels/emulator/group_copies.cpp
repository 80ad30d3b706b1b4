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
  counter.global_bytes += land_load(copy, block.shared, may_access);
  block.trace.note(Happening::landed, copy.shared_address);
  Mbarrier& barrier = *copy.mbarrier;
  block.shared.finish_tma_load(barrier.agent, barrier.phases + 1, copy.shared_address, copy.map.box_bytes());
  barrier.bytes -= copy.map.box_bytes();
  complete_phase(block, barrier);
}

// When nobody can go on, time passes until a load has landed. A store is not made to land: it may take as long as its
// issuer does not wait for it.
bool Group::land_oldest() {
  for (Block* block : blocks_)
    for (auto copy = block->copies.begin(); copy != block->copies.end(); ++copy) {
      if (!copy->load) continue;
      if (random()) return land_any();
      land(*block, copy);
      return true;
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
