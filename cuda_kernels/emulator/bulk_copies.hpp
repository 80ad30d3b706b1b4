// Copies of the copy engine (TMA) that are under way from or to the shared memory of one block. Of a multicast every
// block that it names has a copy of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "global_memory.hpp"
#include "mbarrier.hpp"
#include "shadow.hpp"
#include "tensor_map.hpp"

namespace hgemm::emulator {

struct BulkCopy {
  uint64_t number;  // in the order of issue
  bool load;
  TensorMapFields map;
  int64_t column, row, batch;  // of the box's first element in the tensor
  uint32_t shared_address;
  Mbarrier* mbarrier;         // of a load
  Access issuer;              // of a multicast perhaps a thread of another block of the cluster
  bool counts_global = true;  // the one of a multicast's that stands for its reading of global memory

  // The part of a box row that lies inside a tensor of so many columns: `count` elements from `first` in the box row.
  struct Part {
    int64_t first, count;
  };
  Part inside(int64_t box_row, int64_t columns) const {
    const int64_t y = row + box_row;
    if (y < 0 || y >= map.rows || batch < 0 || batch >= map.batch) return {0, 0};
    const int64_t first = column < 0 ? -column : 0;
    const int64_t end = std::min<int64_t>(map.box_columns, columns - column);
    return {first, end > first ? end - first : 0};
  }

  // In global memory.
  uint8_t* element(int64_t box_row, int64_t box_column) const {
    return map.base + batch * map.batch_stride_bytes + (row + box_row) * map.row_stride_bytes +
           (column + box_column) * ELEMENT_BYTES;
  }

  // Calls move(shared address, offset in the box row) for each 16-byte chunk of a box row.
  template <class Move>
  void for_each_chunk(int64_t box_row, Move&& move) const {
    for (int64_t byte = 0; byte < map.box_row_bytes(); byte += CHUNK_BYTES)
      move(swizzled(shared_address + static_cast<uint32_t>(box_row * map.box_row_bytes() + byte), map.swizzle_span),
           byte);
  }
};

constexpr int64_t LONGEST_BOX_ROW = 256 * ELEMENT_BYTES;

// Both return the bytes moved. `may_access(address, bytes)` says whether global memory lets the copy through; what it
// refuses has been reported and is left out.
template <class MayAccess>
uint64_t land_load(const BulkCopy& copy, SharedMemory& shared, MayAccess&& may_access) {
  int64_t moved = 0;
  uint8_t line[LONGEST_BOX_ROW];
  for (int64_t i = 0; i < copy.map.box_rows; ++i) {
    std::memset(line, 0, sizeof line);  // zeros outside the tensor
    const BulkCopy::Part part = copy.inside(i, copy.map.columns);
    const int64_t bytes = part.count * ELEMENT_BYTES;
    if (bytes && may_access(copy.element(i, part.first), bytes)) {
      std::memcpy(line + part.first * ELEMENT_BYTES, copy.element(i, part.first), static_cast<size_t>(bytes));
      moved += bytes;
    }
    copy.for_each_chunk(
        i, [&](uint32_t address, int64_t byte) { std::memcpy(shared.data(address), line + byte, CHUNK_BYTES); });
  }
  return static_cast<uint64_t>(moved);
}

// A store writes whole chunks of 16 bytes: where the tensor ends within one, what lies right of it is overwritten.
template <class MayAccess>
uint64_t land_store(const BulkCopy& copy, SharedMemory& shared, MayAccess&& may_access) {
  constexpr int64_t CHUNK = CHUNK_BYTES / ELEMENT_BYTES;
  const int64_t whole_columns = (copy.map.columns + CHUNK - 1) / CHUNK * CHUNK;
  int64_t moved = 0;
  uint8_t line[LONGEST_BOX_ROW];
  for (int64_t i = 0; i < copy.map.box_rows; ++i) {
    BulkCopy::Part part = copy.inside(i, whole_columns);
    if (!part.count) continue;
    if (!may_access(copy.element(i, part.first), part.count * ELEMENT_BYTES)) {
      const int64_t refused = part.count;
      part = copy.inside(i, copy.map.columns);  // the part that lies inside the tensor may do no harm
      if (part.count == refused || !may_access(copy.element(i, part.first), part.count * ELEMENT_BYTES)) continue;
    }
    copy.for_each_chunk(
        i, [&](uint32_t address, int64_t byte) { std::memcpy(line + byte, shared.data(address), CHUNK_BYTES); });
    const int64_t bytes = part.count * ELEMENT_BYTES;
    std::memcpy(copy.element(i, part.first), line + part.first * ELEMENT_BYTES, static_cast<size_t>(bytes));
    moved += bytes;
  }
  return static_cast<uint64_t>(moved);
}

}  // namespace hgemm::emulator
