"""What a run is asked to do: cases, contestants, mode, duty cycle, rounds, budget."""

from __future__ import annotations

from dataclasses import dataclass

from hgemm.bench.schema import Mode
from hgemm.bench.suites import Case
from hgemm.isolation import LIMIT_SECONDS

MODES: tuple[Mode, ...] = ("rotating", "kernel", "cold", "e2e")


@dataclass(frozen=True)
class DutyCycle:
    """How the device is loaded: bursts with idle between them, or without a pause.

    A power-limited board answers differently: rested, it runs a short burst at its highest clock; under sustained load
    it settles at the clock that its power limit pays for.
    """

    burst_ms: float = 8.0
    idle_ms: float = 20.0
    """Before each burst. After a longer one, such as a single call that takes longer than ``burst_ms``, it is longer in
    the same proportion: the board is at work for the same share of the time, whatever the product."""
    lead_in_bursts: int = 0
    """Untimed bursts before each timed one, so that the clock is the contestant's own and not its predecessor's."""

    def rest_s(self, burst_s: float) -> float:
        """Seconds of idle after a burst of so many seconds."""
        return self.idle_ms * 1e-3 * max(1.0, burst_s / (self.burst_ms * 1e-3))

    @classmethod
    def sustained(cls, burst_ms: float = 250.0) -> DutyCycle:
        """No idle; each timed burst follows an equally long one of the same contestant."""
        return cls(burst_ms, idle_ms=0.0, lead_in_bursts=1)

    def __post_init__(self) -> None:
        if self.burst_ms <= 0 or self.idle_ms < 0:
            raise ValueError(
                f"a burst lasts longer than 0 ms and idle at least 0 ms, found {self.burst_ms} and {self.idle_ms}"
            )


@dataclass(frozen=True)
class Plan:
    """A whole run. ``patterns`` are read by ``hgemm.bench.contestants.choose``."""

    cases: tuple[Case, ...]
    patterns: tuple[str, ...]
    mode: Mode = "rotating"
    duty: DutyCycle = DutyCycle()
    rounds: int = 7
    seed: int = 0
    tune_cublaslt: bool = False
    """Give cublaslt the fastest algorithm that it proposes for each product instead of the first."""
    budget_s: float | None = None
    """No round begins after this many seconds, except the first of a case that has begun."""
    limit_s: float = LIMIT_SECONDS
    """What takes longer than this, one preparation or one burst, hangs."""

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError("there is nothing to measure: no case")
        for case in self.cases:
            case.check_size()
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, found {self.rounds}")
        if self.budget_s is not None and self.budget_s <= 0:
            raise ValueError(f"a budget must be positive, found {self.budget_s / 60:g} minutes")
        if self.limit_s <= 0:
            raise ValueError(f"a limit must be positive, found {self.limit_s:g} s")

    @property
    def allocates(self) -> tuple[bool, ...]:
        """The ways in which everybody is called: with ``out=``, and in mode e2e also without."""
        return (False, True) if self.mode == "e2e" else (False,)
