"""What becomes of results: CSV, Markdown, tables of a stored file, a file to share, and the way to compare."""

import csv
import errno
import io
import json
import statistics
import sys
import tempfile
import types
from pathlib import Path

import pytest
from bench_machine import FakeMachine
from made_up_results import results
from rich.console import Console

from hgemm.bench.__main__ import main
from hgemm.bench.metrics import find_row, relative, speed
from hgemm.bench.options import SHARE
from hgemm.bench.results import LARGEST_FILE, read, write
from hgemm.bench.schema import Results, Row
from hgemm.bench.spreadsheet import COLUMNS, csv_text
from hgemm.bench.suites import SUITES, Shape
from hgemm.bench.tables import markdown, print_case, title

QUICK = ["--mnk", "64,32,48", "--rounds", "2", "--burst-ms", "0.5", "--idle-ms", "0", "--backends", "torch"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hgemm.bench.yardsticks.CONTROL_SIZE", 16)
    monkeypatch.chdir(tmp_path)


def end_to_end():
    """Made-up results of mode e2e: torch in 10 us with out= and 12 without, cuda_tma in 8 and 9."""
    made_up = results(shapes=[Shape(256, 256, 256)])
    (case,) = made_up.cases
    case.label = "small"
    times = {("torch", False): 10.0, ("torch", True): 12.0, ("cuda_tma", False): 8.0, ("cuda_tma", True): 9.0}
    rows = []
    for (name, allocates), us in times.items():
        like = find_row(case, name)
        assert like is not None
        assert like.timing is not None
        check, timing = like.check, like.timing
        row = Row("contestant", name, None, "ok", check=check, allocates=allocates)
        row.timing = type(timing)(**(vars(timing) | {"mode": "e2e", "samples_us": [us] * 7, "finished_us": [20.0] * 7}))
        rows.append(row)
    case.rows = rows
    return made_up


def test_csv_holds_a_line_a_row_with_the_numbers_of_the_samples() -> None:
    made_up = results()
    lines = list(csv.DictReader(io.StringIO(csv_text(made_up))))
    assert tuple(lines[0]) == COLUMNS
    assert len(lines) == sum(len(case.rows) for case in made_up.cases)
    case = made_up.cases[0]
    row = find_row(case, "cuda_tma")
    assert row is not None
    line = next(line for line in lines if line["backend"] == "cuda_tma")
    assert (line["M"], line["batch"], line["dtype"], line["config"]) == ("2048", "1", "bf16", row.config)
    assert float(line["tflops"]) == pytest.approx(speed(row).median, rel=1e-5)
    # 2 M N K operations in that many microseconds.
    assert float(line["us"]) == pytest.approx(2 * 2048**3 / float(line["tflops"]) * 1e-6, rel=1e-3)
    ratio = relative(row, find_row(case, "torch"))
    assert ratio is not None
    assert float(line["times_torch"]) == pytest.approx(ratio.median, rel=1e-5)
    assert float(line["times_torch_ci_low"]) <= ratio.median <= float(line["times_torch_ci_high"])
    assert (line["samples"], line["throttled"], line["temperature_c"]) == ("7", "0", "52")
    gone = next(line for line in lines if line["status"] == "unavailable")
    assert (gone["reason"], gone["us"], gone["tflops"]) == ("needs sm_90a, found sm_120", "", "")
    roof = next(line for line in lines if line["backend"] == "copy")
    assert (roof["tflops"], roof["times_torch"], roof["percent_of_mma_sync"]) == ("", "", "")


def test_csv_of_end_to_end_times_compares_like_with_like() -> None:
    lines = list(csv.DictReader(io.StringIO(csv_text(end_to_end()))))
    found = {(line["backend"], line["allocates"]): (line["us"], line["times_torch"]) for line in lines}
    # Speed over torch's: 10 / 8 with out=, 12 / 9 without.
    assert found["cuda_tma", "False"] == ("8", "1.25")
    assert found["cuda_tma", "True"] == ("9", "1.33333")
    assert {line["finished_us"] for line in lines} == {"20"}
    assert {line["tflops"] for line in lines} == {""}


def test_markdown_has_a_table_a_case_the_fastest_first() -> None:
    made_up = results()
    text = markdown(made_up)
    assert text.count("### ") == len(made_up.cases)
    block = text.split("### ")[2].split("\n\n")[1].splitlines()
    assert block[0].startswith("| backend | config | TFLOPS | p5 - p95 | us | % of mma.sync | x torch |")
    assert len({line.count("|") for line in block}) == 1
    tera = [float(line.split("|")[3]) for line in block[2:-1]]
    assert tera == sorted(tera, reverse=True)
    assert "- cuda_wgmma: unavailable: needs sm_90a, found sm_120" in text
    assert "NVIDIA H200, torch 2.11.0" in text


def test_end_to_end_tables_show_time_over_that_of_torch() -> None:
    text = markdown(end_to_end())
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    heading = table[0]
    assert heading[2:7] == ["out=", "host us", "p5 - p95", "of torch's time", "until finished"]
    rows = {(line[0], line[2]): (line[3], line[5], line[6]) for line in table[2:]}
    assert rows == {
        ("cuda_tma", "yes"): ("8.00", "0.800", "20.00"),
        ("torch", "yes"): ("10.00", "1.000", "20.00"),
        ("cuda_tma", "no"): ("9.00", "0.750", "20.00"),
        ("torch", "no"): ("12.00", "1.000", "20.00"),
    }
    assert "small" in text


def test_a_title_leaves_out_what_is_usual() -> None:
    case = results(shapes=[Shape(8, 16, 24)]).cases[0]
    assert title(case) == "8 x 16 x 24  bf16"
    case.batch, case.layout, case.label, case.distribution = 4, "nt", "attention", "zeros"
    assert title(case) == "4 x 8 x 16 x 24  bf16 nt (zeros)  attention"


DEVICE = ("error / bound", "MHz", "p5 - p95", "% of mma.sync", "remarks", "x torch")
HOST = ("error / bound", "MHz", "p5 - p95", "until finished", "remarks", "of torch's time")


@pytest.mark.parametrize(("made_up", "droppable"), [(results(), DEVICE), (end_to_end(), HOST)], ids=["device", "host"])
@pytest.mark.parametrize("width", [132, 100, 80, 60, 46])
def test_a_narrow_terminal_has_the_most_important_columns_whole(
    width: int, made_up: Results, droppable: tuple[str, ...]
) -> None:
    case = made_up.cases[0]
    console = Console(width=width, record=True, force_terminal=True, file=io.StringIO())
    print_case(console, case)
    text = console.export_text()
    assert "\u2026" not in text
    assert max(map(len, text.splitlines())) <= width
    for row in case.rows:
        if row.timing and row.role == "contestant":
            assert f"{statistics.median(row.timing.samples_us):.1f}" in text
            assert droppable is HOST or f" {speed(row).median:.1f} " in text
    # Those of the least importance go first; at the usual width there is room for all.
    said = " ".join(text.split()).partition("no room for: ")[2]
    gone = [name for name in droppable if name in said]
    assert gone == list(droppable[: len(gone)])
    assert width == 100 or bool(gone) == (width < 100)


def test_names_and_labels_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    made_up = results(shapes=[Shape(256, 256, 256)])
    (case,) = made_up.cases
    case.label, case.rows[-1].config, case.rows[3].backend = "[/x] [red]", "[/y]", "[bold]"
    print_case(Console(width=132), case)
    printed = capsys.readouterr().out
    for name in ("[/x] [red]", "[/y]", "[bold]"):
        assert name in printed


@pytest.mark.parametrize(("option", "begins"), [("--csv", "gpu,label,batch,M"), ("--markdown", "NVIDIA H200, torch")])
def test_tables_of_a_run_go_to_a_file_or_to_stdout_alone(
    option: str, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, option, "table.txt", "--out", "run.json"], machine=FakeMachine()) == 0
    text = Path("table.txt").read_text()
    assert text.startswith(begins)
    assert "TFLOPS" in capsys.readouterr().out
    # The same from the stored file, without a machine; and nothing else on stdout.
    assert main(["--from", "run.json", option, "-"]) == 0
    assert capsys.readouterr().out == text


def test_a_stored_file_is_shown_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    write(results(), Path("made-up.json"))
    assert main(["--from", "made-up.json"]) == 0
    printed = capsys.readouterr().out
    assert "4096 x 4096 x 4096" in printed
    assert "roof  copy" in printed
    assert main(["--from", "made-up.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cases"][0]["M"] == 2048


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--csv", "there.json"], "there.json exists and would be overwritten"),
        (["--markdown", "absent/table.md"], "the folder of absent/table.md does not exist"),
        (["--csv", "-", "--json"], "only one of --json, --csv can be printed"),
        (["--markdown", "-", "--csv", "-"], "only one of --csv, --markdown can be printed"),
        (["--from", "there.json", "--out", "x.json"], "--from and --out exclude each other"),
        (["--from", "there.json"], "there.json: not JSON"),
        (
            ["--share", "--contestant", "mine.py"],
            "--share writes one file of the package's own kernels; leave out --cont",
        ),
        (["--share", "--json"], "leave out --json"),
        (["--out", "-"], "--out names a results file; --json prints the results"),
        (["--limit", "0"], "a limit must be positive, found 0 s"),
        (["--limit", "inf"], "--limit must be a finite number, found inf"),
        (["--burst-ms", "nan"], "--burst-ms must be a finite number, found nan"),
    ],
)
def test_outputs_that_do_not_go_together_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there.json").write_text("mine")
    machine = FakeMachine()
    with pytest.raises(SystemExit) as stop:
        main([*QUICK, *options], machine=machine)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert (machine.bursts_opened, Path("there.json").read_text()) == (0, "mine")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--mnk", "8,8,8"], "--mnk"),
        (["--suite", "llm"], "--suite"),
        (["--dtypes", "fp16", "--mode", "cold"], "--dtypes, --mode"),
        (["--budget", "5", "--idle-ms", "3"], "--idle-ms, --budget"),
        (["--ladder"], "--ladder"),
        (["--share"], "--share"),
        (["--contestant", "mine.py"], "--contestant"),
    ],
)
def test_what_is_to_be_measured_is_not_ignored_beside_a_stored_file(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(results(), Path("made-up.json"))
    with pytest.raises(SystemExit) as stop:
        main(["--from", "made-up.json", *options])
    assert stop.value.code == 2
    assert f"measures nothing; leave out {named} (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name one elsewhere with --out"),
        (["--out", "x.json"], "x.json cannot be written: Permission denied; name a file elsewhere"),
        (["--csv", "x.csv"], "x.csv cannot be written: Permission denied; name a file elsewhere"),
    ],
)
def test_a_folder_without_write_permission_is_found_before_anything_is_measured(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(dir: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    machine = FakeMachine()
    with pytest.raises(SystemExit) as stop:
        main([*QUICK, *options], machine=machine)
    assert (stop.value.code, machine.bursts_opened) == (2, 0)
    said = capsys.readouterr().err
    assert message in said
    assert "cannot be written: Permission denied" in said


def test_a_full_disk_ends_the_run_and_keeps_what_was_stored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(results: Results, path: Path) -> None:
        if len(results.cases) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(results, path)

    monkeypatch.setattr("hgemm.bench.__main__.write", full)
    shapes = ["--mnk", "64,32,48", "32,32,32", "16,16,16"]
    status = main([*QUICK, *shapes, "--out", "x.json"], machine=FakeMachine())
    assert status == 1
    assert "ended early: x.json cannot be written: No space left on device" in capsys.readouterr().err
    assert [case.M for case in read(Path("x.json")).cases] == [64]


def test_a_shared_file_holds_the_squares_in_both_dtypes_and_says_what_comes_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (SHARE["suite"], SHARE["dtypes"]) == ("squares", ("bf16", "fp16"))
    monkeypatch.setitem(SUITES, "squares", (Shape(16, 16, 16), Shape(32, 32, 32)))
    how = ["--backends", "torch", "--rounds", "2", "--burst-ms", "0.5", "--idle-ms", "0"]
    assert main(["--share", *how, "--out", "mine.json"], machine=FakeMachine()) == 0
    shared = read(Path("mine.json"))
    assert [(case.M, case.dtype) for case in shared.cases] == [(16, "bf16"), (32, "bf16"), (16, "fp16"), (32, "fp16")]
    assert shared.run.options["budget_minutes"] == SHARE["budget"]
    printed = capsys.readouterr().out
    assert 'open an issue called "Results: NVIDIA H200"' in printed
    assert "CONTRIBUTING.md says how it becomes a row of the study" in printed
    assert "Not everything was measured" not in printed
    text = Path("mine.json").read_text()
    assert len(text) < LARGEST_FILE
    assert str(Path.cwd()) not in text
    assert str(Path.home()) not in text


def test_a_shared_file_that_the_budget_cut_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--share", *QUICK, "--budget", "1e-9", "--out", "mine.json"], machine=FakeMachine()) == 0
    assert "`python -m hgemm.bench --resume mine.json --share` goes on" in capsys.readouterr().out
    assert main(["--resume", "mine.json", "--share"], machine=FakeMachine()) == 0
    assert read(Path("mine.json")).run.complete


def test_a_full_file_ends_the_run_and_keeps_the_cases_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [*QUICK[:2], "16,16,16", "32,32,32", *QUICK[2:], "--quiet"]
    main([*shapes, "--out", "whole.json"], machine=FakeMachine())
    monkeypatch.setattr("hgemm.bench.results.LARGEST_FILE", len(Path("whole.json").read_text()) - 400)
    assert main([*shapes, "--out", "run.json"], machine=FakeMachine()) == 1
    kept = read(Path("run.json"))
    assert [case.M for case in kept.cases] == [64, 16]
    assert not kept.run.complete
    assert "measure fewer cases, contestants or rounds at a time" in capsys.readouterr().err


def test_compare_is_a_command_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    module = types.ModuleType("hgemm.bench.compare")
    module.main = lambda argv: asked.append(argv) or 4  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hgemm.bench.compare", module)
    monkeypatch.setattr("hgemm.bench.compare", module, raising=False)
    assert main(["compare", "a.json", "b.json", "--fail-on", "slower"]) == 4
    assert asked == [["a.json", "b.json", "--fail-on", "slower"]]
