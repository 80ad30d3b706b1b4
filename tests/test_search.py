"""python -m hgemm.check --search, and cases in child processes: what is wrong is found, made small, and outlived."""

from __future__ import annotations

import functools
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hgemm
from hgemm import isolation
from hgemm.backends import get
from hgemm.cases import Case
from hgemm.check import main
from hgemm.conformance import Report
from hgemm.search import search

pytest.importorskip("hypothesis")


def right(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    out.copy_(a.double() @ b.double())


def wrong_from_17_on(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    """For column-major b, from 17 terms on."""
    right(a, b, out, config)
    if a.shape[-1] >= 17 and b.shape[-1] > 1 and b.stride(-1) != 1:
        out[..., -1, -1] += 1


def test_a_fault_is_found_and_made_small() -> None:
    hgemm.register_backend("subject", wrong_from_17_on)
    began = time.monotonic()
    report = search(get("subject"), None, torch.float16, "cpu", 20)
    assert time.monotonic() - began < 60
    assert report.cases > 0
    (failure,) = report.failures
    assert failure.faults
    assert failure.case.K == 17
    assert failure.case.M == 1
    assert (failure.case.batch, failure.case.offset, failure.case.out) == (0, 0, "n")
    assert "t" in failure.case.layout or failure.case.step == 2
    assert Case.parse(failure.case.name) == failure.case


def test_a_right_backend_passes_for_as_long_as_was_asked() -> None:
    work: list[str] = []
    hgemm.register_backend("subject", right, accepts=lambda problem, config: "odd K" if problem.K % 2 else None)
    began = time.monotonic()
    report = search(get("subject"), None, torch.bfloat16, "cpu", 2, work.append)
    assert 2 <= time.monotonic() - began < 20
    assert report.passed
    assert report.refusal == "odd K"
    assert min(report.cases, report.refused) > 0
    assert report.cases + report.refused == len(work)
    assert 0 < report.worst <= 1


def test_from_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    hgemm.register_backend("subject", wrong_from_17_on)
    command = ["--backend", "subject", "--device", "cpu", "--dtype", "float16", "--quick", "--json"]
    assert main([*command, "--search", "20"]) == 1
    (result,) = json.loads(capsys.readouterr().out)["results"]
    case = Case.parse(result["failures"][0]["case"])
    assert case.K == 17
    assert result["again"].endswith(f"--case {case.name}")
    assert main([*command, "--case", case.name]) == 1
    capsys.readouterr()
    for name in list(sys.modules):
        if name.partition(".")[0] == "hypothesis":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    assert main([*command, "--search", "5"]) == 2
    assert "pip install hypothesis" in capsys.readouterr().err
    hgemm.register_backend("subject", right)
    assert main(command) == 0


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "soon"])
def test_a_time_that_is_none(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--search", seconds])
    assert caught.value.code == 2
    assert "--search" in capsys.readouterr().err


KERNELS = """
import os, threading, time

def fine(a, b, out, config):
    out.copy_(a.double() @ b.double())

def hangs(a, b, out, config):
    fine(a, b, out, config)
    if a.shape[-1] == 24 and str(a.dtype) == "torch.float16":
        time.sleep(1000)

def dies(a, b, out, config):
    fine(a, b, out, config)
    if a.shape[-1] == 24 and str(a.dtype) == "torch.float16":
        # Another thread would be one that still has to write which case this is.
        os._exit(7 if threading.active_count() == 1 else 8)
"""


@pytest.mark.parametrize(
    ("kernel", "limit", "fault"),
    [("hangs", 12, "did not end within 12 s"), ("dies", 60, "the process ended with status 7")],
)
def test_a_hang_and_a_crash_are_failures_of_their_case(
    kernel: str, limit: float, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels_of_a_test.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"kernels_of_a_test:{kernel}"
    assert isolation.can_isolate(name)
    runs = [(None, torch.float16), (None, torch.bfloat16)]
    work: list[str] = []
    lost, after = isolation.isolated_reports(name, runs, "cpu", limit=limit, quick=True, before=work.append)
    (failure,) = lost.failures
    assert (lost.backend, lost.dtype, failure.case.K) == (kernel, torch.float16, 24)
    assert failure.faults == (fault,)
    assert after.passed
    assert (after.dtype, after.cases) == (torch.bfloat16, 9)
    assert len(work) == 3 + 9


DECLARING = """
import hgemm
from hgemm.backends import Properties
from hgemm.problem import row_major_rule

calls = [0]

def {name}(a, b, out, config):
    assert config == "small"
    out.copy_(a.double() @ b.double())
    calls[0] += 1
    out[-1, -1] += calls[0] % 2

hgemm.register_backend("{name}", {name}, lambda problem, config: row_major_rule(problem), {properties}, ("small",))
"""


def test_what_a_module_declares_of_its_function_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    faults = {}
    for name, properties in (("steady", "Properties(deterministic=True)"), ("unsteady", "Properties()")):
        (tmp_path / f"declaring_{name}.py").write_text(DECLARING.format(name=name, properties=properties))
        record = isolation.load(f"declaring_{name}:{name}")
        assert isolation.load(f"declaring_{name}:{name}") is record
        assert record.configs == ("small",)
        (report,) = isolation.reports(f"declaring_{name}:{name}", [("small", torch.float16)], "cpu", quick=True)
        assert (report.cases, report.refused) == (5, 4)
        assert report.refusal is not None
        assert "row-major" in report.refusal
        faults[name] = " ".join(fault for failure in report.failures for fault in failure.faults)
    assert "declared deterministic" in faults["steady"]
    assert "declared" not in faults["unsteady"]


def test_a_function_of_the_same_name_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("one_of_a_test", "other_of_a_test"):
        (tmp_path / f"{module}.py").write_text("def mine(a, b, out, config):\n    pass\n")
        record = isolation.load(f"{module}:mine")
        assert record.fn is sys.modules[module].mine


def test_a_process_that_is_asked_to_end_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "script_of_a_test.py").write_text("import sys\nsys.exit(0)\n")
    assert main(["--backend", "script_of_a_test:mine", "--device", "cpu", "--quick"]) == 2
    assert "importing module 'script_of_a_test' ends the process" in capsys.readouterr().err

    def leaves(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
        sys.exit(0)

    hgemm.register_backend("leaves", leaves)
    assert main(["--backend", "leaves", "--device", "cpu", "--quick"]) == 1
    assert "raised SystemExit: 0" in capsys.readouterr().out


def test_what_a_child_would_not_know_runs_here() -> None:
    hgemm.register_backend("subject", right)
    assert not isolation.can_isolate("subject")
    assert isolation.can_isolate("cuda_tma")


def test_jobs_side_by_side_keep_their_order_and_one_that_fails_ends_all() -> None:
    started = threading.Barrier(2, timeout=60)
    stopped: list[bool] = []

    def job(name: str, stop: threading.Event) -> Iterator[Report]:
        started.wait()
        yield Report(name, None, torch.float16, 1, 0, None, 0.0, ())

    def fails(stop: threading.Event) -> Iterator[Report]:
        started.wait()
        raise MemoryError("no room")
        yield

    def waits(stop: threading.Event) -> Iterator[Report]:
        started.wait()
        stopped.append(stop.wait(60))
        yield from ()

    found = isolation.side_by_side([functools.partial(job, name) for name in ("one", "other")], 2)
    assert [report.backend for report in found] == ["one", "other"]
    with pytest.raises(MemoryError, match="no room"):
        isolation.side_by_side([fails, waits], 2)
    assert stopped == [True]


def test_a_child_is_ended_when_its_caller_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels_of_a_test.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    stop = threading.Event()
    runs = [(None, torch.float16)]
    found = isolation.isolated_reports("kernels_of_a_test:hangs", runs, "cpu", before=lambda _: stop.set(), stop=stop)
    with pytest.raises(InterruptedError):
        next(found)
    assert not multiprocessing.active_children()
