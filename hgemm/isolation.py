"""Checks in a child process with a limit, because a kernel that hangs or crashes takes its process along.

The child sends a line before each case and each report when it is done. A case that sends nothing more within the
limit has hung: the child is killed, and the case is the failure.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from hgemm.backends import Backend, did_you_mean, get, is_built_in, register_backend, registered
from hgemm.cases import Case
from hgemm.conformance import Failure, Report, check_backend
from hgemm.search import search

Run = tuple[str | None, torch.dtype]  # a configuration and a dtype

LIMIT_SECONDS = 300.0  # for one case, with the compilation that the first one may need
_UNKNOWN = "1x1x1:integers"
_END_SECONDS = 10.0  # for a child to end that has closed its pipe


def load(name: str) -> Backend:
    """The backend called ``name``; a ``module:function`` is imported and registered under the function's name, unless
    the module has done so itself, and may have said what the function accepts and what may be expected of it.

    Raises ValueError if either is missing, and whatever importing and registering raise.
    """
    module, colon, function = name.partition(":")
    if not colon:
        return get(name)
    if not module or not function:
        raise ValueError(f"a backend of your own is module:function, as in my_kernel:matmul, found {name!r}")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what it prints is no part of an answer in JSON
            imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # one that the module itself imports
        raise ValueError(
            f"no module {error.name!r} for {name!r}; it must lie in the current folder or on PYTHONPATH"
        ) from None
    except SystemExit:
        raise ValueError(
            f"importing module {module!r} ends the process; let it do so only if __name__ == '__main__'"
        ) from None
    if not hasattr(imported, function):
        raise ValueError(f"module {module!r} has no function {function!r}{did_you_mean(function, vars(imported))}")
    fn = getattr(imported, function)
    record = registered(function)
    return record if record is not None and record.fn is fn else register_backend(function, fn)


def can_isolate(name: str) -> bool:
    """Whether a child process can find the backend: a registration of this process alone is unknown there."""
    return ":" in name or is_built_in(name)


def reports(
    name: str,
    runs: Sequence[Run],
    device: str,
    *,
    quick: bool = False,
    only: Case | None = None,
    seconds: float | None = None,
    before: Callable[[str], None] = lambda work: None,
) -> Iterator[Report]:
    """The reports of one backend for each configuration and dtype, made in this process: the suite's, then, if
    ``seconds`` are given for each, the search's, which takes the place of the quick suite."""
    record = load(name)
    for config, dtype in runs:
        if only or not (seconds and quick):
            yield from check_backend(
                record, device, configs=[config], dtypes=[dtype], quick=quick, only=only, before=before
            )
        if seconds:
            yield search(record, config, dtype, device, seconds, before)


def isolated_reports(
    name: str,
    runs: Sequence[Run],
    device: str,
    *,
    limit: float = LIMIT_SECONDS,
    before: Callable[[str], None] = lambda work: None,
    stop: threading.Event | None = None,
    **options: Any,
) -> Iterator[Report]:
    """``reports`` from a child process. A hang or a crash ends it, and is reported as a failure of the case at hand;
    another child goes on with the runs after it.

    Raises InterruptedError, with the child ended, soon after ``stop`` is set.
    """
    pending = list(runs)
    stop = stop or threading.Event()
    while pending:
        with _child(name, pending, device, options) as (child, messages):
            case = _UNKNOWN
            while pending:
                try:
                    kind, value = _next(messages, child, limit, stop)
                except (TimeoutError, EOFError) as lost:
                    kind, value = "error", str(lost)
                if kind == "case":
                    case = value.rpartition(" ")[2]
                    before(value)
                elif kind == "report":
                    yield value
                elif kind == "done":
                    pending.pop(0)
                else:
                    config, dtype = pending.pop(0)
                    failure = Failure(Case.parse(case), (value,))
                    yield Report(name.rpartition(":")[2], config, dtype, 1, 0, None, math.inf, (failure,))
                    break


def most_children() -> int:
    """How many children may use this machine's GPU at once: one a core, and a GiB of free device memory for each."""
    return max(1, min(os.cpu_count() or 1, torch.cuda.mem_get_info()[0] // 2**30))


def side_by_side(jobs: Sequence[Callable[..., Iterator[Report]]], workers: int) -> list[Report]:
    """What these ``isolated_reports`` yield, in their order, ``workers`` of them running at once. An exception of one,
    or Ctrl-C, ends all."""
    stop = threading.Event()

    def all_of(job: Callable[..., Iterator[Report]]) -> list[Report]:
        return list(job(stop=stop))

    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(all_of, job) for job in jobs]
        try:
            return [report for future in waiting for report in future.result()]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


@contextlib.contextmanager
def _child(name: str, runs: Sequence[Run], device: str, options: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    context = multiprocessing.get_context("spawn")
    # A queue would write from a thread of its own, and what a crash overtakes there is lost: the case it crashed in.
    messages, writer = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(writer, list(sys.path), name, runs, device, options), daemon=True)
    child.start()
    writer.close()  # so that the end of the child is the end of the pipe
    try:
        yield child, messages
    finally:
        child.kill()
        child.join()
        messages.close()


def _next(messages: Any, child: Any, limit: float, stop: threading.Event) -> tuple[str, Any]:
    """The next message. Raises TimeoutError after ``limit`` seconds, EOFError if the child ends without one."""
    end = time.monotonic() + limit
    while (left := end - time.monotonic()) > 0:
        if stop.is_set():
            raise InterruptedError("stopped by the caller")
        if messages.poll(min(0.5, left)):
            try:
                return messages.recv()
            except (EOFError, OSError):  # OSError: in the middle of a message
                child.join(_END_SECONDS)
                raise EOFError(f"the process ended with status {child.exitcode}") from None
    raise TimeoutError(f"did not end within {limit:g} s")


def _work(messages: Any, path: list[str], name: str, runs: Sequence[Run], device: str, options: dict[str, Any]) -> None:
    """What the child does."""
    sys.path[:] = path
    try:
        for run in runs:
            for report in reports(name, [run], device, before=lambda work: messages.send(("case", work)), **options):
                messages.send(("report", report))
            messages.send(("done", None))
    except Exception as error:
        messages.send(("error", f"raised {type(error).__name__}: {error}"))
    messages.close()
