// ptx.hpp: ordinary access to shared memory, and the matrix loads and stores of a warp.
#include "ptx.hpp"

#include "calling_thread.hpp"

namespace ptx {

using namespace hgemm::emulator;

uint32_t shared_base() { return current_lane->warp->block->shared.base(); }

namespace {

// One lane's load or store; `move` copies the bytes. False if the address is refused.
template <bool Write, class Move>
bool access_shared(Operation operation, const Site& site, uint32_t address, uint32_t bytes, Move&& move) {
  const CallingThread me(operation, site);
  SharedMemory& shared = me.block.shared;
  if (!shared.check_range(me.access, address, bytes, bytes)) return false;
  me.block.banks[me.warp.index].record(operation, site, me.lane.index, address, bytes, me.group.report.counters);
  me.counter().shared_bytes += bytes;
  if constexpr (Write) {
    shared.write(me.access, address, bytes);
  } else {
    shared.read(me.access, address, bytes);
  }
  move(shared.data(address));
  return true;
}

}  // namespace

void st_shared_b32(uint32_t address, uint32_t value, Site site) {
  access_shared<true>(Operation::st_shared_b32, site, address, 4, [&](uint8_t* at) { std::memcpy(at, &value, 4); });
}

void st_shared_v4(uint32_t address, const uint32_t (&value)[4], Site site) {
  access_shared<true>(Operation::st_shared_v4, site, address, 16, [&](uint8_t* at) { std::memcpy(at, value, 16); });
}

void st_shared_v4(uint32_t address, const float (&value)[4], Site site) {
  access_shared<true>(Operation::st_shared_v4, site, address, 16, [&](uint8_t* at) { std::memcpy(at, value, 16); });
}

void ld_shared_v4(uint32_t (&value)[4], uint32_t address, Site site) {
  if (!access_shared<false>(Operation::ld_shared_v4, site, address, 16,
                            [&](const uint8_t* at) { std::memcpy(value, at, 16); }))
    std::memset(value, 0xff, 16);
}

namespace {

// Four 8x8 matrices of 16-bit elements: the address that this lane names, and its two elements of each matrix.
struct MatrixRows {
  uint32_t address;
  uint32_t* elements;  // [4]
};

// Element (l / 4, 2 (l % 4)) and the one right of it belong to lane l; of the transpose, (2 (l % 4), l / 4) and the one
// below it.
template <bool Transposed>
uint16_t& element(uint16_t (&matrix)[8][8], uint32_t lane, uint32_t which) {
  const uint32_t major = lane / 4, minor = lane % 4 * 2 + which;
  return Transposed ? matrix[minor][major] : matrix[major][minor];
}

template <bool Transposed>
void load_matrices(const CallingThread& me, void* const* lanes) {
  SharedMemory& shared = me.block.shared;
  OperationCounter& counter = me.counter();
  const Access access = me.as_warp();
  RegisterLoads::Rows rows{{}, access.site};
  ++counter.executed;
  me.block.trace.note(Happening::read, static_cast<MatrixRows*>(lanes[0])->address);
  for (uint32_t m = 0; m < 4; ++m) {
    uint16_t matrix[8][8];
    uint32_t* const addresses = rows.address + m * 8;
    for (uint32_t row = 0; row < 8; ++row) {
      const uint32_t address = addresses[row] = static_cast<MatrixRows*>(lanes[m * 8 + row])->address;
      if (shared.check_range(access, address, 16, 16)) {
        shared.read(access, address, 16);
        std::memcpy(matrix[row], shared.data(address), 16);
      } else {
        std::memset(matrix[row], 0xff, 16);
      }
    }
    counter.shared_bytes += 128;
    counter.extra_wavefronts += extra_wavefronts(addresses, 0xff, 16);
    for (uint32_t lane = 0; lane < LANES; ++lane)
      static_cast<MatrixRows*>(lanes[lane])->elements[m] =
          static_cast<uint32_t>(element<Transposed>(matrix, lane, 0) | element<Transposed>(matrix, lane, 1) << 16);
  }
  me.warp.register_loads.begin(static_cast<MatrixRows*>(lanes[0])->elements, rows, me.warp.epoch());
}

void store_matrices(const CallingThread& me, void* const* lanes) {
  SharedMemory& shared = me.block.shared;
  OperationCounter& counter = me.counter();
  const Access access = me.as_warp();
  ++counter.executed;
  for (uint32_t m = 0; m < 4; ++m) {
    uint16_t matrix[8][8];
    uint32_t addresses[LANES];
    for (uint32_t lane = 0; lane < LANES; ++lane)
      for (uint32_t which = 0; which < 2; ++which)
        element<false>(matrix, lane, which) =
            static_cast<uint16_t>(static_cast<MatrixRows*>(lanes[lane])->elements[m] >> 16 * which);
    for (uint32_t row = 0; row < 8; ++row) {
      const uint32_t address = addresses[row] = static_cast<MatrixRows*>(lanes[m * 8 + row])->address;
      if (!shared.check_range(access, address, 16, 16)) continue;
      shared.write(access, address, 16);
      std::memcpy(shared.data(address), matrix[row], 16);
    }
    counter.shared_bytes += 128;
    counter.extra_wavefronts += extra_wavefronts(addresses, 0xff, 16);
  }
}

template <bool Transposed>
void ldmatrix(Operation operation, uint32_t (&matrices)[4], uint32_t row_address, const Site& site) {
  const CallingThread me(operation, site);
  me.demand_all_lanes();
  MatrixRows mine{row_address, matrices};
  me.together(&mine, [&](void* const* lanes) { load_matrices<Transposed>(me, lanes); });
}

}  // namespace

void ldmatrix_x4(uint32_t (&matrices)[4], uint32_t row_address, Site site) {
  ldmatrix<false>(Operation::ldmatrix_x4, matrices, row_address, site);
}

void ldmatrix_x4_trans(uint32_t (&matrices)[4], uint32_t row_address, Site site) {
  ldmatrix<true>(Operation::ldmatrix_x4_trans, matrices, row_address, site);
}

void stmatrix_x4(uint32_t row_address, const uint32_t (&matrices)[4], Site site) {
  const CallingThread me(Operation::stmatrix_x4, site);
  me.demand_all_lanes();
  uint32_t elements[4];
  std::memcpy(elements, matrices, sizeof elements);
  MatrixRows mine{row_address, elements};
  me.together(&mine, [&](void* const* lanes) { store_matrices(me, lanes); });
}

}  // namespace ptx
