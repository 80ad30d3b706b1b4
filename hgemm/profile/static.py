"""Resources, occupancy, waves and main loop of one configuration for one GPU, from compiled code: no GPU is needed."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hgemm import baselines, devices, occupancy
from hgemm.arrangement import Arrangement, arrange_operands
from hgemm.backends import Backend
from hgemm.bench.suites import Case
from hgemm.config import THREADS_PER_WARP, Config
from hgemm.cuda_kernels import adapter, architectures, configs, inspect_code
from hgemm.cuda_kernels.build import BuildError
from hgemm.problem import VECTOR_ELEMENTS, Problem
from hgemm.profile.instructions import Loop, main_loop, ptx_mix
from hgemm.triton_kernels import configs as triton_configs

CUDA_FAMILIES = {family.backend: family for family in configs.FAMILIES.values()}
TRITON_FAMILIES = {family.name: family for family in triton_configs.FAMILIES}


class NoFacts(Exception):
    """Nothing can be said of the contestant's code for this GPU; the message says why."""


@dataclass(frozen=True)
class Gpu:
    """The GPU whose multiprocessors the tiles are dealt to, and the architecture its code is compiled for."""

    title: str
    architecture: str  # "90a"
    multiprocessors: int

    @property
    def capability(self) -> tuple[int, int]:
        """The least compute capability that runs the code: its limits are those that count."""
        return architectures.capability_of(self.architecture)


@dataclass(frozen=True)
class Code:
    """What the compiler made: registers and spilled bytes a thread, shared memory and threads a block."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    threads: int
    loop: Loop | None
    ptx: Mapping[str, int] | None  # for Triton: counts over the whole kernel


@dataclass(frozen=True)
class Facts:
    """What one configuration is on one GPU. Fractions lie between 0 and 1."""

    gpu: Gpu
    code: Code
    room: Mapping[str, int]  # resource of a multiprocessor -> blocks that it has room for
    blocks: int  # resident on a multiprocessor together; 0 if not even one fits
    warps: int  # of those blocks
    limited_by: str
    occupancy: float  # warps of those that a multiprocessor can hold
    tiles: int  # of C, of all products of a batch
    at_once: int  # tiles that the GPU works on together
    waves: float | None  # None where no block fits
    last_wave: float | None  # how much of the last wave's places are taken
    inside: float  # computed elements that lie inside C

    @property
    def sentence(self) -> str:
        """Why a multiprocessor holds as many blocks as it does."""
        code = self.code
        room = ", ".join(f"{name} for {count}" for name, count in self.room.items())
        return (
            f"room for {self.blocks} on a multiprocessor: {room} ({code.registers} registers a thread, {code.threads} "
            f"threads and {code.shared_bytes:,} bytes of shared memory a block)"
        )


def problem_of(case: Case, device: torch.device) -> Problem:
    """The product of dense, aligned matrices in the case's layout, with no memory taken."""
    shape, dtype = case.shape, case.torch_dtype

    def operand(rows: int, columns: int, letter: str) -> torch.Tensor:
        if letter == "n":
            return torch.empty(rows, columns, dtype=dtype, device="meta")
        return torch.empty(columns, rows, dtype=dtype, device="meta").t()

    a, b = operand(shape.M, shape.K, case.layout[0]), operand(shape.K, shape.N, case.layout[1])
    return dataclasses.replace(Problem.from_tensors(a, b), device=device)


def facts(backend: Backend, config: str | None, case: Case, gpu: Gpu) -> Facts:
    """The static facts of a contestant. Raises NoFacts, with the reason, if there are none."""
    if gpu.capability not in devices.LIMITS:
        known = ", ".join(sorted(architectures.of_capability(capability) for capability in devices.LIMITS))
        raise NoFacts(f"the limits of architecture {gpu.architecture} are not known; there are {known}")
    if backend.name in CUDA_FAMILIES and config is not None:
        parsed = Config.parse(config)
        cluster = max(parsed.parts, parsed.cluster)
        return resident(_cuda(CUDA_FAMILIES[backend.name], config, case, gpu), parsed, case, gpu, cluster=cluster)
    if backend.name in TRITON_FAMILIES and config is not None:
        parsed = Config.parse(config)
        most = 1 if "persistent" in parsed.flags or "specialized" in parsed.flags else None
        return resident(_triton(backend, config, case, gpu), parsed, case, gpu, cluster=parsed.cluster, most=most)
    if backend.name in {baseline.name for baseline in baselines.backends()}:
        raise NoFacts("no static facts: a closed library, whose kernel is chosen when it is called; counters name it")
    raise NoFacts(f"no static facts: how {backend.name} is compiled is not known here")


def resident(code: Code, config: Config, case: Case, gpu: Gpu, *, cluster: int = 1, most: int | None = None) -> Facts:
    """What a multiprocessor holds of a kernel whose blocks come in clusters of ``cluster``, and how the tiles of the
    case are dealt out.

    A wave is as many tiles as the GPU works on together: on each multiprocessor as many as blocks fit, or ``most``
    where the grid has no more, as Triton's persistent ones with one. Where K is split several blocks have one tile.
    """
    limits = devices.LIMITS[gpu.capability]
    room = inspect_code.block_limits(gpu.capability, code.registers, code.shared_bytes, code.threads)
    blocks = min(room.values())
    limited_by = ", ".join(name for name, count in room.items() if count == blocks)
    warps = blocks * -(-code.threads // THREADS_PER_WARP)
    M, N = case.shape.M, case.shape.N
    tiles_of_one = math.prod(config.tiles(M, N))
    tiles = case.shape.batch * tiles_of_one
    running = occupancy.reached(cluster, gpu.multiprocessors) * (blocks if most is None else min(blocks, most))
    at_once = running // config.parts
    return Facts(
        gpu=gpu,
        code=code,
        room=room,
        blocks=blocks,
        warps=warps,
        limited_by=limited_by,
        occupancy=warps * THREADS_PER_WARP / limits.threads_per_multiprocessor,
        tiles=tiles,
        at_once=at_once,
        waves=tiles / at_once if at_once else None,
        last_wave=((tiles - 1) % at_once + 1) / at_once if at_once else None,
        inside=M * N / (tiles_of_one * config.tile_m * config.tile_n),
    )


def arrangement_of(problem: Problem) -> Arrangement:
    return arrange_operands(problem.a, problem.b, problem.out, 1)


def copy_bytes(p: Arrangement) -> int:
    """The width of the cp.async copies that a call chooses: what divides every stored row of a and b, 16 at most."""
    bits = 2 * (p.stride_a | p.stride_b) | 16
    return bits & -bits


def _cuda(family: configs.Family, config: str, case: Case, gpu: Gpu) -> Code:
    problem = problem_of(case, torch.device("cpu"))
    if rule := adapter.kernel_rule(family, problem):
        raise NoFacts(f"{family.backend} does not take this product: {rule}")
    _check_capability(family.backend, family.minimum_capability, gpu)
    kernel = family.configs[family.index(config)]
    if kernel.shared_bytes > (most := devices.LIMITS[gpu.capability].shared_bytes_per_block):
        raise NoFacts(
            f"{config} takes {kernel.shared_bytes:,} bytes of shared memory a block, of which the {gpu.title} has "
            f"{most:,}: its code for sm_{gpu.architecture} is empty"
        )
    unit = configs.Unit(family.name, adapter.DTYPE_NAMES[case.torch_dtype], case.layout)
    try:
        functions = _cuda_functions(unit, gpu.architecture)[config]
    except BuildError as error:
        raise NoFacts(f"the CUDA kernels cannot be compiled here: {error}") from error
    width = copy_bytes(arrangement_of(problem))
    function = next((f for f in functions if f.copy_bytes == width), functions[0])
    return Code(
        registers=function.registers,
        spill_bytes=function.spill_bytes,
        shared_bytes=kernel.shared_bytes,
        threads=kernel.threads,
        loop=main_loop(function.sass),
        ptx=None,
    )


def _triton(backend: Backend, config: str, case: Case, gpu: Gpu) -> Code:
    from hgemm.triton_kernels.compile_ahead import compile_ahead

    family, problem = TRITON_FAMILIES[backend.name], problem_of(case, torch.device("cpu"))
    if rule := backend.accepts(problem, config):
        raise NoFacts(f"{backend.name} does not take this product: {rule}")
    _check_capability(backend.name, family.minimum_capability, gpu)
    major, minor = gpu.capability
    aligned = arrangement_of(problem).alignment == VECTOR_ELEMENTS or backend.name == triton_configs.TMA.name
    dtype, target, batched = case.torch_dtype, 10 * major + minor, case.shape.batch > 1
    try:
        made = compile_ahead(family, config, dtype, target, aligned=aligned, layout=case.layout, batched=batched)
        loop = main_loop(made.sass)
    except Exception as error:  # whatever Triton raises
        raise NoFacts(f"Triton cannot compile it for sm_{major}{minor}: {type(error).__name__}: {error}") from error
    return Code(
        registers=made.registers,
        # A stack that nothing reads back is no spill.
        spill_bytes=made.stack_bytes if made.spill_loads else 0,
        shared_bytes=made.shared_bytes,
        threads=made.threads,
        loop=loop,
        ptx=ptx_mix(made.ptx),
    )


@functools.cache
def _cuda_functions(unit: configs.Unit, architecture: str) -> dict[str, list[inspect_code.Variant]]:
    return inspect_code.variants(unit, architecture)


def _check_capability(name: str, minimum: tuple[int, int], gpu: Gpu) -> None:
    if gpu.capability < minimum:
        needed, found = (".".join(map(str, capability)) for capability in (minimum, gpu.capability))
        raise NoFacts(f"{name} needs compute capability {needed} or newer, and {gpu.architecture} is {found}")
