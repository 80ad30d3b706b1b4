"""The contestants of a roofline, each product at its intensity: a curve a backend, or a marker a configuration."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from hgemm.bench.metrics import label, timed_rows
from hgemm.bench.schema import CaseResult
from hgemm.plot import style
from hgemm.plot.grouping import Entrant, median_tflops
from hgemm.plot.placement import spread
from hgemm.plot.scale import Scale

MARKER_POINTS = 5.5
LARGE_MARKER_POINTS = 7.0
PRODUCT_DOT_POINTS, CONFIGURATION_DOT_POINTS = 3.2, 2.2
MARK_POINTS = 14.0
"""From the axes to the marker beside a name."""
NAME_POINTS = 21.0
"""From the axes to the names of the curves."""

Point = tuple[float, float]
"""FLOP a byte, TFLOPS."""


def intensity(case: CaseResult) -> float:
    """Floating-point operations a compulsory byte."""
    return case.flops / case.compulsory_bytes


def points_of(entrant: Entrant, cases: Sequence[CaseResult]) -> list[Point]:
    """(FLOP a byte, TFLOPS) of its products, in the order of intensity."""
    return sorted((intensity(cases[place]), median_tflops(row)) for place, row in entrant.rows.items())


def knots(points: Sequence[Point], x: Scale) -> list[Point]:
    """Those of ``points``, which are in the order of intensity, through which a curve goes and which have a marker.

    Of products that are less than a marker's width from the first of them along the axis it is the one of median speed,
    the lower one of two in the middle.
    """
    columns: list[list[Point]] = []
    for point in points:
        if columns and x.place(point[0]) - x.place(columns[-1][0][0]) < MARKER_POINTS:
            columns[-1].append(point)
        else:
            columns.append([point])
    return [sorted(column, key=lambda point: point[1])[(len(column) - 1) // 2] for column in columns]


def beside(points: Sequence[Point], x: Scale) -> list[Point]:
    """The others of ``points``."""
    through = knots(points, x)
    return [point for point in points if point not in through]


def other_points(cases: Sequence[CaseResult], entrants: Sequence[Entrant]) -> dict[str, list[Point]]:
    """(FLOP a byte, TFLOPS) of the rows that no entrant shows, by backend."""
    shown = {id(row) for entrant in entrants for row in entrant.rows.values()}
    found: dict[str, list[Point]] = {}
    for case in cases:
        for row in timed_rows(case):
            if id(row) not in shown:
                found.setdefault(row.backend, []).append((intensity(case), median_tflops(row)))
    return found


def draw_curves(
    axes: Axes, x: Scale, cases: Sequence[CaseResult], entrants: Sequence[Entrant], looks: dict[str, style.Look]
) -> None:
    """A curve for each entrant, dots for products beside it, and faint ones for what no entrant shows."""
    for backend, others in other_points(cases, entrants).items():
        _dots(axes, others, looks[backend], CONFIGURATION_DOT_POINTS, alpha=0.5)
    for entrant in entrants:
        look = looks[entrant.name]
        points = points_of(entrant, cases)
        curve = knots(points, x)
        _dots(axes, beside(points, x), look, PRODUCT_DOT_POINTS, alpha=0.9)
        axes.plot(*zip(*curve, strict=True), color=look.colour, linewidth=1.0, alpha=0.8, zorder=3)
        axes.plot(*zip(*curve, strict=True), linestyle="none", zorder=4, **style.hollow(look, MARKER_POINTS))


def _dots(axes: Axes, points: Sequence[Point], look: style.Look, size: float, alpha: float) -> None:
    if points:
        axes.plot(
            *zip(*points, strict=True),
            linestyle="none",
            marker="o",
            markersize=size,
            markeredgewidth=0,
            color=look.colour,
            alpha=alpha,
            zorder=2.6,
        )


def name_curves(
    axes: Axes,
    x: Scale,
    y: Scale,
    cases: Sequence[CaseResult],
    entrants: Sequence[Entrant],
    looks: dict[str, style.Look],
    size: float,
) -> None:
    """Names each curve right of the axes at the height where it ends; moved apart where they end close together."""
    ends = [knots(points_of(entrant, cases), x)[-1] for entrant in entrants]
    heights = spread([y.place(end) for _, end in ends], size + 3.5, 0, y.points)
    for entrant, (last, end), height in zip(entrants, ends, heights, strict=True):
        look = looks[entrant.name]
        mark = x.value(x.points + MARK_POINTS)
        axes.plot(
            [last, x.high, mark],
            [end, end, y.value(height)],
            color=look.colour,
            linewidth=0.6,
            alpha=0.7,
            zorder=2.5,
            clip_on=False,
        )
        axes.plot([mark], [y.value(height)], linestyle="none", clip_on=False, **style.hollow(look, MARKER_POINTS))
        at = x.value(x.points + NAME_POINTS), y.value(height)
        axes.annotate(entrant.name, at, va="center", fontsize=size, annotation_clip=False)


def draw_configurations(axes: Axes, cases: Sequence[CaseResult], looks: dict[str, style.Look]) -> None:
    """A marker for each row, by its configuration."""
    for name, look in looks.items():
        points = [
            (intensity(case), median_tflops(row)) for case in cases for row in timed_rows(case) if label(row) == name
        ]
        axes.plot(*zip(*points, strict=True), linestyle="none", zorder=4, **style.hollow(look, LARGE_MARKER_POINTS))
