"""Every ``python -m hgemm.X``: its help, its one JSON object, and what it says to an option that it lacks."""

import importlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_up_results import SQUARES, results

from hgemm.bench.results import write

ROOT = Path(__file__).resolve().parents[1]

TOOLS = sorted(
    [path.stem for path in (ROOT / "hgemm").glob("[!_]*.py") if '__name__ == "__main__"' in path.read_text()]
    + [path.parent.name for path in (ROOT / "hgemm").glob("*/__main__.py")]
)


def run(tool: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The tool in a process of its own, on a machine that shows it no GPU and has no terminal."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"hgemm.{tool}", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def json_of(tool: str, *arguments: str, cwd: Path = ROOT) -> Any:
    """What the tool prints with ``--json``: one JSON document and nothing else."""
    finished = run(tool, *arguments, "--json", cwd=cwd)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_the_tools_that_the_readme_names_are_there() -> None:
    assert {"bench", "check", "env", "plot", "study"} <= set(TOOLS)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_help(tool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [f"hgemm.{tool}", "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"hgemm.{tool}", run_name="__main__", alter_sys=True)
    printed = capsys.readouterr()
    assert (end.value.code, printed.err) == (0, "")
    assert printed.out.startswith(f"usage: python -m hgemm.{tool} ")
    assert "--json" in printed.out


@pytest.mark.parametrize("tool", TOOLS)
def test_an_unknown_option_is_named_before_anything_is_done(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    package = ROOT / "hgemm" / tool / "__main__.py"
    module = importlib.import_module(f"hgemm.{tool}.__main__" if package.exists() else f"hgemm.{tool}")
    with pytest.raises(SystemExit) as end:
        module.main(["--no-such-option"])
    assert end.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    line = f"python -m hgemm.{tool}: unrecognized arguments: --no-such-option (--help lists the options)\n"
    assert printed.err == line


def test_env_json() -> None:
    found = json_of("env")
    names = [backend["name"] for backend in found["backends"]]
    assert names[:7] == ["torch", "cublas", "cublaslt", "cuda_cp_async", "cuda_tma", "triton_pointer", "triton"]
    assert found["backends"][0]["unavailable"]["cpu"] is None
    assert isinstance(found["backends"][4]["unavailable"]["cuda"], str)
    assert found["gpus"] == []


def test_check_json() -> None:
    found = json_of("check", "--backend", "torch", "--dtype", "float16", "--case", "5x13x17:integers")
    assert found["passed"] is True
    assert [(result["backend"], result["cases"]) for result in found["results"]] == [("torch", 1)]


def test_plot_json(tmp_path: Path) -> None:
    source = tmp_path / "measured.json"
    write(results(shapes=SQUARES[:2], rounds=3), source)
    found = json_of("plot", "--from", "measured.json", "--out", "pictures", "--format", "svg", cwd=tmp_path)
    assert found["files"] == ["pictures/roofline-bf16.svg"]
    assert "</svg>" in (tmp_path / found["files"][0]).read_text()


def test_bench_without_a_gpu_says_what_it_needs() -> None:
    finished = run("bench", "--json")
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert "needs a CUDA GPU" in finished.stderr
