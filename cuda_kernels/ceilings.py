"""What a device can do at most, measured by kernels that do one thing alone (see ceilings.cuh)."""

from __future__ import annotations

import ctypes
import functools

import torch

from hgemm.cuda_kernels import build

MMA_WORDS, MMA_WORDS_OF_A = 32, 16
"""Words of operands that each thread of MmaCeiling holds."""

_TAGS = {torch.float16: "f16", torch.bfloat16: "bf16"}

READ = "read"
"""The kernel whose blocks share its data out."""

L2_SHARE = 4
"""The data that the L2 kernel reads are one part in so many of the L2; ceilings.cuh says why."""

READ_MULTIPLE = 16
"""The data of READ are so many times the L2: where all are read in turn, none is found there the next time."""


class Ceiling:
    """A kernel that does one thing on every multiprocessor of a device, as often as it is told to.

    Attributes: ``data``, what it reads; ``sums``, int32, blocks x threads, what it leaves. Raises
    hgemm.cuda_kernels.build.BuildError where it cannot be compiled.
    """

    def __init__(self, name: str, device: torch.device, dtype: torch.dtype, data_bytes: int = 0) -> None:
        """``name`` is among KERNELS. The data are N(0, 1) or, for torch.int32, random bits: as many whole tiles as
        ``data_bytes`` hold, and one at least; of READ as many for each block."""
        self._name, self._device, self._library = name, device, _library(name)
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._blocks = multiprocessors * self._library.hgemm_ceiling_blocks_per_multiprocessor()
        self._tiles = whole_tiles(name, data_bytes, self._library.hgemm_ceiling_tile_bytes(), self._blocks)
        size = self._tiles * self._library.hgemm_ceiling_tile_bytes() // dtype.itemsize
        generator = torch.Generator(device).manual_seed(0)
        if dtype is torch.int32:
            self.data = torch.randint(-(2**31), 2**31, (size,), dtype=dtype, device=device, generator=generator)
        else:
            self.data = torch.randn(size, device=device, generator=generator).to(dtype)
        threads = self._library.hgemm_ceiling_threads()
        self.sums = torch.zeros(self._blocks, threads, dtype=torch.int32, device=device)

    @property
    def data_bytes(self) -> int:
        """Bytes of ``data``."""
        return self.data.nbytes

    def work(self, iterations: int) -> int:
        """Floating-point operations, or bytes read, of one launch."""
        return int(self._library.hgemm_ceiling_work()) * self._blocks * iterations

    def launch(self, iterations: int) -> None:
        """Enqueues the kernel on the current stream of the device."""
        with torch.cuda.device(self._device):
            error = self._library.hgemm_ceiling_launch(
                self.data.data_ptr(),
                self._tiles,
                self.sums.data_ptr(),
                iterations,
                self._blocks,
                torch.cuda.current_stream(self._device).cuda_stream,
            )
        if error:
            raise RuntimeError(f"the kernel {self._name}: {error.decode()}")


def whole_tiles(name: str, data_bytes: int, tile_bytes: int, blocks: int) -> int:
    """How many tiles of data a kernel has in a grid of ``blocks``."""
    together = blocks if name == READ else 1
    return max(1, data_bytes // (tile_bytes * together)) * together


def mma_ceiling(dtype: torch.dtype, device: torch.device, accumulator: torch.dtype = torch.float32) -> Ceiling:
    """mma.sync m16n8k16 on registers alone, in floating-point operations.

    ``dtype`` is torch.float16 or torch.bfloat16; ``accumulator`` is torch.float32 or, with torch.float16 operands,
    torch.float16.
    """
    if accumulator == torch.float32:
        return Ceiling(f"mma_{_TAGS[dtype]}", device, dtype)
    if (dtype, accumulator) != (torch.float16, torch.float16):
        raise ValueError(f"mma.sync takes an accumulator in float16 with float16 operands alone, found {dtype}")
    ceiling = Ceiling("mma_f16_f16", device, dtype)
    alternate_signs(ceiling.data)
    return ceiling


def alternate_signs(data: torch.Tensor) -> None:
    """Makes each second fragment of B the first one's negative, in place: then the sums of the kernel return to 0 every
    second time, and are finite in float16 however often it runs."""
    words = data.view(MMA_WORDS, -1)  # a thread's words of A, then of B, of which two make a fragment
    fragments = words[MMA_WORDS_OF_A:].unflatten(0, (-1, 2, 2))  # pair, fragment of it, word
    fragments[:, 1] = -fragments[:, 0]


def fragment_ceiling(dtype: torch.dtype, device: torch.device, warp_tile: str) -> Ceiling:
    """ldmatrix and mma.sync m16n8k16 on tiles in shared memory, in floating-point operations: the main loop of a warp
    tile among FRAGMENTS, for torch.float16 or torch.bfloat16."""
    return Ceiling(f"ldmatrix_{warp_tile}_{_TAGS[dtype]}", device, dtype)


def l2_ceiling(device: torch.device) -> Ceiling:
    """Reads answered by the L2, in bytes."""
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    return Ceiling("l2", device, torch.int32, l2_bytes // L2_SHARE)


def read_ceiling(device: torch.device) -> Ceiling:
    """Reads of device memory, in bytes; ``data_bytes // work(1)`` iterations read everything once."""
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    return Ceiling(READ, device, torch.int32, l2_bytes * READ_MULTIPLE)


def shared_ceiling(device: torch.device) -> Ceiling:
    """Reads of shared memory in 16-byte vectors without bank conflicts, in bytes."""
    return Ceiling("shared", device, torch.int32)


FRAGMENTS = {"64x64": "256, 128, 64, 64", "96x64": "192, 256, 96, 64"}
"""By warp tile, what FragmentCeiling multiplies: the tile of a block, then of a warp, of the quickest products."""

KERNELS = {
    "mma_f16": "hgemm::MmaCeiling<hgemm::Float32Accumulator<hgemm::f16>>",
    "mma_bf16": "hgemm::MmaCeiling<hgemm::Float32Accumulator<hgemm::bf16>>",
    "mma_f16_f16": "hgemm::MmaCeiling<hgemm::Float16Accumulator>",
    "l2": "hgemm::L2Ceiling",
    READ: "hgemm::ReadCeiling",
    "shared": "hgemm::SharedCeiling",
    **{
        f"ldmatrix_{warp_tile}_{tag}": f"hgemm::FragmentCeiling<hgemm::{tag}, {shape}>"
        for warp_tile, shape in FRAGMENTS.items()
        for tag in _TAGS.values()
    },
}
"""The kernels of ceilings.cuh."""


def source(name: str) -> str:
    """The translation unit of a kernel."""
    return f'#include "ceilings.cuh"\nHGEMM_EXPORT_CEILING({KERNELS[name]})\n'


@functools.cache
def _library(name: str) -> ctypes.CDLL:
    library = ctypes.CDLL(str(build.build_library(f"ceiling_{name}", source(name))))
    declare(library)
    return library


def declare(library: ctypes.CDLL) -> None:
    """Tells ctypes the types of the functions that a kernel's library exports."""
    library.hgemm_ceiling_tile_bytes.restype = ctypes.c_int64
    library.hgemm_ceiling_work.restype = ctypes.c_int64
    library.hgemm_ceiling_launch.restype = ctypes.c_char_p
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.hgemm_ceiling_launch.argtypes = [pointer, number, pointer, number, number, pointer]
