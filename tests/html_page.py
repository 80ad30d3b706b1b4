"""An HTML page as tests look at it: its tables as text, its identifiers and the references to them."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """What a page holds, by the standard library's own reading of it."""

    def __init__(self, text: str):
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        """Rows of cells by caption, the headings first; of equal captions, those of the first section that has it."""
        self.ids: list[str] = []
        self.references: set[str] = set()
        """Identifiers that something in the page points to."""
        self.outside: list[str] = []
        """Addresses outside the page."""
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._rows: list[list[str]] = []
        self._caption = ""
        self._within: list[str] = []
        self.feed(text)

    def all(self, tag: str) -> list[dict[str, str]]:
        """Attributes of every element of that name."""
        return [attributes for name, attributes in self.tags if name == tag]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append((tag, attributes))
        if tag in ("table", "caption", "td", "th", "script", "style"):
            self._within.append(tag)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        for name, value in attributes.items():
            self.references |= set(re.findall(r"url\(#([^)]*)\)", value))
            if name in ("for", "aria-labelledby", "aria-describedby"):
                self.references |= set(value.split())
            if name in ("href", "src", "xlink:href"):
                if value.startswith("#"):
                    self.references.add(value[1:])
                elif not value.startswith("data:"):
                    self.outside.append(value)
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        elif tag == "caption":
            self._caption = ""

    def handle_endtag(self, tag: str) -> None:
        if self._within and self._within[-1] == tag:
            self._within.pop()
        if tag == "table":
            assert self._caption, "a table has no caption"
            self.tables.setdefault(self._caption, [[" ".join(cell.split()) for cell in row] for row in self._rows])

    def handle_data(self, data: str) -> None:
        within = self._within[-1] if self._within else ""
        if within in ("script", "style"):
            return
        self.text += data
        if within == "caption":
            self._caption += data
        elif within in ("td", "th"):
            self._rows[-1][-1] += data
