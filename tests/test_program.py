"""The end of a tool: its status, and no traceback after Ctrl-C or into a closed pipe."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hgemm.program import end_with

ROOT = Path(__file__).resolve().parents[1]


def interrupted() -> int:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("main", "status"), [(lambda: 0, 0), (lambda: 2, 2), (interrupted, 130)])
def test_the_status(main, status: int, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        end_with(main)
    assert end.value.code == status
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "--from", "plots/results/h200-squares.json", "--json"),
        ("plot", "--from", "plots/results/h200-squares.json", "--text"),
        ("env", "--json"),
        ("profile", "--backend", "torch", "--counters", "off", "--json"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_closed_pipe_is_no_error_to_report(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", f"hgemm.{arguments[0]}", *arguments[1:]]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    finished = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300
    )
    os.close(writer)
    assert (finished.returncode, finished.stderr) == (1, "")


@pytest.mark.parametrize("tool", [(), ("bogus",)])
def test_hgemm_itself_lists_the_tools_and_names_what_is_none(tool: tuple[str, ...]) -> None:
    finished = subprocess.run([sys.executable, "-m", "hgemm", *tool], cwd=ROOT, capture_output=True, text=True)
    if tool:
        assert (finished.returncode, finished.stdout) == (2, "")
        assert finished.stderr == "hgemm: no tool 'bogus'; a tool is a module of its own, as in python -m hgemm.study\n"
    else:
        assert finished.returncode == 0
        assert "python -m hgemm.study " in finished.stdout
