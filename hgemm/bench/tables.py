"""Tables of results, for a terminal and in Markdown: one a case, fastest first, then who could not be timed and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hgemm.bench.metrics import (
    CEILING,
    clock_mhz,
    find_row,
    label,
    microseconds,
    relative,
    speed,
    throttled,
    timed_rows,
)
from hgemm.bench.schema import CaseResult, Results, Roof, Row, Timing
from hgemm.bench.statistics import Summary, summarize

TABLE_WIDTH = 132
"""Columns of a table where the terminal does not say how wide it is."""

LEAST_WORDS = 24
"""Characters in a line of a column of words, such as names of configurations."""

_GAP = 2
"""Characters between two columns; one follows the last."""


@dataclass(frozen=True)
class _Line:
    """A timed row beside those it is compared with."""

    row: Row
    timing: Timing
    times: Summary
    ceiling: Row | None
    torch_row: Row | None

    @property
    def contestant(self) -> bool:
        return self.row.role == "contestant"


@dataclass(frozen=True)
class _Column:
    heading: str
    cell: Callable[[_Line], str]
    right: bool = True
    rank: int = 0
    """Where all do not fit, the column of the highest rank is left out first; one of rank 0 never is."""
    folds: bool = False
    """Words, which may go on in the next line."""

    @property
    def words(self) -> str:
        return " ".join(self.heading.split()) or "remarks"

    def least(self, lines: Sequence[_Line]) -> int:
        """The characters it needs: those of its figures, and of words as many as are still read with ease."""
        texts = [*self.heading.splitlines(), *map(self.cell, lines)]
        width = max(map(cell_len, texts), default=0)
        return min(width, LEAST_WORDS) if self.folds else width


def _share(line: _Line) -> str:
    share = relative(line.row, line.ceiling)
    return f"{100 * share.median:.1f}" if share else ""


def _times_torch(line: _Line) -> str:
    ratio = relative(line.row, line.torch_row)
    return f"{ratio.median:.3f}" if ratio and line.contestant else ""


def _of_torch(line: _Line) -> str:
    """Time over torch's: the inverse of the ratio of speeds, paired by round."""
    ratio = relative(line.torch_row, line.row) if line.torch_row else None
    return f"{ratio.median:.3f}" if ratio and line.contestant else ""


def _error(line: _Line) -> str:
    error = line.row.check.error_over_bound if line.row.check else None
    return "" if error is None else f"{error:.2g}"


def _clock(line: _Line) -> str:
    clock = clock_mhz([line.timing])
    return f"{clock:.0f}" if clock else ""


def _spread(line: _Line) -> str:
    tera = speed(line.row)
    return f"{figure(tera.p5)} - {figure(tera.p95)}"


def _finished(line: _Line) -> str:
    return f"{summarize(line.timing.finished_us).median:.2f}" if line.timing.finished_us else ""


_NAME = (
    _Column("backend", lambda line: line.row.backend, False, folds=True),
    _Column("config", lambda line: line.row.config or "", False, folds=True),
)
_END = (
    _Column("error /\nbound", _error, rank=6),
    _Column("MHz", _clock, rank=5),
    _Column("", lambda line: ", ".join(remarks(line.timing, line.times)), False, rank=2, folds=True),
)
_DEVICE_COLUMNS = (
    *_NAME,
    _Column("TFLOPS", lambda line: figure(speed(line.row).median)),
    _Column("p5 - p95", _spread, rank=4),
    _Column("us", lambda line: f"{line.times.median:.1f}"),
    _Column("% of\nmma.sync", _share, rank=3),
    _Column("x torch", _times_torch, rank=1),
    *_END,
)
_HOST_COLUMNS = (
    *_NAME,
    _Column("out=", lambda line: "no" if line.row.allocates else "yes", False),
    _Column("host us", lambda line: f"{line.times.median:.2f}"),
    _Column("p5 - p95", lambda line: f"{line.times.p5:.2f} - {line.times.p95:.2f}", rank=4),
    _Column("of torch's\ntime", _of_torch, rank=1),
    _Column("until\nfinished", _finished, rank=3),
    *_END,
)


def print_case(console: Console, case: CaseResult) -> None:
    """The contestants of one case beside its ceiling and torch; as many columns as the console has room for."""
    columns, lines = _table(case)
    shown = _fitting(columns, lines, console.width)
    table = Table(
        title=escape(title(case)),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in shown:
        table.add_column(
            column.heading, justify="right" if column.right else "left", no_wrap=not column.folds, overflow="fold"
        )
    for line in lines:
        if not line.contestant:
            table.add_section()
        table.add_row(*(escape(column.cell(line)) for column in shown), style=None if line.contestant else "dim")
    console.print(table)
    if left_out := [column.words for column in columns if column not in shown]:
        console.print(f"  no room for: {', '.join(left_out)}", style="dim", markup=False, highlight=False)
    for row in _untimed(case):
        reason = Text.assemble(f"  {label(row)}: ", (row.status, "bold"), f": {row.reason or ''}")
        console.print(reason, highlight=False)


def _fitting(columns: Sequence[_Column], lines: Sequence[_Line], width: int) -> list[_Column]:
    """The columns that fit, in their order. Those of rank 0 stay, whether they fit or not."""
    shown = list(columns)
    while sum(column.least(lines) + _GAP for column in shown) - 1 > width:
        last = max(shown, key=lambda column: column.rank)
        if not last.rank:
            break
        shown.remove(last)
    return shown


def print_roofs(console: Console, results: Results) -> None:
    """What the device could do at most in this run."""
    for roof in results.roofs:
        console.print(f"roof  {_describe(roof)}", highlight=False, markup=False, soft_wrap=True)


def markdown(results: Results) -> str:
    """Every case as a table under a heading, and the roofs."""
    env = results.env
    versions = f"torch {env.torch}, CUDA {env.cuda or '?'}, driver {env.driver or '?'}, hgemm {env.hgemm}"
    blocks = [f"{env.gpu}, {versions}, {results.run.utc}" + ("" if results.run.complete else ", incomplete")]
    for case in results.cases:
        columns, lines = _table(case)
        blocks.append(f"### {title(case)}")
        if lines:
            headings = [" ".join(column.heading.split()) for column in columns]
            rules = ["---:" if column.right else ":---" for column in columns]
            rows = [[column.cell(line) for column in columns] for line in lines]
            blocks.append("\n".join(map(_pipes, (headings, rules, *rows))))
        blocks += ["\n".join(f"- {label(row)}: {row.status}: {row.reason or ''}" for row in _untimed(case))]
    blocks.append("\n".join(f"- {_describe(roof)}" for roof in results.roofs))
    return "\n\n".join(filter(None, blocks)) + "\n"


def title(case: CaseResult) -> str:
    """The case on one line, what is usual left out."""
    words = [f"{case.batch} x" if case.batch > 1 else "", f"{case.M} x {case.N} x {case.K} ", case.dtype]
    words.append(case.layout if case.layout != "nn" else "")
    words.append("(zeros)" if case.distribution == "zeros" else "")
    words.append(f" {case.label}" if case.label else "")
    return " ".join(filter(None, words))


def _table(case: CaseResult) -> tuple[Sequence[_Column], list[_Line]]:
    rows = timed_rows(case)
    host = any(row.timing is not None and row.timing.mode == "e2e" for row in rows)
    ceiling = None if host else find_row(case, CEILING, "roof")
    lines = list(_lines(case, sorted(rows, key=lambda row: (row.allocates, microseconds(row).median)), ceiling))
    if ceiling is not None:
        lines += _lines(case, [ceiling], ceiling)
    return _HOST_COLUMNS if host else _DEVICE_COLUMNS, lines


def _lines(case: CaseResult, rows: Sequence[Row], ceiling: Row | None) -> Iterator[_Line]:
    for row in rows:
        assert row.timing is not None
        yield _Line(row, row.timing, microseconds(row), ceiling, find_row(case, "torch", allocates=row.allocates))


def _untimed(case: CaseResult) -> list[Row]:
    """Each once, though in mode e2e it has two rows."""
    found: dict[tuple[str, str, str | None], Row] = {}
    for row in case.rows:
        if row.timing is None:
            found.setdefault((label(row), row.status, row.reason), row)
    return list(found.values())


def remarks(timing: Timing, times: Summary) -> list[str]:
    """What a reader should know of a row's samples, and of ``times``, their summary."""
    remarks = []
    if times.noisy:
        remarks.append("noisy")
    if timing.timer == "events" and timing.mode != "cold":
        remarks.append("not in a graph")
    if held := throttled(timing):
        remarks.append(f"throttled {held}/{len(timing.samples_us)}")
    if timing.dropped:
        remarks.append(f"{timing.dropped} dropped")
    return remarks


def _describe(roof: Roof) -> str:
    clock = f" at {roof.clock_mhz:.0f} MHz" if roof.clock_mhz else ""
    name = f"{roof.name} {roof.dtype or ''}".strip()
    return f"{name}: {roof.value:,.0f} {roof.unit}{clock} ({roof.note})"


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def figure(tflops: float) -> str:
    """Three or four significant digits."""
    return f"{tflops:.0f}" if tflops >= 1000 else f"{tflops:.1f}" if tflops >= 10 else f"{tflops:.3g}"
