"""The ladder: its rungs in order, what each adds, where configurations are missing, its picture and its command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_results import results
from matplotlib.figure import Figure
from picture_texts import assert_texts_are_apart_and_inside

import hgemm
from hgemm.bench import ladder
from hgemm.bench.__main__ import _with_defaults
from hgemm.bench.options import parser, plan_of, recorded
from hgemm.bench.results import write
from hgemm.bench.schema import Results
from hgemm.bench.suites import Shape
from hgemm.config import Config
from hgemm.plot import ladder as picture
from hgemm.plot.__main__ import main
from hgemm.plot.source import NothingToDraw

NAMES = [rung.contestant for rung in ladder.RUNGS]


def run(shares: dict[str, float], sizes: tuple[int, ...] = ladder.SIZES) -> Results:
    """A file with these contestants, whose speeds have the given ratios to each other."""
    series = [(*name.split(":"), share, 200, 98_304) for name, share in shares.items()]
    return results(shapes=[Shape(size, size, size) for size in sizes], series=series)


def under_load(found: Results) -> Results:
    for case in found.cases:
        for row in case.rows:
            if row.timing:
                row.timing.idle_ms, row.timing.lead_in_bursts = 0.0, 1
    return found


def test_the_rungs_are_configurations_each_once_and_build_on_an_earlier_one() -> None:
    assert len(set(NAMES)) == len(NAMES)
    for place, rung in enumerate(ladder.RUNGS):
        Config.parse(rung.contestant.partition(":")[2])
        assert rung.base is None or rung.base in NAMES[:place]


def test_every_technique_that_a_name_spells_is_switched_on_by_a_rung_of_its_own() -> None:
    """Within a family a rung has at most one flag more than its base. What has none more changes the tile or stages."""
    added = set()
    for place, rung in enumerate(ladder.RUNGS):
        base = rung.base or (ladder.RUNGS[place - 1].contestant if place else None)
        if base is None or base.partition(":")[0] != rung.contestant.partition(":")[0]:
            continue
        config, other = (Config.parse(name.partition(":")[2]) for name in (rung.contestant, base))
        more = set(config.flags) - set(other.flags)
        assert len(more) <= 1, rung
        added |= more
    assert added == {"rotate", "producer", "persistent", "multicast", "store-tma", "tail"}


def test_rungs_that_do_not_exist_are_not_measured() -> None:
    chosen = ladder.contestants([hgemm.backends()["cuda_cp_async"]])
    assert chosen == [name for name in NAMES if name.startswith("cuda_cp_async:")]
    assert chosen


def test_steps_hold_what_the_files_say() -> None:
    burst, sustained = run({NAMES[1]: 0.5, NAMES[0]: 0.2, "torch:x": 0.9}), run({NAMES[1]: 0.4}, (4096,))
    counted = {"contestants": [{"backend": "cuda_cp_async", "config": NAMES[1][14:], "counted": None}]}
    first, second = ladder.steps(burst, "bf16", sustained, counted)
    assert [first.rung, second.rung] == list(ladder.RUNGS[:2])
    assert (second.registers, second.shared_bytes, second.tensor_pipe) == (200, 98_304, None)
    assert second.burst.keys() == set(ladder.SIZES)
    assert second.sustained.keys() == {4096}
    assert first.sustained == {}
    assert second.burst[4096].share.median == pytest.approx(0.5, rel=0.03)
    assert second.sustained[4096].share.median == pytest.approx(0.4, rel=0.03)
    assert ladder.gain(second, [first, second], 4096) == pytest.approx(1.5, rel=0.1)
    assert ladder.gain(first, [first, second], 4096) is None
    counted["contestants"][0]["counted"] = {"values": {"tensor pipe": 81.5}}  # type: ignore[dict-item]
    assert ladder.steps(burst, "bf16", None, counted)[1].tensor_pipe == 81.5


def test_an_alternative_is_held_against_what_it_replaces() -> None:
    producer = next(rung for rung in ladder.RUNGS if rung.base)
    assert producer.base is not None
    before = NAMES[NAMES.index(producer.contestant) - 1]
    found = ladder.steps(run({producer.base: 0.4, before: 0.8, producer.contestant: 0.6}), "bf16")
    assert ladder.gain(found[2], found, 8192) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("sustained", [False, True])
def test_the_picture_of_all_rungs(sustained: bool) -> None:
    shares = {name: 0.3 + 0.045 * place for place, name in enumerate(NAMES)}
    figure = picture.draw(run(shares), "bf16", under_load(run(shares)) if sustained else None)
    assert_texts_are_apart_and_inside(figure)
    written = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert {rung.technique for rung in ladder.RUNGS} <= written


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_bars_and_diamonds_are_called_what_they_are() -> None:
    shares = {NAMES[1]: 0.3, NAMES[2]: 0.4}
    diamonds = picture.draw(run(shares), "bf16", under_load(run(shares)))
    assert legend(diamonds) == ["cp.async, in bursts", "TMA, in bursts", "under sustained load"]
    bars = picture.draw(under_load(run(shares)), "bf16")
    assert legend(bars) == ["cp.async, under sustained load", "TMA, under sustained load"]


def test_small_print_says_how_the_diamonds_were_measured() -> None:
    shares = {NAMES[1]: 0.3, NAMES[2]: 0.4}
    notes = [picture.draw(run(shares), "bf16", held).texts[-1].get_text() for held in (None, under_load(run(shares)))]
    assert "sustained load, " not in notes[0]
    assert "Diamonds: " in notes[1] and "sustained load, " in notes[1]


def test_what_was_measured_in_bursts_or_elsewhere_is_not_drawn_as_sustained() -> None:
    shares = {NAMES[1]: 0.3, NAMES[2]: 0.4}
    with pytest.raises(NothingToDraw, match=r"of --sustained was measured in bursts; .*--ladder --sustained"):
        picture.draw(run(shares), "bf16", run(shares))
    elsewhere = under_load(run(shares))
    elsewhere.env.gpu = "NVIDIA GeForce RTX 5090"
    with pytest.raises(NothingToDraw, match="another GPU: NVIDIA GeForce RTX 5090, not NVIDIA H200"):
        picture.draw(run(shares), "bf16", elsewhere)


@pytest.mark.parametrize(
    ("change", "text"),
    [(0.0056, "+0.6%"), (-0.003, "\N{MINUS SIGN}0.3%"), (0.0996, "+10%"), (1.98, "+198%"), (0.0, "+0.0%")],
)
def test_a_small_change_has_a_decimal(change: float, text: str) -> None:
    assert picture._change(change) == text


def test_too_few_rungs_are_no_ladder() -> None:
    with pytest.raises(NothingToDraw, match=r"fewer than 2 rungs .* 4096³ and 8192³ in bf16.*--ladder"):
        picture.draw(run({NAMES[0]: 0.2}), "bf16")
    with pytest.raises(NothingToDraw):
        picture.draw(run({NAMES[0]: 0.2, NAMES[1]: 0.3}, (1024,)), "bf16")


def test_the_command_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ladder.json"
    held = tmp_path / "sustained.json"
    write(run({NAMES[0]: 0.2, NAMES[1]: 0.3}), file)
    write(under_load(run({NAMES[0]: 0.2, NAMES[1]: 0.3})), held)
    arguments = [
        "--from",
        str(file),
        "--sustained",
        str(held),
        "--out",
        str(tmp_path / "out"),
        "--format",
        "svg",
        "--json",
    ]
    assert main(["ladder", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [str(tmp_path / "out" / "ladder-bf16.svg")]
    with pytest.raises(SystemExit):
        main(["sizes", *arguments])
    assert "--sustained is for ladder" in capsys.readouterr().err


def test_bench_measures_the_rungs_that_exist_at_the_ladder_s_sizes_or_at_those_given() -> None:
    usual = ["4096,4096,4096", "8192,8192,8192"]
    for arguments, shapes in ((["--ladder"], usual), (["--ladder", "--mnk", "8,8,8"], ["8,8,8"])):
        parse = parser()
        _, options, _ = _with_defaults(parse, parse.parse_args(arguments), arguments)
        assert recorded(options)["mnk"] == shapes
        assert recorded(options)["backends"] == ladder.contestants(hgemm.backends())
        assert [case.shape.M for case in plan_of(options).cases] == [int(shape.split(",")[0]) for shape in shapes]


def test_the_kernel_that_adds_parts_is_not_the_one_of_a_rung() -> None:
    """Of a tile of 192 rows it has more threads than what multiplies."""
    found = run({NAMES[-1]: 1.0})
    for case in found.cases:
        for row in case.rows:
            if row.kernels and row.config:
                row.kernels.append(replace(row.kernels[0], name="add_parts", registers=99, shared_bytes=0, blocks=9999))
    (step,) = ladder.steps(found, "bf16")
    assert (step.registers, step.shared_bytes) == (200, 98_304)
