"""The roofline: speed over arithmetic intensity, under roofs measured in the same run and the vendor's peaks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from hgemm import devices
from hgemm.bench.metrics import label, speed, timed_rows
from hgemm.bench.schema import CaseResult, Results
from hgemm.plot import style
from hgemm.plot.levels import Level, levels
from hgemm.plot.placement import spread, swarm
from hgemm.plot.scale import Scale, lower_end
from hgemm.plot.slopes import NAME_SIZE, colour, name_slopes, name_style
from hgemm.plot.source import NothingToDraw, case_name

MARKER_POINTS = 7.0
COLUMN_POINTS = 50.0
"""Room between the columns of neighbouring cases, so that each stays recognisable."""

SLOPE_POINTS = 180.0
"""Height of the slopes below the lowest compute roof, so that they can be named."""

SUBTITLE = "half-precision products, fp32 accumulation; every point checked against fp64 before it was timed"

MOST_COLUMNS = 9
"""More cases than this are drawn where they are, unspread and unnamed."""


def draw(results: Results, dtype: str) -> Figure:
    """The roofline of every case of one dtype. Raises NothingToDraw if no contestant was timed in it."""
    cases = [case for case in results.cases if case.dtype == dtype and timed_rows(case)]
    if not cases:
        raise NothingToDraw(f"no contestant was timed in {dtype}")
    rows = [row for case in cases for row in timed_rows(case)]
    looks = style.looks(rows)
    lines = levels(results, dtype)

    columns = _legend_columns(looks)
    legend_inches = 0.19 * math.ceil(len(looks) / columns)
    height = 5.87 + legend_inches
    with style.context():
        figure = plt.figure(figsize=(style.WIDTH_INCHES, height))
        left, bottom = 0.68, 1.31 + legend_inches
        width, tall = style.WIDTH_INCHES - left - 0.15, height - bottom - 0.72
        axes = figure.add_axes((left / style.WIDTH_INCHES, bottom / height, width / style.WIDTH_INCHES, tall / height))
        x, y = _scales(cases, lines, 72 * width, 72 * tall)
        _axes(axes, x, y)
        places = _column_places(x, cases)
        _roofs(axes, x, y, lines, places)
        _points(axes, x, y, cases, places, looks, max((line.ridge or 0 for line in lines), default=0))
        _legend(figure, looks, columns, (bottom - 0.5) / height)
        gpu = results.env.gpu.removeprefix("NVIDIA ")
        style.title(figure, f"Roofline, {gpu}, {dtype}", SUBTITLE)
        style.footer(
            figure,
            results,
            *_remarks(results),
        )
    return figure


def _remarks(results: Results) -> list[str]:
    device = devices.find(results.env.gpu, results.env.multiprocessors)
    solid = "Solid: measured in the same run, ridges against the copy."
    points = "Hollow points: compulsory bytes, each element moved once; points of one product stand side by side."
    if device is None:
        return [f"{solid} {points}"]
    clock = "scaled from the rated clock to the observed one"
    return [f"{solid} {points}", f"Dashed: {device.source}. Dense, fp32 accumulation, {clock}."]


def _scales(cases: Sequence[CaseResult], lines: Sequence[Level], width: float, height: float) -> tuple[Scale, Scale]:
    """Axes that hold every point, with room for the names above the slope and below the points."""
    intensities = [intensity(case) for case in cases]
    lowest = {case_name(case): min(speed(row).median for row in timed_rows(case)) for case in cases}
    highest = max(speed(row).median for case in cases for row in timed_rows(case))
    compute = [line for line in lines if line.kind == "compute"]
    bandwidths = [line.value for line in lines if line.kind == "bandwidth"]
    top = max([highest, *(line.value for line in compute)])

    right = max(intensities) * 2
    lefts = [lower_end(min(intensities), COLUMN_POINTS, right, width)]
    for line in compute if bandwidths else ():
        slope_at_name = line.value / max(bandwidths)
        lefts.append(lower_end(slope_at_name, style.text_points(_compute_text(line), NAME_SIZE) + 32, right, width))
    bottoms = [min(lowest.values()) / 2.5]
    if compute and bandwidths:
        bottoms.append(lower_end(min(line.value for line in compute) / 1.3, SLOPE_POINTS, top * 1.4, height))
    if len(cases) <= MOST_COLUMNS:
        room = {name: style.text_points(name, NAME_SIZE) + 30 for name in lowest}
        bottoms += [lower_end(value, room[name], top * 1.4, height) for name, value in lowest.items()]
    return Scale(min(lefts), right, width), Scale(min(bottoms), top * 1.4, height)


def intensity(case: CaseResult) -> float:
    """Floating-point operations a compulsory byte."""
    return case.flops / case.compulsory_bytes


def _axes(axes: Axes, x: Scale, y: Scale) -> None:
    axes.set(xscale="log", yscale="log", xlim=(x.low, x.high), ylim=(y.low, y.high))
    axes.set_xlabel("arithmetic intensity, FLOP / byte")
    axes.set_ylabel("TFLOPS")
    step = 1 if x.place(2) - x.place(1) > 34 else 2  # points that the longest number needs
    powers = [2.0**power for power in range(-4, 20, step) if x.low <= 2.0**power <= x.high]
    axes.set_xticks(powers)
    steps = [
        step * 10.0**power for power in range(-3, 5) for step in (1, 2, 5) if y.low <= step * 10.0**power <= y.high
    ]
    axes.set_yticks(steps)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    axes.grid(True)


def _roofs(axes: Axes, x: Scale, y: Scale, lines: Sequence[Level], columns: Sequence[float]) -> None:
    compute = [line for line in lines if line.kind == "compute"]
    slopes = sorted((line for line in lines if line.kind == "bandwidth"), key=lambda line: line.value)
    heights = spread([y.place(line.value) for line in compute], 12.5, 0, y.points)
    below_names = y.value(min(heights, default=y.points) - 16)
    free: dict[Level, float] = {}
    for line in slopes:
        reach = max(_alike(line, compute) or [y.high])
        axes.plot([x.low, reach / line.value], [x.low * line.value, reach], color=colour(line), **_stroke(line))
        free[line] = min(reach, below_names)
    name_slopes(axes, x, y, free, columns)
    for line, height in zip(compute, heights, strict=True):
        start = line.value / max(_alike(line, slopes)) if slopes else x.low
        axes.plot([start, x.high], [line.value] * 2, color=colour(line), **_stroke(line))
        if line.ridge:
            axes.plot([line.ridge], [line.value], marker="o", markersize=4, color=colour(line), zorder=3)
            # The name ends left of every slope, even at the lower edge of its letters.
            end = min(x.place(y.value(height - 7) / slopes[-1].value), x.place(start)) - 5
            axes.annotate(_compute_text(line), (x.value(end), y.value(height)), ha="right", **name_style(line))
            if abs(height - y.place(line.value)) > 2:
                leader = [x.value(end + 2), start], [y.value(height), line.value]
                axes.plot(*leader, color=colour(line), linewidth=0.6, zorder=1.4)
        else:
            axes.annotate(line.text, (x.value(6), y.value(height + 8)), ha="left", **name_style(line))


def _alike(line: Level, others: Sequence[Level]) -> list[float]:
    """The values of those that were measured, or quoted, like ``line``; of all if there is none."""
    return [other.value for other in others if other.measured == line.measured] or [other.value for other in others]


def _compute_text(line: Level) -> str:
    return f"{line.text}  |  ridge {line.ridge:.0f} FLOP/B" if line.ridge else line.text


def _stroke(line: Level) -> dict[str, Any]:
    return {"linewidth": 1.6, "zorder": 2} if line.measured else {"linewidth": 1.1, "dashes": (5, 3), "zorder": 1.5}


def _column_places(x: Scale, cases: Sequence[CaseResult]) -> list[float]:
    wished = [x.place(intensity(case)) for case in cases]
    margin = COLUMN_POINTS / 2
    return spread(wished, COLUMN_POINTS, margin, x.points - margin) if len(cases) <= MOST_COLUMNS else wished


def _points(
    axes: Axes,
    x: Scale,
    y: Scale,
    cases: Sequence[CaseResult],
    places: Sequence[float],
    looks: dict[str, style.Look],
    ridge: float,
) -> None:
    """The contestants of each case; those below the ``ridge`` are bound by memory."""
    for case, place in zip(cases, places, strict=True):
        rows = timed_rows(case)
        heights = [y.place(speed(row).median) for row in rows]
        if len(cases) <= MOST_COLUMNS:
            _name_column(axes, x, y, case_name(case), place, x.place(intensity(case)), min(heights))
        asides = swarm(heights, MARKER_POINTS + 1)
        if intensity(case) < ridge:  # left of its intensity a point would seem to be above the slope that bounds it
            asides = [aside - min(asides) for aside in asides]
        for row, height, aside in zip(rows, heights, asides, strict=True):
            look = looks[label(row)]
            axes.plot(
                [x.value(place + aside)],
                [y.value(height)],
                zorder=4,
                **_marker(look),
            )


def _name_column(axes: Axes, x: Scale, y: Scale, name: str, place: float, true: float, lowest: float) -> None:
    """A guide from the axis, where the product's intensity is, to its points, and the product's name beside it."""
    knee = 10.0
    guide = [(true, 0.0), (place, knee), (place, lowest - MARKER_POINTS)]
    axes.plot(
        [x.value(a) for a, _ in guide], [y.value(b) for _, b in guide], color="#b8bcc0", linewidth=0.8, zorder=1.2
    )
    axes.annotate(
        name,
        (x.value(place - 3), y.value(knee + 4)),
        rotation=90,
        ha="right",
        va="bottom",
        fontsize=NAME_SIZE,
        color=style.MUTED,
    )


def _marker(look: style.Look) -> dict[str, Any]:
    return {
        "marker": look.marker,
        "markersize": MARKER_POINTS,
        "markerfacecolor": "white",
        "markeredgecolor": look.colour,
        "markeredgewidth": 1.7,
        "linestyle": "none",
    }


def _legend_columns(looks: dict[str, style.Look]) -> int:
    """As many as fit, up to three."""
    widest = max(style.text_points(_legend_text(name), NAME_SIZE) for name in looks)
    return max(1, min(3, int(72 * (style.WIDTH_INCHES - 0.6) / (widest + 36))))


def _legend_text(name: str) -> str:
    return name.replace(":", "  ")


def _legend(figure: Figure, looks: dict[str, style.Look], columns: int, top: float) -> None:
    figure.legend(
        handles=[Line2D([], [], label=_legend_text(name), **_marker(look)) for name, look in looks.items()],
        loc="upper left",
        bbox_to_anchor=(0.045, top),
        ncols=columns,
        frameon=False,
        fontsize=NAME_SIZE,
        handletextpad=0.4,
        columnspacing=1.6,
        labelspacing=0.45,
        borderaxespad=0,
    )
