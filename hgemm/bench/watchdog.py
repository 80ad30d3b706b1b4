"""A limit on waiting: a kernel that never ends blocks the thread that waits for it, so another thread watches."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType

_PERIOD_SECONDS = 1.0  # between two looks: seldom, because each takes the interpreter from whatever is being timed


class Watchdog:
    """A context manager that calls ``expired`` once, from a thread of its own, if a watched stretch takes too long.

    The stretch may be stuck anywhere outside the interpreter, in a wait for the device or in a compiler; nothing can
    bring it back, so that ``expired`` has to save what there is and end the process.
    """

    def __init__(self, limit: float, expired: Callable[[], None]) -> None:
        self._limit = limit
        self._expired = expired
        self._deadline: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hgemm.bench watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Within it the limit runs."""
        self._deadline = time.monotonic() + self._limit
        try:
            yield
        finally:
            self._deadline = None

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Within it the limit of a watched stretch does not run; afterwards it begins anew."""
        self._deadline = None
        try:
            yield
        finally:
            self._deadline = time.monotonic() + self._limit

    def _watch(self) -> None:
        while not self._stop.wait(min(_PERIOD_SECONDS, self._limit / 4)):
            deadline = self._deadline
            if deadline is not None and time.monotonic() > deadline:
                self._expired()
                return
