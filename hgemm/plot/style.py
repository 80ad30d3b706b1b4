"""How every picture looks: size, type, the colour and marker of each contestant, the footer that says what it shows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from hgemm.bench.metrics import label
from hgemm.bench.schema import Results, Row, Timing

WIDTH_INCHES = 9.0
"""A README shows pictures about 900 pixels wide: at 100 pixels an inch, a point is 1.4 of them."""

PNG_DPI = 200

INK = "#1b1b1b"
MUTED = "#5f6368"
GRID = "#e4e6e8"

# Okabe and Ito's palette, which stays apart under the common kinds of colour blindness ("Color Universal Design",
# 2008), without its yellow, too pale for thin strokes on white; a grey, and two that are darker than all of it.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#666666"
BROWN, INDIGO = "#661100", "#332288"

_FAMILY_COLOURS = {
    "torch": BLACK,
    "cublas": GREY,
    "cublaslt": PURPLE,
    "cuda_cp_async": VERMILLION,
    "cuda_tma": BLUE,
    "cuda_wgmma": SKY,
    "triton_pointer": ORANGE,
    "triton": GREEN,
    "triton_mma_sync": BROWN,
    "triton_gluon": INDIGO,
}
_SPARE_COLOURS = (SKY, PURPLE, ORANGE, GREY)

# Told apart by outline, so that colour is never needed.
_MARKERS = ("o", "s", "D", "^", "v", "<", ">", "p", "P", "X", "h", "*", "d", "8", "H")


@dataclass(frozen=True)
class Look:
    """Colour by backend, marker by backend and configuration."""

    colour: str
    marker: str


def hollow(look: Look, points: float) -> dict[str, Any]:
    """A marker of a size, as ``Axes.plot`` takes it."""
    return {
        "marker": look.marker,
        "markersize": points,
        "markerfacecolor": "white",
        "markeredgecolor": look.colour,
        "markeredgewidth": 1.5,
    }


def looks(rows: Iterable[Row]) -> dict[str, Look]:
    """A look for each ``backend:config`` among ``rows``, in their order."""
    rows = list(rows)
    colours = _colours(row.backend for row in rows)
    found: dict[str, Look] = {}
    for row in rows:
        if label(row) not in found:
            found[label(row)] = Look(colours[row.backend], _MARKERS[len(found) % len(_MARKERS)])
    return found


def backend_looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each backend of ``names``, in their order; a name is a backend, or one with a remark after a comma."""
    names = list(names)
    colours = _colours(name.split(",")[0] for name in names)
    return {
        name: Look(colours[name.split(",")[0]], _MARKERS[index % len(_MARKERS)]) for index, name in enumerate(names)
    }


def _colours(backends: Iterable[str]) -> dict[str, str]:
    """A colour for each backend; those of the user's take what is spare, in their order."""
    colours = dict(_FAMILY_COLOURS)
    for backend in backends:
        if backend not in colours:
            colours[backend] = _SPARE_COLOURS[(len(colours) - len(_FAMILY_COLOURS)) % len(_SPARE_COLOURS)]
    return colours


def context() -> contextlib.AbstractContextManager[None]:
    """Settings within which a picture is drawn and saved; the caller's own are left alone."""
    return mpl.rc_context(
        {
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
            "font.size": 9.0,
            "text.color": INK,
            "text.parse_math": False,  # a dollar sign in a name is a dollar sign
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


@functools.cache
def text_points(text: str, size: float, weight: str = "normal") -> float:
    """Width of a line of text in points, in the font that pictures are drawn with, and a little for letters that are
    rounded to whole pixels."""
    if not text.strip():
        return 0.0
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return 1.04 * float(width)


def ink_on(colour: Sequence[float]) -> str:
    """Dark or white, whichever contrasts more with a colour (relative luminance of WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return INK if luminance > 0.2 else "white"


def new_figure(height: float) -> Figure:
    """A page of the width that all pictures have, ``height`` inches high, known to nobody but the caller."""
    figure = Figure(figsize=(WIDTH_INCHES, height))
    FigureCanvasAgg(figure)
    return figure


def add_axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at a place and of a size in inches."""
    page_width, page_height = figure.get_size_inches()
    return figure.add_axes((left / page_width, bottom / page_height, width / page_width, height / page_height))


def title(figure: Figure, heading: str, subtitle: str) -> None:
    """A heading and one line under it, at the top left; one that is wider than the page becomes smaller."""
    height = figure.get_size_inches()[1]
    size, room = 13.0, 72 * WIDTH_INCHES - 14
    size *= min(1.0, room / text_points(heading, size, "bold"))
    figure.text(0.012, 1 - 0.12 / height, heading, fontsize=size, fontweight="bold", va="top")
    figure.text(0.012, 1 - 0.41 / height, subtitle, fontsize=9, color=MUTED, va="top")


FOOTER_SIZE = 7.2
_FOOTER_SPACING = 1.45


def footer(figure: Figure, results: Results, *remarks: str) -> None:
    """Provenance, and remarks above it, one a line, at the bottom left."""
    notes(figure, *remarks, *provenance(results))


def notes(figure: Figure, *lines: str) -> None:
    """Small print, one a line, at the bottom left."""
    height = figure.get_size_inches()[1]
    spacing: dict[str, Any] = {"fontsize": FOOTER_SIZE, "linespacing": _FOOTER_SPACING}
    figure.text(0.012, 0.09 / height, "\n".join(_wrapped(lines)), color=MUTED, va="bottom", **spacing)


def footer_inches(results: Results, *remarks: str) -> float:
    """How much of the page the footer takes, with a little air above it."""
    lines = len(_wrapped(remarks)) + len(_wrapped(provenance(results)))
    return 0.09 + lines * FOOTER_SIZE * _FOOTER_SPACING / 72 + 0.1


def _wrapped(texts: Iterable[str]) -> list[str]:
    """Lines no wider than the page."""
    room = 72 * (WIDTH_INCHES - 0.22)
    lines: list[str] = []
    for text in texts:
        line = ""
        for word in text.split(" "):
            longer = f"{line} {word}" if line else word
            if line and text_points(longer, FOOTER_SIZE) > room:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return lines


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
        "cold": "device time, L2 flushed before each call",
        "e2e": "the host's time to issue a call",
    }[timing.mode]
    duty = (
        f"{timing.burst_ms:g} ms bursts, {timing.idle_ms:g} ms idle"
        if not is_sustained(results)
        else f"sustained load, {timing.burst_ms:g} ms bursts"
    )
    return f"{mode} · {duty} · medians of {rounds(results, 'interleaved ')}"


def rounds(results: Results, kind: str = "") -> str:
    """How many samples contestants have: ``11 rounds``, ``1 to 11 rounds`` where a run was cut short."""
    counts = {
        len(row.timing.samples_us)
        for case in results.cases
        for row in case.rows
        if row.role == "contestant" and row.timing
    }
    found = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return f"{found} {kind}round{'' if found == '1' else 's'}"


def is_sustained(results: Results) -> bool:
    """Whether contestants were timed under load without idle, and not in bursts."""
    timing = _first_timing(results)
    return timing is not None and not timing.idle_ms


def _first_timing(results: Results) -> Timing | None:
    rows = (row for case in results.cases for row in case.rows if row.role == "contestant")
    return next((row.timing for row in rows if row.timing), None)
