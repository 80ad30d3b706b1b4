// The emulator as one translation unit, so that the checks of shadow.hpp are compiled into the instructions that need
// them. A kernel is compiled apart, sees only ptx.hpp and launch.hpp, and is linked with this:
//
//   g++ -std=c++20 -O2 -DHGEMM_EMULATOR -pthread -I cuda_kernels kernel.cpp cuda_kernels/emulator/emulator.cpp
#include "group.cpp"
#include "group_copies.cpp"
#include "group_end.cpp"
#include "group_waiting.cpp"
#include "json.cpp"
#include "ptx_cluster.cpp"
#include "ptx_cp_async.cpp"
#include "ptx_global.cpp"
#include "ptx_mbarrier.cpp"
#include "ptx_mma.cpp"
#include "ptx_shared.cpp"
#include "ptx_threads.cpp"
#include "ptx_tma.cpp"
#include "session.cpp"
