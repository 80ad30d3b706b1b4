"""A run on the terminal: a progress bar with the remaining time, and the table of each case as it ends."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hgemm.bench.outcome import Observer
from hgemm.bench.schema import CaseResult, Results
from hgemm.bench.suites import Case
from hgemm.bench.tables import print_case


class TerminalObserver(Observer):
    """A context manager. ``console`` shows progress if it is a terminal; ``tables`` also prints every case.

    ``on_case`` is called with everything measured so far whenever a case ends: to store it.
    """

    def __init__(self, console: Console, *, tables: bool, on_case: Callable[[Results], None] = lambda results: None):
        self._tables = tables
        self._on_case = on_case
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=1.0)
        self._case = ""

    def __enter__(self) -> TerminalObserver:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def case_begins(self, case: Case, number: int, count: int) -> None:
        self._case = f"{number + 1}/{count}  {case.shape} {case.dtype}"

    def doing(self, text: str, done: float) -> None:
        self._progress.update(self._task, completed=done, description=f"{self._case}  {text}")

    def case_ends(self, case: CaseResult, results: Results) -> None:
        if self._tables:
            print_case(self._progress.console, case)
        self._on_case(results)
