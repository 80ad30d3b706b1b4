"""The register-only mma.sync rate of a device: what no kernel of the study can exceed (see ceilings.cuh)."""

from __future__ import annotations

import ctypes
import functools

import torch

from hgemm.cuda_kernels import build

_TAGS = {torch.float16: "f16", torch.bfloat16: "bf16"}


class MmaCeiling:
    """Runs mma.sync m16n8k16 on registers alone, on every multiprocessor of a device.

    `dtype` is torch.float16 or torch.bfloat16, accumulation is in float32, the operands are drawn from N(0, 1). Raises
    hgemm.cuda_kernels.build.BuildError where the kernel cannot be compiled.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._library = _library(_TAGS[dtype])
        self._device = device
        self._blocks = torch.cuda.get_device_properties(device).multi_processor_count
        generator = torch.Generator(device).manual_seed(0)
        words = self._library.hgemm_ceiling_operand_words()
        self._operands = torch.randn(2 * words, device=device, generator=generator).to(dtype)
        self._sums = torch.empty(words, dtype=torch.int32, device=device)

    def flops(self, iterations: int) -> int:
        """Floating-point operations of one launch."""
        return int(self._library.hgemm_ceiling_flops_per_block()) * self._blocks * iterations

    def launch(self, iterations: int) -> None:
        """Enqueues the kernel on the current stream of the device."""
        with torch.cuda.device(self._device):
            error = self._library.hgemm_ceiling_launch(
                self._operands.data_ptr(),
                self._sums.data_ptr(),
                iterations,
                self._blocks,
                torch.cuda.current_stream(self._device).cuda_stream,
            )
        if error:
            raise RuntimeError(f"the mma.sync ceiling: {error.decode()}")


@functools.cache
def _library(tag: str) -> ctypes.CDLL:
    text = f'#include "ceilings.cuh"\nHGEMM_EXPORT_CEILING(hgemm::{tag})\n'
    library = ctypes.CDLL(str(build.build_library(f"ceiling_{tag}", text)))
    library.hgemm_ceiling_flops_per_block.restype = ctypes.c_int64
    library.hgemm_ceiling_operand_words.restype = ctypes.c_int64
    library.hgemm_ceiling_launch.restype = ctypes.c_char_p
    pointer = ctypes.c_void_p
    library.hgemm_ceiling_launch.argtypes = [pointer, pointer, ctypes.c_int, ctypes.c_int, pointer]
    return library
