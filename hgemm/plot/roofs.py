"""The roofs of a roofline as they are drawn: where each line runs, where its name stands, how much room that needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from hgemm.plot import style
from hgemm.plot.levels import Level
from hgemm.plot.placement import spread
from hgemm.plot.scale import Scale, lower_end
from hgemm.plot.slopes import ASIDE_POINTS, NAME_SIZE, colour, name_style, place_names, write_names

LINES_POINTS = 21.0
"""Height of a name of two lines."""
AIR_POINTS = 3.0
NAME_STEP = LINES_POINTS + AIR_POINTS
"""From one name to the next."""

WIDEN, MOST_STEPS = 1.1, 24
"""Factor and number of steps by which the axis goes on to the left until the names fit on the slopes."""


@dataclass(frozen=True)
class Roofs:
    """Compute roofs and slopes under one vertical axis."""

    compute: Sequence[Level]
    slopes: Sequence[Level]
    """Lowest bandwidth first."""
    y: Scale

    @classmethod
    def under(cls, lines: Sequence[Level], y: Scale) -> Roofs:
        """The roofs among ``lines``."""
        slopes = sorted((line for line in lines if line.kind == "bandwidth"), key=lambda line: line.value)
        return cls([line for line in lines if line.kind == "compute"], slopes, y)

    def heights(self) -> list[float]:
        """The middles of the names of the compute roofs, in points: at their roofs or higher if the axis is."""
        half = LINES_POINTS / 2
        wished = [self.y.place(line.value) + half for line in self.compute]
        high = self.y.points - half
        low = min(min(wished, default=0.0), high - NAME_STEP * (len(wished) - 1))
        return spread(wished, NAME_STEP, low, high)

    def ends(self) -> list[float]:
        """Intensities left of which the names of the compute roofs are left of every slope, and of their own start."""
        highest = self.slopes[-1].value
        below = [self.y.value(height - LINES_POINTS / 2 - AIR_POINTS) for height in self.heights()]
        return [min(low, line.value) / highest for low, line in zip(below, self.compute, strict=True)]

    def reach(self, slope: Level) -> float:
        """TFLOPS up to which a slope goes."""
        return max(_alike(slope, self.compute) or [self.y.high])

    def free(self) -> dict[Level, tuple[float, float]]:
        """TFLOPS up to which a name may stand below a slope: up to the lowest compute roof; and on or above it: below
        the names of the compute roofs."""
        lowest = min(self.heights(), default=self.y.points) - LINES_POINTS / 2 - ASIDE_POINTS - 2 * AIR_POINTS
        roof = min((line.value for line in self.compute), default=self.y.high)
        return {line: (roof, min(self.reach(line), self.y.value(lowest))) for line in self.slopes}

    def low(self, start: float, high: float, points: float, intensities: Sequence[float]) -> float:
        """The lower end of an axis of intensity up to ``high`` that shows ``start`` and has room for all names."""
        if not self.slopes:
            return start
        for line, end in zip(self.compute, self.ends(), strict=True):
            width = style.text_points(max(_two_lines(line), key=len), NAME_SIZE)
            start = min(start, lower_end(end, width + 14, high, points))
        for _ in range(MOST_STEPS):
            x = Scale(start, high, points)
            _, fit = place_names(x, self.y, self.free(), [x.place(value) for value in intensities])
            if fit or start * self.slopes[0].value < self.y.low:
                break
            start /= WIDEN
        return start


def _two_lines(line: Level) -> tuple[str, str]:
    """What a compute roof is; how much at which clock."""
    what, figures = line.text.rsplit(", ", 1)
    return what, figures.split(" (")[0]


def draw_roofs(axes: Axes, x: Scale, roofs: Roofs, intensities: Sequence[float]) -> None:
    """Every roof and its name; solid if measured. ``intensities`` of the points keep names off them."""
    y, slopes = roofs.y, roofs.slopes
    for line in slopes:
        reach = roofs.reach(line)
        axes.plot([x.low, reach / line.value], [x.low * line.value, reach], color=colour(line), **_stroke(line))
    names, _ = place_names(x, y, roofs.free(), [x.place(value) for value in intensities])
    write_names(axes, x, y, names)
    ends = roofs.ends() if slopes else [x.value(6.0)] * len(roofs.compute)
    for line, height, end in zip(roofs.compute, roofs.heights(), ends, strict=True):
        start = line.value / max(_alike(line, slopes)) if slopes else x.low
        axes.plot([start, x.high], [line.value] * 2, color=colour(line), **_stroke(line))
        if not slopes:
            axes.annotate(line.text, (end, y.value(height)), ha="left", **name_style(line))
            continue
        if line.ridge:
            axes.plot([line.ridge], [line.value], marker="o", markersize=4, color=colour(line), zorder=3)
        right = x.place(end) - 6
        text = "\n".join(_two_lines(line))
        axes.annotate(
            text,
            (x.value(right), y.value(height)),
            ha="right",
            multialignment="right",
            linespacing=1.1,
            **name_style(line),
        )
        leader = [x.value(right + 2), start], [y.value(height), line.value]
        axes.plot(*leader, color=colour(line), linewidth=0.6, zorder=1.4)


def _alike(line: Level, others: Sequence[Level]) -> list[float]:
    """The values of those that were measured, or quoted, like ``line``; of all if there is none."""
    return [other.value for other in others if other.measured == line.measured] or [other.value for other in others]


def _stroke(line: Level) -> dict[str, Any]:
    return {"linewidth": 1.6, "zorder": 2} if line.measured else {"linewidth": 1.1, "dashes": (5, 3), "zorder": 1.5}
