"""The roofline as text: points and roofs at their places, every figure in a table, in the width there is."""

import json
import re
from pathlib import Path

import pytest
from made_up_results import CEILING_TFLOPS, COPY_GBS, SERIES, SQUARES, results, with_reads
from made_up_suites import FULL, model, squares

from hgemm.bench.metrics import speed, timed_rows
from hgemm.bench.results import write
from hgemm.bench.suites import Shape
from hgemm.plot import NothingToDraw, terminal
from hgemm.plot.__main__ import main

SLOPE = "\N{BOX DRAWINGS LIGHT DIAGONAL UPPER RIGHT TO LOWER LEFT}"
ONE = results(shapes=SQUARES[1:2], series=SERIES[:1])


def rows(text: str) -> list[tuple[str, str]]:
    """(label, characters) of the chart's lines from the top."""
    return [(line[:6].strip(), line[8:]) for line in text.splitlines() if line[7:8] == "│"]


def test_a_point_stands_in_the_line_of_its_speed_and_the_column_of_its_intensity() -> None:
    made_up = results(shapes=SQUARES[1:2], series=(("torch", None, 0.5, 1, 1),))
    timed_rows(made_up.cases[0])[0].timing.samples_us = [2 * 4096**3 / 500e6] * 7
    text = terminal.text(made_up, "bf16", 100)
    (line,) = (line for line in rows(text) if re.search(r"A(?![A-Z])", line[1]))
    assert line[0] == "500"
    ticks = next(line for line in text.splitlines() if re.fullmatch(r"[ \d.]+1024[ \d]+", line))
    # 4096 / 3 FLOP a byte lie between the ticks.
    assert ticks.index("1024") < 8 + line[1].index("A") < ticks.index("2048") + 4


def test_roofs_are_lines_with_their_rates() -> None:
    made_up = results()
    made_up.roofs = [roof for roof in made_up.roofs if roof.name != "l2"]
    lines = rows(terminal.text(made_up, "bf16", 110))
    ceiling = next(line for _, line in lines if "mma.sync 640" in line)
    assert ceiling.count("─") > 20
    assert ceiling.index("mma.sync") < ceiling.index("─")
    assert any("vendor 1071" in line and "·····" in line for _, line in lines)
    slope = [line.index(SLOPE) for _, line in lines if SLOPE in line]
    assert len(slope) > 5
    assert slope == sorted(slope, reverse=True)


def test_every_figure_is_in_the_table_fastest_first() -> None:
    made_up = results(shapes=SQUARES[:2])
    text = terminal.text(made_up, "bf16", 100)
    for case in made_up.cases:
        section = text.split(f"\n{case.M}³: ")[1].split("\n\n")[0].splitlines()[1:]
        figures = [(line.split()[1], float(line.split()[-2])) for line in section]
        expected = sorted(((speed(row).median, row.backend) for row in timed_rows(case)), reverse=True)
        assert [name for name, _ in figures] == [name for _, name in expected]
        assert [value for _, value in figures] == pytest.approx([value for value, _ in expected], abs=0.06)


@pytest.mark.parametrize("read", [None, 4500.0])
def test_shares_are_of_the_ceiling_or_of_memory_whichever_is_lower(read: float | None) -> None:
    made_up = model(series=SERIES[:1], projections=["8B o"])
    if read:
        made_up = with_reads(made_up, read)
    text = terminal.text(made_up, "bf16", 100)
    # One row of 4096 x 4096: 2 operations for each of the weight's 2-byte elements, and a little more traffic.
    flops, nbytes = 2 * 4096 * 4096, 2 * (4096 * 4096 + 2 * 4096)
    limit = flops / nbytes * (read or COPY_GBS) / 1000
    assert limit < CEILING_TFLOPS
    share = float(text.split("8B o, 1 x 4096 x 4096, nt: ")[1].splitlines()[1].split()[-1])
    assert share == pytest.approx(100 * speed(timed_rows(made_up.cases[0])[0]).median / limit, rel=0.01)


@pytest.mark.parametrize("width", [48, 80, 100, 200])
def test_the_chart_is_as_wide_as_the_terminal(width: int) -> None:
    chart = terminal.text(results(series=SERIES[:3]), "bf16", width).split("\nroof")[0].splitlines()
    assert max(map(len, chart)) <= width
    assert max(map(len, chart)) >= min(width, terminal.WIDEST) - 2


def test_marks_are_one_a_contestant_and_the_table_explains_them() -> None:
    made_up = results(shapes=SQUARES[1:2], gpu="NVIDIA Unheard-of 9000")
    made_up.roofs = []
    text = terminal.text(made_up, "bf16", 110)
    chart = "".join(line for _, line in rows(text))
    assert sorted(chart.replace(" ", "")) == list("ABCDEFGHI")
    for mark, (backend, *_) in zip("ABCDEFGHI", SERIES, strict=True):
        assert re.search(rf"^{mark}  {backend}\b", text, re.MULTILINE)


def test_a_crowd_is_thinned_to_the_fastest_of_each_backend() -> None:
    made_up = squares()
    text = terminal.text(made_up, "bf16", 100)
    assert "its fastest configuration in each case" in text
    assert "128x128" not in text
    assert len(re.findall(r"^[A-Z]  cuda_tma", text, re.MULTILINE)) == len(made_up.cases)
    assert len({backend for backend, *_ in FULL}) == len(set(re.findall(r"^([A-Z])  \w", text, re.MULTILINE)))


def test_without_unicode_it_is_ascii() -> None:
    text = terminal.text(model(), "bf16", 80, unicode=False)
    assert text.isascii()
    assert "---" in text
    assert "^3" in terminal.text(ONE, "bf16", 80, unicode=False)


def test_an_unknown_board_without_roofs_has_points() -> None:
    bare = results(shapes=SQUARES[1:2], series=SERIES[:1], gpu="NVIDIA Unheard-of 9000")
    bare.roofs = []
    text = terminal.text(bare, "bf16", 100)
    assert any("A" in line for _, line in rows(text))
    assert "limit" not in text.split("contestant")[1].split("\n\n")[1]


def test_the_hosts_time_has_no_roofline() -> None:
    made_up = results(shapes=SQUARES[:1], series=SERIES[:1])
    timed_rows(made_up.cases[0])[0].timing.mode = "e2e"
    with pytest.raises(NothingToDraw, match=r"in bf16 the host's time was measured \(mode e2e\)"):
        terminal.text(made_up, "bf16", 100)


def test_on_the_command_line_nothing_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "run.json", tmp_path / "plots"
    monkeypatch.setattr("hgemm.plot.__main__.default_folder", lambda: out)
    write(results(shapes=SQUARES[:2], dtypes=("bf16", "fp16")), path)
    assert main(["roofline", "--text", "--from", str(path)]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("Roofline")] == [
        "Roofline, NVIDIA H200, bf16",
        "Roofline, NVIDIA H200, fp16",
    ]
    assert not out.exists()


def test_json_has_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    made_up = results(shapes=[Shape(64, 4096, 4096)], series=SERIES[:1])
    write(made_up, path)
    assert main(["--text", "--json", "--from", str(path)]) == 0
    (roofline,) = json.loads(capsys.readouterr().out)["rooflines"]
    assert {(roof["name"], roof["unit"], roof["measured"]) for roof in roofline["roofs"]} == {
        ("mma.sync", "TFLOPS", True),
        ("cublas", "TFLOPS", True),
        ("copy", "TB/s", True),
        ("l2", "TB/s", True),
        ("vendor", "TFLOPS", False),
        ("vendor", "TB/s", False),
    }
    (point,) = roofline["points"]
    assert point["contestant"] == "torch"
    assert point["flop_per_byte"] == pytest.approx(2 * 64 * 4096**2 / (2 * (2 * 64 * 4096 + 4096**2)), abs=0.001)
    assert point["tflops"] == pytest.approx(speed(timed_rows(made_up.cases[0])[0]).median, abs=0.001)
