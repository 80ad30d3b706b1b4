"""Every chart that a results file has something for, as SVG that can stand in an HTML page beside others."""

from __future__ import annotations

import inspect
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib.pyplot as plt
from markupsafe import Markup
from matplotlib.figure import Figure

from hgemm.bench.schema import Results
from hgemm.plot import KINDS, WHOLE_RUN, NothingToDraw, style, timed_dtypes

_XLINK = "{http://www.w3.org/1999/xlink}href"


ON_CELLS = ("heatmap",)
"""Kinds whose figures stand on coloured cells, chosen to be read on exactly those colours."""


@dataclass(frozen=True)
class Chart:
    title: str
    caption: str
    """What its kind shows."""
    svg: Markup
    on_cells: bool


def draw_all(results: Results, prefix: str, doing: Callable[[str], None]) -> tuple[list[Chart], list[tuple[str, str]]]:
    """Charts of every kind and dtype, and the name of each that has nothing to show with the reason.

    ``prefix`` keeps the names inside the pictures apart from those of another file's.
    """
    charts, missing = [], []
    for kind, draw in KINDS.items():
        for dtype in (None,) if kind in WHOLE_RUN else timed_dtypes(results):
            name = f"{kind}, {dtype}" if dtype else kind
            doing(name)
            try:
                figure = draw(results, dtype)
            except NothingToDraw as error:
                missing.append((name, str(error)))
                continue
            title = _title(figure) or name
            svg = inline(_save(figure), f"{prefix}-{kind}-{dtype or 'all'}", title)
            charts.append(Chart(title, caption(draw), svg, kind in ON_CELLS))
    return charts, missing


def inline(svg: str, prefix: str, title: str) -> Markup:
    """An SVG document as an element of an HTML page.

    Its identifiers begin with ``prefix``, it is as wide as there is room, it is one picture called ``title`` to a
    reader of screens, and its style sheet, which would hold for the whole page, is gone.
    """
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        # In HTML the namespaces go without saying, and a link is a plain href.
        attributes = {"href" if name == _XLINK else _local(name): text for name, text in element.attrib.items()}
        element.attrib.clear()
        element.attrib.update({name: _renamed(name, text, prefix) for name, text in attributes.items()})
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    # What matplotlib's style sheet says of every element; both are inherited.
    root.attrib |= {"stroke-linejoin": "round", "stroke-linecap": "butt", "role": "img", "aria-label": title}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _renamed(name: str, text: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}-{text}"
    if name == "href":
        return text.replace("#", f"#{prefix}-", 1)
    return re.sub(r"url\(#", f"url(#{prefix}-", text)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _save(figure: Figure) -> str:
    buffer = io.StringIO()
    with style.context():
        figure.savefig(buffer, format="svg")
    plt.close(figure)
    return buffer.getvalue()


def _title(figure: Figure) -> str:
    """The text in the largest type."""
    texts = sorted(figure.texts, key=lambda text: -float(text.get_fontsize()))
    return texts[0].get_text() if texts else ""


def caption(draw: Callable[..., Figure]) -> str:
    """The first sentence of the module that draws a chart says what it shows."""
    return (inspect.getdoc(inspect.getmodule(draw)) or "").split("\n\n")[0].replace("\n", " ")
