"""A comparison of two results files in words: for the terminal, as Markdown, as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hgemm.bench.comparison import CONFIDENCE, Change, Comparison, Contestant, Missing, Ratio
from hgemm.bench.schema import CaseResult
from hgemm.bench.tables import TABLE_WIDTH, title

JSON_SCHEMA = "hgemm-comparison"
JSON_SCHEMA_VERSION = 1

CASE_FIELDS = ("M", "N", "K", "batch", "dtype", "layout", "distribution", "label")

STYLES = {"broken": "bold red", "slower": "red", "ambiguous": "yellow", "faster": "green", "mended": "green"}

NAMED_CASES = 4
"""How many cases a line names before it counts the rest."""

CHANGES = ("case", "contestant", "verdict", "B / A", "95% interval", "plain\nB / A", "us in A", "")
MEANS = ("contestant", "cases", "verdict", "B / A", "95% interval")


def print_comparison(console: Console, comparison: Comparison, *, everything: bool = False) -> None:
    """Counts first, then what is not ``same``, worst first; ``everything`` shows what is, too."""
    for line in _summary(comparison):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if changes := _shown(comparison, everything):
        console.print(_table(console, "Time of B over time of A, worst first", CHANGES, map(_change, changes)))
    if means := _means(comparison):
        console.print(_table(console, "Geometric mean over the cases", MEANS, means))
    for line in _remainder(comparison):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def markdown(comparison: Comparison, *, everything: bool = False) -> str:
    """The same as a piece of Markdown, for an issue or a pull request."""
    parts = ["\n".join(f"- {_escaped(line)}" for line in _summary(comparison))]
    if changes := _shown(comparison, everything):
        parts.append(_markdown_table(CHANGES, map(_change, changes)))
    if means := _means(comparison):
        parts.append("Geometric mean over the cases:\n\n" + _markdown_table(MEANS, means))
    if lines := _remainder(comparison):
        parts.append("\n".join(f"- {_escaped(line.strip())}" for line in lines))
    return "\n\n".join(parts) + "\n"


def document(comparison: Comparison) -> dict[str, Any]:
    """Everything, for JSON. Ratios are times of B over A; the ends of an interval are null where there is none."""
    return {
        "schema": JSON_SCHEMA,
        "schema_version": JSON_SCHEMA_VERSION,
        "margin": comparison.margin,
        "confidence": CONFIDENCE,
        "mode": comparison.mode,
        "controlled": comparison.controlled,
        "control": _ratio_document(comparison.control),
        "clocks_mhz": list(comparison.clocks_mhz),
        "differences": [vars(difference) for difference in comparison.differences],
        "notes": comparison.notes,
        "counts": comparison.counts | {name: len(missing) for name, missing in _missing(comparison).items()},
        "changes": [
            _case(change.case)
            | change.contestant._asdict()
            | {
                "verdict": change.verdict,
                "ratio": _ratio_document(change.ratio),
                "plain_ratio": change.plain,
                "us": list(change.us) if change.us else None,
                "clock_share": change.clock_share._asdict() if change.clock_share else None,
                "remarks": list(change.remarks),
            }
            for change in comparison.changes
        ],
        "geometric_means": [
            mean.contestant._asdict()
            | {"cases": mean.cases, "verdict": mean.verdict, "ratio": _ratio_document(mean.ratio)}
            for mean in comparison.means
        ],
    } | {
        name: [
            _case(entry.case) | entry.contestant._asdict() | {"whole_case": entry.whole_case, "remark": entry.remark}
            for entry in missing
        ]
        for name, missing in _missing(comparison).items()
    }


def _case(case: CaseResult) -> dict[str, Any]:
    return {name: getattr(case, name) for name in CASE_FIELDS}


def _missing(comparison: Comparison) -> dict[str, list[Missing]]:
    names = ("only_a", "only_b", "never_timed", "cut_short_a", "cut_short_b")
    return {name: getattr(comparison, name) for name in names}


def _ratio_document(ratio: Ratio | None) -> dict[str, float | None] | None:
    if ratio is None:
        return None
    bounded = math.isfinite(ratio.high)
    return {"value": ratio.value, "low": ratio.low if bounded else None, "high": ratio.high if bounded else None}


def _summary(comparison: Comparison) -> list[str]:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in comparison.counts.items() if count)
    margin = f"{100 * comparison.margin:g}%"
    lines = [f"{len(comparison.changes)} compared, with a margin of {margin}, mode {comparison.mode}: {counts}"]
    if comparison.control:
        clocks = [f"{clock:.0f} MHz" if clock else "unknown" for clock in comparison.clocks_mhz]
        value, interval = _ratio(comparison.control)
        bounds = interval if math.isfinite(comparison.control.high) else "no interval"
        lines.append(
            f"control: {value} ({bounds}), and every time is divided by it, round by round{_clocks(comparison)}; "
            f"median clock {clocks[0]} in A, {clocks[1]} in B"
        )
    elif not comparison.controlled:
        lines.append("plain times, not divided by the control's")
    lines += [f"note: {note}" for note in comparison.notes]
    if comparison.differences:
        found = (f"{entry.name} {_short(entry.a)} -> {_short(entry.b)}" for entry in comparison.differences)
        lines.append("differs, A -> B: " + "; ".join(found))
    return lines


def _clocks(comparison: Comparison) -> str:
    """How much was compared at equal clocks."""
    timed = [change for change in comparison.changes if change.ratio]
    equal = sum(change.clock_share is not None for change in timed)
    return "" if not equal else ", at equal clocks" + (f" in {equal} of {len(timed)}" if equal < len(timed) else "")


def _shown(comparison: Comparison, everything: bool) -> list[Change]:
    return [change for change in comparison.changes if everything or change.verdict != "same"]


def _change(change: Change) -> list[str]:
    value, interval = _ratio(change.ratio) if change.ratio else ("", "")
    return [
        title(change.case),
        str(change.contestant),
        change.verdict,
        value,
        interval,
        f"{change.plain:.3f}" if change.plain is not None else "",
        f"{change.us[0]:.4g}" if change.us else "",
        ", ".join(change.remarks) if change.ratio else "",
    ]


def _means(comparison: Comparison) -> list[list[str]]:
    """Of the contestants with several cases: of a single one, the mean says what its row does."""
    return [
        [str(mean.contestant), str(mean.cases), mean.verdict, *_ratio(mean.ratio)]
        for mean in comparison.means
        if mean.cases > 1
    ]


def _remainder(comparison: Comparison) -> list[str]:
    """What has no ratio, and why."""
    lines = []
    for verdict in ("broken", "mended"):
        found = [change for change in comparison.changes if change.verdict == verdict]
        lines += _grouped(verdict, [Missing(it.case, it.contestant, False, ", ".join(it.remarks)) for it in found])
    for where, missing in (("only in A", comparison.only_a), ("only in B", comparison.only_b)):
        cases = dict.fromkeys(title(entry.case) for entry in missing if entry.whole_case)
        lines += [f"{where}: the whole case {case}" for case in cases]
        lines += _grouped(where, [entry for entry in missing if not entry.whole_case])
    for where, missing in (("cut short in A", comparison.cut_short_a), ("cut short in B", comparison.cut_short_b)):
        short = Counter((title(entry.case), entry.remark) for entry in missing)
        lines += [
            f"{where}: {count} contestant{'s' * (count > 1)} in {case} ({remark})"
            for (case, remark), count in short.items()
        ]
    return lines + _grouped("timed in neither", comparison.never_timed)


def _grouped(what: str, missing: Iterable[Missing]) -> list[str]:
    """A line for each contestant and reason, with the first cases by name."""
    groups: dict[tuple[Contestant, str], list[str]] = {}
    for entry in missing:
        groups.setdefault((entry.contestant, entry.remark), []).append(title(entry.case))
    lines = []
    for (contestant, remark), cases in groups.items():
        named = ", ".join(cases[:NAMED_CASES])
        more = f" and {len(cases) - NAMED_CASES} more" if len(cases) > NAMED_CASES else ""
        lines.append(f"{what}: {contestant} in {named}{more}" + (f" ({remark})" if remark else ""))
    return lines


def _ratio(ratio: Ratio) -> tuple[str, str]:
    interval = f"{ratio.low:.3f} - {ratio.high:.3f}" if math.isfinite(ratio.high) else "none"
    return f"{ratio.value:.3f}", interval


def _short(value: object) -> str:
    """A digest is as good as its beginning."""
    text = "unknown" if value is None else str(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text


def _table(console: Console, caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Where it is too wide, words are folded and figures stay whole."""
    foldable = ("case", "") if console.width >= TABLE_WIDTH else ("case", "contestant", "")
    table = Table(
        title=caption,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for heading in headings:
        words = heading in ("case", "contestant", "verdict", "")
        table.add_column(
            heading,
            justify="left" if words else "right",
            no_wrap=heading not in foldable,
            overflow="fold",
        )
    verdict = headings.index("verdict")
    for row in rows:
        table.add_row(*map(escape, row), style=STYLES.get(row[verdict]))
    return table


def _markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = [heading.replace("\n", " ") or "remarks" for heading in headings]
    lines = [titles, ["---"] * len(titles), *([_escaped(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
