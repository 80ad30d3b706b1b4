// Where the calls came from that led to a fault, for addr2line.
#pragma once

#include <dlfcn.h>
#include <execinfo.h>

#include <cstdint>
#include <vector>

namespace hgemm::emulator {

// Return addresses on this stack, innermost first, as offsets in this library. A kernel's stack ends at its first
// function, so that none lies outside.
inline std::vector<uintptr_t> call_stack() {
  void* frames[32];
  const int count = backtrace(frames, 32);
  std::vector<uintptr_t> offsets;
  for (int i = 0; i < count; ++i) {
    Dl_info library;
    if (!frames[i] || !dladdr(frames[i], &library)) break;
    // One back, into the call itself.
    offsets.push_back(reinterpret_cast<uintptr_t>(frames[i]) - reinterpret_cast<uintptr_t>(library.dli_fbase) - 1);
  }
  return offsets;
}

}  // namespace hgemm::emulator
