"""Launches of compiled kernels: a form is compiled once, under the settings that its compiler needs, and then kept.

``kernel[grid](...)`` describes every argument, looks its compiled form up by a key made of text, and compares globals,
in each call. Here the caller names the form, and what Triton compiled for it is launched as it is. This module, and
``tensor_maps`` for it, alone rely on what Triton does not document, the same in 3.6 to 3.9:

- ``JITFunction.warmup(*arguments, grid=, **options)`` compiles, launches nothing and returns a ``CompiledKernel``;
- ``CompiledKernel[grid](*arguments)`` launches it on all the kernel's arguments, a constant's place being passed over;
- ``CompiledKernel.run(x, y, z, stream, function, packed_metadata, launch_metadata, enter_hook, exit_hook, *arguments)``
  does the same without asking for the stream, and without the two hooks of the user's where these are None;
- that ``run`` is a ``CudaLauncher``. Its ``launch``, in C, takes a whole number for a pointer and the kernel's scratch
  memory among the arguments, in an order that ``_ORDERS`` knows for each version.
"""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch

from hgemm.problem import ELEMENT_BYTES, VECTOR_BYTES
from hgemm.triton_kernels import tensor_maps

_FIRST_OF_64_BITS = 2**31


@dataclass(frozen=True)
class Pointer:
    """Stands for a tensor while a kernel is compiled for tensors of this dtype, on 16 bytes each or anywhere."""

    dtype: torch.dtype
    aligned: bool = True

    def data_ptr(self) -> int:
        """An address like theirs."""
        return VECTOR_BYTES if self.aligned else ELEMENT_BYTES


class _Compiled(NamedTuple):
    kernel: Any  # CompiledKernel
    run: Any  # CudaLauncher
    function: int
    metadata: Any
    current_stream: Callable[[int], int]
    device: int
    knobs: Any  # triton.knobs.runtime
    utils: Any  # CudaUtils
    constants: tuple[None, ...]  # what stands for them in a launch


class Launcher:
    """A kernel and its compiled forms, for one thread at a time.

    ``environment``: variables that the compiler is to find; see ``compiler_environment``. The process's environment
    changes while a form is compiled, and not when one that is kept is launched. ``without``: what must not occur in the
    PTX made so.
    """

    def __init__(self, kernel: Any, environment: Mapping[str, str] | None = None, without: str = "") -> None:
        self.kernel = kernel
        self.environment = environment or {}
        self._without = without
        self.forms: dict[Hashable, _Compiled] = {}

    def compiled(
        self, form: Hashable, grid: tuple[int, int, int], arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> _Compiled | None:
        """What is kept for the form, else compiled now, on the current device. None where there is nothing to keep: in
        the interpreter, where a hook of the user's tells Triton not to compile, and in a Triton that has the parts
        named above no more.

        Raises RuntimeError if what was compiled holds what it must be without, and whatever Triton raises.
        """
        if form in self.forms:
            return self.forms[form]
        import triton

        if not isinstance(self.kernel, triton.JITFunction):
            return None
        with compiler_environment(self.environment):
            # In an empty context, so that no triton.AsyncCompileMode of the user's puts it off.
            kernel = contextvars.Context().run(functools.partial(self.kernel.warmup, *arguments, grid=grid, **options))
        if kernel is None:
            return None
        if self._without and self._without in kernel.asm["ptx"]:
            raise RuntimeError(
                f"Triton {triton.__version__} compiled {self.kernel.__name__} to {self._without} in spite of "
                f"{', '.join(f'{name}={value}' for name, value in self.environment.items())}"
            )
        driver = triton.runtime.driver.active
        try:
            compiled = _Compiled(
                kernel,
                kernel.run,  # loads it, before there is a function
                kernel.function,
                kernel.packed_metadata,
                driver.get_current_stream,
                driver.get_current_device(),
                triton.knobs.runtime,
                driver.utils,
                (None,) * (len(self.kernel.arg_names) - len(arguments)),
            )
        except AttributeError:
            return None
        self.forms[form] = compiled
        return compiled


class Launch:
    """The launches of products that differ in their tensors' addresses alone.

    ``form``: all that decides what is compiled, but for the size of numbers: the device, the types and alignments of
    tensors, the options. ``numbers``: the arguments after the tensors. ``options``: the kernel's constants, by name,
    and the compiler's.
    """

    def __init__(
        self,
        launcher: Launcher,
        form: tuple[Hashable, ...],
        programs: int,
        numbers: tuple[int, ...],
        options: Mapping[str, Any],
    ) -> None:
        self._launcher = launcher
        self._form = (*form, wide(numbers))
        self._programs = programs
        self._numbers = numbers
        self._options = options
        self._compiled: _Compiled | None = None

    def __call__(self, *tensors: Any) -> None:
        """Launches the kernel on the current device, that of the form, and its current stream. Raises what
        ``Launcher.compiled`` does."""
        compiled = self._compiled
        if compiled is None:
            arguments, grid = (*tensors, *self._numbers), (self._programs, 1, 1)
            compiled = self._launcher.compiled(self._form, grid, arguments, self._options)
            if compiled is None:  # launched as anyone would
                with compiler_environment(self._launcher.environment):
                    self._launcher.kernel[grid](*arguments, **self._options)
                return
            self._compiled = compiled
        if _hooked(compiled.knobs):
            compiled.kernel[self._programs, 1, 1](*tensors, *self._numbers, *compiled.constants)
            return
        compiled.run(
            *(self._programs, 1, 1),
            compiled.current_stream(compiled.device),
            *(compiled.function, compiled.metadata, None, None, None),
            *tensors,
            *self._numbers,
            *compiled.constants,
        )

    @property
    def kept(self) -> bool:
        """Whether what is compiled is kept, once it was launched or bound."""
        return self._compiled is not None

    def bind(self, device: torch.device, *operands: Any) -> Callable[..., None] | None:
        """The same with the tensors' addresses, for tensors like ``operands``: compiled now. ``device``, that of the
        form, is to be current now and in each call. None where ``Launcher.compiled`` returns it, and in a Triton
        whose C function this module does not know. Raises what ``Launcher.compiled`` does.

        An operand is a Pointer or None. The first two or three may be TensorDescriptors: what these say of the tensor
        is kept, and the address changes."""
        arguments, grid = (*operands, *self._numbers), (self._programs, 1, 1)
        self._compiled = compiled = self._launcher.compiled(self._form, grid, arguments, self._options)
        if compiled is None or (order := _order(compiled.run)) is None:
            return None
        numbers = (*self._numbers, *compiled.constants)
        descriptors = [operand for operand in operands if hasattr(operand, "block_shape")]
        if not descriptors:
            return _bound(compiled, order, device, self._programs, numbers)
        try:
            entry = tensor_maps.entry(compiled.kernel, compiled.utils, descriptors)
            _try(compiled, order, device, numbers, entry, len(operands))
        except Exception:  # what is not as it was in a Triton that is known can be raised as anything
            return None
        return _bound(compiled, order, device, self._programs, numbers, entry)


Order = Literal["scratch first", "scratch last"]
_ORDERS: dict[str, Order] = {
    "3.6": "scratch first",
    "3.7": "scratch last",
    "3.8": "scratch last",
    "3.9": "scratch last",
}


def _order(run: Any) -> Order | None:
    """How the C function behind ``run`` is called; None if it is not known, or ``run`` does more than to call it."""
    import triton

    if getattr(run, "profile_scratch_size", 1) or getattr(run, "gsan_enabled", False) or not hasattr(run, "launch"):
        return None
    return _ORDERS.get(".".join(triton.__version__.split(".")[:2]))


def _bound(
    compiled: _Compiled,
    order: Order,
    device: torch.device,
    programs: int,
    numbers: tuple[Any, ...],
    entry: tensor_maps.Entry | None = None,
) -> Callable[..., None]:
    kernel, run, knobs = compiled.kernel, compiled.run, compiled.knobs
    c_launch, mapped = entry or (run.launch, None)
    current_stream, index = compiled.current_stream, compiled.device
    flags = compiled.function, run.launch_cooperative_grid, run.launch_pdl
    unhooked = compiled.metadata, None, None, None
    scratch_bytes = programs * run.num_ctas * run.global_scratch_size
    allocate, release = _allocator(device)
    described = () if order == "scratch first" else (run.arg_annotations, run.kernel_signature)

    def launch(*addresses: int) -> None:
        stream = current_stream(index)
        arguments = (*(mapped(*addresses) if mapped else addresses), *numbers)
        metadata = unhooked
        if _hooked(knobs):
            told = kernel.launch_metadata((programs, 1, 1), stream, *addresses, *numbers)
            metadata = (compiled.metadata, told, knobs.launch_enter_hook, knobs.launch_exit_hook)
        at = allocate(scratch_bytes, stream) if scratch_bytes else None
        try:
            if described:
                c_launch(programs, 1, 1, stream, *flags, *metadata, at, None, *described, arguments)
            else:
                c_launch(programs, 1, 1, stream, *flags, at, None, *metadata, *arguments)
        finally:
            if at is not None:
                release(at)

    return launch


def _try(
    compiled: _Compiled,
    order: Order,
    device: torch.device,
    numbers: tuple[Any, ...],
    entry: tensor_maps.Entry,
    operands: int,
) -> None:
    """Has the C function read the arguments of a launch of no programs, which launches nothing and tells no one. Raises
    what it does if they are not what it takes."""
    place = torch.empty(VECTOR_BYTES, dtype=torch.uint8, device=device)
    silent = compiled._replace(knobs=SimpleNamespace(launch_enter_hook=None, launch_exit_hook=None))
    launch = _bound(silent, order, device, 0, numbers, entry)
    launch(*(place.data_ptr(),) * 3, *(None,) * (operands - 3))


def workspace(device: torch.device, size: int) -> tuple[Callable[[], int], Callable[[int], None]]:
    """What gives the address of ``size`` bytes for work on the current stream, and what takes them back as soon as that
    work is launched. ``device`` is to be current, now and in each call."""
    import triton

    driver = triton.runtime.driver.active
    current_stream, index = driver.get_current_stream, driver.get_current_device()
    allocate, release = _allocator(device)
    return lambda: allocate(size, current_stream(index)), release


def _allocator(device: torch.device) -> tuple[Callable[[int, int], int], Callable[[int], None]]:
    """What gives memory of torch's allocator for work on a stream of ``device``, which is to be current: its address,
    of which torch's 512 bytes are a multiple, more than a descriptor needs. And what takes it back, at once: its next
    owner on that stream comes after the kernel. These are the halves of torch.cuda.caching_allocator_alloc and _delete
    that do the work: no tensor is made, and no device made current that is so already."""
    allocate = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)
    release = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_delete", None)
    if allocate and release:
        return allocate, release
    return (
        lambda size, stream: int(torch.cuda.caching_allocator_alloc(size, device, stream)),
        torch.cuda.caching_allocator_delete,
    )


def _hooked(knobs: Any) -> bool:
    """Whether the user, or a profiler, is to be told of launches."""
    enter, leave = knobs.launch_enter_hook, knobs.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def wide(numbers: Sequence[int]) -> tuple[bool, ...]:
    """Which of the numbers, none negative, Triton passes in 64 bits; empty if none."""
    return () if max(numbers) < _FIRST_OF_64_BITS else tuple(number >= _FIRST_OF_64_BITS for number in numbers)


@contextmanager
def compiler_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables in the process's environment, where Triton's compiler looks for them while it compiles, and puts
    back what was there.

    Triton has no other way to say this for one kernel. Its compiler is C++ and asks getenv each time; the variables
    are part of the key under which it keeps kernels on disk, and not of the one in memory. To be called with
    ``interpreter.language_lock``; what other threads compile in Triton meanwhile, and processes that they start, find
    the variables too.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
