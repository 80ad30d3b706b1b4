// Each instruction of ptx.cuh alone, on data that golden.py makes: what a GPU answers is what the emulator must answer.
//
// Every kernel runs one warp. It reads `in`, brings its data to where the instruction wants it, and writes what the
// instruction left to `out`.
#include "launch.cuh"
#include "ptx.cuh"

using hgemm::Matrices;
using hgemm::TensorMap;

namespace {

// 512 bytes, 16 a lane, from global to shared memory.
HGEMM_DEVICE void stage(const uint32_t* in, uint32_t offset) {
  const uint32_t lane = ptx::lane_index();
  ptx::cp_async<16>(ptx::shared_base() + offset + lane * 16, in + lane * 4, 16);
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  ptx::warp_sync();
}

HGEMM_DEVICE void dump(uint32_t* out, uint32_t bytes) {
  for (uint32_t i = ptx::lane_index(); i < bytes / 16; i += 32) {
    uint32_t value[4];
    ptx::ld_shared_v4(value, ptx::shared_base() + i * 16);
    ptx::st_global_v4(out + i * 4, value);
  }
}

template <bool Transposed>
HGEMM_KERNEL(32, 1)
ldmatrix(const uint32_t* in, uint32_t* out) {
  const uint32_t lane = ptx::lane_index();
  stage(in, 0);
  uint32_t value[4];
  const uint32_t row = ptx::shared_base() + (lane * 5 + 3) % 32 * 16;  // in another order than they lie
  if constexpr (Transposed) {
    ptx::ldmatrix_x4_trans(value, row);
  } else {
    ptx::ldmatrix_x4(value, row);
  }
  ptx::st_global_v4(out + lane * 4, value);
}

// `in`: 16 bytes of A for each lane, then 8 of B padded to 16, then 16 of the accumulator in fp32.
template <bool Bfloat16>
HGEMM_KERNEL(32, 1)
mma(const uint32_t* in, uint32_t* out) {
  const uint32_t lane = ptx::lane_index();
  uint32_t a[4], b[4];
  union {
    uint32_t bits[4];
    float value[4];
  } d;
  for (uint32_t part = 0; part < 3; ++part) stage(in + part * 128, part * 512);
  ptx::ld_shared_v4(a, ptx::shared_base() + lane * 16);
  ptx::ld_shared_v4(b, ptx::shared_base() + 512 + lane * 16);
  ptx::ld_shared_v4(d.bits, ptx::shared_base() + 1024 + lane * 16);
  if constexpr (Bfloat16) {
    ptx::mma_m16n8k16_bf16(d.value, a, b[0], b[1]);
  } else {
    ptx::mma_m16n8k16_f16(d.value, a, b[0], b[1]);
  }
  ptx::st_global_v4(out + lane * 4, d.bits);
}

// The same with the accumulator rounded to fp16.
HGEMM_KERNEL(32, 1)
mma_f16_f16(const uint32_t* in, uint32_t* out) {
  const uint32_t lane = ptx::lane_index();
  uint32_t a[4], b[4];
  union {
    uint32_t bits[4];
    float value[4];
  } d;
  ptx::ld_global_v4(a, in + lane * 4);
  ptx::ld_global_v4(b, in + 128 + lane * 4);
  ptx::ld_global_v4(d.bits, in + 256 + lane * 4);
  uint32_t d0 = ptx::pack_f16(d.value[0], d.value[1]), d1 = ptx::pack_f16(d.value[2], d.value[3]);
  ptx::mma_m16n8k16_f16_f16(d0, d1, a, b[0], b[1]);
  const uint32_t packed[4] = {d0, d1, d0, d1};
  ptx::st_global_v4(out + lane * 4, packed);
}

// Four floats a lane become two packed words of each type.
HGEMM_KERNEL(32, 1)
pack(const uint32_t* in, uint32_t* out) {
  const uint32_t lane = ptx::lane_index();
  union {
    uint32_t bits[4];
    float value[4];
  } x;
  stage(in, 0);
  ptx::ld_shared_v4(x.bits, ptx::shared_base() + lane * 16);
  const uint32_t packed[4] = {ptx::pack_f16(x.value[0], x.value[1]), ptx::pack_f16(x.value[2], x.value[3]),
                              ptx::pack_bf16(x.value[0], x.value[1]), ptx::pack_bf16(x.value[2], x.value[3])};
  ptx::st_global_v4(out + lane * 4, packed);
}

// Lane l copies l % (Bytes + 1) bytes, rounded down to whole elements, over memory that is not zero.
template <int Bytes>
HGEMM_KERNEL(32, 1)
zero_fill(const uint32_t* in, uint32_t* out) {
  const uint32_t lane = ptx::lane_index();
  stage(in, 0);
  ptx::cp_async<Bytes>(ptx::shared_base() + lane * Bytes, in + 128 + lane * Bytes / 4, lane % (Bytes + 1) / 2 * 2);
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  ptx::warp_sync();
  dump(out, 512);
}

HGEMM_KERNEL(32, 1)
tma_load(const HGEMM_GRID_CONSTANT TensorMap map, uint32_t* out, uint32_t bytes, int column, int row, int batch) {
  const uint32_t barrier = ptx::shared_base() + bytes;
  if (ptx::lane_index() == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(barrier, bytes);
    ptx::tma_load_3d(ptx::shared_base(), &map, barrier, column, row, batch);
  }
  ptx::warp_sync();
  ptx::mbarrier_wait_parity(barrier, 0);
  dump(out, bytes);
}

HGEMM_KERNEL(32, 1)
tma_store(const HGEMM_GRID_CONSTANT TensorMap map, const uint32_t* in, uint32_t bytes, int column, int row, int batch) {
  for (uint32_t offset = 0; offset < bytes; offset += 512) stage(in + offset / 4, offset);
  ptx::fence_proxy_async();
  ptx::warp_sync();
  if (ptx::lane_index() == 0) {
    ptx::tma_store_3d(&map, ptx::shared_base(), column, row, batch);
    ptx::bulk_commit_group();
    ptx::bulk_wait_group_read<0>();
  }
}

}  // namespace

extern "C" {

// An instruction without a tensor, by its number in golden.py.
const char* golden_instruction(int which, const uint32_t* in, uint32_t* out) {
  switch (which) {
    case 0:
      return hgemm::launch<ldmatrix<false>>(1, 32, 1024, nullptr, in, out);
    case 1:
      return hgemm::launch<ldmatrix<true>>(1, 32, 1024, nullptr, in, out);
    case 2:
      return hgemm::launch<mma<false>>(1, 32, 2048, nullptr, in, out);
    case 3:
      return hgemm::launch<mma<true>>(1, 32, 2048, nullptr, in, out);
    case 4:
      return hgemm::launch<pack>(1, 32, 1024, nullptr, in, out);
    case 5:
      return hgemm::launch<zero_fill<16>>(1, 32, 1024, nullptr, in, out);
    case 6:
      return hgemm::launch<zero_fill<8>>(1, 32, 1024, nullptr, in, out);
    case 7:
      return hgemm::launch<zero_fill<4>>(1, 32, 1024, nullptr, in, out);
    case 8:
      return hgemm::launch<mma_f16_f16>(1, 32, 1024, nullptr, in, out);
    default:
      return "no such instruction";
  }
}

// A box of a tensor of 2 x rows x columns elements whose rows lie `stride` elements apart. A load writes the box as it
// lies in shared memory to `other`, a store takes it from there.
const char* golden_tma(int store, uint16_t* tensor, uint32_t* other, int rows, int columns, int stride, int box_rows,
                       int box_columns, int span, int column, int row, int batch) {
  TensorMap map;
  const Matrices matrices{tensor, rows, columns, 2, stride, int64_t{rows} * stride, false};
  if (const char* error = hgemm::encode_tensor_map(&map, matrices, {box_rows, box_columns, span})) return error;
  const uint32_t bytes = box_rows * box_columns * 2;
  if (store)
    return hgemm::launch<tma_store>(1, 32, bytes, nullptr, map, const_cast<const uint32_t*>(other), bytes, column, row,
                                    batch);
  return hgemm::launch<tma_load>(1, 32, bytes + 8, nullptr, map, other, bytes, column, row, batch);
}

}  // extern "C"
