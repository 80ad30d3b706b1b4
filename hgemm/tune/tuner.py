"""Tunes product after product: all that is tried is compiled at once, and what is found stored as each product ends."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from hgemm.backends import Backend
from hgemm.bench.contestants import Choice
from hgemm.bench.machine import Machine
from hgemm.bench.prepare import DeviceLost
from hgemm.bench.suites import Case
from hgemm.tune.candidates import Pruned, candidates, problem_of
from hgemm.tune.compiling import Form, Job
from hgemm.tune.trials import Trials
from hgemm.tuned_file import Entry, LeftOut, Product

SPENT = "the budget is spent"


@dataclass
class Tuned:
    """One product and what became of it. ``entry``: what is kept, None if nothing could be timed."""

    case: Case
    pruned: list[Pruned]
    entry: Entry | None = None
    left_out: tuple[LeftOut, ...] = ()
    wrong: tuple[str, ...] = ()
    fault: str = ""
    """Why nothing was timed."""


@dataclass
class Outcome:
    """What a run tuned, and how it ended. ``known``: the products that were tuned before and left as they are."""

    tuned: list[Tuned] = field(default_factory=list)
    known: list[Case] = field(default_factory=list)
    stopped: str | None = None
    interrupted: bool = False
    lost: bool = False


@dataclass
class _Work:
    case: Case
    product: Product
    choices: list[Choice]
    pruned: list[Pruned]


@dataclass
class Tuner:
    """One run on one machine. The first product is begun whatever the budget.

    ``compile_all`` compiles what the jobs need and says which forms cannot be used; ``store`` keeps an entry as soon as
    there is one; ``earlier`` are the entries that are there already.
    """

    machine: Machine
    backends: Sequence[Backend]
    patterns: Sequence[str]
    trials: Trials
    compile_all: Callable[[list[Job]], dict[Form, str]]
    store: Callable[[Entry], object]
    earlier: dict[Product, Entry]
    again: bool = False
    budget_s: float | None = None
    begins: Callable[[Case, int, int], None] = lambda case, number, count: None
    ends: Callable[[Tuned], None] = lambda tuned: None

    def run(self, cases: Sequence[Case]) -> Outcome:
        """Tunes every product, or as many as the budget, an interrupt or the device allows; keeps each that ended."""
        outcome, began = Outcome(), self.machine.clock()
        try:
            work = self._plan(cases, outcome)
            unusable = self.compile_all([(choice, one.case) for one in work for choice in one.choices])
            for number, one in enumerate(work):
                if number and self.budget_s is not None and self.machine.clock() - began > self.budget_s:
                    outcome.stopped = SPENT
                    break
                self.begins(one.case, number, len(work))
                tuned = self._tune(one, unusable)
                if tuned.entry is not None:
                    self.store(tuned.entry)
                outcome.tuned.append(tuned)
                self.ends(tuned)
        except KeyboardInterrupt:
            outcome.stopped, outcome.interrupted = "interrupted", True
        except DeviceLost as error:
            outcome.stopped, outcome.lost = str(error), True
        return outcome

    def _plan(self, cases: Sequence[Case], outcome: Outcome) -> list[_Work]:
        """What is left to do, each product once. One that was tuned before is done if all its candidates were tried
        then; else those timed then are tried again beside the others, unless all is to be done again."""
        multiprocessors = self.machine.environment().multiprocessors
        seen: set[Product] = set()
        work: list[_Work] = []
        for case in cases:
            problem = problem_of(case, self.machine.device)
            product = Product.of(problem)
            if product in seen:
                continue
            seen.add(product)
            choices, pruned = candidates(self.patterns, self.backends, problem, multiprocessors)
            before = None if self.again else self.earlier.get(product)
            asked = {(choice.backend.name, choice.config) for choice in choices}
            if before and asked <= before.tried:
                outcome.known.append(case)
                continue
            records = {record.name: record for record in self.backends}
            ranked = before.ranking if before else ()
            choices += [Choice(records[t.backend], t.config) for t in ranked if (t.backend, t.config) not in asked]
            work.append(_Work(case, product, choices, pruned))
        return work

    def _tune(self, work: _Work, unusable: dict[Form, str]) -> Tuned:
        tuned = Tuned(work.case, work.pruned)
        reasons = {choice: unusable.get(Form.of(choice, work.case)) for choice in work.choices}
        failed = tuple(LeftOut(c.backend.name, c.config, reason) for c, reason in reasons.items() if reason)
        usable = [choice for choice, reason in reasons.items() if not reason]
        try:
            finding = self.trials.run(work.case, usable)
        except torch.OutOfMemoryError:
            gigabytes = work.case.compulsory_bytes / 1e9, self.machine.free_bytes() / 1e9
            tuned.fault = "the operands take {:.1f} GB and {:.1f} GB of device memory are free".format(*gigabytes)
            return tuned
        tuned.left_out, tuned.wrong = (*failed, *finding.left_out), finding.wrong
        if finding.ranking:
            tuned.entry = Entry(work.product, _utc(), finding.ranking, tuned.left_out)
        else:
            tuned.fault = "no configuration could be timed"
        return tuned


def _utc() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
