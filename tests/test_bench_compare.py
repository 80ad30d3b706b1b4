"""python -m hgemm.bench compare: what it refuses, what it prints, how it ends."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_up_pairs import SCATTER, case_of, one_case, row_of, set_samples, whole
from rich.console import Console

from hgemm.bench import compare as command
from hgemm.bench.__main__ import main as bench
from hgemm.bench.comparison_pairing import compare
from hgemm.bench.comparison_rules import Incomparable
from hgemm.bench.results import write
from hgemm.bench.schema import Results

# What is refused


def set_timing(results: Results, name: str, value: object) -> None:
    for case in results.cases:
        for row in case.rows:
            if row.timing:
                setattr(row.timing, name, value)


REFUSALS: dict[str, tuple[Callable[[Results], None], str]] = {
    "gpu": (lambda r: setattr(r.env, "gpu", "NVIDIA L4"), "gpu: NVIDIA H200 and NVIDIA L4"),
    "capability": (lambda r: setattr(r.env, "compute_capability", [8, 9]), r"compute_capability: \[9, 0\] and \[8, 9"),
    "power": (lambda r: setattr(r.env, "power_limit_w", 450.0), "power_limit_w: 700.0 and 450.0"),
    "flags": (
        lambda r: r.flags.update(allow_bf16_reduced_precision_reduction=False),
        "torch flag allow_bf16_reduced_precision_reduction: True and False",
    ),
    "mode": (lambda r: set_timing(r, "mode", "kernel"), "mode and duty cycle: rotating, .* and kernel, "),
    "idle": (lambda r: set_timing(r, "idle_ms", 0.0), "20 ms idle; and .* 0 ms idle"),
    "lead in": (lambda r: set_timing(r, "lead_in_bursts", 1), "1 untimed before each"),
    "distribution": (
        lambda r: [setattr(case, "distribution", "zeros") for case in r.cases] and None,
        "distribution of the operands: normal and zeros",
    ),
    "cases": (
        lambda r: [setattr(case, "M", case.M + 8) for case in r.cases] and None,
        "no case in common: A begins with 2048 x 2048 x 2048  bf16, B with 2056",
    ),
    "contestants": (
        lambda r: [setattr(row, "backend", "x" + row.backend) for case in r.cases for row in case.rows] and None,
        "no contestant in common",
    ),
    "no times": (lambda r: [setattr(case, "rows", case.rows[:3]) for case in r.cases] and None, "B holds no times"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_cannot_be_compared_is_refused(what: str) -> None:
    change, message = REFUSALS[what]
    b = whole()
    change(b)
    with pytest.raises(Incomparable, match=message):
        compare(whole(), b)


def test_a_refusal_names_everything_that_stands_against_it() -> None:
    b = whole()
    b.env.gpu, b.env.power_limit_w = "NVIDIA L4", 72.0
    with pytest.raises(Incomparable, match=r"gpu: .*; power_limit_w: "):
        compare(whole(), b)


def test_two_modes_in_one_file_are_refused() -> None:
    b = whole()
    timing = row_of(b, "torch").timing
    assert timing is not None
    timing.mode = "cold"
    with pytest.raises(Incomparable, match=r"B holds times of several modes or duty cycles: cold, .*; rotating, "):
        compare(whole(), b)


def test_other_code_and_other_versions_are_what_one_compares() -> None:
    b = whole()
    b.run.sources, b.env.torch, b.env.power_limit_w = "1" * 64, "2.12.0", None
    found = {entry.name: (entry.a, entry.b) for entry in compare(whole(), b).differences}
    assert found == {
        "sources": ("0" * 64, "1" * 64),
        "torch": ("2.11.0", "2.12.0"),
        "power_limit_w": (700.0, None),
    }


# The command line


@pytest.fixture
def files(tmp_path: Path) -> Callable[[Results, Results], list[str]]:
    def stored(a: Results, b: Results) -> list[str]:
        paths = [tmp_path / "a.json", tmp_path / "b.json"]
        for path, results in zip(paths, (a, b), strict=True):
            write(results, path)
        return [str(path) for path in paths]

    return stored


def changed() -> Results:
    """As ``whole``, with one contestant slower, one faster, one broken."""
    results = whole()
    for backend, factor in (("torch", 1.1), ("cublas", 0.9)):
        timing = row_of(results, backend).timing
        assert timing is not None
        timing.samples_us = [us * factor for us in timing.samples_us]
    row = row_of(results, "triton")
    row.status, row.timing, row.reason = "failed", None, "RuntimeError: boom"
    return results


@pytest.mark.parametrize(
    ("fail_on", "status", "found"),
    [
        ("slower", 1, "2 slower"),  # what broke counts as worse
        ("faster", 1, "1 faster"),
        ("different", 1, "3 different"),
        ("ambiguous", 0, ""),
        ("missing", 0, ""),
        ("ambiguous,faster", 1, "1 faster"),
        ("slower,faster", 1, "2 slower, 1 faster"),
    ],
)
def test_fail_on_sets_the_exit_status(
    files: Callable[[Results, Results], list[str]],
    capsys: pytest.CaptureFixture[str],
    fail_on: str,
    status: int,
    found: str,
) -> None:
    arguments = files(whole(), changed())
    assert command.main([*arguments, "--margin", "5%"]) == 0
    assert capsys.readouterr().err == ""
    assert command.main([*arguments, "--margin", "5%", "--fail-on", fail_on]) == status
    assert capsys.readouterr().err == (f"hgemm.bench compare: {found}\n" if found else "")


def test_compare_is_a_command_of_the_bench(
    files: Callable[[Results, Results], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(["compare", *files(whole(), changed()), "--margin", "5%", "--fail-on", "slower"]) == 1
    assert capsys.readouterr().out.startswith("18 compared")


def test_missing_is_what_only_a_has(files: Callable[[Results, Results], list[str]]) -> None:
    b = whole()
    case_of(b).rows.remove(row_of(b, "torch"))
    arguments = files(whole(), b)
    assert command.main([*arguments, "--fail-on", "missing"]) == 1
    assert command.main([*reversed(arguments), "--fail-on", "missing"]) == 0


def cut_short(rounds: int) -> Results:
    """As ``whole``, with the run ended in the middle of its last case."""
    results = whole()
    results.run.complete = case_of(results, 1).complete = False
    for row in case_of(results, 1).rows:
        if row.timing:
            set_samples(row, np.array(row.timing.samples_us[:rounds]))
    return results


def test_what_was_cut_short_is_listed_apart_and_missing_in_b(
    files: Callable[[Results, Results], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = files(whole(), cut_short(1))
    assert command.main([*arguments, "--margin", "5%", "--fail-on", "missing"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("9 compared, with a margin of 5%, mode rotating: 9 same\n")
    assert "cut short in B: 9 contestants in 4096 x 4096 x 4096  bf16 (1 round)\n" in captured.out
    assert captured.err == "hgemm.bench compare: 9 missing\n"
    arguments.reverse()
    assert command.main([*arguments, "--margin", "5%", "--fail-on", "missing,ambiguous"]) == 0
    assert "cut short in A: 9 contestants" in capsys.readouterr().out
    assert command.main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["counts"]["cut_short_a"] == 9
    assert {(entry["M"], entry["remark"]) for entry in document["cut_short_a"]} == {(4096, "1 round")}


def test_the_table_begins_with_counts_and_shows_the_worst_first(
    files: Callable[[Results, Results], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = files(whole(), changed())
    assert command.main([*arguments, "--margin", "5%"]) == 0
    out = capsys.readouterr().out
    first, *lines = out.splitlines()
    assert first == "18 compared, with a margin of 5%, mode rotating: 1 broken, 1 slower, 15 same, 1 faster"
    listed = [line.split("bf16")[1].split()[:3] for line in lines if line.startswith("2048 x 2048 x 2048  bf16")]
    assert [entry[:2] for entry in listed] == [
        ["triton:128x256x64_s3_w64x64", "broken"],
        ["torch", "slower"],
        ["cublas", "faster"],
    ]
    assert [entry[2] for entry in listed[1:]] == ["1.100", "0.900"]
    assert "broken: triton:128x256x64_s3_w64x64 in 2048 x 2048 x 2048  bf16 (failed: RuntimeError: boom)" in out
    assert command.main([*arguments, "--margin", "5%", "--all"]) == 0
    assert capsys.readouterr().out.count(" same ") >= 15


@pytest.mark.parametrize("width", [80, 120])
def test_a_narrow_terminal_cuts_no_figure(files: Callable[[Results, Results], list[str]], width: int) -> None:
    console = Console(width=width, record=True, force_terminal=True)
    command.main([*files(whole(), changed()), "--margin", "5%"], console)
    text = console.export_text()
    assert "\u2026" not in text
    assert "(failed: RuntimeError: boom)" in text
    assert ("triton:128x256x64_s3_w64x64  broken" in text) == (width == 120)


def test_json_holds_every_row(
    files: Callable[[Results, Results], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*files(whole(), changed()), "--margin", "5%", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["counts"] == {
        "broken": 1,
        "slower": 1,
        "ambiguous": 0,
        "same": 15,
        "faster": 1,
        "mended": 0,
        "only_a": 0,
        "only_b": 0,
        "never_timed": 2,
        "cut_short_a": 0,
        "cut_short_b": 0,
    }
    assert (document["margin"], document["mode"], document["controlled"]) == (0.05, "rotating", True)
    assert len(document["changes"]) == 18 and len(document["never_timed"]) == 2
    by_name = {(entry["name"], entry["M"]): entry for entry in document["changes"]}
    slower = by_name["torch", 2048]
    assert slower["verdict"] == "slower"
    assert slower["ratio"]["value"] == pytest.approx(1.1)
    assert slower["ratio"]["low"] < 1.1 < slower["ratio"]["high"]
    assert by_name["triton:128x256x64_s3_w64x64", 2048]["ratio"] is None
    assert {entry["name"]: entry["cases"] for entry in document["geometric_means"]}["torch"] == 2


def test_json_says_null_where_there_is_no_interval(
    files: Callable[[Results, Results], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*files(one_case(scatter=SCATTER[:3]), one_case(scatter=SCATTER[:3])), "--json"]) == 0
    [change] = json.loads(capsys.readouterr().out)["changes"]
    assert (change["ratio"]["low"], change["ratio"]["high"]) == (None, None)
    assert change["ratio"]["value"] == pytest.approx(1.0)


def test_two_cases_give_the_control_no_interval(
    files: Callable[[Results, Results], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*files(whole(), changed()), "--markdown"]) == 0
    assert "- control: 1.000 (no interval), and every time is divided by it" in capsys.readouterr().out


def test_markdown_is_a_table(
    files: Callable[[Results, Results], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*files(whole(), changed()), "--margin", "5%", "--markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("- 18 compared")
    rows = [line for line in out.splitlines() if line.startswith("| 2048 x 2048 x 2048  bf16")]
    assert [row.split(" | ")[2] for row in rows] == ["broken", "slower", "faster"]
    assert {line.count(" | ") for line in out.splitlines() if line.startswith(("| case", "| 2048"))} == {7}


def test_files_that_cannot_be_compared_end_with_2(
    files: Callable[[Results, Results], list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    b = whole()
    b.env.gpu = "NVIDIA L4"
    arguments = files(whole(), b)
    assert command.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hgemm.bench compare: A and B measured different things (gpu: ")
    assert captured.err.count("\n") == 1
    assert command.main([arguments[0], str(tmp_path / "none.json")]) == 2
    assert "none.json: No such file" in capsys.readouterr().err
    document = json.loads(Path(arguments[1]).read_text())
    Path(arguments[1]).write_text(json.dumps(document | {"schema_version": 99}))
    assert command.main(arguments) == 2
    assert "schema version 99" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--margin", "0.01"], "a margin is a percentage"),
        (["--margin", "100%"], "a margin is a percentage"),
        (["--fail-on", "slow"], "expected some of slower, faster"),
        (["--json", "--markdown"], "not allowed with"),
    ],
)
def test_usage_errors_end_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["a.json", "b.json", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
