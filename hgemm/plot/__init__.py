"""Pictures of measurements, one module a kind, drawn from a results file of ``hgemm.bench``.

python -m hgemm.plot --help
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from hgemm.bench.metrics import timed_rows
from hgemm.bench.schema import Results
from hgemm.plot import ceiling, heatmap, roofline, samples, sizes, style, timeline
from hgemm.plot.source import USUAL, NothingToDraw, Options

KINDS: dict[str, Callable[..., Figure]] = {
    "roofline": roofline.draw,
    "ceiling": ceiling.draw,
    "sizes": sizes.draw,
    "heatmap": heatmap.draw,
    "samples": samples.draw,
    "timeline": timeline.draw,
}
"""Kinds of picture: called with results and a dtype, each draws that dtype or raises NothingToDraw."""

OPTIONS: dict[str, tuple[str, ...]] = {
    "ceiling": ("mnk",),
    "heatmap": ("baseline", "contestant"),
    "samples": ("mnk",),
}
"""The fields of Options that a kind looks at; those with any take Options as their third argument."""

WHOLE_RUN = ("timeline",)
"""Kinds that show all dtypes of a run in one picture; called without a dtype."""

FORMATS = ("svg", "png", "pdf")

__all__ = [
    "FORMATS",
    "KINDS",
    "OPTIONS",
    "WHOLE_RUN",
    "NothingToDraw",
    "Options",
    "draw",
    "reason_of",
    "save",
    "timed_dtypes",
]


def draw(
    results: Results,
    kind: str,
    folder: Path,
    formats: Sequence[str] = ("svg", "png"),
    options: Options = USUAL,
) -> list[Path]:
    """Draws a picture for each dtype of ``results`` as ``KIND-DTYPE.FORMAT`` in ``folder``, replacing earlier ones;
    of a kind in WHOLE_RUN one, ``KIND.FORMAT``.

    Returns the files. Raises NothingToDraw if no dtype has what the picture shows, OSError if it cannot be written.
    """
    files: list[Path] = []
    reasons = []
    takes_options = kind in OPTIONS
    for dtype in (None,) if kind in WHOLE_RUN else timed_dtypes(results):
        try:
            figure = KINDS[kind](results, dtype, options) if takes_options else KINDS[kind](results, dtype)
        except NothingToDraw as error:
            reasons.append(str(error))
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for form in formats:
                path = folder / f"{kind}-{dtype}.{form}" if dtype else folder / f"{kind}.{form}"
                save(figure, path)
                files.append(path)
        finally:
            plt.close(figure)
    if not files:
        raise NothingToDraw("; ".join(dict.fromkeys(reasons)) or "no contestant was timed in any case")
    return files


def reason_of(error: Exception) -> str:
    """The error in words; of a file, its name and what the system says of it."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; name another place with --out"
    return str(error)


def timed_dtypes(results: Results) -> list[str]:
    """The dtypes in which a contestant was timed, in the order of the cases."""
    return list(dict.fromkeys(case.dtype for case in results.cases if timed_rows(case)))


def save(figure: Figure, path: Path) -> None:
    """Equal results give equal files: no date and no random names in them."""
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(path.suffix[1:])
    with style.context():
        figure.savefig(path, dpi=style.PNG_DPI, metadata=metadata)
