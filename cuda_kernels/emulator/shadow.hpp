// A block's shared memory, and what is known about every four bytes of it.
//
//   uninitialised -> in flight -> valid        in flight: an asynchronous copy writes; valid: who wrote it, and when
//                 -> valid
//                 -> mbarrier                  belongs to an mbarrier; nothing else may touch it
//
// Checks are the happens-before rules of clocks.hpp. Lanes of one warp share its epochs, but are told apart within an
// epoch: two lanes that touch the same bytes with no warp_sync or barrier between them race as two warps would.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "remote_reads.hpp"
#include "report.hpp"
#include "stamp.hpp"
#include "warp.hpp"

namespace hgemm::emulator {

class SharedMemory {
 public:
  static constexpr uint32_t UNIT = 4;

  // `first_agent`: the agent of the block's warp 0; its warps follow.
  void reset(uint32_t base, uint32_t bytes, uint32_t warps, uint32_t first_agent, uint32_t block, size_t agents,
             Report* report) {
    base_ = base;
    bytes_ = bytes;
    warps_ = warps;
    first_agent_ = first_agent;
    block_ = block;
    report_ = report;
    units_ = (bytes + UNIT - 1) / UNIT;
    data_.assign(units_ * UNIT, 0xff);  // NaN in both dtypes
    stamps_.assign(units_, Stamp());
    writers_.assign(units_, Site());
    reads_.assign(size_t{units_} * warps, 0);
    bulk_readers_.assign(units_, 0);
    remote_.reset(agents);
  }

  uint32_t base() const { return base_; }
  uint8_t* data(uint32_t address) { return data_.data() + (address - base_); }

  // Whether an access stays inside and is aligned; reports it otherwise.
  bool check_range(const Access& access, uint32_t address, uint32_t bytes, uint32_t alignment) {
    if (address < base_ || uint64_t{address} + bytes > uint64_t{base_} + bytes_) {
      report(Kind::out_of_bounds, access, address, [&] {
        return format("%s of %u bytes at shared address 0x%x, and the block's shared memory is 0x%x to 0x%x (%u bytes)",
                      name(access.operation), bytes, address, base_, base_ + bytes_, bytes_);
      });
      return false;
    }
    if (address % alignment) {
      report(Kind::misaligned, access, address, [&] {
        return format("%s at shared address 0x%x, which is no multiple of %u", name(access.operation), address,
                      alignment);
      });
      return false;
    }
    return true;
  }

  void read(const Access& access, uint32_t address, uint32_t bytes) {
    const uint32_t first = unit(address), last = unit(address + bytes - 1);
    check_readable(access, first, last, false);
    if (access.warp.block_index == block_) {
      record_read(access.warp, access.lane, first, last);
    } else {
      remote_.record(access, address, first, last, units_);
    }
  }

  // A warp has ended; with the last one the memory is given up.
  void leave(const Warp& warp, bool last) {
    remote_.leave(warp);
    if (last) remote_.end(block_, *report_);
  }

  void write(const Access& access, uint32_t address, uint32_t bytes) {
    const uint32_t first = unit(address), last = unit(address + bytes - 1);
    check_writable(access, first, last, false);
    stamp(access, first, last, State::valid);
    note_unfenced(access);
  }

  // An mbarrier takes its eight bytes for good.
  void claim_mbarrier(const Access& access, uint32_t address) {
    check_writable(access, unit(address), unit(address + 7), false);
    stamp(access, unit(address), unit(address + 7), State::mbarrier);
  }

  // An asynchronous copy begins to write. TMA belongs to the async proxy, cp.async does not.
  void begin_copy(const Access& access, uint32_t address, uint32_t bytes, bool async_proxy) {
    const uint32_t first = unit(address), last = unit(address + bytes - 1);
    check_writable(access, first, last, async_proxy);
    stamp(access, first, last, State::in_flight);
  }

  // The thread that issued a cp.async has waited for it: from here on the bytes count as written by that thread.
  void finish_cp_async(const Access& access, uint32_t address, uint32_t bytes) {
    const uint32_t first = unit(address), last = unit(address + bytes - 1);
    for (uint32_t i = first; i <= last; ++i)
      if (stamps_[i].state == State::in_flight) stamps_[i] = stamp_of(access, State::valid);
    note_unfenced(access);
  }

  // A TMA load has landed: visible to whoever learns that its mbarrier has completed that many phases.
  void finish_tma_load(uint32_t mbarrier_agent, uint32_t phases, uint32_t address, uint32_t bytes) {
    const Stamp landed{phases, static_cast<uint16_t>(mbarrier_agent), ALL_LANES, State::valid};
    for (uint32_t i = unit(address), last = unit(address + bytes - 1); i <= last; ++i)
      if (stamps_[i].state == State::in_flight) stamps_[i] = landed;
  }

  // A bulk store reads until its issuer has waited for it, however soon the bytes have physically left.
  void begin_bulk_read(const Access& access, uint32_t address, uint32_t bytes) {
    const uint32_t first = unit(address), last = unit(address + bytes - 1);
    check_readable(access, first, last, true);
    for (uint32_t i = first; i <= last; ++i) ++bulk_readers_[i];
  }

  // After the wait it counts as a read by the issuing thread.
  void end_bulk_read(const Warp& warp, uint32_t lane, uint32_t address, uint32_t bytes) {
    const uint32_t first = unit(address), last = unit(address + bytes - 1);
    for (uint32_t i = first; i <= last; ++i) --bulk_readers_[i];
    record_read(warp, lane, first, last);
  }

 private:
  uint32_t unit(uint32_t address) const { return (address - base_) / UNIT; }
  uint32_t address_of(uint32_t unit) const { return base_ + unit * UNIT; }

  // The latest read of a unit by a warp: its epoch, and the lane, or ALL_LANES for several of them since they were last
  // together.
  static uint32_t read_mark(uint32_t epoch, uint32_t lane) { return epoch << 6 | lane; }
  uint32_t* reads_of(uint32_t warp) { return reads_.data() + size_t{warp} * units_; }

  // Whether another lane has read since the lanes were last together.
  static bool by_other_lane(uint32_t read, const Warp& warp, uint32_t lane) {
    return read >> 6 >= warp.lanes_apart_since && read % 64 != lane;
  }

  void record_read(const Warp& warp, uint32_t lane, uint32_t first, uint32_t last) {
    uint32_t* reads = reads_of(warp.index);
    const uint32_t mark = read_mark(warp.epoch(), lane), several = read_mark(warp.epoch(), ALL_LANES);
    for (uint32_t i = first; i <= last; ++i) reads[i] = by_other_lane(reads[i], warp, lane) ? several : mark;
  }

  Stamp stamp_of(const Access& access, State state) const {
    return {access.warp.epoch(), static_cast<uint16_t>(access.warp.agent), static_cast<uint8_t>(access.lane), state};
  }

  // These lanes have written what the async proxy does not know of yet.
  static void note_unfenced(const Access& access) {
    const bool all = access.lane == ALL_LANES;
    for (uint32_t i = all ? 0 : access.lane; i < (all ? LANES : access.lane + 1); ++i)
      if (!access.warp.lanes[i].first_unfenced_write) access.warp.lanes[i].first_unfenced_write = access.warp.epoch();
  }

  void stamp(const Access& access, uint32_t first, uint32_t last, State state) {
    const Stamp mark = stamp_of(access, state);
    for (uint32_t i = first; i <= last; ++i) {
      stamps_[i] = mark;
      writers_[i] = access.site;
    }
  }

  bool is_warp(uint32_t agent) const { return agent - first_agent_ < warps_; }

  // An ordinary write that no fence has made known to the async proxy.
  bool lacks_fence(const Stamp& writer, const Warp& warp) const {
    return writer.state == State::valid && is_warp(writer.agent) && writer.epoch > warp.knows.async[writer.agent];
  }

  void check_readable(const Access& access, uint32_t first, uint32_t last, bool async_proxy) {
    for (uint32_t i = first; i <= last; ++i) {
      const Stamp& writer = stamps_[i];
      if (i > first && writer == stamps_[i - 1]) continue;  // what holds for the unit before holds for this one
      if (writer.state == State::valid && visible(writer, access) && !(async_proxy && lacks_fence(writer, access.warp)))
        continue;
      report_read(access, i, writer);
    }
  }

  void check_writable(const Access& access, uint32_t first, uint32_t last, bool async_proxy) {
    for (uint32_t i = first; i <= last; ++i) {
      if (bulk_readers_[i]) report_bulk_reader(access, i);
      const Stamp& writer = stamps_[i];
      if (i > first && writer == stamps_[i - 1]) continue;
      if (writer.state == State::uninitialised) continue;
      if (writer.state == State::valid && ordered(writer, access) && !(async_proxy && lacks_fence(writer, access.warp)))
        continue;
      report_write(access, i, writer);
    }
    const bool own = access.warp.block_index == block_;  // else a multicast of another block of the cluster
    for (uint32_t warp = 0; warp < warps_; ++warp) {
      const uint32_t* reads = reads_of(warp);
      if (own && warp == access.warp.index) {
        for (uint32_t i = first; i <= last; ++i)
          if (by_other_lane(reads[i], access.warp, access.lane)) {
            report_reader(access, i, warp);
            break;
          }
        continue;
      }
      uint32_t latest = first;  // the maximum first: this loop runs over whole tiles
      for (uint32_t i = first; i <= last; ++i) latest = reads[latest] < reads[i] ? i : latest;
      if (reads[latest] >> 6 > access.warp.knows.generic[first_agent_ + warp]) report_reader(access, latest, warp);
    }
    remote_.check_write(access, address_of(first), first, last, *report_);
  }

  template <class Describe>
  void report(Kind kind, const Access& access, uint32_t address, Describe&& describe) {
    report_->add(kind, access.operation, access.site, access.warp.block_index, static_cast<int>(access.warp.index),
                 access.reported_lane(), Space::shared, address, describe);
  }

  // The instruction, and in whose memory if not its own block's.
  std::string text_of(const Access& access) const {
    const std::string operation = name(access.operation);
    return access.warp.block_index == block_ ? operation : operation + format(" of block %u's memory", block_);
  }

  // "warp 3 lane 5 at epilogue.cuh:47" or "a TMA load at tma.cuh:51".
  std::string writer_text(uint32_t i) const {
    const Stamp& writer = stamps_[i];
    if (!is_warp(writer.agent))
      return (writer.state == State::in_flight ? "another block at " : "a TMA load at ") + place(writers_[i]);
    std::string text = format("warp %u", writer.agent - first_agent_);
    if (writer.lane != ALL_LANES) text += format(" lane %u", writer.lane);
    return text + " at " + place(writers_[i]);
  }

  void report_read(const Access& access, uint32_t i, const Stamp& writer) {
    const uint32_t address = address_of(i);
    const std::string text = text_of(access);
    const char* what = text.c_str();
    switch (writer.state) {
      case State::uninitialised:
        return report(Kind::uninitialised, access, address,
                      [&] { return format("%s reads shared address 0x%x, which nobody has written", what, address); });
      case State::in_flight:
        return report(Kind::in_flight, access, address, [&] {
          return format("%s reads shared address 0x%x, which an asynchronous copy issued by %s is still writing", what,
                        address, writer_text(i).c_str());
        });
      case State::mbarrier:
        return report(Kind::mbarrier, access, address,
                      [&] { return format("%s reads shared address 0x%x, which is an mbarrier", what, address); });
      case State::valid:
        break;
    }
    if (visible(writer, access)) return report_missing_fence(access, i, "reads");
    report(Kind::race, access, address, [&] {
      return format("%s reads shared address 0x%x, written by %s, and %s", what, address, writer_text(i).c_str(),
                    ordered(writer, access) ? "an arrival at another block's mbarrier does not show what was written"
                                            : "nothing orders the write before the read");
    });
  }

  void report_write(const Access& access, uint32_t i, const Stamp& writer) {
    const uint32_t address = address_of(i);
    const std::string text = text_of(access);
    const char* what = text.c_str();
    if (writer.state == State::in_flight)
      return report(Kind::in_flight, access, address, [&] {
        return format("%s writes shared address 0x%x, which an asynchronous copy issued by %s is still writing", what,
                      address, writer_text(i).c_str());
      });
    if (writer.state == State::mbarrier)
      return report(Kind::mbarrier, access, address,
                    [&] { return format("%s writes shared address 0x%x, which is an mbarrier", what, address); });
    if (ordered(writer, access)) return report_missing_fence(access, i, "overwrites");
    report(Kind::race, access, address, [&] {
      return format("%s writes shared address 0x%x, written before by %s, and nothing orders the two writes", what,
                    address, writer_text(i).c_str());
    });
  }

  void report_missing_fence(const Access& access, uint32_t i, const char* verb) {
    report(Kind::proxy_fence, access, address_of(i), [&] {
      return format(
          "%s %s shared address 0x%x, written with ordinary stores by %s, and no fence.proxy.async came "
          "between",
          text_of(access).c_str(), verb, address_of(i), writer_text(i).c_str());
    });
  }

  void report_reader(const Access& access, uint32_t i, uint32_t warp) {
    report(Kind::race, access, address_of(i), [&] {
      const uint32_t lane = reads_of(warp)[i] % 64;
      return format(
          "%s writes shared address 0x%x, read before by warp %u%s, and nothing orders the read before the "
          "write: the memory was released too early",
          text_of(access).c_str(), address_of(i), warp, lane == ALL_LANES ? "" : format(" lane %u", lane).c_str());
    });
  }

  void report_bulk_reader(const Access& access, uint32_t i) {
    report(Kind::race, access, address_of(i), [&] {
      return format("%s writes shared address 0x%x, which a bulk store may still be reading: its issuer has not waited",
                    text_of(access).c_str(), address_of(i));
    });
  }

  uint32_t base_ = 0, bytes_ = 0, units_ = 0, warps_ = 0, first_agent_ = 0, block_ = 0;
  Report* report_ = nullptr;
  std::vector<uint8_t> data_;
  std::vector<Stamp> stamps_;
  std::vector<Site> writers_;
  std::vector<uint32_t> reads_;  // by warp, then unit
  std::vector<uint16_t> bulk_readers_;
  RemoteReads remote_;
};

}  // namespace hgemm::emulator
