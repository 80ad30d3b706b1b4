"""Marks that would overlap are moved apart, no further than needed, and nothing else is moved."""

import itertools
import random

import pytest

from hgemm.plot.placement import spread, swarm


def test_marks_with_room_stay_where_they_are() -> None:
    assert spread([50.0, 10.0, 90.0], 20, 0, 100) == [50.0, 10.0, 90.0]
    assert spread([], 20, 0, 100) == []


def test_two_that_touch_share_the_way() -> None:
    assert spread([48.0, 52.0], 20, 0, 100) == [40.0, 60.0]
    assert spread([52.0, 48.0], 20, 0, 100) == [60.0, 40.0]


def test_a_third_that_is_pushed_pushes_on() -> None:
    # 40 and 60 after the first two; 65 joins: around the mean of 48, 52 - 20 and 65 - 40 is 35.
    assert spread([48.0, 52.0, 65.0], 20, 0, 100) == pytest.approx([35.0, 55.0, 75.0])


def test_the_ends_hold() -> None:
    assert spread([1.0, 2.0], 20, 0, 100) == [0.0, 20.0]
    assert spread([99.0, 98.0], 20, 0, 100) == [100.0, 80.0]
    # Eleven marks do not fit 20 apart between 0 and 100; they do 10 apart.
    assert spread([50.0] * 11, 20, 0, 100) == pytest.approx([10.0 * i for i in range(11)])


def test_spread_marks_keep_their_distance_order_and_ends() -> None:
    generator = random.Random(5)
    for _ in range(300):
        positions = [generator.uniform(0, 100) for _ in range(generator.randint(1, 9))]
        places = spread(positions, 11, 0, 100)
        assert min(places) >= -1e-9
        assert max(places) <= 100 + 1e-9
        ordered = sorted(zip(positions, places, strict=True))
        for (_, first), (_, second) in itertools.pairwise(ordered):
            assert second - first >= 11 - 1e-9


def test_a_swarm_leaves_single_marks_in_the_middle() -> None:
    assert swarm([0.0, 20.0, 40.0], 8) == [0.0, 0.0, 0.0]


def test_a_swarm_never_overlaps_and_stays_narrow() -> None:
    generator = random.Random(2)
    for _ in range(100):
        heights = [generator.uniform(0, 60) for _ in range(10)]
        offsets = swarm(heights, 8)
        for (x1, y1), (x2, y2) in itertools.combinations(list(zip(offsets, heights, strict=True)), 2):
            assert (x1 - x2) ** 2 + (y1 - y2) ** 2 >= 64 - 1e-9
        assert max(map(abs, offsets)) <= 40


def test_equal_heights_stand_side_by_side() -> None:
    assert sorted(swarm([5.0, 5.0, 5.0], 8)) == [-8.0, 0.0, 8.0]
