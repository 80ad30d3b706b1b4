"""Shapes from a CSV file: a header with M, N and K, and where wanted batch, dtype, layout and label."""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from hgemm.bench.suites import DTYPES, LAYOUTS, MOST_DIGITS, Shape

REQUIRED = ("M", "N", "K")
OPTIONAL = ("batch", "dtype", "layout", "label")


@dataclass(frozen=True)
class ListedShape:
    """One line of a file; None leaves the dtype or the layout to the options."""

    shape: Shape
    dtype: str | None
    layout: str | None

    @property
    def text(self) -> str:
        """All of it on one line, as results keep it: ``BxM,N,K;dtype;layout;label``."""
        return ";".join((str(self.shape), self.dtype or "", self.layout or "", self.shape.label or ""))

    @classmethod
    def parse(cls, text: str) -> ListedShape:
        """Reads what ``text`` returns. Raises ValueError for anything else."""
        size, dtype, layout, label = text.split(";", 3)
        return cls(replace(Shape.parse(size), label=label or None), dtype or None, layout or None)


def read_shapes(path: Path) -> tuple[ListedShape, ...]:
    """Reads a file; empty lines, and lines that begin with "#", are skipped.

    Raises ValueError naming the file, the line, the value found and what belongs there.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a text file in UTF-8") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and line.lstrip()[0] != "#"]
    if not numbered:
        raise ValueError(f"{path}: empty; the first line is a header such as M,N,K,label")
    try:
        rows = [(number, [cell.strip() for cell in next(csv.reader([line], strict=True))]) for number, line in numbered]
    except csv.Error as error:
        raise ValueError(f"{path}: not CSV: {error}") from None
    (number, header), *body = rows
    try:
        _check_header(header)
        if not body:
            raise ValueError("there is no shape after the header")
        shapes = []
        for number, cells in body:  # noqa: B007 (the message below names the line)
            if len(cells) != len(header):
                raise ValueError(f"the header has {len(header)} columns, found {len(cells)}: {','.join(cells)!r}")
            shapes.append(_shape(dict(zip(header, cells, strict=True))))
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from None
    return tuple(dict.fromkeys(shapes))


def _check_header(header: list[str]) -> None:
    known = (*REQUIRED, *OPTIONAL)
    unknown = [name for name in header if name not in known]
    missing = [name for name in REQUIRED if name not in header]
    if unknown or missing or len(set(header)) < len(header):
        raise ValueError(
            f"the header names {', '.join(REQUIRED)} and, where wanted, {', '.join(OPTIONAL)}, each once; "
            f"found {','.join(header)!r}"
        )


def _shape(row: dict[str, str]) -> ListedShape:
    M, N, K = (_positive(name, row[name]) for name in REQUIRED)
    batch = _positive("batch", row.get("batch") or "1")
    label = row.get("label") or None
    if label is not None and not label.isprintable():
        raise ValueError(f"label must be text without control characters, found {label!r:.80}")
    return ListedShape(Shape(M, N, K, batch, label), _one_of("dtype", row, DTYPES), _one_of("layout", row, LAYOUTS))


def _positive(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS or int(text) == 0:
        raise ValueError(f"{name} must be a positive integer, found {text!r:.80}")
    return int(text)


def _one_of(name: str, row: dict[str, str], known: Collection[str]) -> str | None:
    value = row.get(name) or None
    if value is not None and value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)} or empty, found {value!r}")
    return value
