// ptx.hpp: clusters, the barrier of their blocks, and loads from each other's shared memory.
#include "ptx.hpp"

#include "calling_thread.hpp"
#include "cluster_address.hpp"

namespace ptx {

using namespace hgemm::emulator;

uint32_t cluster_rank() {
  const Block& block = *current_lane->warp->block;
  return block.group->cluster_rank(block);
}

namespace {

// What the warp does from here on is not covered by what it passes on. Its lanes are not together before they wait.
// `shows`: what was written, too.
void arrive(const CallingThread& me, bool shows) {
  me.together(nullptr, [&](void* const*) {
    Warp& warp = me.warp;
    ClusterBarrier& barrier = me.group.cluster_barrier(me.block);
    if (warp.at_cluster)
      me.report(Kind::barrier, Space::none, 0,
                [] { return std::string("the warp arrives at the cluster's barrier again without having waited"); });
    warp.at_cluster = true;
    warp.cluster_phase = barrier.phases;
    shows ? barrier.arriving.join(warp.knows) : barrier.arriving.join_unseen(warp.knows);
    barrier.arrived += static_cast<uint32_t>(std::popcount(warp.present));
    warp.begin_epoch_of_fence();
    warp.cluster_epoch = warp.epoch();
    me.group.complete_cluster_phase(me.block);
  });
}

}  // namespace

void cluster_arrive(Site site) { arrive(CallingThread(Operation::cluster_arrive, site), true); }

// That it shows shared memory alone is not followed: nothing here is written to global memory for another block of the
// cluster.
void cluster_arrive_shared(Site site) { arrive(CallingThread(Operation::cluster_arrive_shared, site), true); }

// Which loads `loaded` depends on cannot be seen from here: all of the warp's are taken to be among them.
void cluster_arrive_after(float, Site site) { arrive(CallingThread(Operation::cluster_arrive_after, site), false); }

void cluster_wait(Site site) {
  const CallingThread me(Operation::cluster_wait, site);
  me.together(nullptr, [&](void* const*) {
    if (!me.warp.at_cluster)
      me.report(Kind::barrier, Space::none, 0,
                [] { return std::string("the warp waits at the cluster's barrier without having arrived"); });
    me.warp.at_cluster = false;
  });
  const ClusterBarrier& barrier = me.group.cluster_barrier(me.block);
  while (barrier.phases <= me.warp.cluster_phase && me.warp.cluster_phase != Warp::NO_PHASE)
    me.group.suspend(me.lane, Wait::cluster, Operation::cluster_wait, site);
  me.warp.learn(barrier.completed);
  me.warp.lanes_apart_since = std::max(me.warp.lanes_apart_since, me.warp.cluster_epoch);
  me.warp.register_loads.block_synchronised();
  me.lane.first_unfenced_write = 0;  // a fence behind the barrier covers it, whoever executes that
  me.group.interrupt(me.lane);
}

uint32_t mapa(uint32_t address, uint32_t rank, Site site) {
  const CallingThread me(Operation::mapa, site);
  if (rank >= me.group.launch.cluster)
    me.report(Kind::out_of_bounds, Space::shared, address, [&] {
      return format("mapa asks for the memory of block %u of a cluster of %u", rank, me.group.launch.cluster);
    });
  return ClusterAddress::of(rank, address);
}

void ld_shared_cluster_v4(float (&value)[4], uint32_t address, Site site) {
  const CallingThread me(Operation::ld_shared_cluster_v4, site);
  std::memset(value, 0xff, 16);
  const uint32_t within = ClusterAddress{address}.within();
  Block* const named = ClusterAddress{address}.block(me.block);
  if (!named) return;
  Block& block = *named;
  if (!block.live) {
    me.report(Kind::race, Space::shared, within, [&] {
      return format("ld_shared_cluster_v4 reads shared address 0x%x of block %u, which has ended", within, block.index);
    });
    return;
  }
  if (!block.shared.check_range(me.access, within, 16, 16)) return;
  me.block.banks[me.warp.index].record(me.access.operation, site, me.lane.index, within, 16, me.group.report.counters);
  me.counter().shared_bytes += 16;
  block.shared.read(me.access, within, 16);
  std::memcpy(value, block.shared.data(within), 16);
}

}  // namespace ptx
