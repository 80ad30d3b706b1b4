"""What a run tells while it goes on, and how it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from hgemm.bench.schema import CaseResult, Results
from hgemm.bench.suites import Case

Options = Mapping[str, str | int | float | bool | list[str] | None]


class Observer:
    """Told how a run proceeds; this one says nothing to nobody."""

    def case_begins(self, case: Case, number: int, count: int) -> None: ...

    def doing(self, text: str, done: float) -> None:
        """What happens now, and how much of the run is done, from 0 to 1."""

    def case_ends(self, case: CaseResult, results: Results) -> None:
        """A case ended, well or not; everything measured so far. May raise FileFull, which ends the run without it."""


@dataclass
class Outcome:
    """What a run measured, and how it ended."""

    results: Results
    stopped: str | None = None
    """Why the run ended early; None if it did not."""
    interrupted: bool = False
    lost: bool = False
    """The device no longer answers, or a contestant never ended."""
    full: bool = False
    """The results file has no room for another case."""


def end_process(outcome: Outcome) -> None:
    """Says why on stderr and leaves at once: an orderly exit would wait for the device."""
    print(f"hgemm.bench ended early: {outcome.stopped}", file=sys.stderr, flush=True)
    os._exit(1)
