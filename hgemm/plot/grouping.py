"""What belongs together in a picture of many cases: the products of one panel, the rows of one contestant."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hgemm.bench.metrics import label, tflops, timed_rows
from hgemm.bench.schema import CaseResult, Row
from hgemm.plot.source import variant


@dataclass(frozen=True)
class Group:
    """Cases that differ in one thing: the size of a square product, M with N and K fixed, or anything."""

    title: str
    subtitle: str
    axis: Literal["size", "M", "case"]
    cases: tuple[CaseResult, ...]

    def tick(self, case: CaseResult) -> str:
        """What tells the case from others of the group; three lines where nothing less does."""
        if self.axis == "case":
            return f"{case.M}\n{case.N}\n{case.K}"
        return str(case.M)


def groups(cases: Sequence[CaseResult]) -> list[Group]:
    """Squares by size, then products of one weight over M, then the rest; each in its order of size."""
    squares: dict[str, list[CaseResult]] = {}
    for case in cases:
        if case.M == case.N == case.K and case.label is None:
            squares.setdefault(variant(case), []).append(case)
    # One square alone is a product like others.
    squares = {key: members for key, members in squares.items() if len({case.M for case in members}) > 1}
    in_squares = {id(case) for members in squares.values() for case in members}
    weights: dict[tuple[str, str], list[CaseResult]] = {}
    rest: dict[str, list[CaseResult]] = {}
    for case in cases:
        if id(case) not in in_squares:
            weights.setdefault((case.label or "", f"N {case.N}, K {case.K}{variant(case)}"), []).append(case)
    found = [Group("M = N = K" + key, "", "size", _sorted(members)) for key, members in squares.items()]
    for (name, fixed), members in weights.items():
        if len({case.M for case in members}) > 1:
            found.append(Group(name or fixed, fixed if name else "", "M", _sorted(members)))
        else:
            for case in members:
                rest.setdefault(variant(case), []).append(case)
    found += [Group("other products" + key, "", "case", _sorted(members)) for key, members in rest.items()]
    return found


def _sorted(cases: Sequence[CaseResult]) -> tuple[CaseResult, ...]:
    return tuple(sorted(cases, key=lambda case: (case.flops, case.M)))


@dataclass(frozen=True)
class Entrant:
    """Rows of several cases that one line, or one row of a table, shows; by the case's place among those cases."""

    name: str
    rows: dict[int, Row]


def row_name(row: Row) -> str:
    """``backend`` or ``backend  config``, and whether a call of it allocates its result."""
    name = f"{row.backend}  {row.config}" if row.config else row.backend
    return f"{name}, allocating" if row.allocates else name


def by_configuration(cases: Sequence[CaseResult]) -> list[Entrant]:
    """One entrant a configuration, in the order of the cases. A backend that had one configuration in each case,
    its own choice, is one entrant, whichever these were."""
    found = []
    for name, entries in _collected(cases).items():
        configs: dict[str, dict[int, Row]] = {}
        for place, row in entries:
            configs.setdefault(row_name(row), {})[place] = row
        if len(configs) > 1 and len({place for place, _ in entries}) == len(entries):
            found.append(Entrant(f"{name}  (its choice)", dict(entries)))
        else:
            found += [Entrant(config, members) for config, members in configs.items()]
    return found


def best_of_backends(cases: Sequence[CaseResult]) -> list[Entrant]:
    """One entrant a backend: the fastest of its configurations in each case."""
    found = []
    for name, entries in _collected(cases).items():
        best: dict[int, Row] = {}
        for place, row in entries:
            if place not in best or median_tflops(row) > median_tflops(best[place]):
                best[place] = row
        found.append(Entrant(name, best))
    return found


def median_tflops(row: Row) -> float:
    """As ``speed(row).median``, without its interval."""
    assert row.timing is not None
    return statistics.median(tflops(row.timing).values())


def _collected(cases: Sequence[CaseResult]) -> dict[str, list[tuple[int, Row]]]:
    """(place of the case, row) by backend; calls that allocate are a backend of their own."""
    found: dict[str, list[tuple[int, Row]]] = {}
    for place, case in enumerate(cases):
        for row in timed_rows(case):
            name = f"{row.backend}, allocating" if row.allocates else row.backend
            found.setdefault(name, []).append((place, row))
    return found


def is_meant(row: Row, name: str) -> bool:
    """Whether ``name`` is the row's backend, or its ``backend:config``."""
    return name in (row.backend, label(row))
