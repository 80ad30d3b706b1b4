"""What a run of tuning shows: progress, a line or two for each product, the tables, and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

from rich import progress as bars
from rich.console import Console

from hgemm.bench.suites import Case
from hgemm.tune.candidates import Pruned
from hgemm.tune.tuner import Outcome, Tuned
from hgemm.tuned_file import Entry, Gpu, LeftOut, Product, Timed, Versions, versions

RUNNERS_UP = 2


class Progress:
    """A context manager: a bar on a terminal. ``text`` is what happens now."""

    def __init__(self, console: Console) -> None:
        self.text = "tuning"
        self._case, self._number, self._count = "", 0, 1
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=24),
            bars.TextColumn("{task.percentage:>3.0f}%"),
            bars.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1.0)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def compiling(self, text: str, done: int, count: int) -> None:
        self._show(f"{text} {done}/{count}" if count > 1 else text, done / count)

    def begins(self, case: Case, number: int, count: int) -> None:
        self._case, self._number, self._count = f"{case.shape} {case.dtype} {case.layout}", number, count

    def trying(self, text: str, done: float) -> None:
        text = f"{self._number + 1}/{self._count}  {self._case}  {text}"
        self._show(text, (self._number + done) / self._count)

    def _show(self, text: str, done: float) -> None:
        self.text = text
        self._bar.update(self._task, completed=done, description=text)


def print_tuned(console: Console, tuned: Tuned) -> None:
    """The winner and those next to it, who was not tried, and what went wrong."""
    title = f"{tuned.case.shape} {tuned.case.dtype} {tuned.case.layout}"
    if tuned.entry:
        first, *others = tuned.entry.ranking
        console.print(f"[bold]{title}[/]: {_timed(first)}")
        for other in others[:RUNNERS_UP]:
            console.print(f"  then {_timed(other)}, {other.us / first.us:.2f} times as long")
    else:
        console.print(f"[bold]{title}[/]: [red]{tuned.fault}")
    tried = len(tuned.entry.tried) if tuned.entry else len(tuned.left_out)
    console.print(f"  {tried} tried, {len(tuned.pruned)} not{_grounds(tuned.pruned)}", style="dim")
    for one in tuned.left_out:
        console.print(f"  no time for {_name(one)}: {one.reason}", markup=False)


def _grounds(pruned: Iterable[Pruned]) -> str:
    counts = Counter(one.ground for one in pruned)
    return f" ({', '.join(f'{ground}: {count}' for ground, count in counts.items())})" if counts else ""


def print_outcome(console: Console, outcome: Outcome) -> None:
    if outcome.known:
        count = len(outcome.known)
        what = "1 product was" if count == 1 else f"{count} products were"
        console.print(f"{what} tuned before; --again tunes once more")


def print_entries(console: Console, found: Sequence[tuple[Gpu, dict[Versions, dict[Product, Entry]]]]) -> None:
    """Every table, those that do not count any more with the reason."""
    if not any(entries for _, tables in found for entries in tables.values()):
        console.print("nothing was tuned here")
    for gpu, tables in found:
        for made_with, entries in tables.items():
            difference = made_with.difference(versions())
            state = f" [yellow]not used: {difference}[/]" if difference else ""
            triton = f", Triton {made_with.triton}" if made_with.triton else ""
            console.print(f"[bold]{gpu.name}[/], torch {made_with.torch}{triton}{state}")
            for product, entry in entries.items():
                console.print(f"  {product}: {_timed(entry.ranking[0])} ({entry.date})", markup=False)


def _timed(one: Timed) -> str:
    return f"{_name(one)}, {one.us:.5g} us"


def _name(one: Timed | LeftOut) -> str:
    return f"{one.backend} {one.config}" if one.config else one.backend


def as_json(gpu: Gpu, outcome: Outcome) -> dict[str, Any]:
    """A run as one object."""
    return {
        "gpu": gpu.name,
        "versions": asdict(versions()),
        "tuned": [_as_json(one) for one in outcome.tuned],
        "known": [_case(case) for case in outcome.known],
        "stopped": outcome.stopped,
    }


def _as_json(tuned: Tuned) -> dict[str, Any]:
    return {
        **_case(tuned.case),
        "ranking": [asdict(one) for one in tuned.entry.ranking] if tuned.entry else [],
        "left_out": [asdict(one) for one in tuned.left_out],
        "pruned": [
            {
                "backend": one.choice.backend.name,
                "config": one.choice.config,
                "ground": one.ground,
                "reason": one.reason,
            }
            for one in tuned.pruned
        ],
        "wrong": list(tuned.wrong),
        "fault": tuned.fault or None,
    }


def _case(case: Case) -> dict[str, Any]:
    shape = case.shape
    names = {"M": shape.M, "N": shape.N, "K": shape.K, "batch": shape.batch}
    return {**names, "dtype": case.dtype, "layout": case.layout}
