// Kernels of clusters whose two blocks share tiles by multicast, each right by itself and wrong in a few named ways,
// for test_emulator_multicast.py. `Fault` 0 is right.
#include "launch.cuh"
#include "ptx_cluster.cuh"

using hgemm::Matrices;
using hgemm::TensorMap;

namespace {

constexpr uint32_t CLUSTER = 2, STAGES = 2, TILES = 7, THREADS = 64;
constexpr int ROWS = 8, COLUMNS = 64;  // of half a tile, which is a box
constexpr uint32_t HALF_BYTES = ROWS * COLUMNS * 2, TILE_BYTES = CLUSTER * HALF_BYTES;
constexpr uint32_t SHARED_BYTES = STAGES * TILE_BYTES + 2 * STAGES * 8;

// Warp 1 of each block copies its half of the tile into both blocks, warp 0 of each reads the whole tile. The clusters
// take turns at the tiles.
// 1: a stage is free when its own block has read it  2: reads without waiting  3: the blocks do not meet behind the
// initialisation  4: nor at the end  5: freed before it is read  6: a bit beyond the cluster  7: no bit at all
// 8: half of the bytes are announced  9: each block copies for itself alone  10: both copy the same half
// 11: the arrival at the own mbarrier does not depend on the loads  12: no warp_sync: lanes free what others may read
// 13: twice as many arrivals as are counted  14: written with ordinary stores before it is freed, and no fence
// 15: no fence behind the initialisation  16: no stage is ever waited for  17: the other block's mbarrier alone
// 18: the copies of the last tile are not waited for  19: an address of mapa beyond the cluster
template <int Fault>
void halves(const HGEMM_GRID_CONSTANT TensorMap map, uint16_t* out) {
  const uint32_t landed = ptx::shared_base() + STAGES * TILE_BYTES, freed = landed + STAGES * 8;
  const uint32_t warp = ptx::warp_index(), lane = ptx::lane_index(), rank = ptx::cluster_rank();
  const uint32_t first = ptx::block_index() / CLUSTER, step = ptx::grid_blocks() / CLUSTER;
  if (warp == 0 && ptx::elect_one()) {
    for (uint32_t stage = 0; stage < STAGES; ++stage) {
      ptx::mbarrier_init(landed + stage * 8, 1);
      ptx::mbarrier_init(freed + stage * 8, Fault == 1 || Fault == 17 ? 1 : CLUSTER);
    }
    if (Fault != 15) ptx::fence_mbarrier_init();
  }
  if (Fault == 3) {
    ptx::barrier_sync();
  } else {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }

  if (warp == 1 && ptx::elect_one()) {
    uint32_t i = 0;
    for (uint32_t number = first; number < TILES; number += step, ++i) {
      const uint32_t stage = i % STAGES, barrier = landed + stage * 8, half = Fault == 10 ? 0 : rank;
      if (Fault != 16) ptx::mbarrier_wait_parity(freed + stage * 8, i / STAGES % 2 ^ 1);
      ptx::mbarrier_arrive_expect_tx(barrier, Fault == 8 ? HALF_BYTES : TILE_BYTES);
      const uint32_t blocks = Fault == 6 ? 7 : Fault == 7 ? 0 : Fault == 9 ? 1 << rank : 3;
      ptx::tma_load_3d_multicast(ptx::shared_base() + stage * TILE_BYTES + half * HALF_BYTES, &map, barrier, 0,
                                 (number * CLUSTER + half) * ROWS, 0, blocks);
    }
  }
  if (warp == 0) {
    uint32_t i = 0;
    for (uint32_t number = first; number < TILES; number += step, ++i) {
      if (Fault == 18 && number + step >= TILES) break;
      const uint32_t stage = i % STAGES, tile = ptx::shared_base() + stage * TILE_BYTES;
      const uint32_t to = Fault == 1 ? rank : Fault == 17 ? 1 - rank : lane % CLUSTER + (Fault == 19 ? 1 : 0);
      const uint32_t arrives = lane < (Fault == 1 || Fault == 17 ? 1 : Fault == 13 ? 2 * CLUSTER : CLUSTER);
      const uint32_t barrier = ptx::mapa(freed + stage * 8, to);
      if (Fault != 2) ptx::mbarrier_wait_parity(landed + stage * 8, i / STAGES % 2);
      if (Fault == 5) {
        ptx::warp_sync();
        ptx::mbarrier_arrive_cluster_after(arrives, barrier, 0);
      }
      uint32_t value[4], loaded[4];
      for (uint32_t chunk = lane; chunk < TILE_BYTES / 16; chunk += 32) {
        ptx::ld_shared_v4(value, tile + chunk * 16);
        ptx::st_global_v4(out + ((number * CLUSTER + rank) * TILE_BYTES / 16 + chunk) * 8, value);
        if (Fault != 5) ptx::ldmatrix_x4(loaded, tile + chunk * 16);
      }
      if (Fault == 14) ptx::st_shared_b32(tile + lane * 4, 0);
      if (Fault != 12) ptx::warp_sync();
      if (Fault == 11 && lane == rank) ptx::mbarrier_arrive(freed + stage * 8);
      if (Fault != 5) ptx::mbarrier_arrive_cluster_after(arrives && !(Fault == 11 && lane == rank), barrier, loaded[0]);
    }
  }

  if (Fault != 4) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
}

// The one warp of block 0 sends a box to block 1, and then another to the same place, when that has read the first.
// 1: told before it is read  2: the blocks meet instead, which waits for no ldmatrix  3: the other block ends in
// between  4: to itself, without a cluster  5: more bytes than an mbarrier counts, before any is announced
// 6: the arrival that tells of reading is taken for one that shows what has been written, to shared memory
// 7: or to global memory
template <int Fault>
void sent(const HGEMM_GRID_CONSTANT TensorMap map, uint16_t* out) {
  const uint32_t landed = ptx::shared_base() + HALF_BYTES, freed = landed + 8, note = landed + 16;
  const uint32_t lane = ptx::lane_index(), rank = ptx::cluster_rank();
  if (lane == 0) {
    ptx::mbarrier_init(landed, 1);
    ptx::mbarrier_init(freed, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();
  for (uint32_t round = 0; round < 2; ++round) {
    if (rank == 0) {
      if (round == 1 && Fault != 2) ptx::mbarrier_wait_parity(freed, 0);
      float noted[4];
      if (round == 1 && Fault == 6) ptx::ld_shared_cluster_v4(noted, ptx::mapa(note, 1));
      if (round == 1 && Fault == 7) ptx::ld_global_b16(out);
      for (uint32_t i = 0; i < (Fault == 5 ? 1024 : 1) && lane == 0; ++i)
        ptx::tma_load_3d_multicast(ptx::shared_base(), &map, landed, 0, round * ROWS, 0, Fault == 4 ? 1 : 2);
    } else {
      if (lane == 0) ptx::mbarrier_arrive_expect_tx(landed, HALF_BYTES);
      ptx::mbarrier_wait_parity(landed, round);
      if (Fault == 1) ptx::mbarrier_arrive_cluster_after(lane == 0, ptx::mapa(freed, 0), 0);
      uint32_t value[4], loaded[4] = {};
      for (uint32_t chunk = lane; chunk < HALF_BYTES / 16; chunk += 32) {
        ptx::ld_shared_v4(value, ptx::shared_base() + chunk * 16);
        ptx::st_global_v4(out + (round * HALF_BYTES / 16 + chunk) * 8, value);
        if (Fault != 1) ptx::ldmatrix_x4(loaded, ptx::shared_base() + chunk * 16);
      }
      if (Fault == 6 && lane == 0) ptx::st_shared_v4(note, value);
      ptx::warp_sync();
      if (Fault != 1 && Fault != 2) ptx::mbarrier_arrive_cluster_after(lane == 0, ptx::mapa(freed, 0), loaded[0]);
      if (Fault == 3) return;
    }
    if (Fault != 2 && round == 0) continue;
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
}

template <int Fault>
const char* run(char kernel, uint16_t* in, uint16_t* out) {
  TensorMap map;
  constexpr int rows = TILES * CLUSTER * ROWS;
  const Matrices matrices{in, rows, COLUMNS, 1, COLUMNS, rows * COLUMNS, false};
  if (const char* error = hgemm::encode_tensor_map(&map, matrices, {ROWS, COLUMNS, 128})) return error;
  constexpr int sent_bytes = HALF_BYTES + 32;
  if (kernel == 's' && Fault == 4) return hgemm::launch<sent<Fault>>(CLUSTER, 32, sent_bytes, nullptr, map, out);
  if (kernel == 's') return hgemm::launch_clusters<sent<Fault>>(CLUSTER, CLUSTER, 32, sent_bytes, nullptr, map, out);
  uint32_t resident;
  if (const char* error = hgemm::resident_clusters<halves<Fault>>(CLUSTER, THREADS, SHARED_BYTES, &resident))
    return error;
  const uint32_t blocks = CLUSTER * (resident < TILES ? resident : TILES);
  if (kernel == 'H') return hgemm::launch<halves<Fault>>(blocks, THREADS, SHARED_BYTES, nullptr, map, out);
  return hgemm::launch_clusters<halves<Fault>>(CLUSTER, blocks, THREADS, SHARED_BYTES, nullptr, map, out);
}

}  // namespace

extern "C" const char* run_multicast(const char* kernel, int fault, uint16_t* in, uint16_t* out) {
  static constexpr const char* (*runs[])(char, uint16_t*, uint16_t*) = {
      run<0>,  run<1>,  run<2>,  run<3>,  run<4>,  run<5>,  run<6>,  run<7>,  run<8>,  run<9>,
      run<10>, run<11>, run<12>, run<13>, run<14>, run<15>, run<16>, run<17>, run<18>, run<19>};
  return runs[fault](kernel[0], in, out);
}
