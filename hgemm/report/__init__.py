"""One HTML page that says what results files hold: it needs no network and carries its data.

python -m hgemm.report --help
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

import hgemm
from hgemm.bench.schema import Results
from hgemm.plot.source import load
from hgemm.report import answer, charts, facts, tables

MARKER = '<meta name="generator" content="hgemm.report'
"""Near the beginning of every page: what carries it was generated, and may be replaced."""

_FOLDER = Path(__file__).resolve().parent

__all__ = ["MARKER", "Source", "read", "render"]


@dataclass(frozen=True)
class Source:
    """A results file: its name without a folder, its bytes, and what they say."""

    name: str
    content: bytes
    results: Results

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def data_uri(self) -> str:
        return "data:application/json;base64," + base64.b64encode(self.content).decode("ascii")


def read(path: Path) -> Source:
    """Reads a results file in which somebody was timed.

    Raises ResultsError for a file that cannot be used, NothingToDraw for one that holds no times.
    """
    results = load(path)
    return Source(path.name, path.read_bytes(), results)


def render(sources: Sequence[Source], doing: Callable[[str], None] = lambda text: None) -> str:
    """The page of at least one results file, a section each. The same files give the same page.

    Everything that the files say is text to the page: the template escapes it, and the page's own policy lets no script
    run but the one that belongs to it. ``doing`` is told what is being worked on.
    """
    if not sources:
        raise ValueError("a report needs at least one results file")
    script, style = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    sections = []
    for number, source in enumerate(sources, 1):
        doing(source.name)
        winners = answer.winners(source.results)
        pictures, missing = charts.draw_all(source.results, f"s{number}", doing)
        sections.append(
            {
                "id": f"s{number}",
                "source": source,
                "summary": facts.summary(source.results),
                "sentences": answer.sentences(winners),
                "winners": tables.winners(winners),
                "charts": pictures,
                "not_drawn": missing,
                "cases": tables.cases(winners),
                "not_timed": tables.not_timed(source.results),
                "roofs": tables.roofs(source.results),
                "method": facts.method(source.results),
                "machine": facts.machine(source.results),
                "provenance": facts.provenance(source.results),
            }
        )
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("page.html")
    return template.render(
        gpus=list(dict.fromkeys(source.results.env.gpu for source in sources)),
        sections=sections,
        marker=Markup(MARKER),
        version=hgemm.__version__,
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
    )
