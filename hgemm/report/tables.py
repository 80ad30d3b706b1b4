"""The tables of a results file, as rows of text: who is fastest, each case, the roofs, and what was not timed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hgemm import devices
from hgemm.bench.metrics import (
    CEILING,
    clock_mhz,
    find_row,
    gigabytes_per_second,
    label,
    main_kernel,
    microseconds,
    relative,
    speed,
    timed_rows,
)
from hgemm.bench.schema import CaseResult, Results, Row, Timing
from hgemm.bench.statistics import Summary, summarize
from hgemm.bench.tables import figure, remarks
from hgemm.report import answer


@dataclass(frozen=True)
class Cell:
    """Text, and what it sorts by if that is not the text itself."""

    text: str
    sort: float | None = None
    bar: float | None = None
    """Drawn under the text: 1 fills the cell."""
    detail: str = ""
    """A second, smaller line."""


@dataclass(frozen=True)
class Column:
    heading: str
    number: bool = False
    code: bool = False


Cells = dict[Column, Cell]
"""In the order of the columns."""


@dataclass(frozen=True)
class Line:
    """One row; its first cell names it."""

    cells: Cells
    words: str = ""
    """What the filter looks at."""
    roof: bool = False


@dataclass(frozen=True)
class Table:
    caption: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class CaseTable:
    """The table of one case, and the line that stands for it while it is closed."""

    product: str
    kind: str
    result: str
    words: str
    table: Table


def product(case: CaseResult) -> str:
    """``M × N × K``, with the batch before it."""
    shape = f"{case.M} × {case.N} × {case.K}"
    return shape if case.batch == 1 else f"{case.batch} × ({shape})"


def kind(case: CaseResult) -> str:
    """What tells cases of one shape apart: dtype, layout, data, and what the product is in a model."""
    words = [case.dtype]
    if case.layout != "nn":
        words.append(case.layout)
    if case.distribution != "normal":
        words.append(case.distribution)
    if case.label:
        words.append(case.label)
    return ", ".join(words)


def winners(found: Sequence[answer.Winner]) -> Table:
    """The fastest contestant of each case."""
    device = _device_time(found)
    longest = _longest(winner.of_ceiling for winner in found)
    lines = [
        (
            _words(winner.case, winner.row),
            {
                Column("M × N × K"): Cell(product(winner.case), winner.case.flops),
                Column("Kind"): Cell(kind(winner.case)),
                Column("Bound by"): Cell(winner.limit or ""),
                Column("Fastest"): Cell(winner.row.backend, detail=winner.row.config or ""),
                **(_tera(winner.speed) if device else {}),
                **_time(microseconds(winner.row)),
                **_ratio(winner.of_torch),
                **(_share(winner.of_ceiling, longest) | _of_copy(winner) if device else {}),
                Column(f"Within {answer.MARGIN:.0%} of it"): Cell(", ".join(winner.level)),
            },
        )
        for winner in found
    ]
    return _table("The fastest contestant of each product", [Line(cells, words) for words, cells in lines])


def cases(found: Sequence[answer.Winner]) -> list[CaseTable]:
    """Every case in which somebody was timed."""
    device = _device_time(found)
    shown = []
    for winner in found:
        case, row = winner.case, winner.row
        best = f"{figure(winner.speed.median)} TFLOPS" if device else f"{microseconds(row).median:.2f} µs"
        shown.append(
            CaseTable(product(case), kind(case), f"{row.backend}, {best}", _words(case, row), _case(case, device))
        )
    return shown


def _case(case: CaseResult, device: bool) -> Table:
    """Everybody who was timed in a case, fastest first, and below them its roof."""
    ceiling = find_row(case, CEILING, "roof") if device else None
    speeds = [(speed(row), row) for row in timed_rows(case)]
    speeds.sort(key=lambda found: (found[1].allocates, -found[0].median))
    if ceiling is not None:
        speeds.append((speed(ceiling), ceiling))
    longest = _longest(relative(row, ceiling) for _, row in speeds)
    lines = []
    for tera, row in speeds:
        assert row.timing is not None
        times = microseconds(row)
        torch_row = find_row(case, "torch", allocates=row.allocates) if row.role == "contestant" else None
        cells = {
            Column("Backend"): Cell(row.backend),
            Column("Configuration", code=True): Cell(row.config or ""),
            **(_tera(tera) | _spread(tera) if device else _called(row)),
            **_time(times),
            **(_bandwidth(row.timing) if device else {}),
            **(_finished(row.timing) if not device else {}),
            **_ratio(relative(row, torch_row)),
            **(_share(relative(row, ceiling), longest) if device else {}),
            Column("Error / bound", number=True): _number(row.check.error_over_bound if row.check else None, ".2g"),
            Column("Clock, MHz", number=True): _number(clock_mhz([row.timing]), ".0f"),
            **_resources(row),
            Column("Remarks"): Cell(", ".join(remarks(row.timing, times))),
        }
        lines.append(Line(cells, roof=row.role == "roof"))
    return _table(f"{product(case)}, {kind(case)}: everybody who was timed", lines)


def not_timed(results: Results) -> Table:
    """Contestants without times, with the reason and the cases that it holds in."""
    places: dict[tuple[str, str, str], list[CaseResult]] = {}
    for case in results.cases:
        # On the host's clock everybody has two rows, and what keeps one from being timed keeps the other.
        for reason in dict.fromkeys(
            (label(row), row.status, row.reason or "") for row in case.rows if row.timing is None
        ):
            places.setdefault(reason, []).append(case)
    lines = [
        {
            Column("Contestant", code=True): Cell(name),
            Column("What happened"): Cell(status),
            Column("Why"): Cell(reason),
            Column("Where"): Cell(_where(found, results)),
        }
        for (name, status, reason), found in places.items()
    ]
    return _table("What was not timed, and why", [Line(cells) for cells in lines])


def _where(found: list[CaseResult], results: Results) -> str:
    if len(found) == len(results.cases):
        return "in every product" if len(found) > 1 else "in the one product"
    names = [f"{product(case)} {kind(case)}" for case in found]
    return "; ".join(names[:3]) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")


def roofs(results: Results) -> Table:
    """What the device could do at most: as measured in this run, and as its vendor states."""
    lines = []
    for roof in results.roofs:
        spread = summarize(roof.samples)
        sums = f"{roof.accumulator} sums" if roof.accumulator else None
        what = ", ".join(text for text in (roof.dtype, sums) if text)
        note = f"{roof.note}; samples from {figure(spread.p5)} to {figure(spread.p95)}"
        lines.append(_roof(roof.name, what, roof.value, roof.unit, roof.clock_mhz, note))
    if board := devices.find(results.env.gpu, results.env.multiprocessors):
        peak = "vendor's peak"
        lines += [
            _roof(peak, "16-bit, float32 sums", board.tensor_tflops(), "TFLOPS", board.clock_mhz, board.source),
            _roof(peak, "device memory", board.bandwidth_gbs, "GB/s", None, board.source),
        ]
    return _table("The limits of the device", lines)


def _roof(name: str, what: str, value: float, unit: str, clock: float | None, note: str) -> Line:
    return Line(
        {
            Column("Roof"): Cell(name),
            Column("Of what"): Cell(what),
            Column("Value", number=True): _number(value, ",.0f"),
            Column("Unit"): Cell(unit),
            Column("Clock, MHz", number=True): _number(clock, ".0f"),
            Column("How it was found"): Cell(note),
        }
    )


def _table(caption: str, lines: Sequence[Line]) -> Table:
    """All lines have the same columns."""
    return Table(caption, tuple(lines[0].cells) if lines else (), tuple(lines))


def _words(case: CaseResult, winner: Row) -> str:
    shape = f"{case.M}x{case.N}x{case.K}"
    return " ".join([shape, product(case), kind(case), case.layout, label(winner)]).lower()


def _device_time(found: Iterable[answer.Winner]) -> bool:
    """Whether speed means the device's: the host's time for a call says nothing about a share of its limits."""
    return all(winner.row.timing is not None and winner.row.timing.mode != "e2e" for winner in found)


def _number(value: float | None, form: str) -> Cell:
    return Cell("") if value is None else Cell(format(value, form), value)


def _tera(tera: Summary) -> Cells:
    return {Column("TFLOPS", number=True): Cell(figure(tera.median), tera.median)}


def _spread(tera: Summary) -> Cells:
    return {Column("5%–95%", number=True): Cell(f"{figure(tera.p5)}–{figure(tera.p95)}", tera.p5)}


def _time(times: Summary) -> Cells:
    return {Column("µs", number=True): _number(times.median, ".1f" if times.median >= 100 else ".2f")}


def _called(row: Row) -> Cells:
    return {Column("Result"): Cell("allocated" if row.allocates else "into out=")}


def _finished(timing: Timing) -> Cells:
    finished = summarize(timing.finished_us).median if timing.finished_us else None
    return {Column("µs until finished", number=True): _number(finished, ".2f")}


def _ratio(ratio: Summary | None) -> Cells:
    column = Column("× torch (95% interval)", number=True)
    if ratio is None:
        return {column: Cell("")}
    interval = f"{ratio.ci_low:.3f}–{ratio.ci_high:.3f}" if ratio.samples > 1 else "one round"
    return {column: Cell(f"{ratio.median:.3f} ({interval})", ratio.median)}


def _longest(shares: Iterable[Summary | None]) -> float:
    """What the longest bar stands for: the ceiling, or what is above it."""
    return max([1.0, *(share.median for share in shares if share)])


def _share(share: Summary | None, longest: float) -> Cells:
    cell = Cell("") if share is None else Cell(f"{share.median:.1%}", share.median, bar=share.median / longest)
    return {Column("Of mma.sync", number=True): cell}


def _of_copy(winner: answer.Winner) -> Cells:
    """For what memory limits: to others that share says little."""
    return {Column("Of copy", number=True): _number(winner.of_copy if winner.limit == "memory" else None, ".1%")}


def _bandwidth(timing: Timing) -> Cells:
    """Of compulsory bytes."""
    rates = gigabytes_per_second(timing).values() if timing.bytes_per_call else ()
    return {Column("GB/s", number=True): _number(statistics.median(rates) if rates else None, ",.0f")}


def _resources(row: Row) -> Cells:
    kernel = main_kernel(row)
    return {
        Column("Registers", number=True): _number(kernel.registers if kernel else None, "d"),
        Column("Shared, KiB", number=True): _number(kernel.shared_bytes / 1024 if kernel else None, ".0f"),
    }
