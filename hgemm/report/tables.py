"""The tables of a results file, as rows of text: who is fastest, each case, the roofs, and what was not timed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hgemm import devices
from hgemm.bench.metrics import CEILING, clock_mhz, find_row, label, relative, speed, timed_rows
from hgemm.bench.schema import CaseResult, Results, Row
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


@dataclass(frozen=True)
class Line:
    """The cells of one row, the first of which names it."""

    cells: tuple[Cell, ...]
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
    columns = [Column("M × N × K"), Column("Kind"), Column("Bound by"), Column("Fastest")]
    if device:
        columns.append(Column("TFLOPS", number=True))
    columns += [Column("µs", number=True), Column("× torch (95% interval)", number=True)]
    if device:
        columns.append(Column("Of mma.sync", number=True))
    columns.append(Column(f"Within {answer.MARGIN:.0%} of it"))
    longest = _longest(winner.of_ceiling for winner in found)
    lines = []
    for winner in found:
        case = winner.case
        cells = [
            Cell(product(case), case.flops),
            Cell(kind(case)),
            Cell(winner.limit or ""),
            Cell(winner.row.backend, detail=winner.row.config or ""),
            *([Cell(figure(winner.speed.median), winner.speed.median)] if device else []),
            _microseconds(winner.row, winner.speed.median),
            _ratio(winner.of_torch),
            *([_share(winner.of_ceiling, longest)] if device else []),
            Cell(", ".join(winner.level)),
        ]
        lines.append(Line(tuple(cells), _words(case, label(winner.row))))
    return Table("The fastest contestant of each product", tuple(columns), tuple(lines))


def cases(found: Sequence[answer.Winner]) -> list[CaseTable]:
    """Every case in which somebody was timed."""
    device = _device_time(found)
    shown = []
    for winner in found:
        case = winner.case
        speed_text = (
            f"{figure(winner.speed.median)} TFLOPS"
            if device
            else f"{_microseconds(winner.row, winner.speed.median).text} µs"
        )
        shown.append(
            CaseTable(
                product(case),
                kind(case),
                f"{winner.row.backend}, {speed_text}",
                _words(case, label(winner.row)),
                _case(case, device),
            )
        )
    return shown


def _case(case: CaseResult, device: bool) -> Table:
    """Everybody who was timed in a case, fastest first, and below them its roof."""
    columns = [Column("Backend"), Column("Configuration", code=True)]
    if device:
        columns += [Column("TFLOPS", number=True), Column("5%–95%", number=True)]
    columns += [Column("µs", number=True), Column("× torch (95% interval)", number=True)]
    if device:
        columns.append(Column("Of mma.sync", number=True))
    columns += [
        Column("Error / bound", number=True),
        Column("Clock, MHz", number=True),
        Column("Registers", number=True),
        Column("Shared, KiB", number=True),
        Column("Remarks"),
    ]
    ceiling, torch_row = find_row(case, CEILING, "roof"), find_row(case, "torch")
    speeds = sorted(((speed(row), row) for row in timed_rows(case)), key=lambda found: -found[0].median)
    if device and ceiling is not None:
        speeds.append((speed(ceiling), ceiling))
    longest = _longest(relative(row, ceiling) for _, row in speeds)
    lines = []
    for tera, row in speeds:
        assert row.timing is not None
        clock = clock_mhz([row.timing])
        error = row.check.error_over_bound if row.check else None
        # What computes the product is the launch with the most threads; a split K adds a small one that sums up.
        kernel = max(row.kernels or (), key=lambda kernel: kernel.blocks * kernel.threads, default=None)
        cells = [
            Cell(row.backend),
            Cell(row.config or ""),
            *([Cell(figure(tera.median), tera.median)] if device else []),
            *([Cell(f"{figure(tera.p5)}–{figure(tera.p95)}", tera.p5)] if device else []),
            _microseconds(row, tera.median),
            _ratio(relative(row, torch_row)) if row.role == "contestant" else Cell(""),
            *([_share(relative(row, ceiling), longest)] if device else []),
            Cell("") if error is None else Cell(f"{error:.2g}", error),
            Cell("") if clock is None else Cell(f"{clock:.0f}", clock),
            Cell("") if kernel is None else Cell(str(kernel.registers), kernel.registers),
            Cell("") if kernel is None else Cell(f"{kernel.shared_bytes / 1024:.0f}", kernel.shared_bytes),
            Cell(", ".join(_remarks(row))),
        ]
        lines.append(Line(tuple(cells), roof=row.role == "roof"))
    return Table(f"{product(case)}, {kind(case)}: everybody who was timed", tuple(columns), tuple(lines))


def not_timed(results: Results) -> Table:
    """Contestants without times, with the reason and the cases that it holds in."""
    places: dict[tuple[str, str, str], list[CaseResult]] = {}
    for case in results.cases:
        for row in case.rows:
            if row.timing is None:
                places.setdefault((label(row), row.status, row.reason or ""), []).append(case)
    columns = (Column("Contestant", code=True), Column("What happened"), Column("Why"), Column("Where"))
    lines = [
        Line((Cell(name), Cell(status), Cell(reason), Cell(_where(found, results))))
        for (name, status, reason), found in places.items()
    ]
    return Table("What was not timed, and why", columns, tuple(lines))


def _where(found: list[CaseResult], results: Results) -> str:
    if len(found) == len(results.cases):
        return "in every product" if len(found) > 1 else "in the one product"
    names = [f"{product(case)} {kind(case)}" for case in found]
    return "; ".join(names[:3]) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")


def roofs(results: Results) -> Table:
    """What the device could do at most: as measured in this run, and as its vendor states."""
    columns = (
        Column("Roof"),
        Column("Of what"),
        Column("Value", number=True),
        Column("Unit"),
        Column("Clock, MHz", number=True),
        Column("How it was found"),
    )
    lines = []
    for roof in results.roofs:
        spread = summarize(roof.samples)
        note = f"{roof.note}; samples from {figure(spread.p5)} to {figure(spread.p95)}"
        clock = Cell("") if roof.clock_mhz is None else Cell(f"{roof.clock_mhz:.0f}", roof.clock_mhz)
        sums = f"{roof.accumulator} sums" if roof.accumulator else None
        kind = ", ".join(text for text in (roof.dtype, sums) if text)
        lines.append(
            Line(
                (
                    Cell(roof.name),
                    Cell(kind),
                    Cell(f"{roof.value:,.0f}", roof.value),
                    Cell(roof.unit),
                    clock,
                    Cell(note),
                )
            )
        )
    if board := devices.find(results.env.gpu, results.env.multiprocessors):
        for name, kind, value, unit in (
            ("vendor's peak", "16-bit, float32 sums", board.tensor_tflops(), "TFLOPS"),
            ("vendor's peak", "device memory", board.bandwidth_gbs, "GB/s"),
        ):
            clock = Cell(str(board.clock_mhz), board.clock_mhz) if unit == "TFLOPS" else Cell("")
            lines.append(
                Line((Cell(name), Cell(kind), Cell(f"{value:,.0f}", value), Cell(unit), clock, Cell(board.source)))
            )
    return Table("The limits of the device", columns, tuple(lines))


def _words(case: CaseResult, winner: str) -> str:
    shape = f"{case.M}x{case.N}x{case.K}"
    return " ".join([shape, product(case), kind(case), case.layout, winner]).lower()


def _device_time(found: Iterable[answer.Winner]) -> bool:
    """Whether speed means the device's: the host's time for a call says nothing about a share of its limits."""
    return all(winner.row.timing is not None and winner.row.timing.mode != "e2e" for winner in found)


def _microseconds(row: Row, tera: float) -> Cell:
    """What a call takes at the median speed."""
    assert row.timing is not None
    value = row.timing.flops_per_call / tera * 1e-6
    return Cell(f"{value:.1f}", value)


def _ratio(ratio: Summary | None) -> Cell:
    if ratio is None:
        return Cell("")
    return Cell(f"{ratio.median:.3f} ({ratio.ci_low:.3f}–{ratio.ci_high:.3f})", ratio.median)


def _longest(shares: Iterable[Summary | None]) -> float:
    """What the longest bar stands for: the ceiling, or what is above it."""
    return max([1.0, *(share.median for share in shares if share)])


def _share(share: Summary | None, longest: float) -> Cell:
    return Cell("") if share is None else Cell(f"{share.median:.1%}", share.median, bar=share.median / longest)


def _remarks(row: Row) -> list[str]:
    allocates = ["allocates its result"] if row.allocates else []
    return [*allocates, *remarks(row)]
