"""The roofline as text: a chart of characters as wide as the terminal, and its figures in tables beneath."""

from __future__ import annotations

import math
import string
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hgemm.bench.metrics import CEILING
from hgemm.bench.schema import CaseResult, Results
from hgemm.plot.grouping import Entrant, best_of_backends, by_configuration, median_tflops
from hgemm.plot.levels import Level, levels, memory_limit
from hgemm.plot.source import case_name, device_cases, wgmma_remark
from hgemm.plot.style import provenance

NARROWEST, WIDEST, HEIGHT = 48, 120, 22
"""Characters of a chart and its axes."""
USUAL_WIDTH = 100
"""Where no terminal says how wide it is."""
MOST_MARKS = 80
"""With more points than this each backend shows its fastest configuration alone."""

_MARKS = string.ascii_uppercase + string.ascii_lowercase
_LEFT = 7
_SLOPE = "\N{BOX DRAWINGS LIGHT DIAGONAL UPPER RIGHT TO LOWER LEFT}"
_UNICODE = {"flat": "─", "slope": _SLOPE, "quoted": "·", "axis": "│", "floor": "└", "base": "─"}
_ASCII = {"flat": "-", "slope": "/", "quoted": ".", "axis": "|", "floor": "+", "base": "-"}


@dataclass(frozen=True)
class Figures:
    """What the text shows, as numbers."""

    cases: Sequence[CaseResult]
    entrants: Sequence[Entrant]
    roofs: Sequence[Level]
    best_alone: bool
    """Whether configurations that were not the fastest of their backend are left out."""

    def mark(self, place: int) -> str:
        return _MARKS[place] if place < len(_MARKS) else "*"

    def points(self) -> Iterator[tuple[int, int, float, float]]:
        """(place of the entrant, place of the case, FLOP a compulsory byte, TFLOPS)."""
        for place, entrant in enumerate(self.entrants):
            for number, row in entrant.rows.items():
                yield place, number, intensity(self.cases[number]), median_tflops(row)

    def limit(self, case: CaseResult) -> float | None:
        """TFLOPS that the measured roofs allow a product on mma.sync; None without both of them."""
        measured = {roof.name: roof.value for roof in self.roofs if roof.measured}
        bandwidth = memory_limit(measured)
        if CEILING not in measured or bandwidth is None:
            return None
        return min(measured[CEILING], bandwidth * intensity(case))


def intensity(case: CaseResult) -> float:
    return case.flops / case.compulsory_bytes


def figures(results: Results, dtype: str) -> Figures:
    """The points and roofs of one dtype. Raises NothingToDraw if no contestant's device time is known in it."""
    cases = device_cases(results, dtype)
    entrants = by_configuration(cases)
    crowded = len(entrants) * len(cases) > MOST_MARKS
    return Figures(cases, best_of_backends(cases) if crowded else entrants, levels(results, dtype), crowded)


def text(results: Results, dtype: str, width: int, *, unicode: bool = True) -> str:
    """The roofline of one dtype in lines of at most ``width`` characters, 48 at least. Raises NothingToDraw."""
    shown = figures(results, dtype)
    signs = _UNICODE if unicode else _ASCII
    chart = _Chart(shown, min(max(width, NARROWEST), WIDEST), signs)
    lines = [f"Roofline, {results.env.gpu}, {dtype}", "", *chart.lines(), "", *_roof_table(shown), ""]
    lines += _point_table(shown)
    if shown.best_alone:
        lines += ["", "Of each backend its fastest configuration in each case; a file's others are in its pictures."]
    lines += [""]
    for remark in (*wgmma_remark(results), *provenance(results)):
        lines += textwrap.wrap(remark, max(width, NARROWEST))
    if not unicode:
        lines = [line.translate({0xB3: "^3", 0xB7: "|", 0xB5: "u"}) for line in lines]
    return "\n".join(line.rstrip() for line in lines)


def data(results: Results, dtype: str) -> dict[str, Any]:
    """The same figures for a program. Raises NothingToDraw."""
    shown = figures(results, dtype)
    roofs = [
        {
            "name": roof.name,
            "value": roof.value,
            "unit": "TFLOPS" if roof.kind == "compute" else "TB/s",
            "measured": roof.measured,
            "text": roof.text,
            "ridge": roof.ridge,
        }
        for roof in shown.roofs
    ]
    points = [
        {
            "case": case_name(shown.cases[number]),
            "label": shown.cases[number].label,
            "contestant": shown.entrants[place].name,
            "flop_per_byte": round(x, 3),
            "tflops": round(y, 3),
        }
        for place, number, x, y in shown.points()
    ]
    return {"dtype": dtype, "roofs": roofs, "points": points}


class _Chart:
    """A grid of characters with logarithmic axes; what is written first stays."""

    def __init__(self, shown: Figures, width: int, signs: dict[str, str]) -> None:
        self.shown, self.signs = shown, signs
        self.columns, self.rows = width - _LEFT - 1, HEIGHT
        points = [(x, y) for _, _, x, y in shown.points()]
        compute = [roof.value for roof in shown.roofs if roof.kind == "compute"]
        ridges = [roof.ridge for roof in self.shown.roofs if roof.ridge]
        self.x = min([*(x for x, _ in points), *ridges]) / 6, max([*(x for x, _ in points), *ridges]) * 1.6
        self.y = min(y for _, y in points) / 1.6, max([*(y for _, y in points), *compute]) * 1.25
        self.grid = [[" "] * self.columns for _ in range(self.rows)]

    def column(self, x: float) -> int:
        return round(math.log(x / self.x[0]) / math.log(self.x[1] / self.x[0]) * (self.columns - 1))

    def row(self, y: float) -> int:
        """From the top."""
        return self.rows - 1 - round(math.log(y / self.y[0]) / math.log(self.y[1] / self.y[0]) * (self.rows - 1))

    def lines(self) -> list[str]:
        self._points()
        for roof in sorted(self.shown.roofs, key=lambda roof: not roof.measured):
            self._flat(roof) if roof.kind == "compute" else self._slope(roof)
        ticks = {
            self.row(step * 10.0**power): f"{step * 10.0**power:g}"
            for power in range(-3, 5)
            for step in (1, 2, 5)
            if self.y[0] <= step * 10.0**power <= self.y[1]
        }
        axis = self.signs["axis"]
        body = [f"{ticks.get(place, ''):>{_LEFT - 1}} {axis}{''.join(row)}" for place, row in enumerate(self.grid)]
        floor = " " * _LEFT + self.signs["floor"] + self.signs["base"] * self.columns
        return ["TFLOPS", *body, floor, self._x_ticks(), "FLOP / compulsory byte".rjust(_LEFT + 1 + self.columns)]

    def _x_ticks(self) -> str:
        line = [" "] * (_LEFT + 1 + self.columns)
        free = 0
        for power in range(-6, 24):
            if not self.x[0] <= 2.0**power <= self.x[1]:
                continue
            name = f"{2.0**power:g}"
            start = _LEFT + 1 + self.column(2.0**power) - len(name) // 2
            if start >= free and start + len(name) <= len(line):
                line[start : start + len(name)] = name
                free = start + len(name) + 2
        return "".join(line)

    def _points(self) -> None:
        """Each at its place or as near beside it as there is room."""
        for place, _, x, y in self.shown.points():
            row, column = self.row(y), self.column(x)
            for aside in (0, 1, -1, 2, -2, 3, -3):
                at = column + aside
                if 0 <= at < self.columns and self.grid[row][at] == " ":
                    self.grid[row][at] = self.shown.mark(place)
                    break

    def _flat(self, roof: Level) -> None:
        row, ridge = self.row(roof.value), roof.ridge
        first = self.column(ridge) if ridge else 0
        for column in range(max(first, 0), self.columns):
            self._put(row, column, self.signs["flat" if roof.measured else "quoted"])
        name = f"{roof.name} {roof.value:.0f}" if roof.value >= 100 else f"{roof.name} {roof.value:.3g}"
        start = first - len(name) - 2 if ridge else 1
        if start >= 0 and all(sign == " " for sign in self.grid[row][start : start + len(name)]):
            self.grid[row][start : start + len(name)] = name

    def _slope(self, roof: Level) -> None:
        like = [
            other.value for other in self.shown.roofs if other.kind == "compute" and other.measured == roof.measured
        ]
        top = max(like, default=self.y[1])
        for column in range(self.columns):
            x = self.x[0] * (self.x[1] / self.x[0]) ** (column / (self.columns - 1))
            if self.y[0] <= x * roof.value <= top:
                self._put(self.row(x * roof.value), column, self.signs["slope" if roof.measured else "quoted"])

    def _put(self, row: int, column: int, sign: str) -> None:
        if self.grid[row][column] == " ":
            self.grid[row][column] = sign


def _roof_table(shown: Figures) -> list[str]:
    rows = [("roof", "ridge, FLOP / byte", "")]
    for roof in shown.roofs:
        ridge = f"{roof.ridge:.0f}" if roof.ridge else ""
        rows.append((roof.text, ridge, "measured in this run" if roof.measured else "quoted, not measured"))
    return _aligned(rows, "<><")


def _point_table(shown: Figures) -> list[str]:
    """Case by case, fastest first."""
    rows = [("", "contestant", "TFLOPS", "% of limit")]
    headings: dict[int, str] = {}
    for number, case in enumerate(shown.cases):
        limit = shown.limit(case)
        allowed = f", limit {limit:.3g} TFLOPS" if limit else ""
        name = f"{case.label}, {case_name(case)}" if case.label else case_name(case)
        headings[len(rows)] = f"{name}: {intensity(case):.4g} FLOP / byte{allowed}"
        members = [(place, entrant) for place, entrant in enumerate(shown.entrants) if number in entrant.rows]
        for place, entrant in sorted(members, key=lambda member: -median_tflops(member[1].rows[number])):
            speed = median_tflops(entrant.rows[number])
            share = f"{100 * speed / limit:.1f}" if limit else ""
            rows.append((shown.mark(place), entrant.name, f"{speed:.1f}" if speed >= 10 else f"{speed:.3g}", share))
    lines = []
    for place, line in enumerate(_aligned(rows, "<<>>")):
        if place in headings:
            lines += ["", headings[place]]
        lines.append(line)
    return lines


def _aligned(rows: Sequence[tuple[str, ...]], sides: str) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(sides))]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)) for row in rows
    ]
