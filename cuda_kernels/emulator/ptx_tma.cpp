// ptx.hpp: the copy engine, its bulk groups, and the fence between the two proxies.
#include "ptx.hpp"

#include <utility>

#include "calling_thread.hpp"

namespace ptx {

using namespace hgemm::emulator;

namespace {

// The fields of a tensor map and the box's place, checked; false if the copy cannot be made.
bool check_copy(const CallingThread& me, const TensorMapFields& map, uint32_t shared_address, int column) {
  if (map.magic != TensorMapFields::MAGIC) {
    me.report(Kind::misaligned, Space::none, 0,
              [&] { return format("%s is given a tensor map that was never encoded", name(me.access.operation)); });
    return false;
  }
  if (column % 8) {  // the device stops with an illegal instruction
    me.report(Kind::misaligned, Space::none, 0, [&] {
      return format("%s is to start at column %d: the first byte must be a multiple of 16, the column one of 8",
                    name(me.access.operation), column);
    });
    return false;
  }
  return me.block.shared.check_range(me.access, shared_address, map.box_bytes(), map.shared_alignment());
}

// The copy must not overtake an ldmatrix of the block whose values are still on their way to registers.
void check_register_loads(const CallingThread& me, const Block& block, uint32_t destination, uint32_t bytes) {
  for (const Warp& warp : block.warps) {
    const RegisterLoads::Rows* rows = warp.register_loads.find(destination, bytes, me.warp.knows.generic[warp.agent]);
    if (!rows) continue;
    me.report(Kind::race, Space::shared, destination, [&] {
      return format(
          "%s writes %u bytes at shared address 0x%x of block %u, which warp %u reads with an ldmatrix at %s: "
          "the memory was released before anything had used what the ldmatrix loads",
          name(me.access.operation), bytes, destination, block.index, warp.index, place(rows->site).c_str());
    });
  }
}

// Whether the copy engine may report to an mbarrier of `block`: it is initialised, a fence came behind that, and of
// another block this thread has learnt as much.
bool check_barrier(const CallingThread& me, Block& block, const Mbarrier* barrier, uint32_t address) {
  const auto fault = [&](const char* sentence) {
    me.report(Kind::mbarrier, Space::shared, address,
              [&] { return format(sentence, name(me.access.operation), address, block.index); });
  };
  if (!barrier) {
    fault("%s is to report to shared address 0x%x of block %u, where no mbarrier has been initialised");
    return false;
  }
  if (!barrier->fenced) fault("%s uses the mbarrier at 0x%x of block %u, and no fence came behind its initialisation");
  const uint32_t initialiser = block.warps[barrier->initialiser_warp].agent;
  if (&block != &me.block && barrier->initialised_in > me.warp.knows.visible()[initialiser])
    fault("%s uses the mbarrier at 0x%x of block %u, and nothing orders its initialisation before that");
  return true;
}

struct Box {
  int64_t column, row, batch;
};

// A load into the memory of `block` begins.
void begin_load(const CallingThread& me, Block& block, const TensorMapFields& fields, uint32_t destination,
                uint32_t barrier_address, const Box& box, bool counts_global) {
  Mbarrier* barrier = block.mbarriers.find(barrier_address);
  if (!check_barrier(me, block, barrier, barrier_address)) return;
  check_register_loads(me, block, destination, fields.box_bytes());
  block.shared.begin_copy(me.access, destination, fields.box_bytes(), true);
  block.trace.note(Happening::issued, destination);
  me.group.issue(block,
                 {0, true, fields, box.column, box.row, box.batch, destination, barrier, me.access, counts_global});
}

}  // namespace

// From here on the async proxy knows what this thread has written, and all that the thread has learnt of the writes of
// others. Of its own warp that excludes what other lanes have written and not fenced.
void fence_proxy_async(Site site) {
  const CallingThread me(Operation::fence_proxy_async, site);
  Warp& warp = me.warp;
  me.lane.first_unfenced_write = 0;
  uint32_t own = warp.epoch();
  for (const Lane& lane : warp.lanes)
    if (lane.first_unfenced_write && lane.first_unfenced_write - 1 < own) own = lane.first_unfenced_write - 1;
  own = std::max(own, warp.knows.async[warp.agent]);
  warp.knows.async.join(warp.knows.visible());
  warp.knows.async[warp.agent] = own;
  for (Mbarrier& barrier : me.block.mbarriers.all()) {
    const uint32_t agent = me.block.warps[barrier.initialiser_warp].agent;
    if (barrier.initialised_in <= warp.knows.async[agent]) barrier.fenced = true;
  }
  warp.begin_epoch_of_fence();
}

void tma_load_3d(uint32_t destination, const hgemm::TensorMap* map, uint32_t barrier, int column, int row, int batch,
                 Site site) {
  const CallingThread me(Operation::tma_load_3d, site);
  const TensorMapFields fields = read_tensor_map(map);
  if (!check_copy(me, fields, destination, column)) return;
  ++me.counter().executed;
  begin_load(me, me.block, fields, destination, barrier, {column, row, batch}, true);
  me.group.interrupt(me.lane);
}

// Into every block by itself: each of the copies lands when it likes, and is counted by its own block's mbarrier.
void tma_load_3d_multicast(uint32_t destination, const hgemm::TensorMap* map, uint32_t barrier, int column, int row,
                           int batch, uint32_t blocks, Site site) {
  const CallingThread me(Operation::tma_load_3d_multicast, site);
  const TensorMapFields fields = read_tensor_map(map);
  if (!check_copy(me, fields, destination, column)) return;
  const uint32_t cluster = me.group.launch.cluster;
  if (cluster == 1 || !blocks || blocks >> cluster)
    me.report(Kind::out_of_bounds, Space::shared, destination, [&] {
      return format("tma_load_3d_multicast into the blocks 0x%x of a cluster of %u%s", blocks, cluster,
                    cluster == 1 ? ": the launch has no clusters" : "");
    });
  ++me.counter().executed;
  bool first = true;
  for (uint32_t rank = 0; rank < cluster; ++rank) {
    if (!(blocks >> rank & 1)) continue;
    Block& block = *me.group.cluster_of(me.block)[rank];
    if (block.live)
      begin_load(me, block, fields, destination, barrier, {column, row, batch}, std::exchange(first, false));
    else
      me.report(Kind::race, Space::shared, destination, [&] {
        return format("tma_load_3d_multicast writes shared address 0x%x of block %u, which has ended", destination,
                      block.index);
      });
  }
  me.group.interrupt(me.lane);
}

void tma_store_3d(const hgemm::TensorMap* map, uint32_t source, int column, int row, int batch, Site site) {
  const CallingThread me(Operation::tma_store_3d, site);
  const TensorMapFields fields = read_tensor_map(map);
  if (!check_copy(me, fields, source, column)) return;
  if (column < 0) {  // an H200 stops with an illegal instruction, where a load would fill in zeros
    me.report(Kind::out_of_bounds, Space::none, 0,
              [&] { return format("tma_store_3d is to start at column %d, left of the tensor", column); });
    return;
  }
  ++me.counter().executed;
  me.block.shared.begin_bulk_read(me.access, source, fields.box_bytes());
  me.lane.open_stores.push_back({me.block.copies_issued, source, fields.box_bytes()});
  me.group.issue(me.block, {0, false, fields, column, row, batch, source, nullptr, me.access});
  me.group.interrupt(me.lane);
}

void bulk_commit_group() {
  const CallingThread me;
  me.lane.store_groups.push_back(std::move(me.lane.open_stores));
  me.lane.open_stores.clear();
}

// The shared memory of all but the latest `pending` groups has been read and may be written again.
void bulk_wait_for(uint32_t pending, Site site) {
  const CallingThread me(Operation::bulk_wait_group_read, site);
  for (; me.lane.store_groups.size() > pending; me.lane.store_groups.pop_front())
    for (const BulkStore& store : me.lane.store_groups.front()) {
      me.group.land(me.block, store.number);
      me.block.shared.end_bulk_read(me.warp, me.lane.index, store.address, store.bytes);
    }
  me.group.interrupt(me.lane);
}

void prefetch_tensor_map(const hgemm::TensorMap*) {}

}  // namespace ptx
