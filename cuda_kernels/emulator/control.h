// The plain-C surface of an emulated library, beside that of launch.h: what memory there is, in which order threads
// run, and what was found. Everything launched by a thread between its _begin and its _end belongs to one report.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Memory that a kernel may touch: 16-bit elements along up to three axes. Strides count elements.
typedef struct HgemmMemory {
  const char* name;  // for messages; the output, every element of which must be written, is called "c"
  const void* base;
  int64_t sizes[3], strides[3];  // batch, row, column of the matrix as it is multiplied
  int32_t writable;
} HgemmMemory;

// Written while a launch runs, and read by it: by other threads of the host too.
typedef struct HgemmProgress {
  int64_t blocks_done, blocks_total;
  int32_t cancel;  // set to 1 to stop
} HgemmProgress;

typedef struct HgemmEmulatorOptions {
  const char* schedule;      // NULL: HGEMM_EMULATOR of the environment, else "lazy"
  uint32_t shared_base;      // address of dynamic shared memory; 0: 1024, as on a GPU
  int32_t threads;           // of the host; 0: one a processor
  HgemmProgress* progress;   // may be NULL
  uint32_t trace_bytes;      // a piece of dynamic shared memory, such as a stage: the report's "trace" tells, in order,
                             // when block 0 of the first kernel issued copies into each piece, when they landed, when
                             // ldmatrix read it; 0: no
  uint32_t resident_blocks;  // that the device is said to hold of a kernel; 0: 2, so few that each block of a
                             // persistent kernel has several tiles to go through
} HgemmEmulatorOptions;

// Without memories nothing is known of global memory, and every address is taken. Returns NULL or what is wrong.
const char* hgemm_emulator_begin(const HgemmMemory* memories, size_t count, const HgemmEmulatorOptions* options);

// One more memory, such as a workspace, whose size depends on the options.
void hgemm_emulator_memory(const HgemmMemory* memory);

// The report as JSON, valid until this thread's next call.
const char* hgemm_emulator_end(void);

#ifdef __cplusplus
}
#endif
