"""The answer to "what is fastest on this card": the fastest contestant of each case, and who is level with it."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hgemm import baselines
from hgemm.bench.metrics import CEILING, COPY, find_row, gigabytes_per_second, relative, speed, tflops, timed_rows
from hgemm.bench.schema import CaseResult, Results, Row
from hgemm.bench.statistics import Summary

MARGIN = 0.01
"""Who is less than this behind the fastest, or may be by the interval of the ratio, is level with it."""

Limit = Literal["compute", "memory"]


@dataclass(frozen=True)
class Winner:
    """The fastest contestant of a case."""

    case: CaseResult
    row: Row
    speed: Summary
    of_torch: Summary | None
    of_ceiling: Summary | None
    level: tuple[str, ...]
    """Other backends that are level with it."""
    limit: Limit | None
    """Which measured roof is the lower one at the case's intensity; None if the run lacks either."""
    of_copy: float | None
    """Its compulsory bytes a second over the measured copy bandwidth."""


def winners(results: Results) -> list[Winner]:
    """One for each case in which somebody was timed, in the order of the file."""
    found = []
    for case in results.cases:
        rows = _comparable(case)
        if not rows:
            continue
        first = max(rows, key=_median)
        level = [row.backend for row in rows if (ratio := relative(row, first)) and ratio.ci_high >= 1 - MARGIN]
        found.append(
            Winner(
                case,
                first,
                speed(first),
                relative(first, find_row(case, "torch")),
                relative(first, find_row(case, CEILING, "roof")),
                tuple(name for name in dict.fromkeys(level) if name != first.backend),
                _limit(case, ridge(results, case.dtype)),
                _of_copy(first, _copy(results)),
            )
        )
    return found


def _comparable(case: CaseResult) -> list[Row]:
    """Who was timed in the same way: on the host's clock, that is when called with ``out=``."""
    return [row for row in timed_rows(case) if not row.allocates]


def _median(row: Row) -> float:
    """Of the speed, as ``speed`` has it, without the interval: that takes a while."""
    assert row.timing is not None
    return statistics.median(tflops(row.timing).values())


def ridge(results: Results, dtype: str) -> float | None:
    """Where the measured mma.sync and copy roofs meet, in floating-point operations a byte; None if one is missing."""
    compute = next(
        (
            roof.value
            for roof in results.roofs
            if roof.name == CEILING and roof.dtype == dtype and roof.accumulator in ("float32", None)
        ),
        None,
    )
    copy = _copy(results)
    return 1e3 * compute / copy if compute and copy else None


def _copy(results: Results) -> float | None:
    """The measured copy bandwidth in GB/s."""
    return next((roof.value for roof in results.roofs if roof.name == COPY), None)


def _of_copy(row: Row, copy: float | None) -> float | None:
    assert row.timing is not None
    return statistics.median(gigabytes_per_second(row.timing).values()) / copy if copy else None


def _limit(case: CaseResult, ridge: float | None) -> Limit | None:
    if ridge is None:
        return None
    return "compute" if case.flops / case.compulsory_bytes >= ridge else "memory"


def sentences(found: Sequence[Winner]) -> list[str]:
    """The answer in words, a sentence or two for each kind of product."""
    texts = []
    for limit in ("compute", "memory", None):
        group = [winner for winner in found if winner.limit == limit]
        if group:
            kind = f"{limit}-bound product" if limit else "product"
            texts.append(" ".join([_fastest(group, kind), *_closest(group)]))
    return texts


def _fastest(group: Sequence[Winner], kind: str) -> str:
    counts = Counter(winner.row.backend for winner in group).most_common()
    if len(group) == 1:
        level = f"; within {MARGIN:.0%} of it: {', '.join(group[0].level)}" if group[0].level else ""
        return f"In the one {kind}, {counts[0][0]} is fastest{level}."
    if len(counts) == 1:
        text = f"In each of {len(group)} {kind}s, {counts[0][0]} is fastest"
    else:
        names = [f"{name} in {count}" for name, count in counts]
        text = f"Of {len(group)} {kind}s, {names[0].replace(' in ', ' is fastest in ')}, {', '.join(names[1:])}"
    if not any(winner.level for winner in group):
        return f"{text}."
    front = Counter(name for winner in group for name in (winner.row.backend, *winner.level))
    both = ", ".join(f"{name} in {count}" for name, count in front.most_common())
    return f"{text}. Fastest or within {MARGIN:.0%} of it: {both}."


def _closest(group: Sequence[Winner]) -> list[str]:
    """How the best of what is no vendor's library compares with torch, over the cases of the group."""
    libraries = {record.name for record in baselines.backends()}
    ratios: dict[str, list[float]] = {}
    for winner in group:
        torch_row = find_row(winner.case, "torch")
        best: dict[str, float] = {}
        for row in _comparable(winner.case):
            if row.backend not in libraries and (ratio := relative(row, torch_row)):
                best[row.backend] = max(best.get(row.backend, 0.0), ratio.median)
        for name, value in best.items():
            ratios.setdefault(name, []).append(value)
    if not ratios:
        return []
    # One that takes every product is of more use than one that is faster in a single case.
    name, values = max(ratios.items(), key=lambda item: (len(item[1]), math.prod(item[1]) ** (1 / len(item[1]))))
    if len(values) == 1:
        return [f"Among the kernels that are no vendor's library {name} leads, at {values[0]:.2f} × torch."]
    mean = math.prod(values) ** (1 / len(values))
    return [
        f"Among the kernels that are no vendor's library {name} leads, at {mean:.2f} × torch in the geometric mean, "
        f"from {min(values):.2f} to {max(values):.2f}."
    ]
