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
POINTS_ASIDE = 8.0
"""How far a column's points reach to either side, in points, and a little air."""
LINE_POINTS = 1.4 * NAME_SIZE
"""Height of a line of text with air."""
ASIDE_POINTS = 8.0
"""From a slope to the middle of a name beside it."""
FLOOR_POINTS = 20.0
"""Height above the axis of the part of a slope below which a name may stand."""


@dataclass(frozen=True)
class Name:
    """The place of a slope's name, in points."""

    place: float
    """Of its middle, along the horizontal axis."""
    half: float
    """Half of its width along that axis."""
    aside: float
    """How far it is from its line: above if positive, below if negative, on it and interrupting it if 0."""
    across: float
    """Its distance from the lowest slope, at a right angle to both."""

    def room(self, other: Name) -> float:
        """The distance between two names along the axis; infinite if they are a line of text apart."""
        if abs(self.across - other.across) > LINE_POINTS:
            return math.inf
        return abs(self.place - other.place) - self.half - other.half


def _angle(x: Scale, y: Scale) -> float:
    """Of a slope, in radians."""
    return math.atan2(y.points / math.log(y.high / y.low), x.points / math.log(x.high / x.low))


def place_names(
    x: Scale, y: Scale, slopes: Mapping[Level, tuple[float, float]], columns: Sequence[float]
) -> tuple[dict[Level, Name], bool]:
    """A place for the name of each slope, and whether all of them fit.

    ``slopes`` come lowest first, each with the TFLOPS up to which a name may stand below it, and on or above it;
    ``columns`` are the places of the points.
    """
    angle = _angle(x, y)
    distances = [(x.place(line.value) - x.place(1)) * math.sin(angle) for line in slopes]
    named: dict[Level, Name] = {}
    fit = True
    for number, (line, (end_below, end_above)) in enumerate(slopes.items()):
        half = math.cos(angle) * (style.text_points(line.text, NAME_SIZE) / 2 + 6)
        aside = _aside(number, distances)
        floor = y.value(FLOOR_POINTS) if aside < 0 else y.low
        low = x.place(max(x.low, floor / line.value)) + max(aside, 0.0) * math.sin(angle)
        high = x.place((end_below if aside < 0 else end_above) / line.value)
        if number == 0 and aside < 0:  # where points and curves lie; a name there is left of all of them
            high = min(high, min(columns) - POINTS_ASIDE)
        fitting, ends = _places((low, high), half, columns)
        best, room = None, -math.inf
        for place in (*fitting, *ends):
            name = Name(place, half, aside, distances[number] - distances[0] + aside)
            found = min((0.0, *(name.room(other) for other in named.values())))
            if found > room:
                best, room = name, found
        assert best is not None
        fit = fit and room == 0.0 and best.place in fitting
        named[line] = best
    return named, fit


def _aside(number: int, distances: Sequence[float]) -> float:
    """On which side of its slope, lowest first, a name has room."""
    below = distances[number] - distances[number - 1] if number else math.inf
    if below > 2 * ASIDE_POINTS + LINE_POINTS:
        return -ASIDE_POINTS
    above = distances[number + 1] - distances[number] if number + 1 < len(distances) else math.inf
    return ASIDE_POINTS if above > ASIDE_POINTS + LINE_POINTS / 2 else 0.0


def write_names(axes: Axes, x: Scale, y: Scale, names: Mapping[Level, Name]) -> None:
    """Along their slopes."""
    angle = _angle(x, y)
    for line, name in names.items():
        across = name.place - name.aside * math.sin(angle)
        up = y.place(x.value(name.place) * line.value) + name.aside * math.cos(angle)
        axes.annotate(
            line.text,
            (x.value(across), y.value(up)),
            rotation=math.degrees(angle),
            rotation_mode="anchor",
            ha="center",
            zorder=2.1 if line.measured else 1.6,  # over its own line and under the others
            **name_style(line),
        )


def _places(span: tuple[float, float], half: float, columns: Sequence[float]) -> tuple[list[float], list[float]]:
    """Where a name may stand: at either end of a stretch without points, the longest first; and at the very ends."""
    low, high = span
    between = [place for place in sorted(columns) if low - POINTS_ASIDE < place < high + POINTS_ASIDE]
    starts = [low, *(place + POINTS_ASIDE for place in between)]
    stops = [*(place - POINTS_ASIDE for place in between), high]
    stretches = sorted(zip(starts, stops, strict=True), key=lambda stretch: stretch[0] - stretch[1])
    fitting = [place for start, stop in stretches if stop - start >= 2 * half for place in (start + half, stop - half)]
    return fitting, [low + half, high - half]


def name_style(line: Level) -> dict[str, Any]:
    """How the name of a roof is written."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    return {"va": "center", "fontsize": NAME_SIZE, "color": colour(line), "bbox": box}


def colour(line: Level) -> str:
    """Of a roof and its name."""
    return style.INK if line.measured else style.MUTED
