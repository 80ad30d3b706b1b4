// One operand in global memory: which addresses are its elements.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "control.h"
#include "report.hpp"

namespace hgemm::emulator {

constexpr int64_t GLOBAL_UNIT = 2;  // bytes: an element

class Region {
 public:
  std::string name;
  bool writable;
  // By element, of an operand that is written: who wrote it and who read it last (GlobalMark).
  std::unique_ptr<std::atomic<uint64_t>[]> writers, readers;

  explicit Region(const HgemmMemory& memory)
      : name(memory.name), writable(memory.writable != 0), base_(reinterpret_cast<uintptr_t>(memory.base)) {
    static constexpr const char* NAMES[] = {"batch", "row", "column"};
    for (int i = 0; i < 3; ++i)  // an axis of one element, or repeated with stride 0, decides no address
      if (memory.sizes[i] > 1 && memory.strides[i] != 0)
        axes_.push_back({NAMES[i], memory.sizes[i], memory.strides[i]});
    std::sort(axes_.begin(), axes_.end(), [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
    bool interleaved = false;
    for (size_t i = axes_.size(); i-- > 0;) {
      interleaved |= axes_[i].stride < extent_;  // so far that of the axes within
      elements_ *= axes_[i].size;
      extent_ += (axes_[i].size - 1) * axes_[i].stride;
    }
    // Of rows that overlap, or run through each other, only the whole extent is known.
    if (interleaved) {
      axes_ = {{"element", extent_, 1}};
      elements_ = extent_;
    }
    if (!writable) return;
    writers = std::make_unique<std::atomic<uint64_t>[]>(static_cast<size_t>(elements_));
    readers = std::make_unique<std::atomic<uint64_t>[]>(static_cast<size_t>(elements_));
  }

  size_t elements() const { return static_cast<size_t>(elements_); }

  bool contains(uintptr_t address) const {
    return address >= base_ && address < base_ + static_cast<uintptr_t>(extent_ * GLOBAL_UNIT);
  }

  // The number of the element at an address within the region's extent, if that and the `count` - 1 that follow it in
  // memory are elements of one row; -1 otherwise.
  int64_t find(uintptr_t address, int64_t count) const {
    int64_t offset = static_cast<int64_t>(address - base_) / GLOBAL_UNIT, number = 0;
    for (const Axis& axis : axes_) {
      const int64_t position = offset / axis.stride;
      if (position >= axis.size) return -1;
      number = number * axis.size + position;
      offset -= position * axis.stride;
    }
    if (offset != 0) return -1;
    if (count == 1) return number;
    const bool contiguous = !axes_.empty() && axes_.back().stride == 1;
    return contiguous && number % axes_.back().size + count <= axes_.back().size ? number : -1;
  }

  // "row 3, column 5 of c", of an address within the extent.
  std::string describe(uintptr_t address) const {
    int64_t offset = static_cast<int64_t>(address - base_) / GLOBAL_UNIT;
    std::string text;
    for (const Axis& axis : axes_) {
      text += format("%s%s %lld", text.empty() ? "" : ", ", axis.name, static_cast<long long>(offset / axis.stride));
      offset %= axis.stride;
    }
    return text + (text.empty() ? "" : " of ") + name;
  }

  // "2 batch x 100 row x 72 column", from the largest stride to the smallest.
  std::string shape() const {
    std::string text;
    for (const Axis& axis : axes_)
      text += format("%s%lld %ss", text.empty() ? "" : " x ", static_cast<long long>(axis.size), axis.name);
    return text;
  }

  uintptr_t address_of(size_t number) const {
    int64_t offset = 0, rest = static_cast<int64_t>(number);
    for (size_t i = axes_.size(); i-- > 0;) {
      offset += rest % axes_[i].size * axes_[i].stride;
      rest /= axes_[i].size;
    }
    return base_ + static_cast<uintptr_t>(offset * GLOBAL_UNIT);
  }

 private:
  struct Axis {
    const char* name;
    int64_t size, stride;  // elements
  };

  uintptr_t base_;
  std::vector<Axis> axes_;  // from the largest stride to the smallest
  int64_t elements_ = 1;
  int64_t extent_ = 1;  // elements from the first to the last, gaps included
};

}  // namespace hgemm::emulator
