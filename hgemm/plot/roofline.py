"""The roofline: speed over arithmetic intensity, under roofs measured in the same run and the vendor's peaks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from hgemm import devices
from hgemm.bench.metrics import CEILING, COPY, label, speed, timed_rows
from hgemm.bench.schema import CaseResult, Results, Roof
from hgemm.plot import style
from hgemm.plot.placement import spread, swarm
from hgemm.plot.source import NothingToDraw, case_name

NAME_SIZE = 8.0
MARKER_POINTS = 7.0
COLUMN_POINTS = 50.0
"""Room between the columns of neighbouring cases, so that each stays recognisable."""

SUBTITLE = "half-precision products, fp32 accumulation; every point checked against fp64 before it was timed"

MOST_COLUMNS = 9
"""More cases than this are drawn where they are, unspread and unnamed."""


@dataclass(frozen=True)
class Line:
    """A roof to draw: a rate in TFLOPS or, for bandwidth, in TB/s."""

    kind: Literal["compute", "bandwidth"]
    value: float
    text: str
    measured: bool
    colour: str


@dataclass(frozen=True)
class Scale:
    """One logarithmic axis: from data to points along it, and back."""

    low: float
    high: float
    points: float

    def place(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low) * self.points

    def value(self, place: float) -> float:
        return self.low * math.exp(place / self.points * math.log(self.high / self.low))


def draw(results: Results, dtype: str) -> Figure:
    """The roofline of every case of one dtype. Raises NothingToDraw if no contestant was timed in it."""
    cases = [case for case in results.cases if case.dtype == dtype and timed_rows(case)]
    if not cases:
        raise NothingToDraw(f"no contestant was timed in {dtype}")
    rows = [row for case in cases for row in timed_rows(case)]
    looks = style.looks(rows)
    lines = _lines(results, dtype)

    columns = _legend_columns(looks)
    legend_inches = 0.19 * math.ceil(len(looks) / columns)
    height = 5.72 + legend_inches
    with style.context():
        figure = plt.figure(figsize=(style.WIDTH_INCHES, height))
        left, bottom = 0.68, 1.16 + legend_inches
        width, tall = style.WIDTH_INCHES - left - 0.15, height - bottom - 0.72
        axes = figure.add_axes((left / style.WIDTH_INCHES, bottom / height, width / style.WIDTH_INCHES, tall / height))
        x, y = _scales(cases, lines, 72 * width, 72 * tall)
        _axes(axes, x, y)
        places = _column_places(x, cases)
        _roofs(axes, x, y, lines, places)
        _points(axes, x, y, cases, places, looks)
        _legend(figure, looks, columns, (bottom - 0.5) / height)
        gpu = results.env.gpu.removeprefix("NVIDIA ")
        style.title(figure, f"Roofline, {gpu}, {dtype}", SUBTITLE)
        style.footer(
            figure,
            results,
            "Solid: measured in the same run. Dashed: the vendor's figures. Hollow points: compulsory bytes, each "
            "element moved once; points of one product stand side by side.",
        )
    return figure


def _lines(results: Results, dtype: str) -> list[Line]:
    """The measured roofs of a dtype and the vendor's, if the device is known."""
    lines = []
    for roof in results.roofs:
        if roof.name == CEILING and roof.dtype == dtype:
            lines.append(_compute_line("mma.sync on registers", roof))
        elif roof.name == "cublas" and roof.dtype == dtype:
            lines.append(_compute_line("best cuBLAS", roof))
        elif roof.name == COPY:
            terabytes = roof.value / 1000
            lines.append(Line("bandwidth", terabytes, f"copy {terabytes:.3g} TB/s", True, style.INK))
    env = results.env
    if device := devices.find(env.gpu, env.multiprocessors):
        peak = device.tensor_tflops()
        text = f"NVIDIA, dense, {peak:.3g} TFLOPS at {device.clock_mhz} MHz"
        lines.append(Line("compute", peak, text, False, style.MUTED))
        terabytes = device.bandwidth_gbs / 1000
        lines.append(Line("bandwidth", terabytes, f"NVIDIA {terabytes:.3g} TB/s", False, style.MUTED))
    return lines


def _compute_line(text: str, roof: Roof) -> Line:
    clock = f" at {roof.clock_mhz:.0f} MHz" if roof.clock_mhz else ""
    return Line("compute", roof.value, f"{text}, {roof.value:.3g} TFLOPS{clock}", True, style.INK)


def _scales(cases: Sequence[CaseResult], lines: Sequence[Line], width: float, height: float) -> tuple[Scale, Scale]:
    """Axes that hold every point, with room for the names above the slope and below the points."""
    intensities = [intensity(case) for case in cases]
    lowest = {case_name(case): min(speed(row).median for row in timed_rows(case)) for case in cases}
    highest = max(speed(row).median for case in cases for row in timed_rows(case))
    compute = [line for line in lines if line.kind == "compute"]
    bandwidths = [line.value for line in lines if line.kind == "bandwidth"]
    top = max([highest, *(line.value for line in compute)])

    right = max(intensities) * 2
    lefts = [_low(min(intensities), COLUMN_POINTS, right, width)]
    for line in compute if bandwidths else ():
        slope_at_name = line.value / max(bandwidths)
        lefts.append(_low(slope_at_name, style.text_points(_compute_text(line, 999), NAME_SIZE) + 32, right, width))
    bottoms = [min(lowest.values()) / 2.5]
    if len(cases) <= MOST_COLUMNS:
        room = {name: style.text_points(name, NAME_SIZE) + 30 for name in lowest}
        bottoms += [_low(value, room[name], top * 1.4, height) for name, value in lowest.items()]
    return Scale(min(lefts), right, width), Scale(min(bottoms), top * 1.4, height)


def _low(value: float, room: float, high: float, points: float) -> float:
    """The lower end of a logarithmic axis of so many ``points`` up to ``high`` with ``room`` points below ``value``."""
    share = min(room / points, 0.9)
    return math.exp((math.log(value) - share * math.log(high)) / (1 - share))


def intensity(case: CaseResult) -> float:
    """Floating-point operations a compulsory byte."""
    return case.flops / case.compulsory_bytes


def _axes(axes: Axes, x: Scale, y: Scale) -> None:
    axes.set(xscale="log", yscale="log", xlim=(x.low, x.high), ylim=(y.low, y.high))
    axes.set_xlabel("arithmetic intensity, FLOP / byte")
    axes.set_ylabel("TFLOPS")
    powers = [2.0**power for power in range(-4, 20) if x.low <= 2.0**power <= x.high]
    axes.set_xticks(powers)
    steps = [
        step * 10.0**power for power in range(-3, 5) for step in (1, 2, 5) if y.low <= step * 10.0**power <= y.high
    ]
    axes.set_yticks(steps)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    axes.grid(True)


def _roofs(axes: Axes, x: Scale, y: Scale, lines: Sequence[Line], columns: Sequence[float]) -> None:
    compute = [line for line in lines if line.kind == "compute"]
    slopes = [line for line in lines if line.kind == "bandwidth"]
    heights = spread([y.place(line.value) for line in compute], 12.5, 0, y.points)
    highest = max((line.value for line in compute), default=y.high)
    steepest = max((line.value for line in slopes), default=0.0)
    for line in slopes:
        reach = max((c.value for c in compute if c.measured == line.measured), default=highest)
        axes.plot([x.low, reach / line.value], [x.low * line.value, reach], color=line.colour, **_stroke(line))
        below_names = y.value(min(heights, default=y.points) - 16)
        _name_slope(axes, x, y, line, min(reach, below_names), columns, above=line.value == steepest)
    for line, height in zip(compute, heights, strict=True):
        slope = next((s.value for s in slopes if s.measured == line.measured), steepest)
        start = line.value / slope if slope else x.low
        axes.plot([start, x.high], [line.value] * 2, color=line.colour, **_stroke(line))
        if slope:
            axes.plot([start], [line.value], marker="o", markersize=4, color=line.colour, zorder=3)
            # The name ends left of every slope, even at the lower edge of its letters.
            end = min(x.place(y.value(height - 7) / steepest), x.place(start)) - 5
            axes.annotate(_compute_text(line, start), (x.value(end), y.value(height)), ha="right", **_name(line))
            if abs(height - y.place(line.value)) > 2:
                leader = [x.value(end + 2), start], [y.value(height), line.value]
                axes.plot(*leader, color=line.colour, linewidth=0.6, zorder=1.4)
        else:
            axes.annotate(line.text, (x.value(6), y.value(height + 8)), ha="left", **_name(line))


def _name(line: Line) -> dict[str, Any]:
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    return {"va": "center", "fontsize": NAME_SIZE, "color": line.colour, "bbox": box}


def _compute_text(line: Line, ridge: float) -> str:
    return f"{line.text}  |  ridge {ridge:.0f} FLOP/B"


def _stroke(line: Line) -> dict[str, Any]:
    return {"linewidth": 1.6, "zorder": 2} if line.measured else {"linewidth": 1.1, "dashes": (5, 3), "zorder": 1.5}


def _name_slope(axes: Axes, x: Scale, y: Scale, line: Line, end: float, columns: Sequence[float], above: bool) -> None:
    """Writes along a slope that ends at the height ``end``, in the middle of its longest stretch free of points."""
    degrees = math.degrees(math.atan2(y.points / math.log(y.high / y.low), x.points / math.log(x.high / x.low)))
    first, last = x.place(max(x.low, y.low / line.value)), x.place(end / line.value)
    stops = [first, *sorted(place for place in columns if first < place < last), last]
    start, stop = max(itertools.pairwise(stops), key=lambda stretch: stretch[1] - stretch[0])
    at = x.value((start + stop) / 2)
    axes.annotate(
        line.text,
        (at, at * line.value),
        xytext=(-4, 4) if above else (4, -4),
        textcoords="offset points",
        rotation=degrees,
        rotation_mode="anchor",
        ha="center",
        va="bottom" if above else "top",
        fontsize=NAME_SIZE,
        color=line.colour,
    )


def _column_places(x: Scale, cases: Sequence[CaseResult]) -> list[float]:
    wished = [x.place(intensity(case)) for case in cases]
    return spread(wished, COLUMN_POINTS, 0, x.points) if len(cases) <= MOST_COLUMNS else wished


def _points(
    axes: Axes,
    x: Scale,
    y: Scale,
    cases: Sequence[CaseResult],
    places: Sequence[float],
    looks: dict[str, style.Look],
) -> None:
    for case, place in zip(cases, places, strict=True):
        rows = timed_rows(case)
        heights = [y.place(speed(row).median) for row in rows]
        if len(cases) <= MOST_COLUMNS:
            _name_column(axes, x, y, case_name(case), place, x.place(intensity(case)), min(heights))
        for row, height, aside in zip(rows, heights, swarm(heights, MARKER_POINTS + 1), strict=True):
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
