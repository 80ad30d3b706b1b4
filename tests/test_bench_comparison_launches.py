"""Comparing short products: what a launch costs is measured in every round and made equal in both runs."""

from dataclasses import replace

import numpy as np
import pytest
from made_up_pairs import ROUNDS, SCATTER, Times, results_of, set_samples

from hgemm.bench.comparison_pairing import compare
from hgemm.bench.metrics import LAUNCH
from hgemm.bench.schema import Results


def with_launches(results: Results, us: Times) -> Results:
    """The same with a launch of nothing in every round."""
    for case in results.cases:
        control = case.rows[0]
        row = replace(control, role="roof", backend=LAUNCH, timing=replace(control.timing))  # type: ignore[type-var]
        set_samples(row, us)
        case.rows.append(row)
    return results


@pytest.mark.parametrize("kernels", [1, 2])
def test_what_a_launch_costs_is_taken_off_once_for_each_kernel(kernels: int) -> None:
    cost = np.array([1.5, 1.5, 1.5, 1.2, 1.2, 1.2, 1.2])  # it changes in the middle of B

    def run(launch: Times) -> Results:
        results = results_of((4 * SCATTER + kernels * launch)[None], 170 * np.ones((1, ROUNDS)))
        row = results.cases[0].rows[1]
        row.kernels = (row.kernels or [])[:1] * kernels
        return with_launches(results, launch)

    (change,) = compare(run(np.full(ROUNDS, 1.5)), run(cost)).changes
    assert change.verdict == "same"
    assert change.ratio is not None and change.ratio.value == pytest.approx(1.0, abs=1e-3)
    assert change.plain is not None and change.plain < 0.97
    (plain,) = compare(run(np.full(ROUNDS, 1.5)), run(cost), control=False).changes
    assert plain.verdict != "same"
    slow = run(cost)
    timing = slow.cases[0].rows[1].timing
    assert timing is not None
    timing.samples_us = [1.03 * us for us in timing.samples_us]
    (slower,) = compare(run(np.full(ROUNDS, 1.5)), slow).changes
    assert slower.verdict == "slower"


def test_short_products_without_launches_are_remarked_on() -> None:
    a, b = (results_of(4 * SCATTER[None], 170 * np.ones((1, ROUNDS))) for _ in "ab")
    b.run.utc = "2026-02-01T12:00:00Z"
    assert any("launches of nothing" in note for note in compare(a, b).notes)
    launch = np.full(ROUNDS, 1.5)
    assert compare(with_launches(a, launch), with_launches(b, launch)).notes == []
