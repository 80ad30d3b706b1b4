"""python -m hgemm.plot: from a file or from the package, into a folder, with errors that name the file and the rule."""

import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from made_up_results import SQUARES, results

import hgemm
from hgemm.bench.results import write
from hgemm.plot import source
from hgemm.plot.__main__ import ALL_KINDS, main


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    write(results(shapes=SQUARES[:2]), path)
    return path


def test_a_file_becomes_pictures_in_a_folder(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "pictures"
    assert main(["--from", str(run_file), "--out", str(out)]) == 0
    names = sorted(path.name for path in out.iterdir())
    assert names == ["roofline-bf16.png", "roofline-bf16.svg"]
    assert sorted(capsys.readouterr().out.split()) == [str(out / name) for name in names]


def test_a_dollar_sign_in_a_name_is_one(tmp_path: Path) -> None:
    measured = results(shapes=SQUARES[:1], rounds=3)
    measured.env.gpu = "GPU $\\frac$"
    write(measured, tmp_path / "run.json")
    assert main(["ceiling", "--from", str(tmp_path / "run.json"), "--out", str(tmp_path), "--format", "svg"]) == 0


def test_a_folder_that_cannot_be_is_named_with_a_way_out(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--from", str(run_file), "--out", str(run_file)]) == 2
    assert capsys.readouterr().err == f"hgemm.plot: {run_file}: File exists; name another place with --out\n"
    assert not plt.get_fignums()


def test_kinds_formats_and_json(run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pictures"
    status = main(["ceiling", "roofline", "--from", str(run_file), "--out", str(out), "--format", "svg", "--json"])
    assert status == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["files"] == [str(out / "ceiling-bf16.svg"), str(out / "roofline-bf16.svg")]
    assert answer["gpu"] == "NVIDIA H200"
    assert all(Path(path).exists() for path in answer["files"])


def test_without_a_gpu_the_fullest_packaged_results_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    write(results(utc="2026-01-01T00:00:00Z"), folder / "run.json")
    write(results(utc="2026-03-01T00:00:00Z"), folder / "run-again.json")
    write(results(utc="2026-03-01T00:00:00Z", shapes=SQUARES[:1], rounds=12), folder / "deep.json")
    write(results(utc="2026-03-02T00:00:00Z", shapes=SQUARES[:1], rounds=12), folder / "deep-again.json")
    write(results(utc="2026-04-01T00:00:00Z", series=()), folder / "a-empty.json")
    (folder / "b-broken.json").write_text("{")
    monkeypatch.setattr("hgemm.bench.results.PACKAGED", folder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--out", str(tmp_path / "pictures"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == str(folder / "deep.json")


def test_the_packaged_results_have_the_product_that_the_readme_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python -m hgemm.plot samples --mnk 4096,4096,4096`` without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    asked = ["samples", "--mnk", "4096,4096,4096", "--format", "svg", "--out", str(tmp_path)]
    assert main(asked) == 0
    assert "4096³" in (tmp_path / "samples-bf16.svg").read_text()


def test_with_a_gpu_it_measures_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def bench(argv, console):
        asked.append(argv)
        console.print("a table")
        write(results(), Path(argv[argv.index("--out") + 1]))
        return 0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr("hgemm.bench.__main__.main", bench)
    out = tmp_path / "pictures"
    assert main(["--out", str(out), "--json"]) == 0
    assert [argv[:2] for argv in asked] == [["--suite", "quick"]]
    answer = json.loads(capsys.readouterr().out)  # nothing but JSON on stdout
    assert Path(answer["source"]).parent == out
    assert Path(answer["source"]).name.startswith("hgemm-bench-h200-")


def test_a_measurement_that_leaves_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr("hgemm.bench.__main__.main", lambda argv, console: 130)
    assert main(["--out", str(tmp_path)]) == 2
    assert "ended with status 130" in capsys.readouterr().err


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
def test_a_file_that_cannot_be_drawn_is_status_2(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    if content == "empty":
        write(results(shapes=()), path)
    elif content == "untimed":
        write(results(series=()), path)
    elif content is not None:
        path.write_text(content)
    out = tmp_path / "pictures"
    assert main(["--from", str(path), "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"hgemm.plot: {path}: ")
    assert message in line
    assert not out.exists()


def test_no_packaged_results_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hgemm.bench.results.PACKAGED", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--out", str(tmp_path)]) == 2
    assert "name a results file with --from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["pie"], f"a picture is one of {', '.join(ALL_KINDS)}, or all; found 'pie'"),
        (["--format", "bmp"], "a format is one of svg"),
        (["--text", "--out", "pictures"], "--text draws no picture; leave out --out pictures"),
    ],
)
def test_a_bad_option_is_status_2(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(options)
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_checkout_draws_into_its_plots_and_an_installation_into_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(hgemm.__file__).resolve().parents[1]
    assert source.default_folder() == root / "plots"
    monkeypatch.setattr(source, "_PACKAGE", tmp_path / "site-packages" / "hgemm")
    monkeypatch.chdir(tmp_path)
    assert source.default_folder() == tmp_path / "plots"


def test_all_draws_whatever_there_is_and_says_what_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "run.json", tmp_path / "pictures"
    write(results(shapes=SQUARES[:1]), path)
    assert main(["all", "--from", str(path), "--out", str(out), "--format", "svg"]) == 0
    names = sorted(path.name for path in out.iterdir())
    assert names == ["ceiling-bf16.svg", "heatmap-bf16.svg", "roofline-bf16.svg", "samples-bf16.svg", "timeline.svg"]
    assert "no sizes: a line over sizes needs two of them" in capsys.readouterr().err
    # Asked for by name, the same is an error.
    assert main(["sizes", "--from", str(path), "--out", str(out)]) == 2
    assert "hgemm.plot: sizes: a line over sizes needs two" in capsys.readouterr().err


def test_options_reach_the_pictures(run_file: Path, tmp_path: Path) -> None:
    options = ["--mnk", "2048,2048,2048", "--baseline", "cublaslt", "--format", "svg"]
    assert main(["samples", "ceiling", "heatmap", "--from", str(run_file), "--out", str(tmp_path), *options]) == 0
    assert "2048³, bf16" in (tmp_path / "samples-bf16.svg").read_text()
    assert "2048³, bf16" in (tmp_path / "ceiling-bf16.svg").read_text()
    assert "Speed over cublaslt, H200, bf16" in (tmp_path / "heatmap-bf16.svg").read_text()


def test_what_an_option_names_must_be_there(run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--from", str(run_file), "--out", str(tmp_path / "pictures")]
    assert main(["heatmap", "--baseline", "cublass", *arguments]) == 2
    assert "cublass was not timed in bf16; there are torch, cublas, " in capsys.readouterr().err
    assert main(["heatmap", "--contestant", "triton", *arguments]) == 2
    assert "a map over M and N needs two or more of both" in capsys.readouterr().err
    assert main(["samples", "--mnk", "1,2,3", *arguments]) == 2
    assert "no case of 1,2,3 in bf16; there are 2048,2048,2048, 4096,4096,4096" in capsys.readouterr().err
    assert not (tmp_path / "pictures").exists()


def test_it_runs_as_a_module(run_file: Path, tmp_path: Path) -> None:
    root = Path(hgemm.__file__).resolve().parents[1]
    command = [sys.executable, "-m", "hgemm.plot", "--from", str(run_file), "--out", str(tmp_path), "--format", "svg"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(tmp_path / "roofline-bf16.svg")]
