"""Who is tried for a product: every configuration that takes it, without those that cannot win, before any compiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from hgemm.backends import Backend
from hgemm.bench.contestants import Choice, choose
from hgemm.bench.suites import Case
from hgemm.config import Config
from hgemm.problem import Problem

DEFAULT_PATTERNS = ("cuda_*", "triton*")
"""The kernels of this package."""

MOST_ACCUMULATORS = 128
"""fp32 accumulators a thread. A thread has 255 registers: with twice as many accumulators they do not even hold those,
and beyond 128 too few remain for the operands of the next step, so that the compiler spills."""

HOPELESS = 4
"""A configuration is not tried if its busiest multiprocessor has to compute more than this many times what that of the
best one does. It would have to work so many times as fast, and the kernels are not that far apart."""

_WHOLE_K = frozenset(("noswizzle", "rotate", "producer", "persistent", "store-tma"))
"""Flags under which a block computes whole tiles, along all of K, so that their number says how many blocks work."""

Ground = Literal["unavailable", "refused", "rounds partial sums", "shared memory", "registers", "waves"]


@dataclass(frozen=True)
class Pruned:
    """A choice that is not tried: on which ground, and the rule with the values found."""

    choice: Choice
    ground: Ground
    reason: str


def problem_of(case: Case, device: torch.device) -> Problem:
    """The product of dense, aligned matrices in the case's layout on ``device``, with no memory taken."""
    shape = case.shape

    def operand(rows: int, columns: int, letter: str) -> torch.Tensor:
        stored = (rows, columns) if letter == "n" else (columns, rows)
        size = (shape.batch, *stored) if shape.batch > 1 else stored
        tensor = torch.empty(size, dtype=case.torch_dtype, device="meta")
        return tensor if letter == "n" else tensor.mT

    a, b = operand(shape.M, shape.K, case.layout[0]), operand(shape.K, shape.N, case.layout[1])
    return replace(Problem.from_tensors(a, b, operand(shape.M, shape.N, "n")), device=device)


def candidates(
    patterns: Sequence[str], backends: Iterable[Backend], problem: Problem, multiprocessors: int
) -> tuple[list[Choice], list[Pruned]]:
    """Who of those that ``patterns`` match is tried, and who is not. Compiles nothing and takes no memory."""
    kept, pruned = [], []
    for choice in choose(patterns, backends, problem):
        if unfit := _unfit(choice, problem):
            pruned.append(Pruned(choice, *unfit))
        else:
            kept.append(choice)
    work = {choice: _work(choice, problem, multiprocessors) for choice in kept}
    least = min((known for known in work.values() if known is not None), default=0)
    for choice, own in work.items():
        if own is not None and own > HOPELESS * least:
            kept.remove(choice)
            reason = f"its busiest multiprocessor computes {own / least:.1f} times what that of the best one does"
            pruned.append(Pruned(choice, "waves", reason))
    return kept, pruned


def _unfit(choice: Choice, problem: Problem) -> tuple[Ground, str] | None:
    """Why a choice cannot compute the product, or not without spilling; None if it can."""
    if not choice.backend.properties.exact_integers:
        return "rounds partial sums", f"{choice.backend.name} may round partial sums to 16 bits: auto never chooses it"
    if refusal := choice.refusal(problem):
        status, reason = refusal
        if status == "unavailable":
            return "unavailable", reason
        return ("shared memory" if "shared memory" in reason else "refused"), reason
    config = _config(choice)
    if config and (accumulators := config.tile_m * config.tile_n // config.threads) > MOST_ACCUMULATORS:
        return "registers", f"{accumulators} accumulators a thread, and more than {MOST_ACCUMULATORS} spill"
    return None


def _work(choice: Choice, problem: Problem, multiprocessors: int) -> int | None:
    """The most elements of C that one multiprocessor computes if the tiles are dealt out evenly: waves x tile. What of
    a tile lies outside C does not count: where that matters, reading A and B takes longer than multiplying. None where
    tiles do not say how the work is divided."""
    config = _config(choice)
    if config is None or not _WHOLE_K.issuperset(config.flags):
        return None
    rows, columns = (problem.M, problem.N) if problem.out.letter == "n" else (problem.N, problem.M)
    tiles = -(-rows // config.tile_m) * -(-columns // config.tile_n) * math.prod(problem.batch)
    return -(-tiles // multiprocessors) * min(config.tile_m, rows) * min(config.tile_n, columns)


def _config(choice: Choice) -> Config | None:
    """The configuration, if its name says what it is."""
    try:
        return Config.parse(choice.config) if choice.config else None
    except ValueError:
        return None
