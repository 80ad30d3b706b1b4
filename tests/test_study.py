"""``python -m hgemm.study``: what it does with a GPU and without, what it says, and its exit status."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from made_up_results import SQUARES, results
from rich.console import Console
from torch import Tensor

import hgemm
from hgemm import study
from hgemm.bench.results import write
from hgemm.plot import KINDS, WHOLE_RUN, NothingToDraw

QUIET = Console(quiet=True)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A results file, made up."""
    path = tmp_path / "measured.json"
    write(results(shapes=SQUARES[:2], rounds=3), path)
    return path


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_without_a_gpu_every_backend_multiplies_or_says_why_not(
    no_gpu: None,
    measured: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(study, "fullest_packaged", lambda: measured)
    monkeypatch.chdir(tmp_path)
    assert study.main(["--out", str(tmp_path / "pictures"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    multiplied = {(product["backend"], product["dtype"]) for product in found["products"]}
    for record in hgemm.backends():
        runs = record.available_on("cpu")
        assert (record.name in found["not_run"]) is not runs
        assert {(record.name, "float16"), (record.name, "bfloat16")} <= multiplied or not runs
    assert ("torch", "bfloat16") in multiplied
    assert all(product["passed"] and 0 < product["error_over_bound"] <= 1 for product in found["products"])
    assert found["device"] == "cpu"

    assert found["source"] == "measured.json"
    names = [kind if kind in WHOLE_RUN else f"{kind}-bf16" for kind in KINDS]
    assert {f"pictures/{name}.{form}" for name in names for form in ("svg", "png")} == set(found["pictures"])
    for picture in found["pictures"]:
        assert (tmp_path / picture).stat().st_size > 10_000


def test_it_says_so_where_nothing_was_ever_measured(
    no_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> Path:
        raise NothingToDraw("no measurements come with this package")

    monkeypatch.setattr(study, "fullest_packaged", none)
    monkeypatch.setattr(study, "multiply", lambda records, console: [])
    assert study.main(["--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "no pictures: no measurements come with this package" in printed
    assert "not run: cublas, cublaslt: " in printed


def one_element_off(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    torch.matmul(a, b, out=out)
    out[-1, -1] += 8


def all_nan(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    out.fill_(torch.nan)


def breaks(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    raise RuntimeError("the kernel did not launch")


def test_a_wrong_backend_is_found_and_the_others_go_on() -> None:
    records = [hgemm.register_backend(fn.__name__, fn) for fn in (one_element_off, all_nan, breaks)]
    products = study.multiply([*records, hgemm.backends()["torch"]], QUIET)
    by_name = {product.backend: product for product in products if product.dtype == "float16"}
    assert {name: product.passed for name, product in by_name.items()} == {
        "one_element_off": False,
        "all_nan": False,
        "breaks": False,
        "torch": True,
    }
    error = by_name["one_element_off"].error_over_bound
    assert error is not None
    assert error > 1
    assert by_name["all_nan"].fault == "NaN or infinity where none belongs"
    assert by_name["breaks"].fault == "RuntimeError: the kernel did not launch"


def test_a_wrong_product_ends_with_status_1(
    no_gpu: None, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "fullest_packaged", lambda: measured)
    records = [hgemm.backends()["torch"], hgemm.register_backend("broken", breaks)]
    products = study.multiply(records, QUIET)
    monkeypatch.setattr(study, "multiply", lambda records, console: products)
    assert study.main(["--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "WRONG" in printed
    assert "broken bfloat16: RuntimeError: the kernel did not launch" in printed


def test_a_folder_that_cannot_be_one_is_named(
    no_gpu: None, measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "fullest_packaged", lambda: measured)
    monkeypatch.setattr(study, "multiply", lambda records, console: [])
    assert study.main(["--out", str(measured)]) == 2
    assert str(measured) in capsys.readouterr().err


class Gpu:
    """Stands in for the tools that need a GPU, and notes in which order they are called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, check_status: int = 0, bench_status: int = 0) -> None:
        self.steps: list[str] = []
        self.check_status, self.bench_status = check_status, bench_status
        self.build_error: Exception | None = None
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
        monkeypatch.setattr("hgemm.cuda_kernels.build.build_units", self.build)
        monkeypatch.setattr(study.check, "main", self.check)
        monkeypatch.setattr(study, "bench_main", self.bench)
        monkeypatch.setattr(study, "fullest_packaged", lambda: pytest.fail("drew old measurements on a GPU"))

    def build(self, units: Any) -> list[Path]:
        self.steps.append("build")
        if self.build_error:
            raise self.build_error
        return []

    def check(self, arguments: list[str]) -> int:
        assert "--quick" in arguments
        self.steps.append("check")
        if "--json" in arguments:
            print(json.dumps({"passed": not self.check_status}))
        return self.check_status

    def bench(self, arguments: list[str]) -> int:
        self.steps.append("bench")
        assert arguments[:3] == ["--suite", "quick", "--out"]
        if self.bench_status != 2:
            write(results(shapes=SQUARES[:2], rounds=3), Path(arguments[3]))
        return self.bench_status


def test_with_a_gpu_it_builds_checks_measures_and_draws_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = Gpu(monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert study.main(["--out", "pictures", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert gpu.steps == ["build", "check", "bench"]
    assert found["device"] == "NVIDIA H200"
    assert found["check"] == {"passed": True}
    assert found["source"].startswith("pictures/hgemm-bench-h200-")
    assert (tmp_path / found["source"]).is_file()
    assert "pictures/roofline-bf16.svg" in found["pictures"]
    assert all((tmp_path / picture).is_file() for picture in found["pictures"])


@pytest.mark.parametrize(
    ("check_status", "bench_status", "status"), [(1, 0, 1), (0, 1, 1), (0, 130, 130), (1, 130, 130), (0, 2, 2)]
)
def test_what_goes_wrong_on_a_gpu_shows_in_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_status: int, bench_status: int, status: int
) -> None:
    gpu = Gpu(monkeypatch, check_status, bench_status)
    assert study.main(["--out", str(tmp_path)]) == status
    assert gpu.steps == ["build", "check", "bench"]
    assert (tmp_path / "roofline-bf16.png").is_file() is (bench_status != 2)


def test_a_failed_build_is_told_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hgemm.cuda_kernels.build import BuildError

    gpu = Gpu(monkeypatch)
    gpu.build_error = BuildError("compiling tma_f16_nn failed")
    assert study.main(["--out", str(tmp_path)]) == 0
    assert gpu.steps == ["build", "check", "bench"]
    assert "note: compiling tma_f16_nn failed" in capsys.readouterr().out


@pytest.mark.gpu
def test_the_study_on_this_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["check"]["passed"] is True
    assert {Path(picture).name for picture in found["pictures"]} >= {"roofline-bf16.svg", "roofline-bf16.png"}
    measured = json.loads(Path(found["source"]).read_text())
    timed = {row["backend"] for case in measured["cases"] for row in case["rows"] if row["timing"]}
    assert {record.name for record in hgemm.backends() if record.available_on("cuda")} <= timed
