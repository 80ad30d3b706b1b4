"""A first call in another process: a contestant that hangs or crashes there does neither here.

One child process serves many contestants; it is started again after it was lost. It finds built-in backends by name and
a user's by loading the same files.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from hgemm.backends import get, is_built_in
from hgemm.bench.contestants import Choice, load
from hgemm.bench.operands import Operands
from hgemm.bench.schema import Status
from hgemm.bench.suites import Case
from hgemm.problem import UnsupportedProblem

Reach = Literal["own", "all", "none"]
"""Who goes first in another process: the user's own contestants, everybody, or nobody."""

_END_SECONDS = 10.0

Reply = tuple[Status, str] | None
"""Why a contestant is not to be called here; None if nothing speaks against it."""


class Preflight:
    """Calls ``choice`` once in a child process. ``files`` are those that registered the user's contestants.

    A backend that this process alone has registered cannot be found from another one, and is not tried.
    """

    def __init__(self, device: torch.device, files: Sequence[Path], names: Sequence[str], reach: Reach, limit: float):
        self._files = [str(path.resolve()) for path in files]
        self._names = frozenset(names)
        self._device = str(device)
        self._reach = reach
        self._limit = limit
        self._replies: dict[tuple[str, str | None, Case], Reply] = {}
        self._child: Any = None
        self._pipe: Any = None

    def __call__(self, choice: Choice, case: Case) -> Reply:
        name = choice.backend.name
        if not (self._reach != "none" and name in self._names) and not (self._reach == "all" and is_built_in(name)):
            return None
        key = name, choice.config, case
        if key not in self._replies:  # in mode e2e everybody is prepared twice
            self._replies[key] = self._ask(*key)
        return self._replies[key]

    def _ask(self, name: str, config: str | None, case: Case) -> Reply:
        if self._child is None and (reason := self._start()):
            return "failed", f"the process for its first call did not start: {reason}; --preflight none leaves it out"
        try:
            self._pipe.send((name, config, case))
            reply, usable = self._next()
        except TimeoutError:
            self.close()
            return "hangs", f"did not end within {self._limit:g} s in a process of its own"
        except (EOFError, OSError):
            return "failed", f"ended its process {self._end()}"
        if not usable:
            self.close()
        return reply

    def close(self) -> None:
        """Ends the child, whatever it is doing."""
        if self._child is not None:
            self._child.kill()
            self._child.join(_END_SECONDS)  # the driver may still be taking down a kernel that spins
            self._pipe.close()
            self._child = self._pipe = None

    def _start(self) -> str | None:
        """Starts the child; returns why it is not ready."""
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        arguments = (other, list(sys.path), self._files, self._device)
        self._child = context.Process(target=_serve, args=arguments, daemon=True)
        self._child.start()
        other.close()  # so that the end of the child is the end of the pipe
        try:
            self._next()
        except TimeoutError:
            self.close()
            return f"it is not ready after {self._limit:g} s"
        except (EOFError, OSError):
            return f"it ended {self._end()}"
        return None

    def _next(self) -> tuple[Reply, bool]:
        if not self._pipe.poll(self._limit):
            raise TimeoutError
        reply, usable = self._pipe.recv()
        return reply, usable

    def _end(self) -> str:
        """How a child ended that has closed its pipe."""
        self._child.join(_END_SECONDS)
        code = self._child.exitcode
        self.close()
        if code is not None and code < 0:
            return f"with {signal.Signals(-code).name}"
        return f"with status {code}"


def _serve(pipe: Any, path: list[str], files: list[str], device: str) -> None:
    """What the child does: answers requests until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    sys.path[:] = path
    for file in files:
        load(Path(file))
    torch.zeros(1, device=device)
    pipe.send((None, True))
    with contextlib.suppress(EOFError):
        while True:
            name, config, case = pipe.recv()
            reply = _try(name, config, case, torch.device(device))
            pipe.send((reply, _usable(device)))


def _try(name: str, config: str | None, case: Case, device: torch.device) -> Reply:
    try:
        operands = Operands.allocate(case, device)
    except torch.OutOfMemoryError:
        return None  # the parent holds the memory; nothing is known of the contestant
    try:
        Choice(get(name), config).kernel_call(operands)(0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except UnsupportedProblem as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    return None


def _usable(device: str) -> bool:
    """Whether the device still answers this process; gives the operands' memory back."""
    if not device.startswith("cuda"):
        return True
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except Exception:
        return False
    return True
