"""The ladder: what each technique adds, as bars in % of the mma.sync ceiling of the same run, one panel a size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hgemm.bench.ladder import SIZES, Step, gain, steps
from hgemm.bench.schema import Results
from hgemm.plot import style
from hgemm.plot.source import NothingToDraw

BAR_INCHES = 0.36
CHARACTER_INCHES = 0.053  # of a configuration's name
FEWEST_RUNGS = 2
LAST = 104.0
"""End of the axes, in %."""
SHORT = 40.0
"""The figures stand at the foot of a bar of more than so many %, else behind it."""

SMALL = 9.95
"""Changes below so many % are written with a decimal."""


def draw(results: Results, dtype: str, sustained: Results | None = None) -> Figure:
    """``results`` as bars; ``sustained``, the same under sustained load, become diamonds.

    Raises NothingToDraw for fewer than two rungs with times and a ceiling at 4096³ or 8192³, and for a ``sustained``
    that was measured in bursts or on another GPU.
    """
    if sustained is not None:
        _check_sustained(results, sustained)
    found = [step for step in steps(results, dtype, sustained) if step.burst]
    sizes = [size for size in SIZES if sum(size in step.burst for step in found) >= FEWEST_RUNGS]
    if not sizes:
        names = " and ".join(f"{size}³" for size in SIZES)
        raise NothingToDraw(
            f"fewer than {FEWEST_RUNGS} rungs of the ladder were timed with the ceiling at {names} in {dtype}; "
            "measure them with `python -m hgemm.bench --ladder`"
        )
    remarks = ["With each bar: share of the ceiling, and the change in speed against the rung that it builds on."]
    if sustained is not None:
        remarks.append(f"Diamonds: {style.method(sustained)} · {sustained.run.utc[:10]}")
    longest = max(len(step.rung.contestant.partition(":")[2]) for step in found)
    left, gap, top = max(3.0, 0.15 + CHARACTER_INCHES * longest), 0.4, 1.0
    bottom = style.footer_inches(results, *remarks) + 0.72
    height = bottom + top + BAR_INCHES * (len(found) + 0.4)
    width = (style.WIDTH_INCHES - left - 0.3 - gap * (len(sizes) - 1)) / len(sizes)
    with style.context():
        figure = style.new_figure(height)
        for place, size in enumerate(sizes):
            axes = style.add_axes(figure, left + place * (width + gap), bottom, width, height - bottom - top)
            _panel(axes, found, size, names=place == 0)
        duty = "under sustained load" if style.is_sustained(results) else "in bursts"
        _legend(figure, bottom - 0.56, left, duty, any(step.sustained for step in found))
        gpu = results.env.gpu.removeprefix("NVIDIA ")
        style.title(
            figure,
            f"The ladder, {gpu}, {dtype}",
            "100% is mma.sync on registers alone, timed in the same rounds; each rung switches on what it names",
        )
        style.footer(figure, results, *remarks)
    return figure


def _check_sustained(results: Results, sustained: Results) -> None:
    if not style.is_sustained(sustained):
        raise NothingToDraw(
            "the file of --sustained was measured in bursts; measure one with "
            "`python -m hgemm.bench --ladder --sustained`"
        )
    if sustained.env.gpu != results.env.gpu:
        raise NothingToDraw(f"the file of --sustained is of another GPU: {sustained.env.gpu}, not {results.env.gpu}")


def _change(fraction: float) -> str:
    """In percent, with a decimal where it is small: ``+0.4%``, ``+12%``."""
    percent = 100 * fraction
    text = f"{percent:+.1f}%" if abs(percent) < SMALL else f"{percent:+.0f}%"
    return text.replace("-", "\N{MINUS SIGN}")


def _panel(axes: Axes, found: Sequence[Step], size: int, *, names: bool) -> None:
    for place, step in enumerate(found):
        if figures := step.burst.get(size):
            percent = 100 * figures.share.median
            colour = style.VERMILLION if step.rung.contestant.startswith("cuda_cp_async") else style.BLUE
            axes.barh(place, percent, height=0.6, color=colour, alpha=0.85, linewidth=0)
            change = gain(step, found, size)
            text = f"{percent:.1f}%" + (f"  {_change(change)}" if change is not None else "")
            inside = percent > SHORT
            axes.annotate(
                text,
                (0 if inside else percent, place),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.6,
                color="white" if inside else style.INK,
            )
        if held := step.sustained.get(size):
            look: dict[str, Any] = {
                "marker": "D",
                "markersize": 4.6,
                "markerfacecolor": "white",
                "markeredgecolor": style.INK,
            }
            axes.plot([100 * held.share.median], [place], linestyle="none", zorder=3, **look)
    axes.axvline(100, color=style.INK, linewidth=1.2, zorder=1)
    axes.set_xlim(0, LAST)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xticks(range(0, 101, 20))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    axes.set_title(f"{size}³", fontsize=9.5, loc="left")
    axes.grid(True, axis="x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_yticks(range(len(found)), [""] * len(found))
    if names:
        for place, step in enumerate(found):
            _name(axes, place, step)


def _name(axes: Axes, place: int, step: Step) -> None:
    """The technique, and below it, small, the configuration."""
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
    axes.annotate(step.rung.technique, (0, place), (-8, 0.5), va="bottom", fontsize=8.5, **where)
    axes.annotate(
        step.rung.contestant.partition(":")[2], (0, place), (-8, -1), va="top", fontsize=6.4, color=style.MUTED, **where
    )


def _legend(figure: Figure, bottom: float, left: float, duty: str, sustained: bool) -> None:
    entries: list[Any] = [
        Patch(color=style.VERMILLION, alpha=0.85, label=f"cp.async, {duty}"),
        Patch(color=style.BLUE, alpha=0.85, label=f"TMA, {duty}"),
    ]
    if sustained:
        mark: dict[str, Any] = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": style.INK}
        entries.append(Line2D([], [], linestyle="none", markersize=5, label="under sustained load", **mark))
    width, height = figure.get_size_inches()
    place = (left / width, bottom / height)
    figure.legend(handles=entries, loc="lower left", bbox_to_anchor=place, ncols=3, frameon=False, fontsize=8.5)
