"""A run from its first sample to its last: speed, clock, power and temperature, where drift and throttling show."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hgemm.bench.metrics import clocks_mhz, is_throttled
from hgemm.bench.schema import CaseResult, Environment, Results, Row
from hgemm.plot import style
from hgemm.plot.source import NothingToDraw, case_name

PANEL_INCHES, GAP_INCHES = 1.25, 0.16
MOST_VECTOR_DOTS = 1500
"""More dots than this are stored as an image, so that an SVG stays small; text stays text."""
NAME_SIZE = 7.6

_DOT: dict[str, Any] = {"linestyle": "none", "marker": ".", "markersize": 4.2, "markeredgewidth": 0}
_CONTROL: dict[str, Any] = {
    "marker": "D",
    "markersize": 3.4,
    "color": style.INK,
    "markerfacecolor": "white",
    "linewidth": 0.9,
}
_THROTTLED: dict[str, Any] = {
    "linestyle": "none",
    "marker": "x",
    "markersize": 4.0,
    "markeredgecolor": style.VERMILLION,
    "markeredgewidth": 1.1,
}


@dataclass(frozen=True)
class Sample:
    """What one sample says of the run; None where NVML said nothing."""

    at: float
    """Seconds since the run began."""
    control: bool
    speed: float
    """Percent beyond the median speed: of the whole run for the control, of its own row for everybody else."""
    clock: float | None
    power: float | None
    temperature: float | None
    throttled: bool


@dataclass(frozen=True)
class Panel:
    """One quantity over time, and a limit of it with its name, if there is one."""

    name: str
    value: Callable[[Sample], float | None]
    colour: str
    limit: Callable[[Environment], tuple[float | None, str]] = lambda env: (None, "")


_SPEED = Panel("speed, % beyond\nthe median", lambda sample: sample.speed, "#a9b0b7")
_CLOCK = Panel("SM clock, MHz", lambda sample: sample.clock, style.BLUE, lambda env: (env.clock_max_mhz, "highest"))
_NVML = {
    "clock": _CLOCK,
    "power": Panel("power, W", lambda sample: sample.power, style.GREEN, lambda env: (env.power_limit_w, "limit")),
    "temperature": Panel("temperature, °C", lambda sample: sample.temperature, style.PURPLE),
}


def draw(results: Results, dtype: str | None = None) -> Figure:
    """All samples of a run, or of its cases in one dtype. Raises NothingToDraw if there is none."""
    cases = [case for case in results.cases if dtype in (None, case.dtype)]
    samples = collect(cases)
    if not samples:
        raise NothingToDraw("no sample was taken in any case" + (f" in {dtype}" if dtype else ""))
    told = {name: panel for name, panel in _NVML.items() if any(panel.value(sample) is not None for sample in samples)}
    panels = [_SPEED, *told.values()]
    remark = _remark(samples, [name for name in _NVML if name not in told])
    bottom, top, left = style.footer_inches(results, remark) + 0.68, 1.0, 0.78
    width = style.WIDTH_INCHES - left - 0.2
    low = bottom + len(panels) * (PANEL_INCHES + GAP_INCHES)
    with style.context():
        figure = style.new_figure(low + top)
        drawn = []
        for panel in panels:
            low -= PANEL_INCHES + GAP_INCHES
            axes = style.add_axes(figure, left, low + GAP_INCHES, width, PANEL_INCHES)
            _draw_panel(axes, panel, samples, results.env)
            drawn.append(axes)
        _share_time(drawn, samples)
        _mark_cases(drawn, cases, 72 * width)
        _legend(figure, bottom - 0.32, any(sample.control for sample in samples), any(s.throttled for s in samples))
        heading = f"The run over time, {results.env.gpu.removeprefix('NVIDIA ')}" + (f", {dtype}" if dtype else "")
        style.title(figure, heading, "every sample of everybody; where the control drifts, the machine did")
        style.footer(figure, results, remark)
    return figure


def collect(cases: Sequence[CaseResult]) -> list[Sample]:
    """The samples of all timed rows, in the order in which they were taken."""
    control = [rate for case in cases for row in case.rows if row.role == "control" for rate in _rates(row)]
    found = []
    for row in (row for case in cases for row in case.rows):
        if row.timing is None:
            continue
        rates = _rates(row)
        median = statistics.median(control if row.role == "control" else rates)
        clocks, mhz = row.timing.clocks, clocks_mhz(row.timing)
        for place, (at, rate) in enumerate(zip(row.timing.at_s, rates, strict=True)):
            sample = Sample(
                at=at,
                control=row.role == "control",
                speed=100 * (rate / median - 1),
                clock=mhz[place],
                power=clocks.power_w[place],
                temperature=clocks.temperature_c[place],
                throttled=is_throttled(clocks.throttle[place]),
            )
            found.append(sample)
    return sorted(found, key=lambda sample: sample.at)


def _rates(row: Row) -> list[float]:
    """Work over time of every sample of a row, in a unit of its own."""
    if row.timing is None:
        return []
    return [(row.timing.flops_per_call or row.timing.bytes_per_call or 1) / us for us in row.timing.samples_us]


def _remark(samples: Sequence[Sample], untold: Sequence[str]) -> str:
    held = sum(sample.throttled for sample in samples)
    text = f"{held} of {len(samples)} samples ran while power or temperature held the clock down."
    reach = _reach(samples)
    if beyond := sum(abs(sample.speed) > reach for sample in samples):
        text += f" {beyond} beyond the axis of speed."
    return text + (f" NVML did not tell the {' and the '.join(untold)}." if untold else "")


def _draw_panel(axes: Axes, panel: Panel, samples: Sequence[Sample], env: Environment) -> None:
    known = [(sample, value) for sample in samples if (value := panel.value(sample)) is not None]
    as_image = len(samples) > MOST_VECTOR_DOTS
    dots: list[tuple[float, float]] = []
    crossed: list[tuple[float, float]] = []
    lined: list[tuple[float, float]] = []
    for sample, value in known:
        crosses, lines = panel is _CLOCK and sample.throttled, panel is _SPEED and sample.control
        (crossed if crosses else lined if lines else dots).append((sample.at, value))
    looks: tuple[dict[str, Any], ...] = (_DOT | {"color": panel.colour, "zorder": 2}, _THROTTLED, _CONTROL)
    for pairs, look in zip((dots, crossed, lined), looks, strict=True):
        if pairs:
            axes.plot([x for x, _ in pairs], [y for _, y in pairs], rasterized=as_image, **({"zorder": 3} | look))
    if panel is _SPEED:
        axes.axhline(0, color=style.MUTED, linewidth=0.6, zorder=1.5)
        reach = _reach(samples)
        axes.set_ylim(-reach, reach)
    else:
        _draw_limit(axes, [value for _, value in known], *panel.limit(env))
    axes.set_ylabel(panel.name, fontsize=8.2)
    axes.tick_params(labelsize=NAME_SIZE)
    axes.grid(True, axis="y")


def _reach(samples: Sequence[Sample]) -> float:
    """Where the axis of speed ends: it holds the control, and of the rest all but the furthest hundredth, so that one
    stray does not flatten it."""
    ordered = sorted(abs(sample.speed) for sample in samples)
    control = max((abs(sample.speed) for sample in samples if sample.control), default=0.0)
    return max(1.25 * ordered[int(0.99 * (len(ordered) - 1))], 1.1 * control, 0.5)


def _draw_limit(axes: Axes, values: Sequence[float], limit: float | None, name: str) -> None:
    """A dashed line where the limit is near enough to matter, and an axis that holds it."""
    low, high = min(values), max(values)
    room = max(high - low, 0.04 * high)
    near = limit is not None and limit - high < 2 * room
    top = max(high, limit) if near and limit is not None else high
    axes.set_ylim(low - 0.2 * room, top + 0.25 * max(room, top - low))
    if near and limit is not None:
        axes.axhline(limit, color=style.MUTED, linewidth=1.0, dashes=(5, 3), zorder=1.5)
        text = f"{name} {limit:g}"
        axes.annotate(
            text,
            (1, limit),
            xycoords=axes.get_yaxis_transform(),
            xytext=(-2, 4),
            textcoords="offset points",
            ha="right",
            fontsize=NAME_SIZE,
            color=style.MUTED,
        )


def _share_time(drawn: Sequence[Axes], samples: Sequence[Sample]) -> None:
    first, last = samples[0].at, samples[-1].at
    margin = max(0.01 * (last - first), 0.05)
    minutes = last > 600
    for axes in drawn:
        axes.set_xlim(first - margin, last + margin)
        axes.tick_params(axis="x", labelbottom=axes is drawn[-1])
        if minutes:
            step = next(step for step in (60, 120, 300, 600, 1200, 3600, 10**9) if (last - first) / step <= 12)
            axes.set_xticks([step * k for k in range(int(last / step) + 1) if step * k >= first - margin])
            axes.xaxis.set_major_formatter(lambda value, _: f"{value / 60:g}")
    drawn[-1].set_xlabel("minutes since the run began" if minutes else "seconds since the run began")


def _mark_cases(drawn: Sequence[Axes], cases: Sequence[CaseResult], points: float) -> None:
    """Every other case on grey; its name above where all names fit, else that of the dtype."""
    begins = sorted((min(times), case_name(case), case.dtype) for case in cases if (times := _times(case)))
    end = drawn[0].get_xlim()[1]
    stretches = [
        (start, stop, name, dtype)
        for (start, name, dtype), stop in zip(begins, [*(begin for begin, *_ in begins[1:]), end], strict=True)
    ]
    for axes in drawn:
        for start, stop, *_ in stretches[::2]:
            axes.axvspan(start, stop, color="#f4f5f6", linewidth=0, zorder=0)
    scale = points / (end - drawn[0].get_xlim()[0])
    several = len({dtype for *_, dtype in stretches}) > 1
    names = [(start, stop, f"{name} {dtype}" if several else name) for start, stop, name, dtype in stretches]
    if not _fit(names, scale):
        groups = [list(group) for _, group in itertools.groupby(stretches, key=lambda stretch: stretch[3])]
        names = [(group[0][0], group[-1][1], f"{group[0][3]}, {len(group)} cases") for group in groups]
    if _fit(names, scale):
        for start, _, name in names:
            drawn[0].annotate(
                name,
                (start, 1),
                xycoords=drawn[0].get_xaxis_transform(),
                xytext=(2, 4),
                textcoords="offset points",
                fontsize=NAME_SIZE,
                color=style.MUTED,
            )


def _fit(names: Sequence[tuple[float, float, str]], scale: float) -> bool:
    return all(style.text_points(name, NAME_SIZE) + 6 <= scale * (stop - start) for start, stop, name in names)


def _times(case: CaseResult) -> list[float]:
    return [at for row in case.rows if row.timing for at in row.timing.at_s]


def _legend(figure: Figure, up: float, control: bool, throttled: bool) -> None:
    handles = [Line2D([], [], color=_SPEED.colour, label="one sample of anybody", **(_DOT | {"markersize": 7}))]
    if control:
        handles.append(Line2D([], [], label="the control, the same product all along", **_CONTROL))
    if throttled:
        handles.append(Line2D([], [], label="power or temperature held the clock down", **_THROTTLED))
    width, height = figure.get_size_inches()
    figure.legend(
        handles=handles,
        loc="center right",
        bbox_to_anchor=(1 - 0.15 / width, up / height),
        ncols=len(handles),
        frameon=False,
        fontsize=NAME_SIZE,
        handletextpad=0.4,
        columnspacing=1.4,
        borderaxespad=0,
    )
