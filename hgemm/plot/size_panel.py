"""One panel of speed over size: lines or points of every backend, their intervals, the ceiling above them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from hgemm.bench.metrics import CEILING, microseconds, speed
from hgemm.bench.schema import CaseResult, Row
from hgemm.bench.statistics import Summary
from hgemm.plot import style
from hgemm.plot.grouping import Entrant, Group, best_of_backends, by_configuration
from hgemm.plot.placement import spread

HOST = "µs a call"
CEILING_NAME = f"{CEILING} ceiling"
TICK_SIZE = 8.0
MARKER_POINTS = 5.5


@dataclass(frozen=True)
class Scene:
    """What all panels of a picture share."""

    looks: dict[str, style.Look]
    """By backend."""
    unit: str
    ceiling: float | None
    """TFLOPS."""
    bandwidth: float | None
    """TB/s that limit products whose operands come from device memory; None where they need not."""
    lowest: float
    highest: float
    """Of all rows in ``unit``, so that panels over M have one axis."""

    def shares(self, panel: Group) -> bool:
        """Whether a panel shows shares of ``limit``: in TFLOPS, products of few rows and of many hide each other."""
        return panel.axis == "M" and self.ceiling is not None and self.bandwidth is not None

    def limit(self, case: CaseResult) -> float:
        """TFLOPS that the ceiling, or compulsory bytes at the rate of device memory, allow, whichever is less."""
        assert self.ceiling is not None and self.bandwidth is not None
        return min(self.ceiling, case.flops / case.compulsory_bytes * self.bandwidth)

    def values(self, panel: Group, place: int, row: Row) -> tuple[float, float, float]:
        """Median of a row of a panel's case, and the ends of its interval, in the unit of the panel."""
        summary = measured(row, self.unit)
        scale = 100 / self.limit(panel.cases[place]) if self.shares(panel) else 1.0
        return summary.median * scale, summary.ci_low * scale, summary.ci_high * scale

    def unit_of(self, panel: Group) -> str:
        return "% of the limit" if self.shares(panel) else self.unit


def measured(row: Row, unit: str) -> Summary:
    """TFLOPS of a row, or microseconds of the host's."""
    return microseconds(row) if unit == HOST else speed(row)


def draw_panel(axes: Axes, panel: Group, scene: Scene, points: float) -> list[Entrant]:
    """Draws a group of cases on axes ``points`` wide; returns what was drawn with markers."""
    best = best_of_backends(panel.cases)
    _axes(axes, panel, scene, points)
    if scene.ceiling:
        axes.axhline(ceiling_height(panel, scene), color=style.INK, linewidth=1.2, zorder=2)
    step = 0.7 / max(1, len(scene.looks))
    for entrant in best:
        look = scene.looks[entrant.name]
        # Points of one case stand side by side, each backend at its place.
        aside = (list(scene.looks).index(entrant.name) - (len(scene.looks) - 1) / 2) * step
        for other in _configurations(panel, entrant):
            _thin(axes, panel, other, look, aside, scene)
        _bold(axes, panel, entrant, look, aside, scene)
    return best


def _configurations(panel: Group, entrant: Entrant) -> list[Entrant]:
    """The configurations of an entrant's backend, if it has more than one."""
    backend, allocates = next((row.backend, row.allocates) for row in entrant.rows.values())
    found = [
        other
        for other in by_configuration(panel.cases)
        if all((row.backend, row.allocates) == (backend, allocates) for row in other.rows.values())
    ]
    return found if len(found) > 1 else []


def _bold(axes: Axes, panel: Group, entrant: Entrant, look: style.Look, aside: float, scene: Scene) -> None:
    """With a gap in the line where a case was not timed."""
    values = {place: scene.values(panel, place, row) for place, row in entrant.rows.items()}
    if panel.axis == "case":
        x = [place + aside for place in values]
        for at, (_, low, high) in zip(x, values.values(), strict=True):
            axes.plot([at, at], [low, high], color=look.colour, linewidth=1.4, zorder=3)
        y = [median for median, *_ in values.values()]
        axes.plot(x, y, linestyle="none", zorder=4, **style.hollow(look, MARKER_POINTS))
        return
    x = [case.M for case in panel.cases]
    missing = (math.nan, math.nan, math.nan)
    medians, lows, highs = zip(*(values.get(place, missing) for place in range(len(x))), strict=True)
    axes.fill_between(x, lows, highs, color=look.colour, alpha=0.25, linewidth=0, zorder=2.5)
    axes.plot(x, medians, color=look.colour, linewidth=1.6, zorder=4, **style.hollow(look, MARKER_POINTS))


def _thin(axes: Axes, panel: Group, entrant: Entrant, look: style.Look, aside: float, scene: Scene) -> None:
    places = sorted(entrant.rows)
    y = [scene.values(panel, place, entrant.rows[place])[0] for place in places]
    if panel.axis == "case":
        x = [place + aside for place in places]
        axes.plot(x, y, linestyle="none", marker=".", markersize=3.5, color=look.colour, alpha=0.7, zorder=3)
    else:
        x = [panel.cases[place].M for place in places]
        axes.plot(x, y, color=look.colour, linewidth=0.8, alpha=0.55, zorder=2.8)


def ceiling_height(panel: Group, scene: Scene) -> float:
    """Where the ceiling is on a panel's axis."""
    assert scene.ceiling is not None
    return 100.0 if scene.shares(panel) else scene.ceiling


def _axes(axes: Axes, panel: Group, scene: Scene, points: float) -> None:
    if panel.axis == "M" and not scene.shares(panel):
        axes.set_yscale("log")
        axes.set_ylim(scene.lowest / 1.4, scene.highest * 1.4)
    else:
        rows = [item for entrant in best_of_backends(panel.cases) for item in entrant.rows.items()]
        highest = max(scene.values(panel, *item)[2] for item in rows)
        axes.set_ylim(0, 1.08 * max(highest, ceiling_height(panel, scene) if scene.ceiling else 0.0))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    if panel.axis == "case":
        axes.set_xlim(-0.6, len(panel.cases) - 0.4)
        axes.set_xticks(range(len(panel.cases)), [panel.tick(case) for case in panel.cases])
        axes.tick_params(axis="x", length=0)
    else:
        sizes = [case.M for case in panel.cases]
        axes.set_xscale("log", base=2)
        margin = (sizes[-1] / sizes[0]) ** 0.04
        axes.set_xlim(sizes[0] / margin, sizes[-1] * margin)
        octaves = math.log2(sizes[-1] / sizes[0]) * 1.08
        axes.set_xticks(_apart(sizes, points / octaves))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=TICK_SIZE)
    axes.grid(True, axis="y" if panel.axis == "case" else "both")


def _apart(sizes: Sequence[int], points_an_octave: float) -> list[int]:
    """The sizes whose names fit beside each other; the ends and powers of two come first."""
    chosen: list[int] = []
    for size in sorted(sizes, key=lambda size: (size not in (sizes[0], sizes[-1]), size & (size - 1) != 0, -size)):
        width = style.text_points(str(size), TICK_SIZE)
        if all(
            abs(math.log2(size / other)) * points_an_octave
            >= (width + style.text_points(str(other), TICK_SIZE)) / 2 + 4
            for other in chosen
        ):
            chosen.append(size)
    return sorted(chosen)


def end_text(name: str, value: float) -> str:
    """What stands at the end of a line: whose it is, and its last value."""
    return f"{name}  {value:.3g}"


def name_ends(
    axes: Axes, panel: Group, entrants: Sequence[Entrant], scene: Scene, points: tuple[float, float], size: float
) -> None:
    """Writes beside each line whose it is, on axes of so many points; moved apart where lines end close together."""
    width, height = points
    to_axes = axes.transData + axes.transAxes.inverted()
    ends: list[tuple[str, style.Look | None, float, float]] = []
    for entrant in entrants:
        place = max(entrant.rows)
        value = scene.values(panel, place, entrant.rows[place])[0]
        x, y = to_axes.transform((panel.cases[place].M, value))
        ends.append((end_text(entrant.name, value), scene.looks[entrant.name], x, y))
    if scene.ceiling:
        top = ceiling_height(panel, scene)
        ends.append((end_text(CEILING_NAME, top), None, 1.0, to_axes.transform((1.0, top))[1]))
    heights = spread([y * height for *_, y in ends], size + 4, 0, height)
    for (text, look, x, y), up in zip(ends, heights, strict=True):
        colour = look.colour if look else style.INK
        mark = 1 + 13 / width
        freely: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
        axes.plot([x, mark], [y, up / height], color=colour, linewidth=0.6, zorder=1.5, **freely)
        if look:
            axes.plot([mark], [up / height], linestyle="none", **freely, **style.hollow(look, MARKER_POINTS))
        beside: dict[str, Any] = {
            "xycoords": "axes fraction",
            "textcoords": "offset points",
            "xytext": (20, 0),
            "va": "center",
        }
        axes.annotate(text, (1, up / height), fontsize=size, **beside)
