// What ldmatrix has read and nothing has used yet.
//
// ldmatrix returns before its values are there, and neither a barrier nor an arrival on an mbarrier waits for them. For
// other threads' ordinary stores that makes no difference, since they queue behind it; the copy engine does not. So
// memory may be handed to TMA only when every value read from it has been used, by an mma or by an instruction that is
// made to depend on it (barrier_sync_after, mbarrier_arrive_after). Results come back in order: a value that is there
// proves that all before it are.
//
// Behind an mma that uses the values a barrier of the block may pass the memory on. An arrival on an mbarrier may not:
// a compiler that sees no dependency moves it in front of the mma, and has been seen to. What an ldmatrix reads it
// reads for all lanes of the warp; the arrival of one lane passes it on only behind a warp_sync.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "operations.hpp"

namespace hgemm::emulator {

class RegisterLoads {
 public:
  struct Rows {
    uint32_t address[32];  // of 16 bytes each
    Site site;
  };

  void reset() {
    pending_.clear();
    late_.clear();
    multiplied_.clear();
    by_lanes_.clear();
  }

  void begin(const uint32_t* registers, const Rows& rows, uint32_t epoch) {
    pending_.push_back({rows, epoch, registers, {registers[0], registers[1], registers[2], registers[3]}});
    keep(by_lanes_, rows);
  }

  // An mma uses values. Its A is known by the registers it lies in, its B, which is passed by value, by what it holds:
  // both as lane 0 sees them. Of several loads that fit the latest is taken, so that a right kernel is never blamed.
  void use(const uint32_t* a, uint32_t b0, uint32_t b1, uint32_t epoch) {
    for (size_t i = pending_.size(); i-- > 0;) {
      const Pending& load = pending_[i];
      const bool holds_b = (load.value[0] == b0 && load.value[1] == b1) || (load.value[2] == b0 && load.value[3] == b1);
      if (load.registers != a && !holds_b) continue;
      for (size_t j = 0; j <= i; ++j) keep(multiplied_, pending_[j].rows);
      finish(i + 1, epoch);
      return;
    }
  }

  // An instruction depends on everything that has been loaded.
  void use_all(uint32_t epoch) {
    finish(pending_.size(), epoch);
    multiplied_.clear();
  }

  // The lanes of the warp have waited for each other.
  void warp_synchronised() { by_lanes_.clear(); }

  // The warp has been at a barrier of the block.
  void block_synchronised() {
    by_lanes_.clear();
    multiplied_.clear();
  }

  // A lane arrives on an mbarrier, which ends an epoch and passes on what the warp has done in it, but for these loads.
  // `every_lane`: the others arrive too, each for itself.
  void arrive(uint32_t epoch, bool every_lane) {
    for (const Rows& rows : multiplied_) keep(late_, {rows, epoch + 1});
    multiplied_.clear();
    if (every_lane) return;
    for (const Rows& rows : by_lanes_) keep(late_, {rows, epoch + 1});
    by_lanes_.clear();
  }

  // Whether a copy into [address, address + bytes) may overtake a read. `known`: the epoch of this warp that the issuer
  // of the copy knows of.
  const Rows* find(uint32_t address, uint32_t bytes, uint32_t known) const {
    for (const Pending& load : pending_)
      if (touches(load.rows, address, bytes)) return &load.rows;
    for (const Late& load : late_)
      if (load.used_in > known && touches(load.rows, address, bytes)) return &load.rows;
    return nullptr;
  }

 private:
  struct Pending {
    Rows rows;
    uint32_t epoch;
    const uint32_t* registers;
    uint32_t value[4];
  };
  // A load whose values were there for certain only in a later epoch: what the warp passed on in between did not cover
  // it.
  struct Late {
    Rows rows;
    uint32_t used_in;
  };
  static constexpr size_t MOST = 64;  // of each list: in right kernels there are few, and none that matters

  static bool touches(const Rows& rows, uint32_t address, uint32_t bytes) {
    for (const uint32_t row : rows.address)
      if (row + 16 > address && row < address + bytes) return true;
    return false;
  }

  void finish(size_t count, uint32_t epoch) {
    for (size_t i = 0; i < count; ++i)
      if (pending_[i].epoch != epoch) keep(late_, {pending_[i].rows, epoch});
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  // Adds to a list of the latest.
  template <class Entry>
  static void keep(std::deque<Entry>& list, const Entry& entry) {
    list.push_back(entry);
    if (list.size() > MOST) list.pop_front();
  }

  std::vector<Pending> pending_;
  std::deque<Late> late_;
  std::deque<Rows> multiplied_;  // used by an mma, and by nothing that orders them before an arrival
  std::deque<Rows> by_lanes_;    // since the lanes last waited for each other
};

}  // namespace hgemm::emulator
