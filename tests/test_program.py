"""The end of a tool: its status, and no traceback after Ctrl-C or into a closed pipe."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hgemm.bench.suites import Shape
from hgemm.program import Parser, end_with, printable, reading

ROOT = Path(__file__).resolve().parents[1]


def interrupted() -> int:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("main", "status"), [(lambda: 0, 0), (lambda: 2, 2), (interrupted, 130)])
def test_the_status(main, status: int, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        end_with(main)
    assert end.value.code == status
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("text", ["-1,2,3", "-1x8,8,8", "-.5,1,1", "8,8"])
def test_a_value_that_is_refused_is_named_with_the_form_on_one_line(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parse = Parser("tool")
    parse.add_argument_group("what").add_argument("--mnk", type=reading(Shape.parse), nargs="+")
    with pytest.raises(SystemExit) as end:
        parse.parse_args(["--mnk", text])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tool: argument --mnk: a shape is three positive integers M,N,K")
    assert line.endswith(f"found {text!r} (--help lists the options)")


def test_what_is_wrong_stays_on_its_line_whatever_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Parser("tool").parse_args(["--a\nb\x1b[31m"])
    assert capsys.readouterr().err == "tool: unrecognized arguments: --a b\\x1b[31m (--help lists the options)\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("8B gate_up, 3 \u00d7", "8B gate_up, 3 \u00d7"),
        ("a\tb\u00a0c", "a b c"),
        ("\x07\ud800\u202e", "\\x07\\ud800\\u202e"),
    ],
)
def test_only_what_can_be_printed_is(text: str, shown: str) -> None:
    assert printable(text) == shown


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
