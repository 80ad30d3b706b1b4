// ptx.hpp: cp.async and its groups, which belong to the thread that issues them.
//
// A lazy machine moves the bytes when they are waited for, an eager one at once, a random one at either time. In all of
// them nobody may rely on the bytes before the issuing thread has waited.
#include "ptx.hpp"

#include "calling_thread.hpp"

namespace ptx {

using namespace hgemm::emulator;

namespace {

void land(const CallingThread& me, const CpAsync& copy) {
  uint8_t* to = me.block.shared.data(copy.destination);
  std::memset(to, 0, copy.bytes);
  std::memcpy(to, copy.source, copy.source_bytes);
  me.block.trace.note(Happening::landed, copy.destination);
}

}  // namespace

void cp_async_bytes(uint32_t destination, const void* source, uint32_t bytes, uint32_t source_bytes, Site site) {
  const CallingThread me(Operation::cp_async, site);
  SharedMemory& shared = me.block.shared;
  if (!shared.check_range(me.access, destination, bytes, bytes)) return;
  if (source_bytes > bytes) {
    me.report(Kind::misaligned, Space::shared, destination,
              [&] { return format("cp.async of %u bytes from a source of %u", bytes, source_bytes); });
    return;
  }
  if (source_bytes && !me.may_access(source, source_bytes, bytes, false)) source_bytes = 0;
  me.block.banks[me.warp.index].record(Operation::cp_async, site, me.lane.index, destination, bytes,
                                       me.group.report.counters);
  me.counter().shared_bytes += bytes;
  me.counter().global_bytes += source_bytes;
  shared.begin_copy(me.access, destination, bytes, false);
  me.block.trace.note(Happening::issued, destination);
  const bool at_once = me.group.random() ? me.group.toss() : me.group.copies_at_once();
  me.lane.cp_asyncs.push_back(
      {destination, bytes, static_cast<const uint8_t*>(source), source_bytes, me.lane.cp_async_group, at_once, site});
  if (at_once) land(me, me.lane.cp_asyncs.back());
}

void cp_async_commit_group() { ++CallingThread().lane.cp_async_group; }

void cp_async_wait_for(uint32_t pending, Site site) {
  const CallingThread me(Operation::cp_async_wait_group, site);
  std::vector<CpAsync>& copies = me.lane.cp_asyncs;
  size_t done = 0;
  for (; done < copies.size() && copies[done].group + pending < me.lane.cp_async_group; ++done) {
    const CpAsync& copy = copies[done];
    if (!copy.landed) land(me, copy);
    me.block.shared.finish_cp_async({me.warp, me.lane.index, Operation::cp_async, copy.site}, copy.destination,
                                    copy.bytes);
  }
  copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(done));
  me.group.interrupt(me.lane);
}

}  // namespace ptx
