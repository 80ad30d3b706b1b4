"""Kernel modules for CPU tensors: loaded a second time, for Triton's interpreter, beside the compiled ones.

``triton.jit`` decides when it decorates whether a function is to be compiled or interpreted, and an interpreted
function can call only interpreted ones. So the modules of this folder are imported again under a package of another
name, with the interpreter switched on; their relative imports lead to modules of that same package.

An interpreted function can call the builtins of ``triton.language``, such as ``tl.full``, and not those that are jitted
functions themselves, such as ``tl.zeros`` or ``tl.cdiv``, since Triton's own modules are loaded once.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from types import ModuleType

import torch
from torch import Tensor

_PACKAGE = f"{__package__}.interpreted"

# While it runs a kernel, the interpreter replaces the functions of triton.language for the whole process, and keeps the
# index of the program in one global. So one thread at a time interprets, and none compiles meanwhile.
language_lock = threading.RLock()


@functools.cache
def load(module: str) -> ModuleType:
    """The interpreted copy of ``hgemm.triton_kernels.<module>``. Raises ImportError if Triton or numpy is missing."""
    import triton.language  # before the switch: what compiled kernels call must be compiled
    import triton.runtime.interpreter

    with language_lock, triton.knobs.runtime.scope():
        if _PACKAGE not in sys.modules:
            package = ModuleType(_PACKAGE, "The kernel modules, loaded for Triton's interpreter.")
            package.__path__ = list(sys.modules[__package__].__path__)
            sys.modules[_PACKAGE] = package
        triton.knobs.runtime.interpret = True
        return importlib.import_module(f"{_PACKAGE}.{module}")


def launch(module: str, a: Tensor, b: Tensor, out: Tensor, config: str) -> None:
    """Writes ``a @ b`` into ``out``, all on the CPU, with the interpreted kernel of ``module``."""
    import numpy

    # Sums that overflow give infinity, as on a GPU; numpy would warn.
    with language_lock, numpy.errstate(all="ignore"):
        load(module).launch(a, b, out, config)


@functools.cache
def defect(module: str, config: str) -> str | None:
    """Why the kernel of ``module`` cannot be interpreted here; None if it multiplies a small product of bf16 exactly.

    Triton and numpy are released independently, and some pairs do not work together: Triton 3.6.0 fails with numpy from
    2.4 on. Nothing says so beforehand; hence the trial, once a process.
    """
    try:
        import numpy
        import triton
    except ImportError as error:
        return f"Triton's interpreter cannot be imported: {error}"
    a = (torch.arange(9 * 24, device="cpu") % 7 - 3).reshape(9, 24)
    b = (torch.arange(24 * 16, device="cpu") % 5 - 2).reshape(24, 16)
    out = torch.full((9, 16), torch.nan, dtype=torch.bfloat16, device="cpu")
    try:
        launch(module, a.to(torch.bfloat16), b.to(torch.bfloat16), out, config)
        problem = "" if torch.equal(out, (a @ b).to(torch.bfloat16)) else "a wrong product"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if not problem:
        return None
    return (
        f"Triton {triton.__version__} cannot interpret kernels with numpy {numpy.__version__} ({problem}); "
        f"install a newer Triton, or numpy before 2.4"
    )
