"""The Triton families as backends: what each needs, what it accepts, its default, and the call itself."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hgemm import cost, devices, measured
from hgemm.arrangement import arrange_operands
from hgemm.backends import Backend, LaunchAt, Properties
from hgemm.config import CLUSTERS, THREADS_PER_WARP, Config
from hgemm.cost import Kernel, Size
from hgemm.devices import Rates
from hgemm.problem import DTYPES, Problem, UnsupportedProblem, batch_rule, vector_rule
from hgemm.triton_kernels import configs, interpreter
from hgemm.triton_kernels.configs import GLUON, MMA_SYNC, POINTER, TMA, Family
from hgemm.triton_kernels.specialized_configs import FLAG, is_specialized
from hgemm.triton_kernels.versions import multicast_missing, triton_missing

REGISTERS = 65_536  # of a multiprocessor


def backends() -> list[Backend]:
    """``triton_pointer``, ``triton``, ``triton_mma_sync`` and ``triton_gluon``. Imports no Triton."""
    return [
        _backend(
            POINTER,
            idea="masked pointer loads, which Triton pipelines with cp.async: the twin of cuda_cp_async",
            rule=batch_rule,
            row_invariant=True,
        ),
        _backend(
            TMA,
            idea="tensor descriptors, loaded and stored by TMA: the twin of cuda_tma; also with specialised warps",
            rule=vector_rule,
            row_invariant=False,
        ),
        _backend(
            MMA_SYNC,
            idea="the kernel of triton without Hopper's wgmma: TMA and mma.sync, the instructions of cuda_tma",
            rule=vector_rule,
            row_invariant=False,
        ),
        _backend(
            GLUON,
            idea="Triton's lower language: TMA, mbarriers, ldmatrix and mma.sync made explicit, as in cuda_tma",
            rule=vector_rule,
            row_invariant=False,
        ),
    ]


def unavailable(family: Family, device_type: str) -> str | None:
    """Why the family cannot run on tensors of this device type, and the way out; None if it can. Compiles nothing."""
    if reason := triton_missing():
        return reason
    if device_type == "cpu":
        if family.interpreted is None:
            return "Triton has no interpreter for Gluon; use a CUDA device, or the backend triton on CPU tensors"
        return interpreter.defect(family.module, family.interpreted)
    if family is GLUON and (reason := _gluon_missing(GLUON.module)):
        return reason
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device; see what nvidia-smi says"
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    rules = {_capability(device): _capability_rule(family, device) for device in devices}
    return _interpreting() if None in rules.values() else rules[max(rules)]


def accepts(family: Family, rule: Callable[[Problem], str | None], problem: Problem, config: str | None) -> str | None:
    """The first rule that the problem breaks, with the value found; None if the family takes it."""
    if problem.dtype not in DTYPES:
        return f"the dtype must be float16 or bfloat16, found {problem.dtype}"
    if problem.accumulator != torch.float32:
        return f"the accumulator must be float32, found {problem.accumulator}"
    if broken := rule(problem):
        return broken
    if problem.device.type == "cpu":
        return _specialized_rule(config, None)
    device = _device(problem)
    if broken := _capability_rule(family, device) or _specialized_rule(config, device):
        return broken
    name = config or choose(family, problem)
    arrangement = arrange_operands(problem.a, problem.b, problem.out, 1)
    layout = arrangement.a_layout + arrangement.b_layout
    needed = family.shared_bytes(name, configs.target_of(_capability(device)), layout)
    if needed > device.shared_memory_per_block_optin:
        return _shared_memory_rule(name, needed, device.name, device.shared_memory_per_block_optin)
    return None


def choose(family: Family, problem: Problem) -> str:
    """The default configuration; for CPU tensors the family's one for the interpreter."""
    if problem.device.type == "cpu":
        return family.interpreted or family.configs[0].config.name
    found = _device(problem)
    return default_config(family, devices.rates(found.name, _capability(found), found.multi_processor_count), problem)


def default_config(family: Family, device: Rates, problem: Problem) -> str:
    """Of those meant for the device, which need not be there, the one that was the quickest when this very product was
    measured, else the one that the cost model expects to be so."""
    size = Size.of(problem, transposed=problem.out.letter == "t")
    offered = kernels(family, device, size)
    known = measured.configuration(device.title, family.name, size)
    if known in {kernel.config.name for kernel in offered if kernel.config}:
        return known
    ranking = cost.rank(offered, size, device)
    return (ranking[0].config if ranking else None) or family.configs[0].config.name


def kernels(family: Family, device: Rates, size: Size) -> tuple[Kernel, ...]:
    """What the cost model weighs: the configurations meant for such a device. For batches no program is persistent:
    each batch has descriptors of its own, so that the pipeline would not run on from one tile into the next; nor is one
    specialised, which would be launched for each matrix. Where those cannot be had, they are left out too."""
    found = _kernels(family.name, device.capability)
    left_out = {"persistent", FLAG} if size.batch > 1 else {FLAG} if _specialized_missing() else set()
    if triton_missing() or multicast_missing():
        left_out |= CLUSTERS.keys()
    return tuple(kernel for kernel in found if kernel.config and left_out.isdisjoint(kernel.config.flags))


@functools.cache
def _kernels(family: str, capability: tuple[int, int]) -> tuple[Kernel, ...]:
    target = configs.target_of(capability)
    (entries,) = (found.configs for found in configs.FAMILIES if found.name == family)
    return tuple(
        Kernel(family, entry.config, entry.shared_bytes[target], _resident(family, entry.config, capability))
        for entry in entries
        if target in entry.targets
    )


def _resident(family: str, config: Config, capability: tuple[int, int]) -> int:
    """Programs that a multiprocessor has registers for. They hold the sums, some 30 more and, unless wgmma reads them
    in shared memory, fragments of the operands: an estimate on the safe side, by a third or more where Triton reads the
    fragments piece by piece."""
    if "persistent" in config.flags or FLAG in config.flags:
        return 1
    registers = config.warp_m * config.warp_n // THREADS_PER_WARP + 30
    if cost.instruction(family, config, capability) == "mma.sync":
        registers += config.tile_k
    return max(1, REGISTERS // (min(registers, 255) * config.threads))


def run(family: Family, a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    """Writes ``a @ b`` into ``out``: interpreted for CPU tensors, else on their device and its current stream.

    Raises UnsupportedProblem if this Triton compiles the configuration to more than the device has.
    """
    if config is None:
        config = choose(family, Problem.from_tensors(a, b, out))
    device = a.device
    if device.type == "cpu":
        if broken := _specialized_rule(config, None):
            raise UnsupportedProblem(f"backend {family.name!r} cannot compute this product: {broken}")
        interpreter.launch(family.module, a, b, out, config)
        return
    module, _ = family.source(config)
    with interpreter.language_lock, _refusals(family, config, device):  # a launch may have to compile
        if device.index == torch.cuda.current_device():
            _compiled(module).launch(a, b, out, config)
        else:
            with torch.cuda.device(device):
                _compiled(module).launch(a, b, out, config)


def bind_at(family: Family, problem: Problem, config: str | None) -> LaunchAt | None:
    """Compiles the kernel for ``problem``. Raises what ``run`` does. A binding is for the problem's device, since a
    kernel is loaded on one."""
    device = problem.device
    if device.type == "cpu":
        return None
    config = config or choose(family, problem)
    module, _ = family.source(config)
    with interpreter.language_lock, _refusals(family, config, device), torch.cuda.device(device):
        launch_at = _compiled(module).bind(problem, config)
    if launch_at is None:
        return None
    current_device, index = torch._C._cuda_getDevice, device.index

    def launch(a: int, b: int, out: int) -> None:
        if current_device() == index:
            launch_at(a, b, out)
        else:
            with torch.cuda.device(index):
                launch_at(a, b, out)

    return launch


@contextlib.contextmanager
def _refusals(family: Family, config: str, device: torch.device) -> Iterator[None]:
    """Raises UnsupportedProblem for what Triton says where the device has too little."""
    try:
        yield
    except Exception as error:
        if rule := _out_of_resources(error, config, device):
            raise UnsupportedProblem(f"backend {family.name!r} cannot compute this product: {rule}") from error
        raise


def _backend(family: Family, idea: str, rule: Callable[[Problem], str | None], row_invariant: bool) -> Backend:
    needed = ".".join(map(str, family.minimum_capability)) + " or newer"
    if family.only_major:
        needed = f"{family.only_major}.x"
    interpreted = ", or CPU tensors (interpreted)" if family.interpreted else ""
    return Backend(
        name=family.name,
        idea=idea,
        requires=(f"CUDA device of compute capability {needed}{interpreted}", "triton"),
        configs=tuple(entry.config.name for entry in family.configs),
        properties=Properties(deterministic=True, row_invariant=row_invariant),
        unavailable=functools.cache(functools.partial(unavailable, family)),
        accepts=functools.partial(accepts, family, rule),
        choose=functools.partial(choose, family),
        run=functools.partial(run, family),
        bind_at=functools.partial(bind_at, family),
        kernels=functools.partial(kernels, family),
        transposes=True,
        # The default configuration follows M.
        default_properties=Properties(deterministic=True, row_invariant=False),
    )


@functools.cache
def _compiled(module: str) -> ModuleType:
    return importlib.import_module(f"hgemm.triton_kernels.{module}")


@functools.cache
def _gluon_missing(module: str) -> str | None:
    """Why this Triton's Gluon is not the one that a kernel is written in: it is experimental, and parts change."""
    import triton

    try:
        _compiled(module)
    except (ImportError, AttributeError) as error:
        return (
            f"Triton {triton.__version__} lacks a part of Gluon that it uses ({error}); it is known to work with "
            f"Triton 3.6 to 3.9"
        )
    return None


def _interpreting() -> str | None:
    """Why nothing compiles in this process, if TRITON_INTERPRET is set."""
    import triton

    if triton.knobs.runtime.interpret:
        return "TRITON_INTERPRET is set, so Triton compiles nothing in this process; unset it and start again"
    return None


def _device(problem: Problem) -> Any:
    index = problem.device.index
    return torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)


def _capability(device: Any) -> tuple[int, int]:
    return device.major, device.minor


def _capability_rule(family: Family, device: Any) -> str | None:
    """Why the family is not for a device of this compute capability; None if it is."""
    found = _capability(device)
    if family.only_major and device.major != family.only_major:
        rule = (
            f"{family.name} is for compute capability {family.only_major}.x, where triton compiles to wgmma, and "
            f"{device.name} has {device.major}.{device.minor}"
        )
        return rule + (", where triton compiles to mma.sync itself" if found >= (12, 0) else "")
    if found >= family.minimum_capability:
        return None
    needed = ".".join(map(str, family.minimum_capability))
    return (
        f"{family.name} needs compute capability {needed} or newer, and {device.name} has {device.major}.{device.minor}"
    )


def _specialized_rule(config: str | None, device: Any) -> str | None:
    """Why a specialised configuration is not for ``device``, None being the CPU; None if it is, or is none of them."""
    if config is None or not is_specialized(config):
        return None
    if device is None:
        return f"configuration {config} is written in Gluon, which Triton does not interpret; leave config out"
    if _capability(device) != (9, 0):
        return (
            f"configuration {config} multiplies with wgmma, which is for compute capability 9.0, and {device.name} has "
            f"{device.major}.{device.minor}; leave config out"
        )
    return _specialized_missing() or (multicast_missing() if Config.parse(config).cluster > 1 else None)


@functools.cache
def _specialized_missing() -> str | None:
    return triton_missing() or _gluon_missing("specialized")


def _shared_memory_rule(config: str, needed: int, device: str, limit: int) -> str:
    return (
        f"configuration {config} needs {needed:,} bytes of shared memory for a block, and {device} has {limit:,}; "
        f"choose a smaller one, or leave config out"
    )


def _out_of_resources(error: Exception, config: str, device: torch.device) -> str | None:
    """What Triton asked for and the device lacks, where that is the error: another Triton may need more than the table
    of configurations says."""
    import triton

    if not isinstance(error, triton.OutOfResources):
        return None
    name = torch.cuda.get_device_properties(device.index).name
    if error.name == "shared memory":
        return _shared_memory_rule(config, error.required, name, error.limit)
    return f"configuration {config} needs {error.required:,} of {error.name}, and {name} has {error.limit:,}"
