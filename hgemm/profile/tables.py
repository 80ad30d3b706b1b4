"""How a profile is shown: as tables on a terminal or in Markdown, each column with a sentence, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hgemm.bench.suites import Case
from hgemm.profile.counters import Counted
from hgemm.profile.metrics import METRICS
from hgemm.profile.sheets import Column, Report, Sheet, sheets

SCHEMA = "hgemm-profile"
SCHEMA_VERSION = 1


def print_report(console: Console, report: Report) -> None:
    """For a terminal."""
    shown = list(sheets(report))
    for sheet in shown:
        table = Table(
            title=sheet.title,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            padding=(0, 1, 0, 0),
        )
        for heading in ("backend", "config"):
            table.add_column(heading, overflow="fold")
        for column in sheet.columns:
            words = _is_words(column)
            heading = column.heading.replace(" ", "\n").replace("/", "/\n")
            table.add_column(heading, justify="left" if words else "right", no_wrap=not words, overflow="fold")
        for row in sheet.rows:
            table.add_row(*row)
        if sheet.rows:
            console.print(table)
        else:
            console.print(sheet.title, style="bold", markup=False, highlight=False)
        for remark in sheet.remarks:
            console.print(f"  {remark}", markup=False, highlight=False, soft_wrap=True)
        console.print()
    columns = _distinct(shown)
    if columns:
        console.print("What the numbers mean", style="bold")
    for column in columns:
        console.print(f"  {column.heading}: {column.meaning}", markup=False, highlight=False, soft_wrap=True)
    if report.note:
        console.print()
        console.print(f"No counters: {report.note}", markup=False, highlight=False, soft_wrap=True)


def markdown(report: Report) -> str:
    """The same in Markdown."""
    shown, lines = list(sheets(report)), [f"## hgemm.profile: {case_title(report.case)}", ""]
    for sheet in shown:
        lines += [f"### {sheet.title}", ""]
        if sheet.rows:
            headings = ["backend", "config", *(column.heading for column in sheet.columns)]
            marks = ["---", "---", *("---" if _is_words(column) else "---:" for column in sheet.columns)]
            lines += [_line(headings), _line(marks), *(_line(row) for row in sheet.rows), ""]
        lines += [*(f"- {remark}" for remark in sheet.remarks), *([""] if sheet.remarks else [])]
    if columns := _distinct(shown):
        lines += ["### What the numbers mean", "", *(f"- {c.heading}: {c.meaning}" for c in columns)]
    if report.note:
        lines += ["", f"No counters: {report.note}"]
    return "\n".join(lines) + "\n"


def as_json(report: Report) -> dict[str, Any]:
    """Everything as plain data; fractions as they are, counters in the units of ``counters.METRICS``."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "case": {
            **dataclasses.asdict(report.case.shape),
            "dtype": report.case.dtype,
            "layout": report.case.layout,
            "flops": report.case.flops,
            "compulsory_bytes": report.case.compulsory_bytes,
        },
        "gpus": [dataclasses.asdict(gpu) for gpu in report.gpus],
        "counters": {"ncu": report.ncu, "gpu": report.counted_on, "note": report.note},
        "contestants": [
            {
                "backend": profile.backend,
                "config": profile.config,
                "facts": [{**dataclasses.asdict(facts), "sentence": facts.sentence} for facts in profile.facts],
                "no_facts": profile.no_facts,
                "counted": _counted_json(profile.counted),
                "no_counters": profile.no_counters,
                "cause": profile.cause,
            }
            for profile in report.profiles
        ],
        "meanings": {
            **{column.heading: column.meaning for column in _distinct(list(sheets(report)))},
            **{name: metric.meaning for name, metric in METRICS.items()},
        },
    }


def case_title(case: Case) -> str:
    batch = f"{case.shape.batch} x " if case.shape.batch > 1 else ""
    return f"{batch}{case.shape.M} x {case.shape.N} x {case.shape.K} {case.dtype} {case.layout}"


def _counted_json(counted: Counted | None) -> dict[str, Any] | None:
    if counted is None:
        return None
    ratios = {kind.kind: kind.ratio for kind in counted.shared}
    plain = dataclasses.asdict(counted)
    for kind in plain["shared"]:
        kind["ratio"] = ratios[kind["kind"]]
    return {**plain, "sentence": counted.sentence}


def _is_words(column: Column) -> bool:
    return column.heading in ("limited by", "access")


def _distinct(shown: Sequence[Sheet]) -> list[Column]:
    """Every column once, in order; those that explain themselves are left out."""
    columns = {c.heading: c for sheet in shown for c in sheet.columns if not c.heading.endswith(".")}
    return [column for column in columns.values() if "in the PTX" not in column.meaning]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
