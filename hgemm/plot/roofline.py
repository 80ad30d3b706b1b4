"""The roofline: speed over arithmetic intensity, under roofs measured in the same run and the vendor's peaks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from hgemm import devices
from hgemm.bench.metrics import timed_rows
from hgemm.bench.schema import CaseResult, Results
from hgemm.plot import style
from hgemm.plot.curves import (
    LARGE_MARKER_POINTS,
    NAME_POINTS,
    beside,
    draw_configurations,
    draw_curves,
    intensity,
    name_curves,
    other_points,
    points_of,
)
from hgemm.plot.grouping import Entrant, best_of_backends, median_tflops
from hgemm.plot.levels import CUBLAS, VENDOR, Level, levels
from hgemm.plot.placement import spread
from hgemm.plot.roofs import NAME_STEP, Roofs, draw_roofs
from hgemm.plot.scale import Scale, lower_end
from hgemm.plot.slopes import NAME_SIZE
from hgemm.plot.source import case_name, device_cases

MARGIN_POINTS = 12.0
"""From the outermost points to the ends of the axes."""
SLOPE_POINTS = 170.0
"""Height of the slopes below the lowest compute roof, so that they can be named."""
SLOPE_NAME_POINTS = 110.0
"""Height that a name along a slope and the air around it take."""
LEAST_ABOVE, MOST_ABOVE = 1.25, 2.5
"""Factors from the highest roof to the end of the axis, for the names of the roofs."""
NAME_GAP = 11.0
"""Between the names of products, which stand upright beside each other."""

MOST_PRODUCTS, MOST_CONFIGURATIONS = 4, 15
"""With more of either each backend is a curve; up to these numbers each configuration has a marker of its own."""

SUBTITLE = "half-precision products, fp32 accumulation; every point checked against fp64 before it was timed"


def draw(results: Results, dtype: str) -> Figure:
    """The roofline of every case of one dtype. Raises NothingToDraw if no contestant's device time is known in it."""
    cases = device_cases(results, dtype)
    lines = levels(results, dtype)
    entrants = best_of_backends(cases)
    configurations = style.looks(row for case in cases for row in timed_rows(case))
    detailed = len(cases) <= MOST_PRODUCTS and len(configurations) <= MOST_CONFIGURATIONS
    left, right, top, tall = 0.68, 0.15, 0.74, 4.7
    if not detailed:
        names = max(style.text_points(entrant.name, NAME_SIZE) for entrant in entrants)
        right = (NAME_POINTS + names) / 72 + 0.12
    width = style.WIDTH_INCHES - left - right
    y = _vertical(cases, lines, 72 * tall, _names_points(cases) if detailed else 0.0)
    roofs = Roofs.under(lines, y)
    x = _horizontal(cases, roofs, 72 * width)

    remarks = [*([] if detailed else [_curve_remark(cases, entrants, x)]), *_remarks(results, lines)]
    footer = style.footer_inches(results, *remarks)
    columns = _legend_columns(configurations)
    legend = 0.19 * math.ceil(len(configurations) / columns) + 0.12 if detailed else 0.0
    bottom = footer + legend + 0.5
    with style.context():
        figure = plt.figure(figsize=(style.WIDTH_INCHES, top + tall + bottom))
        axes = style.add_axes(figure, left, bottom, width, tall)
        _axes(axes, x, y)
        draw_roofs(axes, x, roofs, [intensity(case) for case in cases])
        if detailed:
            _name_products(axes, x, y, cases)
            draw_configurations(axes, cases, configurations)
            _legend(figure, configurations, columns, footer + legend)
        else:
            looks = style.backend_looks(entrant.name for entrant in entrants)
            draw_curves(axes, x, cases, entrants, looks)
            name_curves(axes, x, y, cases, entrants, looks, NAME_SIZE)
        style.title(figure, f"Roofline, {results.env.gpu.removeprefix('NVIDIA ')}, {dtype}", SUBTITLE)
        style.footer(figure, results, *remarks)
    return figure


def _curve_remark(cases: Sequence[CaseResult], entrants: Sequence[Entrant], x: Scale) -> str:
    words = ["Each backend in its fastest configuration at each product"]
    if any(beside(points_of(entrant, cases), x) for entrant in entrants):
        words.append("of those that share an intensity the median has the marker, others are dots")
    if other_points(cases, entrants):
        words.append("faint: other configurations")
    return "; ".join(words) + "."


def _remarks(results: Results, lines: Sequence[Level]) -> list[str]:
    names = {CUBLAS: "best cuBLAS", VENDOR: "NVIDIA"}
    ridges = [f"{names.get(line.name, line.name)} {line.ridge:.0f}" for line in lines if line.ridge]
    solid = "Solid: measured in the same run."
    if ridges:
        solid += f" Ridges: {', '.join(ridges)} FLOP / byte."
    remarks = [f"{solid} Bytes: compulsory, each element moved once."]
    if device := devices.find(results.env.gpu, results.env.multiprocessors):
        rated = f"{device.tensor_tflops():.4g} TFLOPS at {device.clock_mhz} MHz"
        remarks.append(f"Dashed: {device.source}, {rated}, dense, fp32 accumulation, scaled to the observed clock.")
    return remarks


def _names_points(cases: Sequence[CaseResult]) -> float:
    """Room that the names of the products, which stand upright below the points, need."""
    return max(style.text_points(case_name(case), NAME_SIZE) for case in cases) + 34


def _vertical(cases: Sequence[CaseResult], lines: Sequence[Level], height: float, names: float) -> Scale:
    """Holds every point and compute roof, with ``names`` points below them, and enough of the slopes."""
    speeds = [median_tflops(row) for case in cases for row in timed_rows(case)]
    compute = [line.value for line in lines if line.kind == "compute"]
    bandwidths = [line.value for line in lines if line.kind == "bandwidth"]
    rooms = [(min(speeds), max(MARGIN_POINTS, names))]
    if compute and bandwidths:
        rooms.append((min(compute), SLOPE_POINTS))
        # Left of all points, below the lowest slope, is the place of its name.
        rooms.append((min(*compute, min(map(intensity, cases)) * min(bandwidths)), SLOPE_NAME_POINTS))
    highest = max([*speeds, *compute])
    top = LEAST_ABOVE * highest
    for _ in range(4):  # each end depends a little on the other
        low = min(highest / 4, *(lower_end(value, room, top, height) for value, room in rooms))
        scale = Scale(low, top, height)
        if compute:
            names_end = scale.value(scale.place(min(compute)) + NAME_STEP * len(compute))
            top = min(max(LEAST_ABOVE * highest, names_end), MOST_ABOVE * highest)
    return scale


def _horizontal(cases: Sequence[CaseResult], roofs: Roofs, width: float) -> Scale:
    """Holds every point and ridge, with as much of the slopes as the names of the roofs need."""
    intensities = [intensity(case) for case in cases]
    shown = [*intensities, *(line.ridge for line in roofs.compute if line.ridge)]
    high = 1.1 * max(shown)
    for _ in range(3):  # each end depends a little on the other
        start = min(lower_end(min(shown), MARGIN_POINTS, high, width), max(shown) / 4)
        low = roofs.low(start, high, width, intensities)
        high = max(shown) * (high / low) ** (MARGIN_POINTS / width)
    return Scale(low, high, width)


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


def _name_products(axes: Axes, x: Scale, y: Scale, cases: Sequence[CaseResult]) -> None:
    """Upright beside the axis, moved apart where need be, and a guide from each to its points."""
    at = [x.place(intensity(case)) for case in cases]
    places = spread(at, NAME_GAP, NAME_GAP, x.points - NAME_GAP)
    knee = max(style.text_points(case_name(case), NAME_SIZE) for case in cases) + 8
    for case, true, place in zip(cases, at, places, strict=True):
        lowest = y.place(min(median_tflops(row) for row in timed_rows(case))) - LARGE_MARKER_POINTS / 2
        guide = [(place, knee), (true, knee + 12), (true, lowest)]
        axes.plot(
            [x.value(across) for across, _ in guide],
            [y.value(up) for _, up in guide],
            color="#b8bcc0",
            linewidth=0.8,
            zorder=1.2,
        )
        axes.annotate(
            case_name(case),
            (x.value(place), y.value(knee - 2)),
            rotation=90,
            ha="center",
            va="top",
            fontsize=NAME_SIZE,
            color=style.MUTED,
        )


def _legend_columns(looks: dict[str, style.Look]) -> int:
    """As many as fit, up to three."""
    widest = max(style.text_points(_legend_text(name), NAME_SIZE) for name in looks)
    return max(1, min(3, int(72 * (style.WIDTH_INCHES - 0.6) / (widest + 36))))


def _legend_text(name: str) -> str:
    return name.replace(":", "  ")


def _legend(figure: Figure, looks: dict[str, style.Look], columns: int, top: float) -> None:
    handles = [
        Line2D([], [], label=_legend_text(name), linestyle="none", **style.hollow(look, LARGE_MARKER_POINTS))
        for name, look in looks.items()
    ]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.045, top / figure.get_size_inches()[1]),
        ncols=columns,
        frameon=False,
        fontsize=NAME_SIZE,
        handletextpad=0.4,
        columnspacing=1.6,
        labelspacing=0.45,
        borderaxespad=0,
    )
