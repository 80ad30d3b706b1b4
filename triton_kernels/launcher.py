"""Launches of compiled kernels: a form is compiled once, under the settings that its compiler needs, and then kept.

``kernel[grid](...)`` describes every argument, looks its compiled form up by a key made of text, and compares globals,
in each call. Here the caller names the form, and what Triton compiled for it is launched as it is. Of Triton this uses
``JITFunction.warmup``, which compiles and returns a ``CompiledKernel``, and ``CompiledKernel[grid]``, which takes the
kernel's arguments by position; a constant's place is passed over.
"""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

_FIRST_OF_64_BITS = 2**31


class Launcher:
    """A kernel and its compiled forms, for one thread at a time.

    ``environment``: variables that the compiler is to find; see ``compiler_environment``. The process's environment
    changes while a form is compiled, and not when one that is kept is launched. ``without``: what must not occur in the
    PTX made so.
    """

    def __init__(self, kernel: Any, environment: Mapping[str, str] | None = None, without: str = "") -> None:
        self._kernel = kernel
        self._environment = environment or {}
        self._without = without
        self._forms: dict[Hashable, Any] = {}

    def __call__(
        self, form: Hashable, grid: tuple[int, int, int], arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        """Launches the kernel on ``arguments``, which are all but the constants; ``options`` are those, by name, and
        the compiler's.

        ``form``: all that decides what is compiled: the device, the types and alignments of arguments, the options.
        Raises RuntimeError if what was compiled holds what it must be without, and whatever Triton raises.
        """
        compiled = self._forms.get(form)
        if compiled is None:
            compiled = self._compile(grid, arguments, options)
            if compiled is None:
                with compiler_environment(self._environment):
                    self._kernel[grid](*arguments, **options)
                return
            self._forms[form] = compiled
        kernel, constants = compiled
        kernel[grid](*arguments, *constants)

    def _compile(
        self, grid: tuple[int, int, int], arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> tuple[Any, tuple[None, ...]] | None:
        """The compiled kernel, and what stands for its constants in a launch. None where there is none to be kept: in
        the interpreter, and where a hook of the user's tells Triton not to compile."""
        import triton

        if not isinstance(self._kernel, triton.JITFunction):
            return None
        with compiler_environment(self._environment):
            # In an empty context, so that no triton.AsyncCompileMode of the user's puts it off.
            compiled = contextvars.Context().run(
                functools.partial(self._kernel.warmup, *arguments, grid=grid, **options)
            )
        if compiled is None:
            return None
        if self._without and self._without in compiled.asm["ptx"]:
            raise RuntimeError(
                f"Triton {triton.__version__} compiled {self._kernel.__name__} to {self._without} in spite of "
                f"{', '.join(f'{name}={value}' for name, value in self._environment.items())}"
            )
        return compiled, (None,) * (len(self._kernel.arg_names) - len(arguments))


def wide(numbers: Sequence[int]) -> tuple[bool, ...]:
    """Which of the numbers, none negative, Triton passes in 64 bits; empty if none. Part of a form."""
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
