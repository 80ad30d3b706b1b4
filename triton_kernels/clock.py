"""Every multiprocessor's count of its cycles, for ``hgemm.bench.clock_counter``."""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def note_clock(counts, times):
    """Stores %clock64 of the multiprocessor that a program runs on at its number in ``counts``, and %globaltimer, in
    nanoseconds, in ``times``; int64 both."""
    place = tl.program_id(0)
    clock = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l,r", [place], tl.int64, is_pure=False, pack=1)
    now = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l,r", [place], tl.int64, is_pure=False, pack=1)
    number = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r,r", [place], tl.int32, is_pure=False, pack=1)
    tl.store(counts + number, clock)
    tl.store(times + number, now)
