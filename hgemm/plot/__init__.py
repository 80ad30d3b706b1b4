"""Pictures of measurements, one module a kind, drawn from a results file of ``hgemm.bench``.

python -m hgemm.plot --help
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from hgemm.bench.metrics import timed_rows
from hgemm.bench.schema import Results
from hgemm.plot import ceiling, roofline, style
from hgemm.plot.source import NothingToDraw

KINDS: dict[str, Callable[[Results, str], Figure]] = {"roofline": roofline.draw, "ceiling": ceiling.draw}
"""Kinds of picture: each draws one dtype of a results file, or raises NothingToDraw."""

FORMATS = ("svg", "png", "pdf")

__all__ = ["FORMATS", "KINDS", "NothingToDraw", "draw", "save"]


def draw(results: Results, kind: str, folder: Path, formats: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Draws one picture for each dtype of ``results`` as ``KIND-DTYPE.FORMAT`` in ``folder``, replacing earlier ones.

    Returns the files. Raises NothingToDraw if no dtype has what the picture shows, OSError if it cannot be written.
    """
    dtypes = dict.fromkeys(case.dtype for case in results.cases if timed_rows(case))
    files: list[Path] = []
    reasons = []
    for dtype in dtypes:
        try:
            figure = KINDS[kind](results, dtype)
        except NothingToDraw as error:
            reasons.append(str(error))
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for form in formats:
            path = folder / f"{kind}-{dtype}.{form}"
            save(figure, path)
            files.append(path)
    if not files:
        raise NothingToDraw("; ".join(reasons) or "no contestant was timed in any case")
    return files


def save(figure: Figure, path: Path) -> None:
    """Equal results give equal files: no date and no random names in them."""
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(path.suffix[1:])
    with style.context():
        figure.savefig(path, dpi=style.PNG_DPI, metadata=metadata)
