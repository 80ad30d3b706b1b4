"""Ratios as coloured cells with their figures in them: strips of columns side by side, wrapped to the page's width."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hgemm.bench.schema import Results
from hgemm.bench.statistics import Summary
from hgemm.plot import style

# Points.
CELL_WIDTH, CELL_HEIGHT = 31.0, 15.0
GAP = 10.0
NAME_SIZE, TITLE_SIZE, FIGURE_SIZE = 7.6, 8.2, 7.2

# Red to blue through near-white, told apart under the common kinds of colour blindness.
_COLOURS = mpl.colormaps["RdBu"]
_MOST, _LEAST = 2.0, 1.05
"""The colours end at a factor between these, both ways."""


@dataclass(frozen=True)
class Cell:
    """A ratio to the baseline, or a word that says why there is none."""

    ratio: Summary | None = None
    word: str = ""

    @property
    def ambiguous(self) -> bool:
        """Whether the interval leaves open which of the two is faster; that of a single round says nothing."""
        if self.ratio is None:
            return False
        return self.ratio.samples == 1 or self.ratio.ci_low <= 1 <= self.ratio.ci_high


@dataclass(frozen=True)
class Strip:
    """Columns that belong together; each holds a cell for every row of its sheet."""

    title: str
    subtitle: str
    ticks: tuple[str, ...]
    columns: tuple[tuple[Cell, ...], ...]

    @property
    def width(self) -> float:
        titles = style.text_points(self.title, TITLE_SIZE, "bold"), style.text_points(self.subtitle, NAME_SIZE)
        return max(CELL_WIDTH * len(self.ticks), *titles)


@dataclass(frozen=True)
class Sheet:
    """Strips with the same rows."""

    names: tuple[str, ...]
    strips: tuple[Strip, ...]

    @property
    def margin(self) -> float:
        return max(style.text_points(name, NAME_SIZE) for name in self.names) + 8


def draw_sheets(sheets: Sequence[Sheet], results: Results, heading: str, subtitle: str, remark: str) -> Figure:
    """All sheets under each other on one page."""
    page = 72 * (style.WIDTH_INCHES - 0.3)
    wrapped = [(sheet.names, sheet.margin, line) for sheet in sheets for line in _lines(sheet, page)]
    points = sum(_height(names, line) for names, _, line in wrapped)
    footer, top = style.footer_inches(results, remark), 1.12
    with style.context(), mpl.rc_context({"hatch.linewidth": 0.6}):
        figure = style.new_figure(top + points / 72 + footer)
        axes = style.add_axes(figure, 0.15, footer, page / 72, points / 72)
        axes.set(xlim=(0, page), ylim=(points, 0))
        axes.set_axis_off()
        limit = _limit(
            cell for sheet in sheets for strip in sheet.strips for column in strip.columns for cell in column
        )
        down = 0.0
        for names, margin, line in wrapped:
            _draw_line(axes, names, margin, line, down, limit)
            down += _height(names, line)
        _key(figure, limit)
        style.title(figure, heading, subtitle)
        style.footer(figure, results, remark)
    return figure


def _lines(sheet: Sheet, page: float) -> list[list[Strip]]:
    """The strips of a sheet in lines that fit the page; one that is wider is cut."""
    room = page - sheet.margin
    most = max(1, int(room / CELL_WIDTH))
    pieces = []
    for strip in sheet.strips:
        for first in range(0, len(strip.ticks), most):
            part = slice(first, first + most)
            pieces.append(replace(strip, ticks=strip.ticks[part], columns=strip.columns[part]))
    lines: list[list[Strip]] = []
    for piece in pieces:
        if lines and sum(other.width + GAP for other in lines[-1]) + piece.width <= room:
            lines[-1].append(piece)
        else:
            lines.append([piece])
    return lines


def _head(line: Sequence[Strip]) -> float:
    ticks = max(tick.count("\n") + 1 for strip in line for tick in strip.ticks)
    return 12.0 + (11.0 if any(strip.subtitle for strip in line) else 0.0) + 10.0 * ticks + 2.0


def _height(names: Sequence[str], line: Sequence[Strip]) -> float:
    return _head(line) + CELL_HEIGHT * len(names) + 16


def _draw_line(
    axes: Axes, names: Sequence[str], margin: float, line: Sequence[Strip], down: float, limit: float
) -> None:
    first = down + _head(line)
    for place, name in enumerate(names):
        middle = first + CELL_HEIGHT * (place + 0.5)
        axes.text(margin - 6, middle, name, fontsize=NAME_SIZE, ha="right", va="center")
    x = margin
    for strip in line:
        axes.text(x, down + 9, strip.title, fontsize=TITLE_SIZE, fontweight="bold", va="baseline")
        axes.text(x, down + 20, strip.subtitle, fontsize=NAME_SIZE, color=style.MUTED, va="baseline")
        for place, (tick, column) in enumerate(zip(strip.ticks, strip.columns, strict=True)):
            left = x + CELL_WIDTH * place
            axes.text(left + CELL_WIDTH / 2, first - 3, tick, fontsize=NAME_SIZE, ha="center", va="bottom")
            for row, cell in enumerate(column):
                _draw_cell(axes, cell, left, first + CELL_HEIGHT * row, limit)
        x += strip.width + GAP


def _draw_cell(axes: Axes, cell: Cell, left: float, top: float, limit: float) -> None:
    middle = left + CELL_WIDTH / 2, top + CELL_HEIGHT / 2
    box: dict[str, Any] = {
        "xy": (left + 0.5, top + 0.5),
        "width": CELL_WIDTH - 1,
        "height": CELL_HEIGHT - 1,
        "linewidth": 0,
    }
    if cell.ratio is None:
        axes.add_patch(Rectangle(facecolor="#f2f3f4", **box))
        axes.text(*middle, cell.word, fontsize=6.2, color=style.MUTED, ha="center", va="center")
        return
    colour = _COLOURS(Normalize(-limit, limit)(math.log2(cell.ratio.median)))
    hatch = "////" if cell.ambiguous else None
    axes.add_patch(Rectangle(facecolor=colour, edgecolor="#9aa0a6", hatch=hatch, **box))
    axes.text(
        *middle,
        ratio_text(cell.ratio.median),
        fontsize=FIGURE_SIZE,
        color=style.ink_on(colour),
        ha="center",
        va="center",
        bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.8} if cell.ambiguous else None,
    )


def ratio_text(ratio: float) -> str:
    """Three digits behind the point where the ratio is near 1, else fewer."""
    return f"{ratio:.3f}" if 0.9 <= ratio < 1.1 else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _limit(cells: Iterable[Cell]) -> float:
    """Where the colours end, as a base-2 logarithm."""
    furthest = max((abs(math.log2(cell.ratio.median)) for cell in cells if cell.ratio), default=0.0)
    return min(max(furthest, math.log2(_LEAST)), math.log2(_MOST))


def _key(figure: Figure, limit: float) -> None:
    """What colours and hatching mean, at the top right."""
    height = figure.get_size_inches()[1]
    bar = style.add_axes(figure, style.WIDTH_INCHES - 2.55, height - 0.78, 2.2, 0.11)
    colours = figure.colorbar(ScalarMappable(Normalize(-limit, limit), _COLOURS), cax=bar, orientation="horizontal")
    high = 2.0**limit
    inner = float(f"{high**0.5:.2g}")
    marks = {
        1 / high: f"{1 / high:.2g}",
        1 / inner: f"{1 / inner:.2g}",
        1.0: "1",
        inner: f"{inner:g}",
        high: f"{high:.3g}",
    }
    if limit == math.log2(_MOST):
        marks |= {1 / high: f"≤ {1 / high:g}", high: f"≥ {high:g}"}
    colours.set_ticks([math.log2(ratio) for ratio in marks], labels=list(marks.values()))
    bar.tick_params(labelsize=NAME_SIZE, length=2)
    colours.outline.set_visible(False)
    swatch = style.add_axes(figure, style.WIDTH_INCHES - 4.2, height - 0.78, 0.3, 0.13)
    swatch.set_axis_off()
    swatch.add_patch(Rectangle((0, 0), 1, 1, facecolor="#f7f7f7", edgecolor="#9aa0a6", hatch="////", linewidth=0))
    swatch.annotate("ambiguous", (1, 0.5), xytext=(4, 0), textcoords="offset points", va="center", fontsize=NAME_SIZE)
