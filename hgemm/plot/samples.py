"""Every sample of one case: how far it is from its row's median, and the interval of that; throttled ones crossed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from hgemm.bench.metrics import CEILING, is_throttled, label, speed, timed_rows
from hgemm.bench.schema import Results, Row
from hgemm.bench.statistics import NOISY_CV, summarize
from hgemm.plot import style
from hgemm.plot.grouping import row_name
from hgemm.plot.placement import swarm
from hgemm.plot.source import USUAL, Options, case_name, one_case, timed_cases

ROW_POINTS = 21.0
DOT_POINTS = 4.4
NAME_SIZE = 8.2
FURTHEST = 10.0
"""Percent; a sample further from the median is an arrow at the edge, with its figure, or the range of several."""
TICK_POINTS = 36.0
"""Of the axis, at least, for a tick and its label."""

_INTERVAL = "#c9cdd1"


@dataclass(frozen=True)
class Strip:
    """One row of the picture: the samples of one row of the file."""

    name: str
    figures: str
    colour: str
    deviations: tuple[float, ...]
    """Speed over the median speed, in percent beyond 0, sample by sample."""
    throttled: tuple[bool, ...]
    interval: tuple[float, float]
    """Of the median, in percent."""


def draw(results: Results, dtype: str, options: Options = USUAL) -> Figure:
    """One case of a dtype, ``options.mnk`` or as ``one_case`` chooses: fastest first, then the control and the ceiling.

    Raises NothingToDraw if no contestant was timed in that dtype, or nobody at the size asked for.
    """
    case = one_case(timed_cases(results, dtype), options.mnk)
    contestants = sorted(timed_rows(case), key=lambda row: speed(row).median)
    yardsticks = [row for row in timed_rows(case, "roof") if row.backend == CEILING] + timed_rows(case, "control")
    looks = style.looks(contestants)
    strips = [_strip(row, style.MUTED) for row in yardsticks]
    strips += [_strip(row, looks[label(row)].colour) for row in contestants]
    remark = (
        "Right: the row's median, the half width of its 95% bootstrap interval, the coefficient of variation where it "
        f"is noisy, over {100 * NOISY_CV:g}%."
    )
    left = max(style.text_points(strip.name, NAME_SIZE) for strip in strips) / 72 + 0.25
    right = max(style.text_points(strip.figures, NAME_SIZE) for strip in strips) / 72 + 0.3
    bottom, top = style.footer_inches(results, remark) + 0.8, 0.8
    tall, width = ROW_POINTS * len(strips) / 72, style.WIDTH_INCHES - left - right
    with style.context():
        figure = style.new_figure(bottom + tall + top)
        axes = style.add_axes(figure, left, bottom, width, tall)
        reach = _axes(axes, strips, 72 * width)
        for place, strip in enumerate(strips):
            _draw_strip(axes, place, strip, reach, 72 * width)
        if yardsticks:
            axes.axhline(len(yardsticks) - 0.5, color=style.MUTED, linewidth=0.6)
        _legend(figure, left, bottom - 0.5, any(any(strip.throttled) for strip in strips))
        gpu = results.env.gpu.removeprefix("NVIDIA ")
        subtitle = "every mark is one sample: its speed against the median of its row; further right is faster"
        style.title(figure, f"Samples, {gpu}, {case_name(case)}, {dtype}", subtitle)
        style.footer(figure, results, remark)
    return figure


def _strip(row: Row, colour: str) -> Strip:
    assert row.timing is not None
    median = statistics.median(1 / us for us in row.timing.samples_us)
    ratios = [1 / us / median for us in row.timing.samples_us]
    summary = summarize(ratios)
    interval = 100 * (summary.ci_low - 1), 100 * (summary.ci_high - 1)
    deviations = tuple(100 * (ratio - 1) for ratio in ratios)
    name = {"roof": f"{row.backend} ceiling", "control": "control"}.get(row.role, row_name(row))
    throttled = tuple(map(is_throttled, row.timing.clocks.throttle))
    return Strip(name, _figures(row, interval), colour, deviations, throttled, interval)


def _figures(row: Row, interval: tuple[float, float]) -> str:
    assert row.timing is not None
    whole = speed(row)
    if row.timing.mode == "e2e":
        middle = f"{statistics.median(row.timing.samples_us):.3g} µs"
    else:
        middle = f"{whole.median:.3g} TFLOPS"
    if whole.samples == 1:
        return f"{middle}, one sample"
    noise = f", cv {100 * whole.cv:.1f}%" if whole.noisy else ""
    return f"{middle} ±{(interval[1] - interval[0]) / 2:.2f}%{noise}"


def _axes(axes: Axes, strips: Sequence[Strip], points: float) -> float:
    """Returns how far the axis reaches on both sides, in percent."""
    furthest = max(abs(value) for strip in strips for value in (*strip.deviations, *strip.interval))
    reach = min(max(1.12 * furthest, 0.5), FURTHEST)
    axes.set(xlim=(-reach, reach), ylim=(-0.6, len(strips) - 0.4))
    axes.set_yticks(range(len(strips)), [strip.name for strip in strips], fontsize=NAME_SIZE)
    axes.xaxis.set_major_locator(MaxNLocator(max(2, int(points / TICK_POINTS)), steps=(1, 2, 5, 10)))
    axes.xaxis.set_major_formatter(lambda value, _: _signed(value) if value else "0%")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(True, axis="x")
    axes.axvline(0, color=style.INK, linewidth=0.9, zorder=1.5)
    return reach


def _draw_strip(axes: Axes, place: int, strip: Strip, reach: float, points: float) -> None:
    low, high = (min(max(end, -reach), reach) for end in strip.interval)
    axes.add_patch(Rectangle((low, place - 0.36), high - low, 0.72, facecolor=_INTERVAL, linewidth=0, zorder=1.2))
    shown = [min(max(value, -reach), reach) for value in strip.deviations]
    aside = swarm([value / (2 * reach) * points for value in shown], DOT_POINTS)
    # A crowd that is higher than its row is pressed together.
    room = ROW_POINTS * 0.36
    press = min(1.0, room / max(map(abs, aside))) if any(aside) else 1.0
    for value, at, up, throttled in zip(strip.deviations, shown, aside, strip.throttled, strict=True):
        y = place + up * press / ROW_POINTS
        if abs(value) > reach:
            axes.plot([at], [y], linestyle="none", color=strip.colour, **_edge_mark(value), clip_on=False, zorder=4)
        elif throttled:
            axes.plot([at], [y], linestyle="none", **_THROTTLED_MARK, zorder=4)
        else:
            axes.plot([at], [y], linestyle="none", color=strip.colour, **_MARK, zorder=3)
    for inwards, edge in ((1, -reach), (-1, reach)):
        if beyond := sorted(round(value) for value in strip.deviations if -inwards * value > reach):
            axes.annotate(
                _range(beyond),
                (edge, place),
                xytext=(6 * inwards, 0),
                textcoords="offset points",
                ha="left" if inwards > 0 else "right",
                va="center",
                fontsize=7.2,
                zorder=5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
            )
    axes.annotate(
        strip.figures,
        (1, place),
        xycoords=axes.get_yaxis_transform(),
        xytext=(12, 0),
        textcoords="offset points",
        va="center",
        fontsize=NAME_SIZE,
    )


_MARK: dict[str, Any] = {"marker": "o", "markersize": DOT_POINTS, "markeredgecolor": "white", "markeredgewidth": 0.4}
_THROTTLED_MARK: dict[str, Any] = {
    "marker": "x",
    "markersize": DOT_POINTS,
    "markeredgecolor": style.INK,
    "markeredgewidth": 1.3,
}


def _signed(percent: float) -> str:
    return f"{percent:+g}%".replace("-", "\N{MINUS SIGN}")


def _range(percents: Sequence[int]) -> str:
    """``-50%`` for one, ``-50 to -20%`` for several."""
    low, high = percents[0], percents[-1]
    return _signed(low) if low == high else f"{_signed(low)[:-1]} to {_signed(high)}"


def _edge_mark(value: float) -> dict[str, Any]:
    return {"marker": "<" if value < 0 else ">", "markersize": 5.5, "markeredgewidth": 0}


def _legend(figure: Figure, left: float, up: float, throttled: bool) -> None:
    handles: list[Line2D | Patch] = [
        Line2D([], [], linestyle="none", color=style.INK, label="a sample", **_MARK),
        Patch(facecolor=_INTERVAL, label="95% bootstrap interval of the median"),
    ]
    if throttled:
        label_text = "a sample while power or temperature held the clock down"
        handles.append(Line2D([], [], linestyle="none", label=label_text, **_THROTTLED_MARK))
    width, height = figure.get_size_inches()
    figure.legend(
        handles=handles,
        loc="center right",
        bbox_to_anchor=(1 - 0.1 / width, up / height),
        ncols=len(handles),
        frameon=False,
        fontsize=7.6,
        handletextpad=0.4,
        columnspacing=1.4,
        borderaxespad=0,
    )
