// Small kernels, each right by itself and wrong in a few named ways, for test_emulator_rules.py. `Fault` 0 is right.
#include "launch.cuh"
#include "ptx_cluster.cuh"

using hgemm::Matrices;
using hgemm::TensorMap;

namespace {

constexpr int ROWS = 64, COLUMNS = 64;  // of the matrix that most kernels move: one box, 128 bytes a row
constexpr uint32_t BYTES = ROWS * COLUMNS * 2;

uint32_t row_address(uint32_t thread) { return ptx::shared_base() + thread * 16; }

// ---- shared memory: what an ordinary access may do. 64 threads. ----
// 1: reads what nobody wrote  2: outside  3: misaligned  4: no barrier between warps  5: no warp_sync between lanes
// 6: overwrites what another warp still reads
template <int Fault>
void exchange(uint16_t* out) {
  const uint32_t thread = ptx::thread_index();
  uint32_t value[4] = {thread, thread, thread, thread};
  if (Fault != 1) ptx::st_shared_v4(row_address(thread) + (Fault == 2 ? 4096 : 0) + (Fault == 3 ? 4 : 0), value);
  if (Fault == 4 || Fault == 5) {
    if (Fault == 4) ptx::warp_sync();
  } else {
    ptx::barrier_sync();
  }
  ptx::ld_shared_v4(value, row_address(Fault == 5 ? thread ^ 1 : 63 - thread));
  if (Fault != 6) ptx::barrier_sync();
  ptx::st_shared_v4(row_address(thread), value);
  ptx::st_global_v4(out + thread * 8, value);
}

// ---- TMA store: 128 threads fill a box, one stores it, and it is filled and stored again one row of boxes below. ----
// 1: no proxy fence  2: the fence before the writes  3: one lane skips the fence  4: no barrier  5: no wait at the end
// 6: fills the box again without waiting for the store  7: waits, but the others do not wait for the one that waited
// 8: a column that is no multiple of 16 bytes  9: one left of the tensor
template <int Fault>
void store(const HGEMM_GRID_CONSTANT TensorMap map) {
  const uint32_t thread = ptx::thread_index();
  for (int round = 0; round < 2; ++round) {
    if (Fault == 2) ptx::fence_proxy_async();
    for (uint32_t i = thread; i < BYTES / 4; i += 128) ptx::st_shared_b32(ptx::shared_base() + i * 4, i + round);
    if (Fault != 1 && Fault != 2 && !(Fault == 3 && thread == 77)) ptx::fence_proxy_async();
    if (Fault != 4) ptx::barrier_sync();
    if (thread == 0) {
      ptx::tma_store_3d(&map, ptx::shared_base(), Fault == 8 ? 4 : Fault == 9 ? -8 : 0, round * ROWS, 0);
      ptx::bulk_commit_group();
      if (Fault != 6 && Fault != 5) ptx::bulk_wait_group_read<0>();
      if (Fault == 5 && round == 0) ptx::bulk_wait_group_read<0>();
      if (Fault == 6 && round == 1) ptx::bulk_wait_group_read<0>();
    }
    if (Fault != 7) ptx::barrier_sync();
  }
}

// ---- a ring with a producer warp and two consumer warps, over two products: 96 threads, two stages. ----
// 1: the empty barriers count one arrival too few  2: released before it is read  3: the phase starts anew with the
// second product  4: the producer does not wait for empty stages  5: a block barrier in one role only
// 6: one consumer waits at the wrong named barrier  7: the named barrier counts one warp too many
template <int Fault>
void ring(const HGEMM_GRID_CONSTANT TensorMap map, uint16_t* out) {
  constexpr uint32_t STAGES = 2, TILES = 3, TILE_BYTES = 8 * 128;
  const uint32_t full = ptx::shared_base() + STAGES * TILE_BYTES, empty = full + STAGES * 8;
  const uint32_t warp = ptx::warp_index(), lane = ptx::lane_index();
  if (warp == 0 && ptx::elect_one()) {
    for (uint32_t stage = 0; stage < STAGES; ++stage) {
      ptx::mbarrier_init(full + stage * 8, 1);
      ptx::mbarrier_init(empty + stage * 8, Fault == 1 ? 1 : 2);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::barrier_sync();
  if (warp == 2) {
    if (ptx::elect_one()) {
      for (uint32_t product = 0, i = 0; product < 2; ++product) {
        if (Fault == 3) i = 0;
        for (uint32_t tile = 0; tile < TILES; ++tile, ++i) {
          const uint32_t stage = i % STAGES;
          if (Fault != 4) ptx::mbarrier_wait_parity(empty + stage * 8, i / STAGES % 2 ^ 1);
          ptx::mbarrier_arrive_expect_tx(full + stage * 8, TILE_BYTES);
          ptx::tma_load_3d(ptx::shared_base() + stage * TILE_BYTES, &map, full + stage * 8, 0, tile * 8, 0);
        }
      }
    }
    return;
  }
  for (uint32_t i = 0; i < 2 * TILES; ++i) {
    const uint32_t stage = i % STAGES;
    ptx::mbarrier_wait_parity(full + stage * 8, i / STAGES % 2);
    if (Fault == 2) {
      ptx::warp_sync();
      if (lane == 0) ptx::mbarrier_arrive(empty + stage * 8);
    }
    uint32_t value[4];
    ptx::ld_shared_v4(value, ptx::shared_base() + stage * TILE_BYTES + (warp * 32 + lane) * 16);
    if (Fault != 2) {
      ptx::warp_sync();
      if (lane == 0) ptx::mbarrier_arrive(empty + stage * 8);
    }
    ptx::st_global_v4(out + (i * 64 + warp * 32 + lane) * 8, value);
    if (Fault == 5) ptx::barrier_sync();
    ptx::named_barrier_sync(Fault == 6 && warp == 1 ? 2 : 1, Fault == 7 ? 96 : 64);
  }
}

// ---- a warp that frees what it reads with ldmatrix, and one that refills it: 64 threads, one stage. ----
// 1: the arrival does not depend on the loads  2: an mma in front of it does not change that  3: no warp_sync: one lane
// frees what the others may still read  4: some lanes take no part in the shuffle
template <int Fault>
void freed(const HGEMM_GRID_CONSTANT TensorMap map, uint16_t* out) {
  const uint32_t full = ptx::shared_base() + 8 * 128, empty = full + 8;
  const uint32_t warp = ptx::warp_index(), lane = ptx::lane_index();
  if (warp == 0 && ptx::elect_one()) {
    ptx::mbarrier_init(full, 1);
    ptx::mbarrier_init(empty, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::barrier_sync();
  if (warp == 1 && !ptx::elect_one()) return;
  for (uint32_t round = 0; round < 2; ++round) {
    if (warp == 1) {
      ptx::mbarrier_wait_parity(empty, round ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, 8 * 128);
      ptx::tma_load_3d(ptx::shared_base(), &map, full, 0, round * 8, 0);
      continue;
    }
    ptx::mbarrier_wait_parity(full, round);
    uint32_t value[4];
    float sums[4] = {};
    ptx::ldmatrix_x4(value, ptx::shared_base() + lane * 16);
    if (Fault == 2) ptx::mma_m16n8k16_f16(sums, value, value[0], value[1]);
    if (Fault != 3) ptx::warp_sync();
    if (lane == 0 && (Fault == 1 || Fault == 2)) ptx::mbarrier_arrive(empty);
    if (Fault != 1 && Fault != 2) ptx::mbarrier_arrive_after(lane == 0, empty, value[0]);
    if (Fault == 4 && lane >= 16) return;
    value[0] = ptx::shuffle_xor(value[0], 1);
    ptx::st_global_v4(out + (round * 32 + lane) * 8, value);
  }
}

// ---- two blocks of 32 threads that pass a row of values through global memory. ----
// 1: the flag is stored before the values  2: no acquire  3: the flag is never set  4: no warp_sync before the flag
template <int Fault>
void pass(uint16_t* values, uint16_t* out, uint32_t* flag) {
  const uint32_t lane = ptx::lane_index();
  uint32_t value[4] = {lane, lane, lane, lane};
  if (ptx::block_index() == 0) {
    if (Fault == 1 && lane == 0) ptx::st_release_gpu(flag, 1);
    ptx::st_global_v4(values + lane * 8, value);
    ptx::warp_sync();
    if (Fault != 1 && Fault != 3 && lane == 0) ptx::st_release_gpu(flag, 1);
    if (Fault == 1) ptx::warp_sync();
    return;
  }
  if (Fault != 2) {
    while (ptx::ld_acquire_gpu(flag) == 0) {
    }
  }
  ptx::warp_sync();
  ptx::ld_global_v4(value, values + lane * 8);
  ptx::st_global_v4(out + lane * 8, value);
}

// ---- blocks that each add their part to a counter; the last one sums up. ----
// 1: every block believes to be the last
template <int Fault>
void last(uint16_t* parts, uint16_t* out, uint32_t* counter) {
  const uint32_t lane = ptx::lane_index(), block = ptx::block_index();
  ptx::st_global_b16(parts + block * 32 + lane, block + lane);
  ptx::warp_sync();
  uint32_t before = 0;
  if (lane == 0) before = ptx::atomic_add_acq_rel_gpu(counter, 1);
  before = ptx::shuffle_index(before, 0);
  if (Fault == 0 && before + 1 != ptx::grid_blocks()) return;
  uint32_t sum = 0;
  for (uint32_t i = 0; i < ptx::grid_blocks(); ++i) sum += ptx::ld_global_b16(parts + i * 32 + lane);
  ptx::st_global_b16(out + lane, sum);
}

// ---- what a warp does together: 32 threads. ----
// 1: no warp_sync between stmatrix and ldmatrix  2: half of the lanes load  3: the halves load from different lines
// 4: lanes exit before the others load  5: trap  6: an mbarrier that is not initialised  7: initialised twice
// 8: too many arrivals  9: a cp.async that nobody waits for
template <int Fault>
void together(const uint16_t* in, uint16_t* out) {
  const uint32_t lane = ptx::lane_index(), address = ptx::shared_base() + lane * 16, barrier = ptx::shared_base() + 512;
  if (Fault == 9) ptx::cp_async<16>(address, in + lane * 8, 16);
  if (Fault == 9) return;
  if (Fault == 4 && lane >= 16) return;
  if (Fault == 5 && lane == 3) ptx::trap();
  if (Fault >= 6 && Fault <= 8 && lane == 0) {
    if (Fault != 6) ptx::mbarrier_init(barrier, 1);
    if (Fault == 7) ptx::mbarrier_init(barrier, 1);
    if (Fault == 8) ptx::st_shared_b32(barrier + 4, 0);
    ptx::mbarrier_arrive(barrier);
  }
  uint32_t value[4] = {lane, lane + 32, lane + 64, lane + 96};
  ptx::stmatrix_x4(address, value);
  if (Fault != 1) ptx::warp_sync();
  if (Fault == 2) {
    if (lane < 16) ptx::ldmatrix_x4(value, address);
  } else if (Fault == 3 && lane < 16) {
    ptx::ldmatrix_x4(value, address);
  } else {
    ptx::ldmatrix_x4(value, address);
  }
  ptx::st_global_v4(out + lane * 8, value);
}

// ---- global memory, by two blocks of 32 threads. ----
// 1: both write the same elements  2: one reads what the other writes  3: reads past the end  4: writes an input
// 5: leaves elements unwritten  6: misaligned
template <int Fault>
void global(const uint16_t* in, uint16_t* out) {
  const uint32_t lane = ptx::lane_index(), block = Fault == 1 ? 0 : ptx::block_index();
  const uint32_t element = (block * 32 + lane) * 8;
  uint32_t value[4];
  ptx::ld_global_v4(value, in + element + (Fault == 3 ? 8 : 0));
  if (Fault == 4) ptx::st_global_v4(const_cast<uint16_t*>(in) + element, value);
  if (Fault == 2 && block == 1) value[0] = ptx::ld_global_b32(out + lane * 8);
  if (Fault == 5 && lane == 7) return;
  ptx::st_global_v4(out + element + (Fault == 6 ? 2 : 0), value);
}

// ---- one lane is elected, also when it ends before the others go on. ----
template <int Fault>
void only(uint16_t* out) {
  const uint32_t elected = ptx::elect_one();
  ptx::st_global_b16(out + ptx::lane_index(), elected);
}

// ---- the lanes of a warp exchange what they have staged. ----
// 1: a fence in place of the synchronisation
template <int Fault>
void fenced(uint16_t* out) {
  const uint32_t lane = ptx::lane_index();
  uint32_t value[4] = {lane, lane, lane, lane};
  ptx::st_shared_v4(row_address(lane), value);
  ptx::fence_proxy_async();
  if (Fault != 1) ptx::warp_sync();
  ptx::ld_shared_v4(value, row_address(31 - lane));
  ptx::st_global_v4(out + lane * 8, value);
}

// ---- a kernel of two blocks that reads what the one before it has written, launched so that the two may overlap. ----
// 1: it does not wait for the other  2: some lanes do not wait
void writes(uint16_t* values) {
  ptx::griddepcontrol_launch_dependents();
  const uint32_t lane = ptx::lane_index(), element = (ptx::block_index() * 32 + lane) * 8;
  const float value[4] = {1, 2, 3, static_cast<float>(lane)};
  ptx::st_global_v4(values + element, value);
}

template <int Fault>
void reads(const uint16_t* values, uint16_t* out) {
  const uint32_t lane = ptx::lane_index(), element = ((1 - ptx::block_index()) * 32 + lane) * 8;
  if (Fault == 0 || (Fault == 2 && lane < 16)) ptx::griddepcontrol_wait();
  float value[4];
  ptx::ld_global_v4(value, values + element);
  ptx::st_global_v4(out + element, value);
}

// ---- three blocks of a cluster, of 64 threads, each of which reads the next one's values. ----
// 1: no barrier ahead of the reads  2: none behind them  3: one warp arrives before it has read  4: a block writes
// again what the others may be reading  5: a rank that the cluster does not have  6: an ordinary load from another's
// memory 7: arrives twice  8: waits without having arrived  9: a warp of one block waits for the other, which has gone
// on  10: an arrival ahead of the reads that shows nobody what was written
template <int Fault>
void neighbours(uint16_t* out) {
  const uint32_t thread = ptx::thread_index(), rank = ptx::cluster_rank();
  float value[4] = {static_cast<float>(rank), static_cast<float>(thread), 1, 2};
  ptx::st_shared_v4(row_address(thread), value);
  if (Fault == 9 && rank == 2 && thread < 32) ptx::barrier_sync();
  if (Fault != 1 && Fault != 10) ptx::cluster_arrive_shared();
  if (Fault == 10) ptx::cluster_arrive_after(0);
  if (Fault == 7) ptx::cluster_arrive();
  if (Fault != 1) ptx::cluster_wait();
  if (Fault == 8) ptx::cluster_wait();
  const uint32_t address = ptx::mapa(row_address(63 - thread), Fault == 5 ? 3 : (rank + 1) % 3);
  if (Fault == 3 && thread < 32) ptx::cluster_arrive();
  uint32_t word[4];
  if (Fault == 6) ptx::ld_shared_v4(word, address);
  ptx::ld_shared_cluster_v4(value, address);
  if (Fault != 2 && !(Fault == 3 && thread < 32)) ptx::cluster_arrive_after(value[0]);
  if (Fault == 4) ptx::st_shared_v4(row_address(thread), value);
  ptx::st_global_v4(out + (ptx::block_index() * 64 + thread) * 8, value);
  if (Fault != 2) ptx::cluster_wait();
}

// ---- the warps of two blocks of a cluster exchange elements of global memory, and the lanes of each their own. ----
// 1: by blocks of two clusters  2: reads between its arrival and its wait  3: lanes read what others wrote in between
// 4: lanes read in between what others wrote before
template <int Fault>
void meeting(uint16_t* values, uint16_t* out) {
  const uint32_t thread = ptx::block_index() * 32 + ptx::lane_index();
  uint32_t words[4];
  ptx::st_global_b16(values + thread, thread);
  if (Fault == 4) ptx::st_shared_b32(ptx::shared_base() + ptx::lane_index() * 4, thread);
  ptx::cluster_arrive();
  uint32_t other = 0;
  if (Fault == 2) other = ptx::ld_global_b16(values + 63 - thread);
  if (Fault != 4) ptx::st_shared_b32(ptx::shared_base() + ptx::lane_index() * 4, thread);
  if (Fault != 3 && Fault != 4) ptx::warp_sync();
  if (Fault == 4) ptx::ld_shared_v4(words, ptx::shared_base() + ptx::lane_index() / 4 * 16);
  ptx::cluster_wait();
  if (Fault != 4) ptx::ld_shared_v4(words, ptx::shared_base() + ptx::lane_index() / 4 * 16);
  if (Fault != 2) other = ptx::ld_global_b16(values + 63 - thread);
  ptx::st_global_b16(out + thread, other + words[0]);
}

const char* encode(TensorMap* map, void* base, int rows, int box_rows) {
  return hgemm::encode_tensor_map(map, Matrices{base, rows, COLUMNS, 1, COLUMNS, rows * COLUMNS, false},
                                  {box_rows, COLUMNS, 128});
}

template <int Fault>
const char* run(const char* rule, uint16_t* in, uint16_t* out, uint32_t* flag) {
  TensorMap map;
  switch (rule[0]) {
    case 'e':
      return hgemm::launch<exchange<Fault>>(1, 64, 1024, nullptr, out);
    case 's':
      if (const char* error = encode(&map, out, 2 * ROWS, ROWS)) return error;
      return hgemm::launch<store<Fault>>(1, 128, BYTES, nullptr, map);
    case 'r':
      if (const char* error = encode(&map, in, 24, 8)) return error;
      return hgemm::launch<ring<Fault>>(1, 96, 2 * 1024 + 32, nullptr, map, out);
    case 'f':
      if (const char* error = encode(&map, in, 16, 8)) return error;
      return hgemm::launch<freed<Fault>>(1, 64, 8 * 128 + 16, nullptr, map, out);
    case 'p':
      return hgemm::launch_cooperative<pass<Fault>>(2, 32, 0, nullptr, in, out, flag);
    case 'P':
      return hgemm::launch<pass<Fault>>(2, 32, 0, nullptr, in, out, flag);
    case 'l':
      return hgemm::launch_cooperative<last<Fault>>(5, 32, 0, nullptr, in, out, flag);
    case 't':
      return hgemm::launch<together<Fault>>(1, 32, 1024, nullptr, in, out);
    case 'g':
      return hgemm::launch<global<Fault>>(2, 32, 0, nullptr, in, out);
    case 'n':
      return hgemm::launch_clusters<neighbours<Fault>>(3, 6, 64, 1024, nullptr, out);
    case 'm':
      return hgemm::launch_clusters<meeting<Fault>>(Fault == 1 ? 1 : 2, 2, 32, 128, nullptr, in, out);
    case 'N':  // not whole clusters, and more blocks in one than every GPU takes
      return Fault == 0 ? hgemm::launch_clusters<neighbours<0>>(3, 7, 64, 1024, nullptr, out)
                        : hgemm::launch_clusters<neighbours<0>>(9, 9, 64, 1024, nullptr, out);
    case 'd':
      if (const char* error = hgemm::launch<writes>(2, 32, 0, nullptr, in)) return error;
      return hgemm::launch_dependent<reads<Fault>>(2, 32, 0, nullptr, in, out);
    case 'o':
      return hgemm::launch<only<Fault>>(1, 32, 0, nullptr, out);
    case 'F':
      return hgemm::launch<fenced<Fault>>(1, 32, 1024, nullptr, out);
    case 'b':  // behind the other in any case
      if (const char* error = hgemm::launch<writes>(2, 32, 0, nullptr, in)) return error;
      return hgemm::launch<reads<1>>(2, 32, 0, nullptr, in, out);
    default:
      return "no such rule";
  }
}

}  // namespace

extern "C" const char* run_rule(const char* rule, int fault, uint16_t* in, uint16_t* out, uint32_t* flag) {
  static constexpr const char* (*runs[])(const char*, uint16_t*, uint16_t*, uint32_t*) = {
      run<0>, run<1>, run<2>, run<3>, run<4>, run<5>, run<6>, run<7>, run<8>, run<9>, run<10>};
  return runs[fault](rule, in, out, flag);
}
