"""What is made of counters: wavefronts against those needed, bytes, and the reasons why warps wait."""

import re

import pytest
from ncu_output import SWIZZLED, raw_page

from hgemm.profile import metrics, ncu
from hgemm.profile.counters import Counted, read
from hgemm.profile.metrics import METRICS, STALLS, metric_names, stall_metric


def counted(**changes: tuple[str, str]) -> Counted:
    values = dict(SWIZZLED)
    for name, value in changes.items():
        values[METRICS[name.replace("_", " ")].names[0]] = value
    return read(ncu.parse(raw_page([("matmul", values)])))


def test_values_come_in_our_units() -> None:
    values = counted().values
    assert values["time"] == pytest.approx(363.456)
    assert values["clock"] == pytest.approx(1755)
    assert values["tensor pipe"] == 71.98
    assert values["DRAM read"] == 67_108_864  # by the second of its names
    assert values["DRAM written"] is None
    assert values["L2"] == 32_000  # from sectors, where the bytes are not counted
    assert values["issue"] is None


@pytest.mark.parametrize(
    ("text", "unit", "us"),
    [
        ("363,456", "nsecond", 363.456),
        ("363.46", "usecond", 363.46),
        ("0.36", "msecond", 360.0),
        ("1", "fortnight", None),
    ],
)
def test_units_of_older_and_newer_releases(text: str, unit: str, us: float | None) -> None:
    assert counted(time=(unit, text)).values["time"] == (None if us is None else pytest.approx(us))


@pytest.mark.parametrize(("unit", "text"), [("cycle/nsecond", "1.755"), ("Ghz", "1.755"), ("cycle/usecond", "1,755")])
def test_clocks_of_older_and_newer_releases(unit: str, text: str) -> None:
    assert counted(clock=(unit, text)).values["clock"] == pytest.approx(1755)


def test_wavefronts_stand_beside_those_that_are_needed() -> None:
    kinds = {kind.kind: kind for kind in counted().shared}
    assert list(kinds) == [
        *("ldmatrix", "load", "store", "TMA writes", "loads in the pipe", "stores in the pipe", "all in the pipe")
    ]
    assert (kinds["ldmatrix"].least, kinds["ldmatrix"].ratio) == (4000, 1.0)
    assert (kinds["store"].least, kinds["store"].ratio) == (200, 1.25)
    assert (kinds["TMA writes"].wavefronts, kinds["TMA writes"].least) == (None, 10)
    # Instructions by themselves: 4,000 and 400. What the pipe adds are waits.
    assert (kinds["loads in the pipe"].least, kinds["loads in the pipe"].conflicts) == (4400, 880)
    assert kinds["loads in the pipe"].ratio == pytest.approx(1.2)
    assert kinds["all in the pipe"].ratio is None


def test_the_verdict_goes_by_wavefronts_and_not_by_what_the_pipe_calls_conflicts() -> None:
    sentence = counted().sentence
    assert sentence is not None
    assert sentence.startswith("ldmatrix took 4.00 wavefronts each where 4 are needed: no bank conflicts; the 880 ")
    worse = counted(ldmatrix_wavefronts=("", "16,000"), ldmatrix_conflicts=("", "12,000")).sentence
    assert worse == "ldmatrix took 16.00 wavefronts each where 4 are needed: bank conflicts"


def test_a_kernel_without_ldmatrix_has_no_verdict() -> None:
    none = counted(ldmatrix_instructions=("inst", "0"), ldmatrix_wavefronts=("", "0"))
    assert "ldmatrix" not in [kind.kind for kind in none.shared]
    assert none.sentence is None


def test_what_was_not_counted_is_not_judged() -> None:
    unknown = counted(ldmatrix_wavefronts=("", "n/a"))
    assert next(kind for kind in unknown.shared if kind.kind == "ldmatrix").ratio is None
    assert unknown.sentence is None


def test_reasons_are_shares_of_the_time_that_warps_are_there() -> None:
    stalls = counted().stalls
    assert [(stall.reason, stall.share) for stall in stalls] == [
        ("math_pipe_throttle", pytest.approx(2.5 / 5)),
        ("wait", pytest.approx(1 / 5)),
        ("barrier", pytest.approx(0.5 / 5)),
    ]
    assert all(stall.meaning == STALLS[stall.reason] for stall in stalls)


def test_of_several_kernels_the_longest_counts_and_the_others_are_named() -> None:
    page = raw_page(
        [
            ("memset", {"gpu__time_duration.sum": ("ns", "1,000")}),
            ("nvjet", {"gpu__time_duration.sum": ("ns", "90,000")}),
            ("reduce", {"gpu__time_duration.sum": ("ns", "2,000")}),
        ]
    )
    found = read(ncu.parse(page))
    assert (found.kernel, found.others) == ("nvjet", ("memset", "reduce"))
    assert found.values["time"] == 90.0


def test_the_names_that_ncu_is_asked_for_are_metrics() -> None:
    """Each with its rollup: a name without one is an error to ncu, where one that the chip lacks is only "n/a"."""
    names = metric_names()
    assert len(names) == len(set(names))
    for name in names:
        assert re.fullmatch(r"launch__\w+|[a-z0-9]+__\w+\.(sum|avg|ratio|pct)(\.\w+)?", name), name
    assert {name for name in names if "stalled" in name} == {stall_metric(reason) for reason in (*STALLS, "selected")}


def test_every_unit_of_ours_is_reached_from_one_of_ncu() -> None:
    for metric in METRICS.values():
        assert metric.unit in ("", "%", *metrics._FACTORS)
        assert metric.meaning and not metric.meaning.endswith(".")
