"""The kernels inside a captured CUDA graph, as the driver describes them: names, registers, shared memory, grid.

This way every contestant is described alike, a library's kernels and Triton's included, and no profiler has to run.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

from hgemm.bench.schema import Kernel

_KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL
_STATIC_SHARED_BYTES, _LOCAL_BYTES, _REGISTERS = 1, 3, 4  # CUfunction_attribute
_LONGEST_NAME = 160


class _KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("kernel_params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    )


def kernels_of(graph: int) -> list[Kernel] | None:
    """The kernel nodes of a ``CUgraph`` handle, in the driver's order; None if the driver cannot be asked."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        return [_describe(driver, node) for node in _nodes(driver, graph) if _is_kernel(driver, node)]
    except (OSError, AttributeError, _DriverError):
        return None


class _DriverError(Exception):
    pass


def _succeed(result: int) -> None:
    if result != 0:
        raise _DriverError(result)


def _nodes(driver: Any, graph: int) -> list[ctypes.c_void_p]:
    count = ctypes.c_size_t()
    _succeed(driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _succeed(driver.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)))
    return [ctypes.c_void_p(node) for node in nodes]


def _is_kernel(driver: Any, node: ctypes.c_void_p) -> bool:
    kind = ctypes.c_int()
    _succeed(driver.cuGraphNodeGetType(node, ctypes.byref(kind)))
    return kind.value == _KERNEL_NODE


def _describe(driver: Any, node: ctypes.c_void_p) -> Kernel:
    params = _KernelNodeParams()
    _succeed(driver.cuGraphKernelNodeGetParams_v2(node, ctypes.byref(params)))
    function = ctypes.c_void_p(params.func)
    if not function:
        _succeed(driver.cuKernelGetFunction(ctypes.byref(function), ctypes.c_void_p(params.kern)))
    name = ctypes.c_char_p()
    _succeed(driver.cuFuncGetName(ctypes.byref(name), function))
    return Kernel(
        name=(name.value or b"").decode(errors="replace")[:_LONGEST_NAME],
        registers=_attribute(driver, _REGISTERS, function),
        local_bytes=_attribute(driver, _LOCAL_BYTES, function),
        shared_bytes=params.shared_bytes + _attribute(driver, _STATIC_SHARED_BYTES, function),
        threads=math.prod(params.block),
        blocks=math.prod(params.grid),
    )


def _attribute(driver: Any, which: int, function: ctypes.c_void_p) -> int:
    value = ctypes.c_int()
    _succeed(driver.cuFuncGetAttribute(ctypes.byref(value), which, function))
    return value.value
