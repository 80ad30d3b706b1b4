"""The handwritten families as backends: what each needs, what it accepts, its default, and the call itself."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hgemm import cost, devices, emulation, measured
from hgemm.backends import Backend, Launch, LaunchAt, Properties
from hgemm.cost import Kernel, Size
from hgemm.cuda_kernels import architectures, toolchain
from hgemm.cuda_kernels.binding import LoadedUnit
from hgemm.cuda_kernels.configs import FAMILIES, Family, KernelConfig, Unit
from hgemm.devices import Rates
from hgemm.problem import LAYOUTS, Problem, batch_rule, extent_rule, layout_of, tma_rule

DTYPE_NAMES = {torch.float16: "f16", torch.bfloat16: "bf16"}

PROPERTIES = Properties(deterministic=True, row_invariant=True, accumulator="float32", exact_integers=True)
# Which tiles of C are cut along K, and where, follows from how many there are. Split-K cuts all alike; but whether the
# default choice is a split one follows from M.
LESS_PROPERTIES = replace(PROPERTIES, row_invariant=False)


@dataclass(frozen=True)
class DeviceLimits:
    """What of a device decides which configurations run on it."""

    name: str
    capability: tuple[int, int]
    shared_bytes_per_block: int  # the most that one block can opt in to
    shared_bytes_per_multiprocessor: int
    multiprocessors: int


@functools.cache
def device_limits(index: int) -> DeviceLimits:
    """Limits of a CUDA device, read once."""
    properties: Any = torch.cuda.get_device_properties(index)
    return DeviceLimits(
        properties.name,
        (properties.major, properties.minor),
        properties.shared_memory_per_block_optin,
        properties.shared_memory_per_multiprocessor,
        properties.multi_processor_count,
    )


def backends() -> list[Backend]:
    """One record for each family of configs.py."""
    return [_backend(family) for family in FAMILIES.values()]


def build(names: Collection[str], dtypes: Iterable[torch.dtype], layouts: Sequence[str] = LAYOUTS) -> None:
    """Compiles what those of the backends called ``names`` that are handwritten run on this machine's GPUs, all at
    once. Raises BuildError for what cannot be compiled, after all else has been."""
    from hgemm.cuda_kernels.build import build_units  # not at import: it needs what only Linux has

    families = [family for family in FAMILIES.values() if family.backend in names]
    build_units([Unit(f.name, DTYPE_NAMES[dtype], layout) for f in families for dtype in dtypes for layout in layouts])


def config_limit(kernel: KernelConfig, device: DeviceLimits) -> str | None:
    """Why a configuration cannot run on this device, with both numbers; None if it can."""
    if kernel.shared_bytes <= device.shared_bytes_per_block:
        return None
    return (
        f"configuration {kernel.name} needs {kernel.shared_bytes:,} bytes of shared memory for a block, and "
        f"{device.name} has {device.shared_bytes_per_block:,}; choose a smaller one, or leave config out"
    )


def kernels(family: Family, device: Rates, size: Size) -> tuple[Kernel, ...]:
    """What the cost model weighs: the configurations meant for such a device."""
    return _kernels(family.name, device.capability)


@functools.cache
def _kernels(family: str, capability: tuple[int, int]) -> tuple[Kernel, ...]:
    per_block = devices.limits_of(capability).shared_bytes_per_block
    return tuple(
        Kernel(FAMILIES[family].backend, k.config, k.shared_bytes, k.blocks_per_multiprocessor)
        for k in FAMILIES[family].configs
        if k.shared_bytes <= per_block and (k.geforce or capability[0] != 12)
    )


def default_config(family: Family, device: DeviceLimits, problem: Problem) -> KernelConfig:
    """The configuration that was measured to be the quickest in this very product, else the one that the cost model
    expects to be so, of those that fit the device; the one that needs the least shared memory, where none does."""
    rates = devices.rates(device.name, device.capability, device.multiprocessors)
    size = Size.of(problem)
    known = measured.configuration(rates.title, family.backend, size)
    for kernel in family.configs:
        if kernel.name == known and config_limit(kernel, device) is None:
            return kernel
    for prediction in cost.rank(kernels(family, rates, size), size, rates):
        kernel = family.configs[family.index(prediction.config or "")]
        if config_limit(kernel, device) is None:
            return kernel
    return min(family.configs, key=lambda kernel: kernel.shared_bytes)


def _cuts_k(kernel: KernelConfig) -> bool:
    return kernel.config.parts > 1 or "tail" in kernel.config.flags


def unavailable(family: Family, device_type: str) -> str | None:
    """Why the family cannot run on tensors of this device type, and the way out; None if it can. Compiles nothing."""
    if device_type != "cuda":
        return _emulator_unavailable()
    if sys.platform != "linux":
        return f"the CUDA kernels are built on Linux (or WSL2) only; this is {sys.platform}"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device; see what nvidia-smi says"
    try:
        nvcc = toolchain.find_nvcc()
        devices = [device_limits(index) for index in range(torch.cuda.device_count())]
        fitting = [device for device in devices if device.capability >= family.minimum_capability]
        if not fitting:
            return _capability_rule(family, max(devices, key=lambda device: device.capability))
        if reason := architectures.not_covered(fitting[0].capability):
            return reason
        architectures.check_toolkit(architectures.selected(family.minimum_capability), nvcc)
        toolchain.find_ninja()
        toolchain.find_cxx()
    except toolchain.BuildError as error:
        return str(error)
    return None


def accepts(family: Family, problem: Problem, config: str | None) -> str | None:
    """The first rule that the problem breaks, with the value found; None if the family takes it."""
    if rule := kernel_rule(family, problem):
        return rule
    if problem.device.type != "cuda":
        return _emulator_unavailable() or emulation.too_large(problem)
    device = _device_of(problem)
    if device.capability < family.minimum_capability:
        return _capability_rule(family, device)
    kernel = family.configs[family.index(config)] if config else default_config(family, device, problem)
    return config_limit(kernel, device)


def kernel_rule(family: Family, problem: Problem) -> str | None:
    """The first rule of the kernel itself, whatever runs it, that the problem breaks; None if it breaks none."""
    if problem.dtype not in DTYPE_NAMES:
        return f"the dtype must be float16 or bfloat16, found {problem.dtype}"
    if rule := batch_rule(problem) or extent_rule(problem):
        return rule
    if family.name == "tma":
        return tma_rule("a", problem.a) or tma_rule("b", problem.b)  # out is stored without TMA
    return None


def _backend(family: Family) -> Backend:
    major, minor = family.minimum_capability
    return Backend(
        name=family.backend,
        idea=family.idea,
        requires=(f"CUDA device of compute capability {major}.{minor} or newer", "nvcc", "C++ compiler", "ninja"),
        configs=tuple(kernel.name for kernel in family.configs),
        properties=PROPERTIES,
        unavailable=functools.partial(unavailable, family),
        accepts=functools.partial(accepts, family),
        choose=functools.partial(_choose, family),
        run=_runner(family),
        bind=functools.partial(_bind, family),
        bind_at=functools.partial(_bind_at, family),
        kernels=functools.partial(kernels, family),
        config_properties={k.name: LESS_PROPERTIES for k in family.configs if "tail" in k.config.flags},
        default_properties=LESS_PROPERTIES if any(_cuts_k(k) for k in family.configs) else None,
    )


def _choose(family: Family, problem: Problem) -> str | None:
    if problem.device.type != "cuda":
        return family.configs[0].name
    return default_config(family, _device_of(problem), problem).name


def _runner(family: Family) -> Callable[[Tensor, Tensor, Tensor, str | None], None]:
    """The call: the op of the binding with a handle and an index, which are looked up, and built, once."""
    launchers: dict[tuple[torch.dtype, str, str | None], tuple[Any, int, int]] = {}

    def run(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
        if a.device.type == "cpu":
            return _emulate(family, a, b, out, config)
        layout = layout_of(a, b)
        launcher = launchers.get((a.dtype, layout, config))
        if launcher is None:
            if config is None:
                return run(a, b, out, _choose(family, Problem.from_tensors(a, b, out)))
            launcher = launchers[a.dtype, layout, config] = _load(family, a.dtype, layout, config)
        op, handle, index = launcher
        op(a, b, out, handle, index)

    return run


def _bind(family: Family, problem: Problem, config: str | None) -> Launch:
    config = config or _choose(family, problem)
    assert config is not None
    if problem.device.type == "cpu":
        return lambda a, b, out: _emulate(family, a, b, out, config)
    op, handle, index = _load(family, problem.dtype, problem.layout, config)
    return lambda a, b, out: op(a, b, out, handle, index)


def _bind_at(family: Family, problem: Problem, config: str | None) -> LaunchAt | None:
    if problem.device.type == "cpu":
        return None  # the emulator has to know what memory there is
    config = config or _choose(family, problem)
    assert config is not None
    return _unit(family, problem.dtype, problem.layout).bind(family.index(config), problem)


def _emulate(family: Family, a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    """Raises EmulatorError if the kernel breaks a rule of the machine."""
    report = emulation.run(family, a, b, out, config or family.configs[0].name)
    if not report.clean:
        raise emulation.EmulatorError(report)


def _emulator_unavailable() -> str | None:
    """Why nothing can be emulated; None if it can."""
    try:
        toolchain.find_ninja()
        toolchain.find_cxx()
    except toolchain.BuildError as error:
        return f"the emulator has to be compiled: {error}"
    return None


def _load(family: Family, dtype: torch.dtype, layout: str, config: str) -> tuple[Any, int, int]:
    unit = _unit(family, dtype, layout)
    return torch.ops.hgemm_cuda.mm_out.default, unit.handle, family.index(config)


def _unit(family: Family, dtype: torch.dtype, layout: str) -> LoadedUnit:
    from hgemm.cuda_kernels.build import load_unit  # not at import: it needs what only Linux has

    return load_unit(Unit(family.name, DTYPE_NAMES[dtype], layout))


def _device_of(problem: Problem) -> DeviceLimits:
    index = problem.device.index
    return device_limits(torch.cuda.current_device() if index is None else index)


def _capability_rule(family: Family, device: DeviceLimits) -> str:
    needed, found = (".".join(map(str, capability)) for capability in (family.minimum_capability, device.capability))
    return f"{family.backend} needs compute capability {needed} or newer, and {device.name} has {found}"
