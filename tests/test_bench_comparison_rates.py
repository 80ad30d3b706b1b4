"""How often a verdict is wrong, and how often right, on simulated runs of known noise."""

from collections.abc import Callable

import numpy as np
import pytest
from made_up_pairs import ROUNDS, Times, results_of, set_clocks

from hgemm.bench.comparison_pairing import compare
from hgemm.bench.schema import Results


def normal(generator: np.random.Generator, shape: tuple[int, int]) -> Times:
    return generator.normal(0, 1, shape)


def heavy_tails(generator: np.random.Generator, shape: tuple[int, int]) -> Times:
    return generator.standard_t(2, shape)


def skewed(generator: np.random.Generator, shape: tuple[int, int]) -> Times:
    return generator.exponential(1, shape)


def rarely_slow(generator: np.random.Generator, shape: tuple[int, int]) -> Times:
    """A tenth of the samples is slower by ten times the noise on average."""
    return normal(generator, shape) + (generator.random(shape) < 0.1) * generator.exponential(10, shape)


TRIALS = 1000
# 2.5% and three standard deviations of that many trials.
ALLOWED = 0.025 + 3 * (0.025 * 0.975 / TRIALS) ** 0.5


def simulated(
    seed: int,
    noise: float,
    kind: Callable[[np.random.Generator, tuple[int, int]], Times] = normal,
    *,
    factor: float = 1.0,
    control: float = 0.001,
    clock: float = 0.0,
    rounds: int = ROUNDS,
) -> Results:
    """One run in which every case is an independent trial. ``clock`` is the standard deviation of what each round slows
    contestant and control by; a quarter of it is the run's own."""
    generator = np.random.default_rng(seed)
    shape = TRIALS, rounds
    common = clock * (generator.normal(0, 1, shape) + 0.25 * generator.normal(0, 1, (TRIALS, 1)))
    return results_of(
        100 * factor * np.exp(noise * kind(generator, shape) + common),
        170 * np.exp(control * generator.normal(0, 1, shape) + common),
    )


def rates(a: Results, b: Results, margin: float) -> dict[str, float]:
    counts = compare(a, b, margin=margin).counts
    return {verdict: count / len(a.cases) for verdict, count in counts.items()}


@pytest.mark.parametrize(
    ("noise", "kind", "control", "clock"),
    [
        (0.003, normal, 0.001, 0.0),
        (0.01, normal, 0.001, 0.0),
        (0.002, normal, 0.002, 0.0),  # a control as noisy as the contestant: its median would be off by as much
        (0.003, normal, 0.001, 0.02),  # a clock that wanders by 2%
        (0.004, heavy_tails, 0.001, 0.0),
        (0.004, skewed, 0.001, 0.0),
        (0.003, rarely_slow, 0.001, 0.01),
    ],
)
def test_the_same_code_is_rarely_called_slower_or_faster(
    noise: float, kind: Callable[[np.random.Generator, tuple[int, int]], Times], control: float, clock: float
) -> None:
    a, b = (simulated(seed, noise, kind, control=control, clock=clock) for seed in (1, 2))
    significant = rates(a, b, margin=0.0)
    assert significant["slower"] <= ALLOWED
    assert significant["faster"] <= ALLOWED
    beyond = rates(a, b, margin=0.01)
    assert beyond["slower"] + beyond["faster"] <= 0.002


def test_three_percent_slower_is_called_slower() -> None:
    a, b = simulated(1, 0.005), simulated(2, 0.005, factor=1.03)
    assert rates(a, b, margin=0.01)["slower"] >= 0.95
    assert rates(b, a, margin=0.01)["faster"] >= 0.95
    a, b = simulated(3, 0.005, clock=0.02), simulated(4, 0.005, factor=1.03, clock=0.02)
    assert rates(a, b, margin=0.01)["slower"] >= 0.95


def test_two_runs_of_the_same_code_are_the_same() -> None:
    assert rates(simulated(1, 0.003, clock=0.02), simulated(2, 0.003, clock=0.02), margin=0.01)["same"] >= 0.95
    # As much noise as seven rounds allow, of the contestant and the control together; eleven have room for more.
    a, b = (simulated(seed, 0.0038, control=0.001) for seed in (5, 6))
    assert rates(a, b, margin=0.01)["same"] >= 0.95
    a, b = (simulated(seed, 0.005, control=0.001, rounds=11) for seed in (7, 8))
    assert rates(a, b, margin=0.01)["same"] >= 0.95


# At equal clocks. As before, every case is an independent trial. The control is at the limit of power, with a clock
# half a percent lower in B; the contestant follows its own clock by its share, from round to round and by a step in B.

FEWER = 250
WRONG = 0.025 + 3 * (0.025 * 0.975 / FEWER) ** 0.5
"""What an interval of 95% may miss on one side, and three standard deviations of that many trials."""


def clocked(
    seed: int,
    share: float,
    wander: float,
    *,
    rounds: int,
    step: float = 0.0,
    factor: float = 1.0,
    kind: Callable[[np.random.Generator, tuple[int, int]], Times] = normal,
) -> Results:
    generator = np.random.default_rng(seed)
    shape = FEWER, rounds
    clock = step + wander * generator.normal(0, 1, shape)
    limit = (-0.005 if step else 0.0) + 0.001 * generator.normal(0, 1, shape)
    results = results_of(
        100 * factor * np.exp(0.002 * kind(generator, shape) - share * clock),
        170 * np.exp(0.0003 * generator.normal(0, 1, shape) - 0.85 * limit),
    )
    for case, of_control, of_contestant in zip(results.cases, limit, clock, strict=True):
        set_clocks(case.rows[0], 1650 * np.exp(of_control))
        set_clocks(case.rows[1], 1800 * np.exp(of_contestant))
    return results


ROWS = {"limited": (1.0, 0.004), "limited, steady": (1.0, 0.0005), "between": (0.5, 0.001), "memory": (0.0, 0.0005)}
"""Shares, and how the clock wanders. Of a steady one the noise is four times as much, so the share is hardly known."""


STEPS = ((normal, 0.01), (normal, 0.03), (heavy_tails, 0.02), (rarely_slow, -0.03))
# Every two of a step, a row and a number of rounds meet once.
CLOCKS = [
    (*STEPS[(first + second) % len(STEPS)], row, rounds)
    for first, row in enumerate(ROWS)
    for second, rounds in enumerate((4, 5, 7, 15))
]


@pytest.mark.parametrize(("kind", "step", "row", "rounds"), CLOCKS)
def test_no_step_of_the_clock_makes_a_false_verdict(
    kind: Callable[[np.random.Generator, tuple[int, int]], Times], step: float, row: str, rounds: int
) -> None:
    a = clocked(1, *ROWS[row], rounds=rounds, kind=kind)
    found = rates(a, clocked(2, *ROWS[row], rounds=rounds, kind=kind, step=step), margin=0.01)
    assert found["slower"] + found["faster"] <= WRONG
    slower = clocked(3, *ROWS[row], rounds=rounds, kind=kind, step=step, factor=1.03)
    found = rates(a, slower, margin=0.01)
    assert found["same"] + found["faster"] <= WRONG


@pytest.mark.parametrize("row", ROWS)
def test_half_a_percent_of_the_clock_hides_nothing_in_fifteen_rounds(row: str) -> None:
    a = clocked(1, *ROWS[row], rounds=15)
    assert rates(a, clocked(2, *ROWS[row], rounds=15, step=0.005), margin=0.01)["same"] >= 0.95
    assert rates(a, clocked(3, *ROWS[row], rounds=15, step=0.005, factor=1.03), margin=0.01)["slower"] >= 0.99
