// ptx.hpp: mbarriers.
#include "ptx.hpp"

#include "calling_thread.hpp"
#include "cluster_address.hpp"

namespace ptx {

using namespace hgemm::emulator;

namespace {

// The mbarrier of `block` at an address, if it is initialised; reported unless it is and this thread can know that.
Mbarrier* find_barrier(const CallingThread& me, Block& block, uint32_t address) {
  Mbarrier* barrier = block.mbarriers.find(address);
  const std::string of = &block == &me.block ? std::string() : format(" of block %u", block.index);
  if (!barrier) {
    me.report(Kind::mbarrier, Space::shared, address, [&] {
      return format("%s at shared address 0x%x%s, where no mbarrier has been initialised", name(me.access.operation),
                    address, of.c_str());
    });
    return nullptr;
  }
  const Warp& initialiser = block.warps[barrier->initialiser_warp];
  const uint32_t known = me.warp.knows.visible()[initialiser.agent];
  const bool same_lane = &initialiser == &me.warp && barrier->initialiser_lane == me.lane.index;
  const bool ordered =
      same_lane || (&initialiser == &me.warp ? barrier->initialised_in < known : barrier->initialised_in <= known);
  if (!ordered)
    me.report(Kind::mbarrier, Space::shared, address, [&] {
      return format(
          "%s at shared address 0x%x%s, initialised by warp %u, and nothing orders the initialisation before it",
          name(me.access.operation), address, of.c_str(), barrier->initialiser_warp);
    });
  return barrier;
}

Mbarrier* find_barrier(const CallingThread& me, uint32_t address) { return find_barrier(me, me.block, address); }

// Whether each lane arrives for itself, as the count of the barrier tells: by whole warps, of so many blocks.
bool counts_lanes(const Mbarrier& barrier, uint32_t blocks = 1) { return barrier.expected % (LANES * blocks) == 0; }

// At an mbarrier of `block`.
void arrive(const CallingThread& me, Block& block, Mbarrier& barrier) {
  barrier.arrive(me.warp, &block == &me.block);
  me.warp.begin_epoch();
  if (barrier.pending < 0) {
    me.report(Kind::mbarrier, Space::shared, barrier.address, [&] {
      return format("the mbarrier at 0x%x has had more arrivals than its count of %lld in one phase", barrier.address,
                    static_cast<long long>(barrier.expected));
    });
    barrier.pending = 0;
  }
  me.group.complete_phase(block, barrier);
  me.group.interrupt(me.lane);
}

void arrive(const CallingThread& me, Mbarrier& barrier) { arrive(me, me.block, barrier); }

}  // namespace

void mbarrier_init(uint32_t address, uint32_t arrivals, Site site) {
  const CallingThread me(Operation::mbarrier_init, site);
  if (!me.block.shared.check_range(me.access, address, 8, 8)) return;
  if (arrivals < 1 || arrivals > Mbarrier::MOST_ARRIVALS) {
    me.report(Kind::mbarrier, Space::shared, address,
              [&] { return format("an mbarrier for %u arrivals: it counts 1 to 2^20 - 1", arrivals); });
    me.group.stop(me.lane);
  }
  if (me.block.mbarriers.find(address)) {
    me.report(Kind::mbarrier, Space::shared, address,
              [&] { return format("the mbarrier at 0x%x is initialised a second time", address); });
    return;
  }
  me.block.shared.claim_mbarrier(me.access, address);
  Mbarrier* barrier = me.block.mbarriers.create(address);
  if (!barrier) {
    me.report(Kind::mbarrier, Space::shared, address,
              [] { return format("the emulator keeps at most %u mbarriers a block", Mbarriers::MOST); });
    me.group.stop(me.lane);
  }
  barrier->expected = barrier->pending = arrivals;
  barrier->initialiser_warp = me.warp.index;
  barrier->initialiser_lane = me.lane.index;
  barrier->initialised_in = me.warp.epoch();
}

void fence_mbarrier_init(Site site) {
  const CallingThread me(Operation::fence_mbarrier_init, site);
  for (Mbarrier& barrier : me.block.mbarriers.all())
    if (barrier.initialiser_warp == me.warp.index && barrier.initialiser_lane == me.lane.index) barrier.fenced = true;
}

void mbarrier_arrive(uint32_t address, Site site) {
  const CallingThread me(Operation::mbarrier_arrive, site);
  Mbarrier* barrier = find_barrier(me, address);
  if (!barrier) return;
  me.warp.register_loads.arrive(me.warp.epoch(), counts_lanes(*barrier));
  arrive(me, *barrier);
}

// Which loads `loaded` depends on cannot be seen from here: all of the warp's are taken to be among them.
void mbarrier_arrive_after(bool arrives, uint32_t address, uint32_t, Site site) {
  if (!arrives) return;
  const CallingThread me(Operation::mbarrier_arrive_after, site);
  Mbarrier* barrier = find_barrier(me, address);
  if (!barrier) return;
  me.warp.register_loads.use_all(me.warp.epoch());
  me.warp.register_loads.arrive(me.warp.epoch(), counts_lanes(*barrier));
  arrive(me, *barrier);
}

// By one lane at a time: every lane may name a block of its own.
void mbarrier_arrive_cluster_after(bool arrives, uint32_t address, uint32_t, Site site) {
  if (!arrives) return;
  const CallingThread me(Operation::mbarrier_arrive_cluster_after, site);
  const uint32_t within = ClusterAddress{address}.within();
  Block* const block = ClusterAddress{address}.block(me.block);
  if (!block) return;
  if (!block->live) {
    me.report(Kind::race, Space::shared, within, [&] {
      return format("mbarrier_arrive_cluster_after at shared address 0x%x of block %u, which has ended", within,
                    block->index);
    });
    return;
  }
  Mbarrier* barrier = find_barrier(me, *block, within);
  if (!barrier) return;
  me.warp.register_loads.use_all(me.warp.epoch());
  me.warp.register_loads.arrive(me.warp.epoch(), counts_lanes(*barrier, me.group.launch.cluster));
  if (block != &me.block) block->remote_arrivals.record(me.access, within, me.warp.agent, me.warp.epoch());
  arrive(me, *block, *barrier);
}

uint32_t mbarrier_arrive_pending(uint32_t address, Site site) {
  const CallingThread me(Operation::mbarrier_arrive_pending, site);
  Mbarrier* barrier = find_barrier(me, address);
  if (!barrier) return 0;
  const int64_t pending = barrier->pending;
  arrive(me, *barrier);
  return static_cast<uint32_t>(pending);
}

void mbarrier_arrive_expect_tx(uint32_t address, uint32_t bytes, Site site) {
  const CallingThread me(Operation::mbarrier_arrive_expect_tx, site);
  Mbarrier* barrier = find_barrier(me, address);
  if (!barrier) return;
  barrier->bytes += bytes;
  barrier->announced_at = site;
  if (barrier->bytes > Mbarrier::MOST_BYTES)
    me.report(Kind::transaction_bytes, Space::shared, address, [&] {
      return format("%lld bytes are announced to the mbarrier at 0x%x, which counts to 2^20 - 1",
                    static_cast<long long>(barrier->bytes), address);
    });
  arrive(me, *barrier);
}

void mbarrier_wait_parity(uint32_t address, uint32_t parity, Site site) {
  const CallingThread me(Operation::mbarrier_wait_parity, site);
  Mbarrier* barrier = find_barrier(me, address);
  if (!barrier) return;
  while (!barrier->completed_parity(parity))
    me.group.suspend(me.lane, Wait::mbarrier, Operation::mbarrier_wait_parity, site, address, parity);
  barrier->teach(me.warp);
  me.group.interrupt(me.lane);
}

}  // namespace ptx
