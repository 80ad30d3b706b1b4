"""cuBLASLt: the same product with the choice of algorithm laid open.

Until it is tuned, a product runs with the first algorithm that the library's heuristic proposes. `tune_cublaslt` times
all proposals and keeps the fastest for that product in this process: the fair baseline. Nothing else here times
anything. Only algorithms that add up a split K in fp32 and in a fixed order are considered, so a result is rounded once
and is the same in every run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hgemm.arrangement import Arrangement, arrange, arrange_operands
from hgemm.cublas import (
    CUBLAS_COMPUTE_32F,
    CUBLAS_OPERATIONS,
    CUDA_R_32F,
    DATA_TYPES,
    ONE,
    ZERO,
    check,
    load,
    on_device,
)
from hgemm.problem import VECTOR_BYTES, Operand, Problem, UnsupportedProblem, alignment_of

# cublasLtMatmulDescAttributes_t and cublasLtMatrixLayoutAttribute_t in cublasLt.h
TRANSPOSE_LEFT, TRANSPOSE_RIGHT = 3, 4
BATCH_COUNT, BATCH_STRIDE = 5, 6
# cublasLtMatmulPreferenceAttributes_t and cublasLtReductionScheme_t in cublasLt.h
PREFER_MAX_WORKSPACE_BYTES = 1
PREFER_REDUCTION_SCHEMES = 3
PREFER_MIN_ALIGNMENT = {"left": 5, "right": 6, "c": 7, "result": 8}
REDUCTION_IN_COMPUTE_TYPE = 2

# What cublasSetWorkspace's documentation recommends: 32 MiB from Hopper on, 4 MiB before.
WORKSPACE_BYTES = {True: 32 * 2**20, False: 4 * 2**20}
CANDIDATES = 32
PRODUCTS_KEPT = 1024


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque to everyone but the library."""

    _fields_ = [("data", ctypes.c_uint64 * 8)]


class Proposal(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class Product(NamedTuple):
    """All that a choice of algorithm depends on. Alignments are in bytes, at most 16."""

    device: int
    dtype: torch.dtype
    arrangement: Arrangement
    left_alignment: int
    right_alignment: int
    result_alignment: int

    @classmethod
    def of_tensors(cls, a: Tensor, b: Tensor, out: Tensor) -> Product:
        """The product out = a @ b of CUDA tensors."""
        p = arrange(a.shape, a.stride(), b.shape, b.stride(), out.shape, out.stride())
        left, right = (a, b) if p.swapped else (b, a)
        return cls(a.get_device(), a.dtype, p, alignment_of(left), alignment_of(right), alignment_of(out))

    @classmethod
    def of_problem(cls, problem: Problem) -> Product:
        """The same, read off a problem."""
        a, b, out = problem.a, problem.b, problem.out
        p = arrange_operands(a, b, out, math.prod(problem.batch))
        left, right = (a, b) if p.swapped else (b, a)
        device = problem.device.index
        if device is None:
            device = torch.cuda.current_device()
        return cls(device, problem.dtype, p, left.alignment, right.alignment, out.alignment)


@dataclass(frozen=True)
class Candidate:
    """One algorithm that the heuristic proposes, as timed: `milliseconds` is a median."""

    position: int  # in the order of the heuristic
    milliseconds: float
    workspace_bytes: int


class Descriptors:
    """cuBLASLt's description of a product: how to compute, and the three layouts. Freed with the object."""

    def __init__(self, library: Any, product: Product) -> None:
        self._library = library
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        self._product = product
        p = product.arrangement
        self.swapped = p.swapped  # out^T = b^T a^T is computed
        self.operation = self._make("cublasLtMatmulDesc", CUBLAS_COMPUTE_32F, CUDA_R_32F)
        for attribute, letter in ((TRANSPOSE_LEFT, p.b_layout), (TRANSPOSE_RIGHT, p.a_layout)):
            operation = ctypes.c_int32(CUBLAS_OPERATIONS[letter])
            self._set("cublasLtMatmulDesc", self.operation, attribute, operation)
        # By columns: C^T[N, M] = B^T[N, K] A^T[K, M].
        self.left = self._layout(p.b_layout, p.N, p.K, p.stride_b, p.batch_b)
        self.right = self._layout(p.a_layout, p.K, p.M, p.stride_a, p.batch_a)
        self.result = self._layout("n", p.N, p.M, p.stride_c, p.batch_c)

    def _layout(self, letter: str, rows: int, columns: int, stride: int, batch_stride: int) -> ctypes.c_void_p:
        sizes = (rows, columns) if letter == "n" else (columns, rows)
        numbers = (*map(ctypes.c_uint64, sizes), ctypes.c_int64(stride))
        layout = self._make("cublasLtMatrixLayout", DATA_TYPES[self._product.dtype], *numbers)
        if (batches := self._product.arrangement.batches) > 1:
            self._set("cublasLtMatrixLayout", layout, BATCH_COUNT, ctypes.c_int32(batches))
            self._set("cublasLtMatrixLayout", layout, BATCH_STRIDE, ctypes.c_int64(batch_stride))
        return layout

    def _set(self, kind: str, made: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        status = getattr(self._library, f"{kind}SetAttribute")(made, attribute, ctypes.byref(value), size)
        check(self._library, "cublasLt", status, f"{kind}SetAttribute")

    def _make(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        status = getattr(self._library, f"{kind}Create")(ctypes.byref(made), *arguments)
        check(self._library, "cublasLt", status, f"{kind}Create")
        self._made.append((kind, made))
        return made

    def __del__(self) -> None:
        for kind, made in self._made:
            getattr(self._library, f"{kind}Destroy")(made)


_chosen: dict[Product, tuple[Descriptors, Proposal]] = {}
_tuned: dict[Product, tuple[Descriptors, Proposal]] = {}


def run(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    """out = a @ b with the tuned algorithm, or the heuristic's first, enqueued on the current stream.

    Raises UnsupportedProblem if the heuristic proposes none, LibraryError if the library refuses a call.
    """
    library = load("cublasLt")
    product = Product.of_tensors(a, b, out)
    with on_device(product.device):
        descriptors, proposal = _choice(library, product)
        matmul(library, descriptors, proposal, a, b, out)


def tune_cublaslt(problem: Problem, rounds: int = 7, milliseconds: float = 2.0) -> list[Candidate]:
    """Times every algorithm that the heuristic proposes for `problem` and keeps the fastest for it in this process.

    Runs on tensors of its own, normally distributed, with the problem's shape, strides and alignment. In each of
    `rounds` all take a turn of about `milliseconds`, in random order; the median decides. Returns the candidates, the
    fastest first. Raises UnsupportedProblem if there is none.
    """
    library = load("cublasLt")
    product = Product.of_problem(problem)
    with on_device(product.device):
        descriptors = Descriptors(library, product)
        proposals = propose(library, torch.cuda.current_blas_handle(), descriptors, product, CANDIDATES)
        a, b, out = (_tensor_like(operand, problem) for operand in (problem.a, problem.b, problem.out))
        calls = [functools.partial(matmul, library, descriptors, proposal, a, b, out) for proposal in proposals]
        times = _interleaved_medians(calls, rounds, milliseconds)
    ranking = sorted(range(len(proposals)), key=lambda position: times[position])
    _tuned[product] = (descriptors, proposals[ranking[0]])
    return [Candidate(position, times[position], proposals[position].workspace_bytes) for position in ranking]


def propose(library: Any, handle: int, descriptors: Descriptors, product: Product, count: int) -> list[Proposal]:
    """Up to `count` algorithms, best first by the library's estimate. Raises UnsupportedProblem if there is none."""
    proposals = (Proposal * count)()
    found = ctypes.c_int(0)
    with _preference(library, product) as preference:
        status = library.cublasLtMatmulAlgoGetHeuristic(
            ctypes.c_void_p(handle),
            descriptors.operation,
            descriptors.left,
            descriptors.right,
            descriptors.result,
            descriptors.result,
            preference,
            count,
            proposals,
            ctypes.byref(found),
        )
    usable = [proposal for proposal in proposals[: found.value] if proposal.state == 0]
    if not usable:
        p = product.arrangement
        raise UnsupportedProblem(
            f"cuBLASLt has no algorithm for M, N, K = {p.M}, {p.N}, {p.K} and {p.batches} batches in the layout "
            f"{p.a_layout}{p.b_layout} with strides {p.stride_a}, {p.stride_b}, {p.stride_c} (status {status}); use "
            f"backend 'cublas'"
        )
    return usable


def matmul(library: Any, descriptors: Descriptors, proposal: Proposal, a: Tensor, b: Tensor, out: Tensor) -> None:
    """One call of cublasLtMatmul on the current stream, its workspace from torch's allocator."""
    size = proposal.workspace_bytes
    workspace = torch.empty(size, dtype=torch.uint8, device=a.device) if size else None
    left, right = (a, b) if descriptors.swapped else (b, a)
    result = ctypes.c_void_p(out.data_ptr())
    status = library.cublasLtMatmul(
        ctypes.c_void_p(torch.cuda.current_blas_handle()),  # which serves as a handle of cuBLASLt too
        descriptors.operation,
        ctypes.byref(ONE),
        ctypes.c_void_p(left.data_ptr()),
        descriptors.left,
        ctypes.c_void_p(right.data_ptr()),
        descriptors.right,
        ctypes.byref(ZERO),
        result,
        descriptors.result,
        result,
        descriptors.result,
        ctypes.byref(proposal.algorithm),
        ctypes.c_void_p(workspace.data_ptr() if workspace is not None else None),
        ctypes.c_size_t(size),
        ctypes.c_void_p(torch.cuda.current_stream(a.device).cuda_stream),
    )
    check(library, "cublasLt", status, "cublasLtMatmul")


def _choice(library: Any, product: Product) -> tuple[Descriptors, Proposal]:
    choice = _tuned.get(product) or _chosen.get(product)
    if choice is None:
        descriptors = Descriptors(library, product)
        proposals = propose(library, torch.cuda.current_blas_handle(), descriptors, product, 1)
        if len(_chosen) >= PRODUCTS_KEPT:
            _chosen.clear()
        choice = _chosen[product] = (descriptors, proposals[0])
    return choice


@contextlib.contextmanager
def _preference(library: Any, product: Product) -> Iterator[ctypes.c_void_p]:
    """What the heuristic is to heed: workspace, reductions in fp32, and the alignment of the operands."""
    preference = ctypes.c_void_p()
    status = library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference))
    check(library, "cublasLt", status, "cublasLtMatmulPreferenceCreate")
    alignments = {
        "left": product.left_alignment,
        "right": product.right_alignment,
        "c": product.result_alignment,
        "result": product.result_alignment,
    }
    from_hopper_on = torch.cuda.get_device_capability(product.device) >= (9, 0)
    try:
        for attribute, value in (
            (PREFER_MAX_WORKSPACE_BYTES, ctypes.c_uint64(WORKSPACE_BYTES[from_hopper_on])),
            (PREFER_REDUCTION_SCHEMES, ctypes.c_uint32(REDUCTION_IN_COMPUTE_TYPE)),
            *((PREFER_MIN_ALIGNMENT[name], ctypes.c_uint32(value)) for name, value in alignments.items()),
        ):
            status = library.cublasLtMatmulPreferenceSetAttribute(
                preference, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
            )
            check(library, "cublasLt", status, "cublasLtMatmulPreferenceSetAttribute")
        yield preference
    finally:
        library.cublasLtMatmulPreferenceDestroy(preference)


def _tensor_like(operand: Operand, problem: Problem) -> Tensor:
    """Normal random values in memory of the operand's shape, strides and alignment."""
    size: tuple[int, ...] = (operand.rows, operand.columns)
    stride: tuple[int, ...] = (operand.row_stride, operand.column_stride)
    if operand.batch_stride:
        size, stride = (*problem.batch, *size), (operand.batch_stride, *stride)
    extent = 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    # torch's own allocations are aligned to 512 bytes
    offset = operand.alignment % VECTOR_BYTES // problem.dtype.itemsize
    memory = torch.randn(extent + offset, dtype=problem.dtype, device=problem.device)
    return memory.as_strided(size, stride, offset)


def _interleaved_medians(calls: Sequence[Callable[[], None]], rounds: int, milliseconds: float) -> list[float]:
    """Median milliseconds of each call, all of them timed once in each round, by replaying a graph of many calls.

    A graph, because a small product takes the device less time than its call takes the host.
    """
    for call in calls:
        call()  # loads the kernel
    repeats = [max(1, round(milliseconds / _elapsed(call))) for call in calls]
    pool = torch.cuda.graph_pool_handle()  # one workspace for all: the graphs never run at the same time
    graphs = [_graph(call, count, pool) for call, count in zip(calls, repeats, strict=True)]
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for position in random.sample(range(len(calls)), len(calls)):
            samples[position].append(_elapsed(graphs[position].replay) / repeats[position])
    return [statistics.median(times) for times in samples]


def _graph(call: Callable[[], None], count: int, pool: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        for _ in range(count):
            call()
    graph.replay()  # the first replay uploads the graph
    return graph


def _elapsed(call: Callable[[], None]) -> float:
    """Milliseconds that the device takes for what `call` enqueues on the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
