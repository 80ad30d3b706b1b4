// Tensor maps: the rules by which cuTensorMapEncodeTiled takes or refuses one, and the boxes that TMA moves by them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "../tensor_map.h"
#include "report.hpp"

namespace hgemm::emulator {

constexpr int64_t ELEMENT_BYTES = 2;
constexpr int64_t CHUNK_BYTES = 16;  // what a swizzle permutes, and what TMA stores as a whole

// What the emulator keeps in the 128 opaque bytes.
struct TensorMapFields {
  static constexpr uint64_t MAGIC = 0x70616d20'6d656768;

  uint64_t magic;
  uint8_t* base;
  int64_t batch, rows, columns;  // of the tensor, in elements
  int64_t batch_stride_bytes, row_stride_bytes;
  int32_t box_rows, box_columns;
  int32_t swizzle_span;  // bytes: 128, 64, 32, or 0 for none

  int64_t box_row_bytes() const { return box_columns * ELEMENT_BYTES; }
  uint32_t box_bytes() const { return static_cast<uint32_t>(box_rows * box_row_bytes()); }
  // A tile starts where the pattern of its swizzle starts: eight rows of the span. TMA itself asks for 128 bytes.
  uint32_t shared_alignment() const { return swizzle_span ? 8 * swizzle_span : 128; }
};
static_assert(sizeof(TensorMapFields) <= sizeof(TensorMap));

// The swizzle, by absolute shared address.
inline uint32_t swizzled(uint32_t address, int32_t span) {
  return span ? address ^ ((address >> 3) & static_cast<uint32_t>(span - 16)) : address;
}

// CUDA driver API, cuTensorMapEncodeTiled: what it demands of a three-dimensional tensor without interleaving. Returns
// the rule that is broken, or nothing.
inline std::string broken_tensor_map_rule(const TensorMapFields& map) {
  const int64_t inner = map.box_row_bytes();
  if (reinterpret_cast<uintptr_t>(map.base) % 16)
    return format("its base address %p is no multiple of 16 bytes", static_cast<void*>(map.base));
  for (const int64_t size : {map.batch, map.rows, map.columns})
    if (size < 1 || size > int64_t{1} << 32)
      return format("one of its sizes is %lld, which is not within 1 to 2^32", static_cast<long long>(size));
  for (const int64_t stride : {map.batch_stride_bytes, map.row_stride_bytes})
    if (stride % 16 || stride <= 0 || stride >= int64_t{1} << 40)
      return format("one of its strides is %lld bytes, which is no multiple of 16 below 2^40",
                    static_cast<long long>(stride));
  if (map.box_rows < 1 || map.box_columns < 1 || map.box_rows > 256 || map.box_columns > 256)
    return format("its box of %d x %d is not within 1 to 256", map.box_rows, map.box_columns);
  if (inner % 16) return format("a row of its box is %lld bytes, no multiple of 16", static_cast<long long>(inner));
  if (map.swizzle_span && inner > map.swizzle_span)
    return format("a row of its box is %lld bytes, wider than the swizzle of %d", static_cast<long long>(inner),
                  map.swizzle_span);
  if (map.swizzle_span && inner < map.swizzle_span)
    return format("a row of its box is %lld bytes, narrower than the swizzle of %d, which the emulator does not model",
                  static_cast<long long>(inner), map.swizzle_span);
  return {};
}

inline void write_tensor_map(TensorMap* map, const TensorMapFields& fields) {
  std::memcpy(map, &fields, sizeof fields);
}

inline TensorMapFields read_tensor_map(const TensorMap* map) {
  TensorMapFields fields;
  std::memcpy(&fields, map, sizeof fields);
  return fields;
}

}  // namespace hgemm::emulator
