"""python -m hgemm.plot swizzle pipeline raster: pictures without a results file, and errors that name the way out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_results import SQUARES, results

import hgemm
from hgemm.bench.results import write
from hgemm.plot import mechanism
from hgemm.plot.__main__ import main
from hgemm.plot.mechanism import board, kernel


@pytest.fixture(autouse=True)
def no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a packaged file nor a measurement may be asked for."""

    def refuse(*_: object) -> None:
        raise AssertionError("a results file was asked for")

    monkeypatch.setattr("hgemm.plot.__main__._default_source", refuse)


def test_every_kind_is_drawn_without_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "pictures"
    assert main([*mechanism.KINDS, "--out", str(out), "--format", "svg,png"]) == 0
    captured = capsys.readouterr()
    names = [f"{kind}.{form}" for kind in ("swizzle", "pipeline", "raster") for form in ("svg", "png")]
    assert captured.out.split() == [str(out / name) for name in names]
    assert captured.err == ""
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    for kind in mechanism.KINDS:
        text = (out / f"{kind}.svg").read_text()
        assert "drawn from the kernels' own code, sources " in text
        assert f"hgemm {hgemm.__version__}" in text
        assert "128x128x64_s3_w64x32" in text or "128x128x32_s3_w64x32" in text


def test_options_are_in_the_names_and_the_numbers_in_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--gpu", "rtx 5080", "--mnk", "2048,1024,512", "--config", "cuda_tma:128x128x32_s3_w64x32"]
    assert main(["raster", "swizzle", *options, "--out", str(tmp_path), "--format", "svg", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    chosen = "cuda_tma-128x128x32_s3_w64x32"
    assert answer["files"] == [
        str(tmp_path / f"raster-{chosen}-rtx-5080-2048x1024x512.svg"),
        str(tmp_path / f"swizzle-{chosen}.svg"),  # which is the same for every GPU and product
    ]
    found = answer["kernels"]["raster"]
    assert (found["gpu"], found["multiprocessors"], found["tiles"]) == ("RTX 5080", 84, [16, 8])
    assert found["tiles_by_wave"] == [128]  # of 168
    assert len(found["order"]) == 128
    assert [each["row_bytes"] for each in answer["kernels"]["swizzle"]["operands"]] == [64, 128]
    assert "source" not in answer


def test_charts_of_measurements_are_drawn_beside_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    write(results(shapes=SQUARES[:2]), path)
    status = main(["roofline", "raster", "--from", str(path), "--out", str(tmp_path), "--format", "svg", "--json"])
    assert status == 0
    answer = json.loads(capsys.readouterr().out)
    assert sorted(answer["files"]) == [str(tmp_path / "raster.svg"), str(tmp_path / "roofline-bf16.svg")]
    assert answer["source"] == str(path)
    assert list(answer["kernels"]) == ["raster"]


def test_equal_kernels_give_equal_files(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        assert main([*mechanism.KINDS, "--out", str(tmp_path / folder), "--format", "svg"]) == 0
    for kind in mechanism.KINDS:
        first, second = (tmp_path / folder / f"{kind}.svg" for folder in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["raster", "--gpu", "RTX 5009"], "unknown GPU 'RTX 5009', did you mean 'RTX 5090'?; there are H200,"),
        (["raster", "--gpu", "toaster"], "unknown GPU 'toaster'; there are H200,"),
        (["raster", "--mnk", "4096"], "a shape is three positive integers M,N,K"),
        (
            ["swizzle", "--config", "128x128x64_s3_w64x23"],
            "unknown configuration '128x128x64_s3_w64x23', did you mean '128x128x64_s3_w64x32'?",
        ),
        (
            ["swizzle", "--config", "128x128x32_s3_w64x32"],
            "several backends have 128x128x32_s3_w64x32: say cuda_cp_async:128x128x32_s3_w64x32 or cuda_tma:128x",
        ),
        (["swizzle", "pipeline", "--gpu", "H200"], "--gpu is for raster; found swizzle pipeline"),
        (["roofline", "--mnk", "1,2,3"], "--mnk is for ceiling and samples and raster; found roofline"),
        (
            ["roofline", "--config", "128x128x64_s3_w64x32"],
            "--config is for swizzle and pipeline and raster; found roofline",
        ),
        (["raster", "--from", "run.json"], "--from is for charts of measurements; found raster, which need no"),
    ],
)
def test_options_that_cannot_be_used_are_status_2(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*options, "--out", str(tmp_path / "pictures")])
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "pictures").exists()


def test_what_cannot_be_drawn_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pictures"
    assert main(["raster", "--config", "256x128x64_s4_w64x64", "--gpu", "RTX 5060", "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("hgemm.plot: cuda_tma:256x128x64_s4_w64x64 needs 196,640 bytes of shared memory a block")
    assert not out.exists()


def test_without_a_compiler_one_line_says_what_is_missing(tmp_path: Path) -> None:
    root = Path(hgemm.__file__).resolve().parents[1]
    command = [sys.executable, "-m", "hgemm.plot", "raster", "--out", str(tmp_path / "pictures")]
    environment = {name: value for name, value in os.environ.items() if name != "CXX"} | {"PATH": str(tmp_path)}
    run = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, timeout=120)
    assert run.returncode == 2
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert line.startswith("hgemm.plot: no C++ compiler: looked for g++, c++, clang++ on the PATH; install g++")
    assert not (tmp_path / "pictures").exists()


def test_a_board_is_found_by_its_title_or_its_driver_s_name() -> None:
    assert board("rtx pro 6000 max-q").multiprocessors == 188
    assert board("NVIDIA GeForce RTX 5060 Laptop GPU").title == "RTX 5060 Laptop"


def test_a_configuration_of_one_backend_needs_no_backend() -> None:
    assert kernel("128x256x64_s2_w64x64").label == "cuda_tma:128x256x64_s2_w64x64"
    assert kernel("cuda_cp_async:128x128x32_s3_w64x32").family.backend == "cuda_cp_async"
