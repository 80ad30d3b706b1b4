"""What a comparison of two results files holds: the time of every contestant in every case, B over A, and a verdict.

The verdict is where the interval of the ratio lies. ``same``: inside the margin, that is between 1 / (1 + margin) and
1 + margin. ``slower`` and ``faster``: outside it, on one side. ``ambiguous``: across an end of it; more rounds narrow
it. The interval knows the scatter within each run, and how surely a row was seen to follow its clock. What changes from
run to run (another capture, other addresses, another temperature) it cannot know, and that is the other task of the
margin: it must exceed what two runs of the same code differ by, whatever the number of rounds. With a margin of 0 the
verdict is a test of significance and nothing is ``same``.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hgemm.bench.comparison_rules import Difference
from hgemm.bench.schema import CaseResult
from hgemm.bench.statistics import Shift

CONFIDENCE = 0.95
"""Of every interval of a comparison."""

Verdict = Literal["broken", "slower", "ambiguous", "same", "faster", "mended"]
"""broken: timed in A, and in B it failed, hangs, is wrong, refused or unavailable. mended: the other way round."""

VERDICTS: tuple[Verdict, ...] = ("broken", "slower", "ambiguous", "same", "faster", "mended")
"""Worst first."""


class Share(NamedTuple):
    """How far a time follows the clock of the multiprocessors, from 0 to 1, with the ends of the interval."""

    value: float
    low: float
    high: float


class Contestant(NamedTuple):
    """What makes two rows of a case the same."""

    name: str
    """``backend`` or ``backend:config``."""
    allocates: bool = False

    def __str__(self) -> str:
        return f"{self.name} (allocating)" if self.allocates else self.name


@dataclass(frozen=True)
class Ratio:
    """Time of B over time of A, with the ends of its interval: 0 and infinity where the samples are too few for one."""

    value: float
    low: float
    high: float

    @classmethod
    def of_logarithms(cls, difference: Shift) -> Ratio:
        return cls(*(math.exp(value) for value in (difference.estimate, difference.low, difference.high)))

    def verdict(self, margin: float) -> Verdict:
        """``margin`` as a fraction, 0.01 for 1%."""
        bound = 1 + margin
        if self.low > bound:
            return "slower"
        if self.high < 1 / bound:
            return "faster"
        return "same" if 1 / bound < self.low and self.high < bound else "ambiguous"


@dataclass(frozen=True)
class Change:
    """One contestant in one case of both files."""

    case: CaseResult
    """As A has it."""
    contestant: Contestant
    verdict: Verdict
    ratio: Ratio | None = None
    """None for what is broken or mended."""
    plain: float | None = None
    """The ratio of the times as they are, without the control."""
    us: tuple[float, float] | None = None
    """Median times of A and B."""
    remarks: tuple[str, ...] = ()
    clock_share: Share | None = None
    """By which its times were brought to equal clocks; None where they were not."""


@dataclass(frozen=True)
class Missing:
    """A contestant of one file that the other says nothing about; the whole case is missing if it is not common."""

    case: CaseResult
    contestant: Contestant
    whole_case: bool
    remark: str = ""


@dataclass(frozen=True)
class Mean:
    """Geometric mean of a contestant's ratios over its cases; the interval treats the cases as a sample of many, so it
    holds what varies from case to case as well. Of a single case it is that case's ratio, and two have no interval."""

    contestant: Contestant
    cases: int
    ratio: Ratio
    verdict: Verdict


@dataclass
class Comparison:
    """All that two files say about each other."""

    margin: float
    controlled: bool
    """Whether times were divided by the control's in every case that has one in both files."""
    mode: str
    changes: list[Change] = field(default_factory=list)
    """Worst first."""
    only_a: list[Missing] = field(default_factory=list)
    only_b: list[Missing] = field(default_factory=list)
    never_timed: list[Missing] = field(default_factory=list)
    """In both files, and without times in either."""
    cut_short_a: list[Missing] = field(default_factory=list)
    """In both files, and with too few rounds for an interval because A ended in the middle of the case."""
    cut_short_b: list[Missing] = field(default_factory=list)
    means: list[Mean] = field(default_factory=list)
    control: Ratio | None = None
    """The control itself, over all cases: what changed between the runs whatever the code."""
    clocks_mhz: tuple[float | None, float | None] = (None, None)
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[Verdict, int]:
        found = Counter(change.verdict for change in self.changes)
        return {verdict: found[verdict] for verdict in VERDICTS}
