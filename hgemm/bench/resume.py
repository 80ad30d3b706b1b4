"""Going on with an incomplete results file: what it has is kept if this run would measure it in the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hgemm.bench.results import ResultsError
from hgemm.bench.schema import CaseResult, Environment, Results, Row, Run
from hgemm.bench.suites import Case, Shape

OF_A_SITTING = frozenset({"budget_minutes"})
"""Options that may differ from one sitting to the next."""

GIVEN_UP = ("failed", "hangs")
"""Contestants of an unfinished case that are not tried again: one of them may be why it is unfinished."""


@dataclass(frozen=True)
class Previous:
    """What earlier sittings have measured; ``run`` is None if there were none."""

    run: Run | None = None
    cases: Mapping[Case, CaseResult] = field(default_factory=dict)

    def complete(self, case: Case) -> CaseResult | None:
        """The result of a case with which nothing is left to be done."""
        result = self.cases.get(case)
        return result if result is not None and result.complete else None

    def given_up(self, case: Case, row: Row) -> Row | None:
        """What became of this contestant in an unfinished case, if it is not to be tried again."""
        result = self.cases.get(case)
        for before in result.rows if result else ():
            same = (before.role, before.backend, before.config, before.allocates) == (
                row.role,
                row.backend,
                row.config,
                row.allocates,
            )
            if same and before.status in GIVEN_UP:
                return before
        return None


def nothing_before() -> Previous:
    """The previous sittings of a new run."""
    return Previous()


def resume(
    results: Results,
    options: Mapping[str, object],
    environment: Environment,
    flags: Mapping[str, object],
    sources: str,
) -> Previous:
    """The results as what precedes a run with these options, on this machine, of these kernel sources.

    Raises ResultsError naming everything that differs.
    """
    run = results.run
    differing = [
        *_differences("option ", _without(run.options, OF_A_SITTING), _without(options, OF_A_SITTING)),
        *_differences("", dataclasses.asdict(results.env), dataclasses.asdict(environment)),
        *_differences("flag ", results.flags, flags),
        *_differences("", {"kernel sources": run.sources[:12]}, {"kernel sources": sources[:12]}),
    ]
    way_out = "Leave out the options that the file already holds, or begin a new file"
    if run.options.get("contestants") != options.get("contestants"):
        way_out = "Name the same files with --contestant again, or begin a new file"
    if differing:
        raise ResultsError(f"its measurements and new ones could not be compared: {'; '.join(differing)}. {way_out}")
    return Previous(run, {_case(result): result for result in results.cases})


def _without(values: Mapping[str, object], names: frozenset[str]) -> dict[str, object]:
    return {name: value for name, value in values.items() if name not in names}


def _differences(what: str, before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    names = dict.fromkeys((*before, *now))
    return [
        f"{what}{name} was {_text(before.get(name))} and is {_text(now.get(name))}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "nothing"
    return "nothing" if value is None else str(value)


def _case(result: CaseResult) -> Case:
    shape = Shape(result.M, result.N, result.K, result.batch, result.label)
    return Case(shape, result.dtype, result.layout, result.distribution, result.seed)
