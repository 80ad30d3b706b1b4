// ptx.hpp: global memory, and how blocks synchronise through it.
#include "ptx.hpp"

#include "calling_thread.hpp"

namespace ptx {

using namespace hgemm::emulator;

namespace {

void load(Operation operation, void* value, const void* address, uint32_t bytes, const Site& site) {
  const CallingThread me(operation, site);
  std::memset(value, 0xff, bytes);
  if (!me.may_access(address, bytes, bytes, false)) return;
  me.counter().executed += 1;
  me.counter().global_bytes += bytes;
  std::memcpy(value, address, bytes);
}

void store(Operation operation, void* address, const void* value, uint32_t bytes, const Site& site) {
  const CallingThread me(operation, site);
  if (!me.may_access(address, bytes, bytes, true)) return;
  me.counter().executed += 1;
  me.counter().global_bytes += bytes;
  std::memcpy(address, value, bytes);
  me.group.stored();
}

}  // namespace

uint32_t ld_global_b16(const void* address, Site site) {
  uint16_t value;
  load(Operation::ld_global_b16, &value, address, 2, site);
  return value;
}

uint32_t ld_global_b32(const void* address, Site site) {
  uint32_t value;
  load(Operation::ld_global_b32, &value, address, 4, site);
  return value;
}

void ld_global_v4(uint32_t (&value)[4], const void* address, Site site) {
  load(Operation::ld_global_v4, value, address, 16, site);
}

void st_global_b16(void* address, uint32_t value, Site site) {
  const uint16_t low = static_cast<uint16_t>(value);
  store(Operation::st_global_b16, address, &low, 2, site);
}

void st_global_b32(void* address, uint32_t value, Site site) {
  store(Operation::st_global_b32, address, &value, 4, site);
}

void st_global_v4(void* address, const uint32_t (&value)[4], Site site) {
  store(Operation::st_global_v4, address, value, 16, site);
}

void ld_global_v4(float (&value)[4], const void* address, Site site) {
  load(Operation::ld_global_v4, value, address, 16, site);
}

void st_global_v4(void* address, const float (&value)[4], Site site) {
  store(Operation::st_global_v4, address, value, 16, site);
}

// The next kernel begins when this one has ended, which is as late as it may.
void griddepcontrol_launch_dependents() {}

// The kernel before has ended here in any case; what counts is that this thread knows. That others of its block may
// know it from this one is not followed: each waits for itself.
void griddepcontrol_wait(Site site) {
  CallingThread(Operation::griddepcontrol_wait, site).lane.waited_for_kernel = true;
}

// A flag: whoever stores with release leaves what its warp knows with the address, whoever loads with acquire takes it.
// A second load that can see nothing new is a poll; it sleeps until something is stored.
uint32_t ld_acquire_gpu(const uint32_t* address, Site site) {
  const CallingThread me(Operation::ld_acquire_gpu, site);
  if (!me.check_global_alignment(address, 4)) return 0;
  if (me.lane.polled == address && me.lane.polled_version == me.group.store_version)
    me.group.suspend(me.lane, Wait::flag, Operation::ld_acquire_gpu, site, reinterpret_cast<uintptr_t>(address));
  me.lane.polled = address;
  me.lane.polled_version = me.group.store_version;
  me.warp.learn(me.group.flag(address));
  me.group.interrupt(me.lane);
  return *address;
}

void st_release_gpu(uint32_t* address, uint32_t value, Site site) {
  const CallingThread me(Operation::st_release_gpu, site);
  if (!me.check_global_alignment(address, 4)) return;
  me.group.flag(address).join(me.warp.knows);
  me.warp.begin_epoch();
  *address = value;
  me.group.stored();
  me.group.interrupt(me.lane);
}

uint32_t atomic_add_acq_rel_gpu(uint32_t* address, uint32_t value, Site site) {
  const CallingThread me(Operation::atomic_add_acq_rel_gpu, site);
  if (!me.check_global_alignment(address, 4)) return 0;
  Knowledge& flag = me.group.flag(address);
  flag.join(me.warp.knows);
  me.warp.learn(flag);
  me.warp.begin_epoch();
  const uint32_t before = *address;
  *address = before + value;
  me.group.stored();
  me.group.interrupt(me.lane);
  return before;
}

}  // namespace ptx
