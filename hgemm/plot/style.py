"""How every picture looks: size, type, the colour and marker of each contestant, the footer that says what it shows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from hgemm.bench.metrics import label
from hgemm.bench.schema import Results, Row, Timing

WIDTH_INCHES = 9.0
"""A README shows pictures about 900 pixels wide: at 100 pixels an inch, a point is 1.4 of them."""

PNG_DPI = 200

INK = "#1b1b1b"
MUTED = "#5f6368"
GRID = "#e4e6e8"

# Okabe and Ito's palette, which stays apart under the common kinds of colour blindness ("Color Universal Design",
# 2008), without its yellow, too pale for thin strokes on white.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8c8c8c"

_FAMILY_COLOURS = {
    "torch": BLACK,
    "cublas": GREY,
    "cublaslt": PURPLE,
    "cuda_cp_async": VERMILLION,
    "cuda_tma": BLUE,
    "cuda_wgmma": SKY,
    "triton_pointer": ORANGE,
    "triton": GREEN,
}
_SPARE_COLOURS = (SKY, PURPLE, ORANGE, GREY)

# Told apart by outline, so that colour is never needed.
_MARKERS = ("o", "s", "D", "^", "v", "<", ">", "p", "P", "X", "h", "*", "d", "8", "H")


@dataclass(frozen=True)
class Look:
    """Colour by backend, marker by backend and configuration."""

    colour: str
    marker: str


def looks(rows: Iterable[Row]) -> dict[str, Look]:
    """A look for each ``backend:config`` among ``rows``, in their order."""
    found: dict[str, Look] = {}
    colours = dict(_FAMILY_COLOURS)
    for row in rows:
        if row.backend not in colours:
            colours[row.backend] = _SPARE_COLOURS[(len(colours) - len(_FAMILY_COLOURS)) % len(_SPARE_COLOURS)]
        if label(row) not in found:
            found[label(row)] = Look(colours[row.backend], _MARKERS[len(found) % len(_MARKERS)])
    return found


def context() -> contextlib.AbstractContextManager[None]:
    """Settings within which a picture is drawn and saved; the caller's own are left alone."""
    return mpl.rc_context(
        {
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
            "font.size": 9.0,
            "text.color": INK,
            "axes.edgecolor": MUTED,
            "axes.labelcolor": INK,
            "axes.linewidth": 0.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "grid.color": GRID,
            "grid.linewidth": 0.7,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
            "xtick.labelcolor": INK,
            "ytick.labelcolor": INK,
            "figure.facecolor": "white",
            "axes.facecolor": "white",
            "savefig.facecolor": "white",
            # Text stays text: it can be searched, selected and read aloud.
            "svg.fonttype": "none",
            "svg.hashsalt": "hgemm",
            "pdf.fonttype": 42,
        }
    )


def text_points(text: str, size: float) -> float:
    """Width of a line of text in points, in the font that pictures are drawn with."""
    return float(TextPath((0, 0), text, size=size, prop=FontProperties(family="DejaVu Sans")).get_extents().width)


def title(figure: Figure, heading: str, subtitle: str) -> None:
    """A heading and one line under it, at the top left."""
    height = figure.get_size_inches()[1]
    figure.text(0.012, 1 - 0.12 / height, heading, fontsize=13, fontweight="bold", va="top")
    figure.text(0.012, 1 - 0.41 / height, subtitle, fontsize=9, color=MUTED, va="top")


def footer(figure: Figure, results: Results, *remarks: str) -> None:
    """Provenance, and remarks above it, one a line, at the bottom left."""
    height = figure.get_size_inches()[1]
    lines = [*remarks, *provenance(results)]
    figure.text(0.012, 0.09 / height, "\n".join(lines), fontsize=7.2, color=MUTED, va="bottom", linespacing=1.45)


def provenance(results: Results) -> list[str]:
    """What was measured, with which software, how and when: two lines."""
    env = results.env
    versions = [
        ("driver", env.driver),
        ("CUDA", env.cuda),
        ("cuBLAS", env.cublas),
        ("torch", env.torch),
        ("Triton", env.triton),
        ("hgemm", env.hgemm),
    ]
    software = " · ".join(f"{name} {version}" for name, version in versions if version)
    power = f" ({env.power_limit_w:.0f} W)" if env.power_limit_w else ""
    return [f"{env.gpu}{power} · {software}", f"{method(results)} · {results.run.utc[:10]}"]


def method(results: Results) -> str:
    """Mode, duty cycle and rounds in words, from the first timed contestant."""
    timing = _first_timing(results)
    if timing is None:
        return "nothing timed"
    mode = {
        "rotating": "device time, operands rotating through 3x the L2",
        "kernel": "device time, one set of operands",
        "e2e": "time on the host's clock, calls included",
    }[timing.mode]
    duty = (
        f"{timing.burst_ms:g} ms bursts, {timing.idle_ms:g} ms idle"
        if timing.idle_ms
        else f"sustained load, {timing.burst_ms:g} ms bursts"
    )
    rounds = max(
        len(row.timing.samples_us)
        for case in results.cases
        for row in case.rows
        if row.role == "contestant" and row.timing
    )
    return f"{mode} · {duty} · medians of {rounds} interleaved rounds"


def _first_timing(results: Results) -> Timing | None:
    rows = (row for case in results.cases for row in case.rows if row.role == "contestant")
    return next((row.timing for row in rows if row.timing), None)
