"""The names of a roofline's slopes: each stands on its line, away from the points and from the other names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from hgemm.plot import style
from hgemm.plot.levels import Level
from hgemm.plot.scale import Scale

NAME_SIZE = 8.0
POINTS_ASIDE = 12.0
"""How far a column's points reach to either side, in points."""


@dataclass(frozen=True)
class _Name:
    """A name on a slope, in points along the horizontal axis."""

    slope: float
    """Where the slope crosses 1 TFLOPS: tells parallels apart."""
    place: float
    half: float
    """Half of its width."""

    def room(self, other: _Name, angle: float) -> float:
        """The distance between two names; infinite if their lines are a line of text apart."""
        if abs(self.slope - other.slope) * math.sin(angle) > 1.4 * NAME_SIZE:
            return math.inf
        return abs(self.place - other.place) - self.half - other.half


def name_slopes(axes: Axes, x: Scale, y: Scale, slopes: Mapping[Level, float], columns: Sequence[float]) -> None:
    """Names each slope below the height in TFLOPS that it is mapped to; ``columns`` are the places of the points.

    Slopes may lie so close together that no name fits between them, so each interrupts its own line.
    """
    angle = math.atan2(y.points / math.log(y.high / y.low), x.points / math.log(x.high / x.low))
    named: list[_Name] = []
    for line, end in slopes.items():
        half = math.cos(angle) * (style.text_points(line.text, NAME_SIZE) / 2 + 6)
        slope = x.place(1 / line.value)
        span = x.place(max(x.low, y.low / line.value)), x.place(end / line.value)
        names = [_Name(slope, place, half) for place in _places(span, half, columns)]
        best = max(names, key=lambda name: min((0.0, *(name.room(other, angle) for other in named))))
        named.append(best)
        at = x.value(best.place)
        axes.annotate(
            line.text,
            (at, at * line.value),
            rotation=math.degrees(angle),
            rotation_mode="anchor",
            ha="center",
            zorder=2.5,
            **name_style(line),
        )


def _places(span: tuple[float, float], half: float, columns: Sequence[float]) -> list[float]:
    """Where a name may stand: at either end of a stretch without points, the longest first, or at the very ends."""
    low, high = span
    between = [place for place in sorted(columns) if low < place < high]
    starts = [low, *(place + POINTS_ASIDE for place in between)]
    stops = [*(place - POINTS_ASIDE for place in between), high]
    stretches = sorted(zip(starts, stops, strict=True), key=lambda stretch: stretch[0] - stretch[1])
    fitting = [place for start, stop in stretches if stop - start >= 2 * half for place in (start + half, stop - half)]
    return [*fitting, low + half, high - half]


def name_style(line: Level) -> dict[str, Any]:
    """How the name of a roof is written."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    return {"va": "center", "fontsize": NAME_SIZE, "color": colour(line), "bbox": box}


def colour(line: Level) -> str:
    """Of a roof and its name."""
    return style.INK if line.measured else style.MUTED
