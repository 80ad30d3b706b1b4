"""Whether two results files can be compared, and in what they differ: machine, software, settings, way of measuring."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hgemm.bench.metrics import timed_rows
from hgemm.bench.schema import Results, Timing

Value = str | int | float | bool | list[int] | list[str] | None


class Incomparable(ValueError):
    """Two results files that cannot be compared; the message names everything that stands against it."""


@dataclass(frozen=True)
class Difference:
    """Something that differs and may: often what the comparison is about."""

    name: str
    a: Value
    b: Value


MACHINE = ("gpu", "compute_capability", "multiprocessors", "power_limit_w")
"""Fields of the environment that must agree where both files know them."""

OPTIONS = ("rounds", "seed", "tune_cublaslt")
"""Options that change how well or what was measured, and not only how much."""


def refuse_unlike(a: Results, b: Results) -> None:
    """Raises Incomparable if the files hold measurements of different things."""
    unlike = [
        f"{name}: {left} and {right}"
        for name, left, right in _pairs(a, b)
        if name in MACHINE or name.startswith("torch flag")
        if left is not None and right is not None and left != right
    ]
    conditions = [_conditions(results) for results in (a, b)]
    for name, found in zip("AB", conditions, strict=True):
        if not found:
            raise Incomparable(f"{name} holds no times, so there is nothing to compare")
        if len(found) > 1:
            raise Incomparable(f"{name} holds times of several modes or duty cycles: {'; '.join(sorted(found))}")
    if conditions[0] != conditions[1]:
        unlike.append(f"mode and duty cycle: {conditions[0].pop()}; and {conditions[1].pop()}")
    distributions = [sorted({case.distribution for case in results.cases}) for results in (a, b)]
    if not set(distributions[0]) & set(distributions[1]):
        unlike.append("distribution of the operands: {} and {}".format(*(", ".join(d) for d in distributions)))
    if unlike:
        raise Incomparable(
            f"A and B measured different things ({'; '.join(unlike)}); measure B again as A was measured"
        )


def differences(a: Results, b: Results) -> list[Difference]:
    """Everything known about the two runs that differs between them, in the order of the schema."""
    return [Difference(name, left, right) for name, left, right in _pairs(a, b) if left != right]


def mode_of(results: Results) -> str:
    """The mode of the first contestant that was timed."""
    return next(timing.mode for timing in _timings(results))


def _pairs(a: Results, b: Results) -> list[tuple[str, Value, Value]]:
    pairs: list[tuple[str, Value, Value]] = [
        ("sources", a.run.sources, b.run.sources),
        ("revision", a.run.revision, b.run.revision),
    ]
    pairs += [(name, a.run.options.get(name), b.run.options.get(name)) for name in OPTIONS]
    names = (entry.name for entry in dataclasses.fields(a.env))
    pairs += [(name, getattr(a.env, name), getattr(b.env, name)) for name in names]
    flags = sorted(a.flags.keys() | b.flags.keys())
    return pairs + [(f"torch flag {name}", a.flags.get(name), b.flags.get(name)) for name in flags]


def _timings(results: Results) -> list[Timing]:
    return [row.timing for case in results.cases for row in timed_rows(case) if row.timing]


def _conditions(results: Results) -> set[str]:
    return {_condition(timing) for timing in _timings(results)}


def _condition(timing: Timing) -> str:
    """In words, so that a refusal can quote it."""
    words = f"{timing.mode}, bursts of {timing.burst_ms:g} ms, {timing.idle_ms:g} ms idle"
    if timing.lead_in_bursts:
        words += f", {timing.lead_in_bursts} untimed before each"
    if timing.mode == "e2e" and not timing.finished_us:
        words += ", as schema version 1 defines it"
    return words
