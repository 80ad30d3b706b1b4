"""python -m hgemm.report: from which files, into which, and what it leaves alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from html_page import Page
from made_up_results import SQUARES, results

import hgemm
from hgemm.bench.results import write
from hgemm.report.__main__ import main

ROOT = Path(hgemm.__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a second each, and are not what is tried here."""
    monkeypatch.setattr("hgemm.report.charts.KINDS", {})


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    write(results(shapes=SQUARES[:1], rounds=3), path)
    return path


def downloads(page: Path) -> list[str]:
    return [link["download"] for link in Page(page.read_text()).all("a") if "download" in link]


def test_files_become_a_page(run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, out = tmp_path / "other.json", tmp_path / "page.html"
    write(results(shapes=SQUARES[1:2], rounds=3), other)
    # A file that is named twice is shown once.
    again = tmp_path / "." / "run.json"
    assert main(["--from", str(run_file), str(other), "--from", str(again), "--out", str(out)]) == 0
    assert capsys.readouterr().out.split() == [str(out)]
    assert downloads(out) == ["run.json", "other.json"]


def test_json_says_what_was_written(run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["--from", str(run_file), "--out", str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"file": str(out), "bytes": out.stat().st_size, "sources": [str(run_file)]}


def test_a_dash_prints_the_page_and_nothing_else(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["--from", "run.json", "--out", "page.html"])
    capsys.readouterr()
    assert main(["--from", "run.json", "--out", "-"]) == 0
    assert capsys.readouterr().out == (tmp_path / "page.html").read_text()
    with pytest.raises(SystemExit):
        main(["--from", "run.json", "--out", "-", "--json"])
    assert "only one of --json, --out - can be printed" in capsys.readouterr().err
    assert not (tmp_path / "-").exists()


def test_without_a_file_every_packaged_one_with_times_is_shown_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    write(results(utc="2026-01-01T00:00:00Z", rounds=3), folder / "z-old.json")
    write(results(utc="2026-03-01T00:00:00Z", rounds=3), folder / "a-new.json")
    write(results(utc="2026-04-01T00:00:00Z", series=()), folder / "b-untimed.json")
    (folder / "c-broken.json").write_text("{")
    monkeypatch.setattr("hgemm.bench.results.PACKAGED", folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hgemm.plot.source._PACKAGE", tmp_path / "site-packages" / "hgemm")
    assert main([]) == 0
    assert downloads(tmp_path / "plots" / "report.html") == ["a-new.json", "z-old.json"]


def test_no_packaged_results_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hgemm.bench.results.PACKAGED", tmp_path)
    assert main(["--out", str(tmp_path / "page.html")]) == 2
    assert "name a results file with --from" in capsys.readouterr().err


def test_a_page_of_its_own_is_replaced(run_file: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "page.html", tmp_path / "other.json"
    write(results(shapes=SQUARES[1:2], rounds=3), other)
    assert main(["--from", str(other), "--out", str(out)]) == 0
    assert main(["--from", str(run_file), "--out", str(out)]) == 0
    assert downloads(out) == ["run.json"]


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html><title>mine</title>", b"\xff\xfe" + b"x" * 9000])
def test_what_it_did_not_write_is_left_alone(
    content: bytes, run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    out.write_bytes(content)
    assert main(["--from", str(run_file), "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hgemm.report: {out} exists, and is no page of hgemm.report; ")
    assert out.read_bytes() == content


def test_a_results_file_is_never_taken_for_a_page(run_file: Path) -> None:
    before = run_file.read_bytes()
    assert main(["--from", str(run_file), "--out", str(run_file)]) == 2
    assert run_file.read_bytes() == before


@pytest.mark.parametrize(("out", "message"), [(".", "is not a file"), ("no/such/folder/page.html", "No such file")])
def test_a_place_that_is_no_good_is_status_2(
    out: str, message: str, run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--from", str(run_file), "--out", str(tmp_path / out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("{}", "not a results file of hgemm.bench"),
        ("empty", "holds no case; measure one with"),
        ("untimed", "no contestant was timed in any case; its rows say why"),
    ],
)
def test_a_file_that_cannot_be_shown_is_status_2(
    content: str | None, message: str, run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "bad.json", tmp_path / "page.html"
    if content == "empty":
        write(results(shapes=()), path)
    elif content == "untimed":
        write(results(series=()), path)
    elif content is not None:
        path.write_text(content)
    # A good file beside it does not help: what was asked for cannot be shown.
    assert main(["--from", str(run_file), str(path), "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"hgemm.report: {path}: ")
    assert message in line
    assert not out.exists()


def test_it_runs_as_a_module(run_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    command = [sys.executable, "-m", "hgemm.report", "--from", str(run_file), "--out", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, f"{out}\n", "")
    assert Page(out.read_text()).all("svg")
