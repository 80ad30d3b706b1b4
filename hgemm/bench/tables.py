"""Tables for the terminal: one a case, fastest first, then what could not be timed and why."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from hgemm.bench.metrics import CEILING, clock_mhz, find_row, label, relative, speed, throttled, timed_rows
from hgemm.bench.schema import CaseResult, Results, Row

TABLE_WIDTH = 118
"""Columns of a table where the terminal does not say how wide it is."""


def print_case(console: Console, case: CaseResult) -> None:
    """The contestants of one case beside its ceiling and torch."""
    ceiling, torch_row = find_row(case, CEILING, "roof"), find_row(case, "torch")
    table = Table(
        title=_title(case),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for heading in ("backend", "config"):
        table.add_column(heading, no_wrap=True)
    for heading in ("TFLOPS", "p5 - p95", "us", "% of\nmma.sync", "x torch", "error /\nbound", "MHz"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for row in sorted(timed_rows(case), key=lambda row: -speed(row).median):
        table.add_row(*_cells(row, ceiling, torch_row))
    if ceiling is not None:
        table.add_section()
        table.add_row(*_cells(ceiling, ceiling, torch_row), style="dim")
    console.print(table)
    for row in case.rows:
        if row.timing is None:
            console.print(f"  {label(row)}: [bold]{row.status}[/]: ", end="", highlight=False)
            console.print(row.reason or "", markup=False, highlight=False)


def print_roofs(console: Console, results: Results) -> None:
    """What the device could do at most in this run."""
    for roof in results.roofs:
        clock = f" at {roof.clock_mhz:.0f} MHz" if roof.clock_mhz else ""
        name = f"{roof.name} {roof.dtype or ''}".strip()
        line = f"roof  {name}: {roof.value:,.0f} {roof.unit}{clock} ({roof.note})"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _title(case: CaseResult) -> str:
    words = [f"{case.M} x {case.N} x {case.K} ", case.dtype]
    if case.layout != "nn":
        words.append(case.layout)
    if case.distribution == "zeros":
        words.append("(zeros)")
    return " ".join(words)


def _cells(row: Row, ceiling: Row | None, torch_row: Row | None) -> list[str]:
    assert row.timing is not None
    summary = speed(row)
    share = relative(row, ceiling)
    ratio = relative(row, torch_row)
    clock = clock_mhz([row.timing])
    error = row.check.error_over_bound if row.check else None
    return [
        row.backend,
        row.config or "",
        figure(summary.median),
        f"{figure(summary.p5)} - {figure(summary.p95)}",
        f"{row.timing.flops_per_call / summary.median * 1e-6:.1f}",
        f"{100 * share.median:.1f}" if share else "",
        f"{ratio.median:.3f}" if ratio and row.role == "contestant" else "",
        f"{error:.2g}" if error is not None else "",
        f"{clock:.0f}" if clock else "",
        ", ".join(remarks(row)),
    ]


def remarks(row: Row) -> list[str]:
    assert row.timing is not None
    remarks = []
    if speed(row).noisy:
        remarks.append("noisy")
    if row.timing.timer == "events":
        remarks.append("not in a graph")
    if held := throttled(row.timing):
        remarks.append(f"throttled {held}/{len(row.timing.samples_us)}")
    if row.timing.dropped:
        remarks.append(f"{row.timing.dropped} dropped")
    return remarks


def figure(tflops: float) -> str:
    """Three or four significant digits."""
    return f"{tflops:.0f}" if tflops >= 1000 else f"{tflops:.1f}" if tflops >= 10 else f"{tflops:.3g}"
