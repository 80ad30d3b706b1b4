"""Speed over size: a line a backend with its interval, a panel for each family of products, under the ceiling.

In mode e2e, which times the host and not the device, the lines are microseconds a call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hgemm.bench.metrics import CEILING, READ
from hgemm.bench.schema import CaseResult, Results
from hgemm.plot import style
from hgemm.plot.grouping import Group, best_of_backends, by_configuration, groups
from hgemm.plot.levels import memory_limit
from hgemm.plot.size_panel import CEILING_NAME, HOST, Scene, draw_panel, end_text, measured, name_ends
from hgemm.plot.source import NothingToDraw, case_name, timed_cases, wgmma_remark

NAME_SIZE = 8.0
MOST_PANELS = 24
"""A picture with more would be longer than anybody scrolls."""

_AXIS_NAMES = {"size": "M = N = K", "M": "M", "case": "M, N, K"}


def draw(results: Results, dtype: str) -> Figure:
    """Every case of a dtype; the fastest configuration of each backend stands out.

    Raises NothingToDraw if fewer than two cases of that dtype were timed.
    """
    cases = timed_cases(results, dtype)
    if len(cases) < 2:
        raise NothingToDraw(
            f"a line over sizes needs two of them, and {case_name(cases[0])} is the only one in {dtype}; "
            "the pictures `samples` and `ceiling` show a single case"
        )
    panels = groups(cases)
    scene = _scene(results, dtype, cases)
    remark = " ".join([_remark(results, scene, cases, panels), *(wgmma_remark(results) if scene.ceiling else [])])
    with style.context():
        alone = panels[0] if len(panels) == 1 else None
        footer = style.footer_inches(results, remark)
        figure = _one(alone, scene, footer) if alone else _many(panels[:MOST_PANELS], scene, footer)
        heading = "Time to issue a call" if scene.unit == HOST else "Speed by size"
        what = "by product"
        if alone and alone.axis != "case":
            what = ", ".join(part for part in (alone.title, alone.subtitle) if part)
        style.title(figure, f"{heading}, {results.env.gpu.removeprefix('NVIDIA ')}, {dtype}", what)
        style.footer(figure, results, remark)
    return figure


def _scene(results: Results, dtype: str, cases: Sequence[CaseResult]) -> Scene:
    entrants = best_of_backends(cases)
    looks = style.backend_looks(entrant.name for entrant in entrants)
    rows = [row for entrant in entrants for row in entrant.rows.values()]
    modes = {row.timing.mode for row in rows if row.timing}
    unit = HOST if modes == {"e2e"} else "TFLOPS"
    values = [measured(row, unit).median for row in rows]
    if unit == HOST:
        return Scene(looks, unit, None, None, min(values), max(values))
    ceiling = next(
        (
            roof.value
            for roof in results.roofs
            if roof.name == CEILING and roof.dtype == dtype and roof.accumulator == "float32"
        ),
        None,
    )
    memory = memory_limit({roof.name: roof.value / 1000 for roof in results.roofs})
    bandwidth = memory if modes <= {"rotating", "cold"} else None
    return Scene(looks, unit, ceiling, bandwidth, min(values), max([*values, ceiling or 0.0]))


def _remark(results: Results, scene: Scene, cases: Sequence[CaseResult], panels: Sequence[Group]) -> str:
    words = ["Bands: 95% bootstrap interval of the median."]
    if len(by_configuration(cases)) > len(scene.looks):
        words.append(
            "With markers: the fastest configuration of each backend at each size; thin: its other configurations."
        )
    if any(scene.shares(panel) for panel in panels):
        memory, caveat = "a large copy's", "; what mostly reads can be a little faster than a copy."
        if any(roof.name == READ for roof in results.roofs):
            memory, caveat = "the memory reads'", "."
        words.append(
            f"The limit is the {CEILING} ceiling, {scene.ceiling:.3g} TFLOPS, or what {memory} "
            f"{scene.bandwidth:.3g} TB/s allow for compulsory bytes, whichever is less{caveat}"
        )
    if len(panels) > MOST_PANELS:
        words.append(f"{len(panels) - MOST_PANELS} more families of products are in the file.")
    return " ".join(words)


def _one(panel: Group, scene: Scene, footer: float) -> Figure:
    """One wide panel; lines are named where they end, single points in a legend."""
    lines = panel.axis != "case"
    left, top, tall, bottom = 0.68, 0.74, 4.2, footer + (0.5 if lines else 0.85)
    right = 0.2
    if lines:
        names = [*scene.looks, *([CEILING_NAME] if scene.ceiling else [])]
        right += max(style.text_points(end_text(name, 123.4), NAME_SIZE) for name in names) / 72 + 0.2
    else:
        bottom += _legend_inches(scene) + 0.1
    figure = style.new_figure(top + tall + bottom)
    width = style.WIDTH_INCHES - left - right
    axes = style.add_axes(figure, left, bottom, width, tall)
    entrants = draw_panel(axes, panel, scene, 72 * width)
    axes.set_ylabel(scene.unit_of(panel))
    axes.set_xlabel(_AXIS_NAMES[panel.axis] + (", log2" if lines else ""))
    if lines:
        name_ends(axes, panel, entrants, scene, (72 * width, 72 * tall), NAME_SIZE)
    else:
        _legend(figure, scene, footer)
    return figure


def _many(panels: Sequence[Group], scene: Scene, footer: float) -> Figure:
    """Small panels, two or three beside each other, and one legend for all."""
    columns = 2 if len(panels) <= 4 else 3
    lines = math.ceil(len(panels) / columns)
    tall, head, foot = (2.5 if columns == 2 else 2.0), 0.46, 0.32
    left, top, between = 0.5, 0.7, 0.44
    legend = _legend_inches(scene)
    # Three lines under the points of single products, where the others have one.
    rows = [panels[line * columns :][:columns] for line in range(lines)]
    feet = [foot + 0.26 * any(panel.axis == "case" for panel in row) for row in rows]
    figure = style.new_figure(top + lines * (head + tall) + sum(feet) + 0.1 + legend + footer)
    width = (style.WIDTH_INCHES - left - 0.15 - (columns - 1) * between) / columns
    low = figure.get_size_inches()[1] - top
    shares: list[Axes] = []  # are compared with each other, and have one axis
    for row, feet_inches in zip(rows, feet, strict=True):
        low -= head + tall
        for column, panel in enumerate(row):
            axes = style.add_axes(figure, left + column * (width + between), low, width, tall)
            draw_panel(axes, panel, scene, 72 * width)
            _head(axes, panel, scene)
            if scene.shares(panel):
                shares.append(axes)
        low -= feet_inches
    highest = max((axes.get_ylim()[1] for axes in shares), default=0.0)
    for axes in shares:
        axes.set_ylim(0, highest)
    _legend(figure, scene, footer)
    return figure


def _head(axes: Axes, panel: Group, scene: Scene) -> None:
    over = {"size": "over size", "M": "over M", "case": "of M, N, K"}[panel.axis]
    below = f"{scene.unit_of(panel)} {over}" + (f"; {panel.subtitle}" if panel.subtitle else "")
    _annotate_head(axes, panel.title, 17, fontsize=9.0, fontweight="bold")
    _annotate_head(axes, below, 6, fontsize=7.5, color=style.MUTED)


def _annotate_head(axes: Axes, text: str, up: float, **look: Any) -> None:
    axes.annotate(text, (0, 1), xytext=(0, up), textcoords="offset points", xycoords="axes fraction", **look)


def _handles(scene: Scene) -> list[Line2D]:
    handles = [
        Line2D([], [], color=look.colour, linewidth=1.8, label=name, **style.hollow(look, 5.5))
        for name, look in scene.looks.items()
    ]
    if scene.ceiling:
        text = f"{CEILING_NAME}, {scene.ceiling:.3g} TFLOPS"
        handles.append(Line2D([], [], color=style.INK, linewidth=1.2, label=text))
    return handles


def _legend_columns(handles: Sequence[Line2D]) -> int:
    widest = max(style.text_points(str(handle.get_label()), NAME_SIZE) for handle in handles)
    return max(1, min(5, int(72 * (style.WIDTH_INCHES - 0.5) / (widest + 46))))


def _legend_inches(scene: Scene) -> float:
    handles = _handles(scene)
    return 0.19 * math.ceil(len(handles) / _legend_columns(handles)) + 0.08


def _legend(figure: Figure, scene: Scene, footer: float) -> None:
    handles = _handles(scene)
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.045, (footer + _legend_inches(scene)) / figure.get_size_inches()[1]),
        ncols=_legend_columns(handles),
        frameon=False,
        fontsize=NAME_SIZE,
        handlelength=2.2,
        handletextpad=0.5,
        columnspacing=1.6,
        labelspacing=0.45,
        borderaxespad=0,
    )
