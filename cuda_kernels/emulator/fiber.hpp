// A fiber: a stack of its own, and the switch from one to another. Every emulated thread is one.
//
// The switch saves only what a function must preserve for its caller, a handful of registers, so that it costs a few
// nanoseconds: a 256^3 product makes about half a million of them.
#pragma once

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace hgemm::emulator {

struct Fiber {
  void* stack_pointer = nullptr;
  const void* stack_bottom = nullptr;  // what AddressSanitizer wants to know of a stack
  size_t stack_bytes = 0;
};

// Pushes the preserved registers, stores the stack pointer into *save, takes `load` as stack pointer, pops and returns.
extern "C" void hgemm_emulator_switch_stack(void** save, void* load);

#if defined(__x86_64__)
// What a fresh stack holds for the switch to pop: six registers, the entry, and above it no caller.
constexpr int FRESH_WORDS = 8, ENTRY_WORD = 6;
asm(R"(
.text
.type hgemm_emulator_switch_stack, @function
hgemm_emulator_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size hgemm_emulator_switch_stack, . - hgemm_emulator_switch_stack
)");
#elif defined(__aarch64__)
// What a fresh stack holds for the switch to pop: twenty registers, of which x30 is the entry and x29 no caller.
constexpr int FRESH_WORDS = 20, ENTRY_WORD = 1;
asm(R"(
.text
.type hgemm_emulator_switch_stack, %function
hgemm_emulator_switch_stack:
  stp x29, x30, [sp, #-160]!
  stp x19, x20, [sp, #16]
  stp x21, x22, [sp, #32]
  stp x23, x24, [sp, #48]
  stp x25, x26, [sp, #64]
  stp x27, x28, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #16]
  ldp x21, x22, [sp, #32]
  ldp x23, x24, [sp, #48]
  ldp x25, x26, [sp, #64]
  ldp x27, x28, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  ldp x29, x30, [sp], #160
  ret
.size hgemm_emulator_switch_stack, . - hgemm_emulator_switch_stack
)");
#else
#error "the emulator switches stacks on x86-64 and AArch64; add your processor's registers here"
#endif

// Runs `to` until something switches back to `from`.
inline void switch_fiber(Fiber& from, const Fiber& to) {
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, to.stack_bottom, to.stack_bytes);
#endif
  hgemm_emulator_switch_stack(&from.stack_pointer, to.stack_pointer);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

// The first thing that a fiber does. The first fiber of a run learns here from AddressSanitizer which stack the
// scheduler, whose fiber this is, runs on.
inline void entered_fiber([[maybe_unused]] Fiber& scheduler) {
#ifdef __SANITIZE_ADDRESS__
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (!scheduler.stack_bottom) scheduler = {scheduler.stack_pointer, bottom, bytes};
#endif
}

// The stacks of many fibers in one mapping, each with a page below it that faults. Pages are backed when first touched.
class Stacks {
 public:
  static constexpr size_t BYTES = 64 << 10;

  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() { release(); }

  void reserve(size_t count) {
    if (count <= count_) return;
    release();
    page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* memory = mmap(nullptr, count * (BYTES + page_), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      perror("hgemm emulator: no memory for the stacks of the emulated threads");
      abort();
    }
    memory_ = static_cast<uint8_t*>(memory);
    count_ = count;
    for (size_t i = 0; i < count; ++i) mprotect(memory_ + i * (BYTES + page_), page_, PROT_NONE);
  }

  size_t count() const { return count_; }

  // A fiber that starts in `entry`, which never returns.
  Fiber make_fiber(size_t index, void (*entry)()) const {
    uint8_t* bottom = memory_ + index * (BYTES + page_) + page_;
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(bottom, BYTES);  // a thread that was abandoned left its frames behind
#endif
    // Stacks start at multiples of a page: without a stagger all would compete for the same lines of the cache.
    void** top = reinterpret_cast<void**>(bottom + BYTES - index % 32 * 128);
    void** saved = top - FRESH_WORDS;
    for (void** word = saved; word < top; ++word) *word = nullptr;
    saved[ENTRY_WORD] = reinterpret_cast<void*>(entry);
    return {saved, bottom, BYTES};
  }

 private:
  void release() {
    if (memory_) munmap(memory_, count_ * (BYTES + page_));
    memory_ = nullptr;
    count_ = 0;
  }

  uint8_t* memory_ = nullptr;
  size_t count_ = 0, page_ = 0;
};

}  // namespace hgemm::emulator
