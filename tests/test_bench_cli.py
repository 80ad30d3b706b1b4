"""python -m hgemm.bench: options, exit statuses, files, and what a machine without a GPU is told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bench_machine import FakeMachine

import hgemm
from hgemm.bench.__main__ import main
from hgemm.bench.results import read

QUICK = ["--mnk", "64,32,48", "--rounds", "2", "--burst-ms", "0.5", "--idle-ms", "0"]


@pytest.fixture(autouse=True)
def small_control(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hgemm.bench.yardsticks.CONTROL_SIZE", 16)
    monkeypatch.chdir(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_what_is_missing_and_what_to_do() -> None:
    root = Path(hgemm.__file__).resolve().parents[1]
    run = subprocess.run([sys.executable, "-m", "hgemm.bench"], capture_output=True, text=True, cwd=root, timeout=120)
    assert run.returncode == 2
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert "needs a CUDA GPU" in line
    assert "python -m hgemm.plot" in line


def test_a_run_prints_a_table_and_stores_its_results(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    status = main([*QUICK, "--backends", "torch", "--out", str(out)], machine=FakeMachine())
    assert status == 0
    printed = capsys.readouterr().out
    assert "64 x 32 x 48" in printed
    assert "TFLOPS" in printed
    assert str(out) in printed.replace("\n", "")
    results = read(out)
    assert results.run.options["backends"] == ["torch"]
    assert results.run.options["mnk"] == ["64,32,48"]
    assert str(tmp_path) not in out.read_text()


def test_without_out_the_file_is_named_after_the_gpu(tmp_path: Path) -> None:
    assert main([*QUICK, "--backends", "torch", "--quiet"], machine=FakeMachine()) == 0
    (path,) = tmp_path.glob("*.json")
    assert path.name.startswith("hgemm-bench-h200-2")
    read(path)


def test_json_goes_to_stdout_alone_and_stores_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*QUICK, "--backends", "torch", "--json"], machine=FakeMachine()) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cases"][0]["M"] == 64
    assert list(tmp_path.iterdir()) == []


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*QUICK, "--backends", "torch", "--quiet", "--out", "x.json"], machine=FakeMachine()) == 0
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_a_registered_backend_takes_part_and_a_wrong_one_fails_the_run(tmp_path: Path) -> None:
    hgemm.register_backend("mine", lambda a, b, out, config: out.copy_(a.float() @ b.float()), configs=("x", "y"))
    hgemm.register_backend("zero", lambda a, b, out, config: out.zero_())
    assert main([*QUICK, "--backends", "mine", "--out", "mine.json"], machine=FakeMachine()) == 0
    (case,) = read(tmp_path / "mine.json").cases
    assert [(r.backend, r.config, r.status) for r in case.rows if r.role == "contestant"] == [
        ("mine", "x", "ok"),
        ("mine", "y", "ok"),
    ]
    assert main([*QUICK, "--backends", "mine:x", "zero", "--out", "zero.json"], machine=FakeMachine()) == 1


def test_an_interrupt_is_status_130_and_keeps_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = FakeMachine()
    bursts = 0

    def interrupt() -> None:
        nonlocal bursts
        bursts += 1
        if bursts == 60:
            raise KeyboardInterrupt

    machine.on_burst = interrupt
    options = [*QUICK[:2], "--rounds", "50", "--burst-ms", "0.5", "--idle-ms", "0", "--backends", "torch"]
    assert main([*options, "--out", "run.json"], machine=machine) == 130
    assert "interrupted" in capsys.readouterr().err
    results = read(tmp_path / "run.json")
    assert not results.run.complete
    assert results.cases[0].rows[-1].timing is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mnk", "4096"], "three positive integers M,N,K"),
        (["--suite", "huge"], "invalid choice: 'huge'"),
        (["--dtypes", "fp8"], "a dtype is one of bf16, fp16, found 'fp8'"),
        (["--layouts", "nn,xt"], "a layout is one of nn, nt, tn, tt, found 'xt'"),
        (["--backends", "cutlass"], "no backend matches 'cutlass'"),
        (["--mode", "warm"], "invalid choice: 'warm'"),
        (["--rounds", "0"], "rounds must be at least 1, found 0"),
        (["--burst-ms", "0"], "a burst lasts longer than 0 ms"),
        (["--budget", "-1"], "a budget must be positive"),
        (["--sustained", "--idle-ms", "5"], "--sustained means no idle"),
        (["--out", "absent/run.json"], "does not exist"),
        (["--out", "there.json"], "would be overwritten"),
    ],
)
def test_a_bad_option_is_status_2_before_anything_runs(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "there.json").write_text("mine")
    machine = FakeMachine()
    with pytest.raises(SystemExit) as stop:
        main([*QUICK, "--backends", "torch", *options], machine=machine)
    assert stop.value.code == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert printed.out == ""
    assert line.startswith("python -m hgemm.bench: ")
    assert message in line
    assert machine.bursts_opened == 0
    assert (tmp_path / "there.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--burst-ms", "nan"], "--burst-ms must be a finite number, found nan"),
        (["--rounds", "0"], "rounds must be at least 1, found 0"),
        (["--budget", "-1"], "a budget must be positive, found -1 minutes"),
        (["--limit", "0"], "a limit must be positive, found 0 s"),
        (["--seed", str(2**63)], "--seed must be below 2^63 on either side of 0, found 9223372036854775808"),
        (
            ["--mnk", "4000000,4000000,4000000"],
            "no device holds a product of 1.28e+20 operations",
        ),
        (
            ["--mnk", "1" + "0" * 400 + ",8,8"],
            f"BxM,N,K, as in 8x1024,1024,512; found '1{'0' * 78} (",
        ),
        (["--mnk", "-1,2,3"], "three positive integers M,N,K"),
    ],
)
def test_a_bad_value_is_named_also_where_there_is_no_gpu(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stop:
        main(options)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for option in ("--suite", "--mnk", "--backends", "--mode", "--sustained", "--budget", "--out", "--json", "--quiet"):
        assert option in text
