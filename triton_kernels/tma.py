"""C = A B with tensor descriptors: TMA loads and stores, the twin of ``cuda_kernels/tma.cuh``.

The host makes the descriptors of a product that is no batch, see ``descriptors``; else each program makes its own, in
global memory, and waits until the copy engine can read them.

Constraints: fp16 or bf16 operands, each row- or column-major; any M, N, K and number of batches from 1. The first
element, the stored rows and the matrices of a batch lie on 16 bytes, and a stored row of C ends there, which no device
checks: see ``problem.vector_rule``. M, N, K are below 2^31 - 256, since a descriptor counts in 32 bits. Loads past an
edge give zeros, stores past it are dropped in whole chunks of 16 bytes.

Split-K: with few tiles and a long K, each part of K has programs of its own, which fill the device; see ``split_k``.
"""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

import contextvars
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hgemm.arrangement import Arrangement, arrange, arrange_problem
from hgemm.backends import LaunchAt
from hgemm.problem import Problem
from hgemm.triton_kernels.configs import launch_options
from hgemm.triton_kernels.descriptors import Descriptors, for_tiles
from hgemm.triton_kernels.launcher import Launch, Launcher, Pointer, workspace

# Relative, so that the copy of this module that is loaded for the interpreter gets interpreted functions.
from .arithmetic import multiply_accumulate, rounded
from .split_k import addition, allow_next_kernel, part_of, store_part
from .tile_order import grouped_tile, tile_count

# A new shape must not mean a new compilation, and a descriptor gains nothing from knowing these numbers.
RUNTIME_NUMBERS = (
    *("M", "N", "K", "batches"),
    *("stride_a", "stride_b", "stride_c"),
    *("batch_a", "batch_b", "batch_c"),
)


@triton.jit(do_not_specialize=RUNTIME_NUMBERS)
def matmul_tma(
    a,  # M x K
    b,  # K x N
    c,  # M x N; if K is split, the workspace of split_k.store_part
    M,
    N,
    K,
    batches,
    stride_a,  # elements from one stored row to the next
    stride_b,
    stride_c,
    batch_a,  # elements from one matrix to the next
    batch_b,
    batch_c,
    A_LAYOUT: tl.constexpr,  # "n": the stored rows are those of the matrix, "t": its columns; those of c are its rows
    B_LAYOUT: tl.constexpr,
    BATCHED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PERSISTENT: tl.constexpr = False,
    PARTS: tl.constexpr = 1,  # of K; more than 1 only without PERSISTENT
    HOST_DESCRIPTORS: tl.constexpr = False,  # a, b and c, but not a workspace, are descriptors; only without BATCHED
):
    tiles_m, tiles_n = tile_count(M, BLOCK_M), tile_count(N, BLOCK_N)
    tiles = tiles_m * tiles_n
    program, programs = tl.program_id(0), tl.num_programs(0)
    steps = tile_count(K, BLOCK_K)
    first = 0
    if BATCHED and PERSISTENT:
        # Each batch has descriptors of its own, so that there is no pipeline from one tile into the next.
        for tile in tl.range(program, tiles * batches, programs):
            batch = (tile // tiles).to(tl.int64)
            a_descriptor = _describe(a + batch * batch_a, M, K, stride_a, A_LAYOUT, BLOCK_M, BLOCK_K)
            b_descriptor = _describe(b + batch * batch_b, K, N, stride_b, B_LAYOUT, BLOCK_K, BLOCK_N)
            c_descriptor = _describe(c + batch * batch_c, M, N, stride_c, "n", BLOCK_M, BLOCK_N)
            m, n = _origin(tile % tiles, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP_M)
            accumulator = _product(
                a_descriptor, b_descriptor, m, n, first, steps, A_LAYOUT, B_LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K
            )
            c_descriptor.store([m, n], rounded(accumulator, c_descriptor.dtype))
    else:
        if PARTS > 1:
            allow_next_kernel()
            matrix = program // tiles
            program = program % (tiles * batches)
            first, steps = part_of(steps, matrix // batches, PARTS)
        if BATCHED:
            batch = (program // tiles).to(tl.int64)
            program = program % tiles
            a += batch * batch_a
            b += batch * batch_b
            if PARTS == 1:
                c += batch * batch_c
        if HOST_DESCRIPTORS:
            a_descriptor = a
            b_descriptor = b
            if PARTS == 1:
                c_descriptor = c
        else:
            a_descriptor = _describe(a, M, K, stride_a, A_LAYOUT, BLOCK_M, BLOCK_K)
            b_descriptor = _describe(b, K, N, stride_b, B_LAYOUT, BLOCK_K, BLOCK_N)
            if PARTS == 1:
                c_descriptor = _describe(c, M, N, stride_c, "n", BLOCK_M, BLOCK_N)
        if PERSISTENT:
            # Flattened into the loop over K, the tiles are one software pipeline: loads of the next begin while this
            # one is multiplied and stored. The store finds its tile anew, so that it belongs to the end of an
            # iteration.
            stored = program - programs
            for tile in tl.range(program, tiles, programs, flatten=True):
                m, n = _origin(tile, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP_M)
                accumulator = _product(
                    a_descriptor, b_descriptor, m, n, first, steps, A_LAYOUT, B_LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K
                )
                stored += programs
                m, n = _origin(stored, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP_M)
                c_descriptor.store([m, n], rounded(accumulator, c_descriptor.dtype))
        else:
            m, n = _origin(program, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP_M)
            accumulator = _product(
                a_descriptor, b_descriptor, m, n, first, steps, A_LAYOUT, B_LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K
            )
            if PARTS > 1:
                store_part(accumulator, c, matrix, M, N, m, n, BLOCK_M, BLOCK_N)
            else:
                c_descriptor.store([m, n], rounded(accumulator, c_descriptor.dtype))


@triton.jit
def _describe(
    matrix, rows, columns, stride, LAYOUT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
):
    """The descriptor of a matrix as it is stored: transposed if its layout is "t"."""
    if LAYOUT == "n":
        return tl.make_tensor_descriptor(matrix, [rows, columns], [stride, 1], [BLOCK_ROWS, BLOCK_COLUMNS])
    else:
        return tl.make_tensor_descriptor(matrix, [columns, rows], [stride, 1], [BLOCK_COLUMNS, BLOCK_ROWS])


@triton.jit
def _load(descriptor, row, column, LAYOUT: tl.constexpr):
    """The tile of a matrix whose first element is (row, column)."""
    if LAYOUT == "n":
        return descriptor.load([row, column])
    else:
        return descriptor.load([column, row]).T


@triton.jit
def _origin(tile, tiles_m, tiles_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """The first row and column of C of an output tile."""
    tile_m, tile_n = grouped_tile(tile, tiles_m, tiles_n, GROUP_M)
    return tile_m * BLOCK_M, tile_n * BLOCK_N


@triton.jit
def _product(
    a_descriptor,
    b_descriptor,
    m,
    n,
    first,
    steps,
    A_LAYOUT: tl.constexpr,
    B_LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The fp32 tile of ``A B`` whose first element is (m, n), summed over ``steps`` steps of K from ``first`` on.

    Of few rows each column of tiles begins elsewhere in K and goes round: see ``cuda_kernels/tma.cuh``.

    Tiles are copied in the order of their loads here. For mma.sync they are read into registers where they are first
    used: a transposed one as such, then A, then B; and Triton puts a barrier of all threads before it reads the tile
    whose copy began last. Where that is the one read first, all reads follow the barrier and mix with the products;
    else the fragments of a whole tile wait in registers for it, and no product can begin."""
    accumulator = tl.full((BLOCK_M, BLOCK_N), 0, tl.float32)
    turn = n // BLOCK_N * 5 % tl.maximum(steps, 1) if BLOCK_M < 64 else 0
    for step in range(first, first + steps):
        if BLOCK_M < 64:
            step += turn
            step -= tl.where(step < first + steps, 0, steps)
        k = step * BLOCK_K
        # Where B alone is transposed, it is read first.
        if A_LAYOUT == "n" and B_LAYOUT == "t":
            a_tile = _load(a_descriptor, m, k, A_LAYOUT)
            b_tile = _load(b_descriptor, k, n, B_LAYOUT)
        else:
            b_tile = _load(b_descriptor, k, n, B_LAYOUT)
            a_tile = _load(a_descriptor, m, k, A_LAYOUT)
        accumulator = multiply_accumulate(a_tile, b_tile, accumulator)
    return accumulator


def launch(a: Tensor, b: Tensor, out: Tensor, config: str) -> None:
    """Writes ``a[M, K] @ b[K, N]`` into ``out[M, N]`` on the current device and stream: row- or column-major matrices,
    or batches of them, the batch first; an ``a`` or ``b`` without a batch is used for all."""
    launch_by(_launcher, a, b, out, config)


_launcher = Launcher(matmul_tma)

Options = Callable[[str], dict[str, Any]]


def launch_by(
    launcher: Launcher, a: Tensor, b: Tensor, out: Tensor, config: str, options_of: Options = launch_options
) -> None:
    """``launch``, of the kernel that ``launcher`` holds. ``options_of``: what a configuration passes to it."""
    operands = (a.shape, a.stride(), b.shape, b.stride(), out.shape, out.stride())
    plan = _plan(launcher, options_of, config, a.device, a.dtype, *operands)
    if plan.swapped:
        a, b = b, a
    # Descriptors that programs make lie in scratch memory, which Triton asks of the allocator in the current context.
    # Ours is set in a copy of that context: it works in any thread, and the caller's own allocator stays as it is.
    contextvars.copy_context().run(_launch_with_scratch, plan, a, b, out)


class _Plan(NamedTuple):
    launch: Launch
    swapped: bool
    descriptors: Descriptors | None  # where the host makes them
    allocate: Callable[[int, int, int | None], Tensor]
    workspace: tuple[int, ...]  # its shape, if K is split
    addition: Launch | None  # what then adds the parts

    def arguments(self, a: Any, b: Any, c: Any) -> Sequence[Any]:
        """What the kernel is given for A, B and C, or for a workspace in the place of C."""
        return (a, b, c) if self.descriptors is None else self.descriptors.of(a, b, c)


@functools.lru_cache(maxsize=4096)
def _plan(
    launcher: Launcher, options_of: Options, config: str, device: torch.device, dtype: torch.dtype, *operands: Any
) -> _Plan:
    """``operands``: the shapes and strides of a, b and out, as ``arrange`` takes them."""
    return _arranged(launcher, options_of, config, device, dtype, arrange(*operands))


def _arranged(
    launcher: Launcher, options_of: Options, config: str, device: torch.device, dtype: torch.dtype, p: Arrangement
) -> _Plan:
    options = {"A_LAYOUT": p.a_layout, "B_LAYOUT": p.b_layout, "BATCHED": p.batches > 1, **options_of(config)}
    parts = options.get("PARTS", 1)
    descriptors = for_tiles(launcher.kernel, dtype, p, options)
    if descriptors is not None:
        options["HOST_DESCRIPTORS"] = True
    programs = -(-p.M // options["BLOCK_M"]) * -(-p.N // options["BLOCK_N"]) * p.batches * parts
    if "PERSISTENT" in options:
        programs = min(programs, _resident_programs(device))
    numbers = (
        *(p.M, p.N, p.K, p.batches),
        *(p.stride_a, p.stride_b, p.stride_c),
        *(p.batch_a, p.batch_b, p.batch_c),
    )
    form = (device, dtype, config, p.a_layout, p.b_layout, p.batches > 1, descriptors is not None)

    def allocate(size: int, alignment: int, stream: int | None) -> Tensor:
        # torch's allocator aligns to 512 bytes, more than a descriptor needs, and orders the reuse of the memory
        # after the kernel, since both are on the current stream.
        return torch.empty(size, dtype=torch.int8, device=device)

    return _Plan(
        Launch(launcher, form, programs, numbers, options),
        p.swapped,
        descriptors,
        allocate,
        (parts, p.batches, p.M, p.N),
        addition(device, dtype, p.M, p.N, p.batches, p.stride_c, p.batch_c, parts) if parts > 1 else None,
    )


def bind(problem: Problem, config: str) -> LaunchAt | None:
    """``launch`` of tensors that ``problem`` describes, by address; their device is current, now and in each call. None
    where ``Launch.bind`` returns it."""
    return bind_by(_launcher, problem, config)


def bind_by(launcher: Launcher, problem: Problem, config: str, options_of: Options = launch_options) -> LaunchAt | None:
    """``bind``, of the kernel that ``launcher`` holds."""
    device, dtype = problem.device, problem.dtype
    plan = _arranged(launcher, options_of, config, device, dtype, arrange_problem(problem))
    operand, sum_ = Pointer(dtype), Pointer(torch.float32)
    arguments = plan.arguments(operand, operand, operand if plan.addition is None else sum_)
    launch = plan.launch.bind(device, *arguments)
    if launch is None:
        return None
    if plan.addition is None:
        return (lambda a, b, out: launch(b, a, out)) if plan.swapped else launch
    add = plan.addition.bind(device, sum_, operand)
    if add is None:
        return None

    take, give_back = workspace(device, torch.float32.itemsize * math.prod(plan.workspace))

    def launch_both(a: int, b: int, out: int) -> None:
        sums = take()
        try:
            launch(*((b, a) if plan.swapped else (a, b)), sums)
            add(sums, out)
        finally:
            give_back(sums)

    return launch_both


def _resident_programs(device: torch.device) -> int:
    """Programs of a persistent grid: one a multiprocessor. The interpreter gets few, so that each has several tiles."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _launch_with_scratch(plan: _Plan, a: Tensor, b: Tensor, out: Tensor) -> None:
    triton.set_allocator(plan.allocate)
    if plan.addition is None:
        plan.launch(*plan.arguments(a, b, out))
        return
    # Of torch's allocator too: its next owner on this stream comes after the addition.
    sums = torch.empty(plan.workspace, dtype=torch.float32, device=out.device)
    plan.launch(*plan.arguments(a, b, sums))
    plan.addition(sums, out)
