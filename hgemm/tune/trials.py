"""The trials of one product: each candidate is checked, then timed in rounds from which the losers drop out."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hgemm.bench.contestants import Choice
from hgemm.bench.environment import scrub
from hgemm.bench.machine import Machine
from hgemm.bench.operands import Operands, rotation
from hgemm.bench.plan import DutyCycle
from hgemm.bench.prepare import Entry, Preparer, Verify, ensure_alive, not_timed, untimed_row
from hgemm.bench.suites import Case
from hgemm.bench.watchdog import Watchdog
from hgemm.tuned_file import LeftOut, Timed

STAGES = ((math.inf, 2), (1.25, 3), (1.08, 5))
"""How many times the fastest one's median a candidate may take until then to take part, and rounds. After two bursts a
quarter, after five 8%, is more than bursts of one configuration differ by from one to the next."""


@dataclass
class _Trial:
    choice: Choice
    entry: Entry
    stage: int = 0  # the last one it took part in
    samples: list[float] = field(default_factory=list)  # seconds a call

    @property
    def timed(self) -> bool:
        return bool(self.samples) and self.entry.row.status != "failed"

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


@dataclass(frozen=True)
class Finding:
    """What the trials of a product gave. ``wrong``: names of candidates whose product is wrong."""

    ranking: tuple[Timed, ...]
    left_out: tuple[LeftOut, ...]
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Trials:
    """Trials on one machine. ``doing`` is told what happens, and how much of a product is done, from 0 to 1."""

    machine: Machine
    verify: Verify
    watchdog: Watchdog
    duty: DutyCycle = field(default_factory=DutyCycle)
    seed: int = 0
    doing: Callable[[str, float], None] = lambda text, done: None

    def run(self, case: Case, choices: Sequence[Choice]) -> Finding:
        """Tries the choices on operands that rotate through three times the L2, with every out full of NaN before.

        Raises torch.OutOfMemoryError if there is no room for the operands, DeviceLost if a candidate broke the device.
        """
        operands = Operands.allocate(case, self.machine.device, rotation(case, self.machine))
        preparer = Preparer(self.machine, "rotating", self.duty, self.verify)
        trials: list[_Trial] = []
        for index, choice in enumerate(choices):
            self.doing(f"checking {_name(choice)}", 0.5 * index / len(choices))
            trials.append(trial := _Trial(choice, Entry(untimed_row("contestant", choice.backend.name, choice.config))))
            with self.watchdog.watch():
                preparer.contestant(trial.entry, choice, case, operands)
        self._stages([trial for trial in trials if trial.entry.burst is not None], case)
        for trial in trials:
            trial.entry.close()
        self.machine.release()
        return _finding(trials)

    def _stages(self, running: list[_Trial], case: Case) -> None:
        """Rounds in which everybody who is still running is timed once, in random order."""
        order = random.Random(f"{self.seed} {case}")
        for stage, (margin, rounds) in enumerate(STAGES):
            if stage:
                running = [trial for trial in running if trial.timed]
                fastest = min((trial.median for trial in running), default=0.0)
                running = [trial for trial in running if trial.median <= margin * fastest]
            for number in range(rounds):
                text = f"stage {stage + 1} of {len(STAGES)}, {len(running)} running"
                self.doing(text, 0.5 + 0.5 * (stage + number / rounds) / len(STAGES))
                for trial in order.sample(running, len(running)):
                    trial.stage = stage
                    with self.watchdog.watch():
                        self._time(trial)

    def _time(self, trial: _Trial) -> None:
        assert trial.entry.burst is not None
        row = trial.entry.row
        self.machine.sleep(self.duty.idle_ms * 1e-3)
        try:
            trial.samples.append(trial.entry.burst.run().seconds)
        except Exception as error:  # a candidate may raise anything: it is left out, and the others go on
            reason = f"{type(error).__name__}: {error}"
            ensure_alive(self.machine, row, reason)
            not_timed(row, "failed", scrub(reason))


def _finding(trials: Sequence[_Trial]) -> Finding:
    timed = [trial for trial in trials if trial.timed]
    timed.sort(key=lambda trial: (-trial.stage, trial.median))
    rest = [trial for trial in trials if trial not in timed]
    return Finding(
        tuple(Timed(t.choice.backend.name, t.choice.config, float(f"{t.median * 1e6:.5g}")) for t in timed),
        tuple(LeftOut(t.choice.backend.name, t.choice.config, t.entry.row.reason or "not timed") for t in rest),
        tuple(_name(t.choice) for t in rest if t.entry.row.status == "wrong"),
    )


def _name(choice: Choice) -> str:
    return f"{choice.backend.name} {choice.config}" if choice.config else choice.backend.name
