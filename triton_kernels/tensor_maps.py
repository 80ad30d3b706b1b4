"""Tensor maps, which TMA reads and the host encodes: those of an operand are kept by its address.

For a ``TensorDescriptor`` the C function that launches kernels takes a tensor map, then its shape and its strides.
``CudaLauncher.launch`` encodes that anew in each call. But where only addresses change, a tensor map depends on nothing
but the address, whichever tensor lies there. This module, for ``launcher``, relies on what Triton does not document,
the same in 3.6 to 3.9 but for one name:

- ``CudaLauncher.launch`` of a kernel with descriptors is a closure over the C function, as ``launcher``;
- ``CompiledKernel.metadata.tensordesc_meta`` tells of each descriptor, in their order, what the kernel expects;
- the driver's ``utils.fill_tma_descriptor``, from 3.7 ``fill_tma_descriptor_tiled``, encodes a tensor map; types of
  elements have other numbers there, ``TMA_DTYPE_DEVICE_TO_HOST``.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

# Addresses kept of each operand, at about 500 bytes each.
MOST_KEPT = 64


class TensorMaps(dict[int, tuple[Any, ...]]):
    """What the C function takes for an operand, by address. One that is not kept is encoded when it is asked for, and
    the oldest makes room for it; the C function copies what it is given. Threads may ask at the same time."""

    def __init__(self, encode: Callable[..., Any], descriptor: Any, expected: dict[str, Any]) -> None:
        """``encode``: Triton's function. ``descriptor``: a TensorDescriptor, Triton's or Gluon's, of 16-bit elements,
        whose tensor may be another. ``expected``: what tensordesc_meta says of it. Raises what is raised if Triton
        means something else by these."""
        from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

        super().__init__()
        if expected["fp4_padded"] or expected.get("is_im2col") or descriptor.padding != "zero":
            raise ValueError(f"not a tiled descriptor that fills in zeros: {descriptor}, {expected}")
        element_type = TMA_DTYPE_DEVICE_TO_HOST[expected["elem_type"]]
        shape, strides = descriptor.shape, descriptor.strides
        self._encode = encode
        self._before = expected["swizzle"], expected["elem_size"], element_type, expected["block_size"], shape, strides
        self._after = (*shape, *strides)
        self._changing = threading.Lock()

    def __missing__(self, address: int) -> tuple[Any, ...]:
        with self._changing:
            found = self.get(address)  # by another thread meanwhile
            if found is None:
                make_context_current()
                found = self._encode(address, *self._before, 0), *self._after
                if len(self) >= MOST_KEPT:
                    del self[next(iter(self))]
                self[address] = found
        return found


def make_context_current() -> None:
    """Gives this thread the current device's context, without which no tensor map can be encoded. A thread that has
    only been handed tensors has none yet: torch's allocator and streams need none, and CUDA's runtime takes it when it
    first launches something there. May be called while a graph is captured."""
    if not torch.cuda.is_initialized():
        return
    driver, context = _driver(), ctypes.c_void_p()
    driver.cuCtxGetCurrent(ctypes.byref(context))
    if context.value is None:  # the one that the runtime uses too; kept, as it keeps it
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), torch.cuda.current_device())
        driver.cuCtxSetCurrent(context)


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


class Entry(NamedTuple):
    """The C function behind a launcher, and what it takes for A, B, C and what follows them, given their addresses."""

    c_launch: Callable[..., None]
    arguments: Callable[..., tuple[Any, ...]]


def entry(kernel: Any, utils: Any, descriptors: Sequence[Any]) -> Entry:
    """That of a CompiledKernel whose first two or three arguments are TensorDescriptors, and no others are.
    ``utils``: the driver's. Raises what is raised if this Triton is not as the module has it."""
    c_launch = inspect.getclosurevars(kernel.run.launch).nonlocals["launcher"]
    encode = getattr(utils, "fill_tma_descriptor", None) or utils.fill_tma_descriptor_tiled
    of_a, of_b, *of_others = (
        TensorMaps(encode, descriptor, expected)
        for descriptor, expected in zip(descriptors, kernel.metadata.tensordesc_meta, strict=True)
    )
    if not of_others:
        return Entry(c_launch, lambda a, b, *others: (*of_a[a], *of_b[b], *others))
    (of_c,) = of_others
    return Entry(c_launch, lambda a, b, c, *others: (*of_a[a], *of_b[b], *of_c[c], *others))
