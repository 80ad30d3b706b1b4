"""What never ends: found out in another process before it is called in this one, or by the watchdog."""

import dataclasses
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from bench_machine import FakeCeiling, FakeMachine, backend, product, verify

import hgemm
from hgemm.bench.contestants import Choice, load
from hgemm.bench.measure import Bench
from hgemm.bench.metrics import label
from hgemm.bench.outcome import Outcome
from hgemm.bench.plan import DutyCycle, Plan
from hgemm.bench.preflight import Preflight
from hgemm.bench.results import dumps, read
from hgemm.bench.suites import Case, Shape
from hgemm.bench.watchdog import Watchdog

CASES = (Case(Shape(24, 16, 40)), Case(Shape(8, 8, 8)))


def bench(machine: FakeMachine, *contestants, **options) -> Bench:
    return Bench(
        Plan(CASES, ("*",), duty=DutyCycle(2.0, 1.0), rounds=3, limit_s=options.pop("limit_s", 300.0)),
        machine,
        [backend("torch", product(machine)), *contestants],
        verify,
        make_ceiling=lambda limit, device: FakeCeiling(machine),
        control_size=16,
        **options,
    )


class Stuck:
    """A contestant that is stuck in its n-th call until the bench has given it up."""

    def __init__(self, machine: FakeMachine, call: int) -> None:
        self.machine, self.call, self.calls = machine, call, 0
        self.given_up = threading.Event()
        self.outcomes: list[Outcome] = []

    def __call__(self, a, b, out, config) -> None:
        self.calls += 1
        if self.calls == self.call:
            assert self.given_up.wait(30)
        self.machine.spend(1e-4)
        out.copy_(a.float() @ b.float())

    def abandon(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.text = dumps(outcome.results)
        self.given_up.set()


@pytest.mark.parametrize("call", [1, 180], ids=["when it is checked", "in the rounds"])
def test_the_watchdog_gives_up_a_contestant_and_saves_the_rest(call: int) -> None:
    machine = FakeMachine()
    stuck = Stuck(machine, call)
    bench(machine, backend("stuck", stuck), limit_s=4.0, abandon=stuck.abandon).run()
    (outcome,) = stuck.outcomes
    assert outcome.lost
    assert outcome.stopped == "stuck did not end within 4 s"
    (case,) = outcome.results.cases
    (row,) = (row for row in case.rows if row.backend == "stuck")
    assert (row.status, row.reason, row.timing) == ("hangs", "did not end within 4 s", None)
    assert not case.complete
    assert not outcome.results.run.complete
    assert [label(row) for row in case.rows if row.role == "contestant"] == ["torch", "stuck"]
    if call > 1:
        assert all(row.timing for row in case.rows if row.backend != "stuck")


def test_a_long_first_call_in_another_process_is_no_hang_here() -> None:
    machine = FakeMachine()
    stuck = Stuck(machine, 0)
    pause = threading.Event()
    waits = iter([5.0])

    def preflight(choice: Choice, case: Case) -> None:
        if choice.backend.name == "slow":
            pause.wait(next(waits, 0.0))

    slow = backend("slow", product(machine))
    outcome = bench(machine, slow, limit_s=3.5, abandon=stuck.abandon, preflight=preflight).run()
    assert stuck.outcomes == []
    assert outcome.results.run.complete


PROGRAM = """
import sys, time
sys.path[:0] = sys.argv[1:]
import hgemm, hgemm.bench.yardsticks
from bench_machine import FakeMachine
from hgemm.bench.__main__ import main

hgemm.bench.yardsticks.CONTROL_SIZE = 16
hgemm.register_backend("stuck", lambda a, b, out, config: time.sleep(600))
how = ["--rounds", "1", "--burst-ms", "0.5", "--idle-ms", "0", "--limit", "8", "--quiet"]
main(["--mnk", "16,8,8", "8,8,8", "--backends", "torch", "stuck", "--out", "run.json", *how], machine=FakeMachine())
print("came back")
"""


def test_a_program_that_hangs_stores_its_results_and_ends(tmp_path: Path) -> None:
    folders = [str(Path(hgemm.__file__).resolve().parents[1]), str(Path(__file__).parent)]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *folders], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "hgemm.bench ended early: stuck did not end within 8 s\n"
    (case,) = read(tmp_path / "run.json").cases
    assert {row.backend: row.status for row in case.rows if row.role == "contestant"}["stuck"] == "hangs"


def test_the_limit_is_for_each_stretch_and_for_nothing_between() -> None:
    expired = threading.Event()
    with Watchdog(1.5, expired.set) as watchdog:
        for _ in range(5):
            with watchdog.watch():
                assert not expired.wait(0.4)
        assert not expired.wait(2.0)
        with watchdog.watch():
            assert expired.wait(30)


def test_who_hangs_in_another_process_is_never_called_here() -> None:
    machine = FakeMachine()
    asked = []

    def preflight(choice: Choice, case: Case):
        asked.append((choice.backend.name, case.shape.M))
        if choice.backend.name == "spins" and case.shape.M == 24:
            return "hangs", "did not end within 20 s in a process of its own"
        return None

    log: list[str] = []
    outcome = bench(machine, backend("spins", product(machine, log=log, name="spins")), preflight=preflight).run()
    first, second = ([row for row in case.rows if row.backend == "spins"] for case in outcome.results.cases)
    assert (first[0].status, first[0].timing) == ("hangs", None)
    assert second[0].status == "ok"
    assert outcome.results.run.complete
    # The control is ours, and asked for once; everybody else before each case.
    assert asked == [("torch", 16), ("torch", 24), ("spins", 24), ("torch", 8), ("spins", 8)]


CONTESTANTS = """
import os, time
import hgemm

def good(a, b, out, config):
    out.copy_(a @ b)

def picky(a, b, out, config):
    raise hgemm.UnsupportedProblem("N must be odd")

def raises(a, b, out, config):
    raise ArithmeticError(config)

def crashes(a, b, out, config):
    os.abort()

def hangs(a, b, out, config):
    time.sleep(600)

for fn in (good, picky, crashes, hangs):
    hgemm.register_backend(fn.__name__, fn)
hgemm.register_backend("raises", raises, configs=("x", "y"))
"""


@pytest.fixture
def preflight(tmp_path: Path) -> Iterator[Preflight]:
    path = tmp_path / "mine.py"
    path.write_text(CONTESTANTS)
    preflight = Preflight(torch.device("cpu"), [path], load(path), "own", 120.0)
    yield preflight
    preflight.close()


def test_a_first_call_in_a_process_of_its_own(preflight: Preflight) -> None:
    def reply(name: str, config: str | None = None, case: Case = CASES[0]) -> object:
        return preflight(Choice(hgemm.backends()[name], config), case)

    assert reply("good") is None
    child = preflight._child
    other = dataclasses.replace(CASES[0], layout="nt")
    assert reply("picky") == ("refused", "N must be odd")
    assert reply("raises", "y") == ("failed", "ArithmeticError: y")
    assert reply("good", case=other) is None
    assert preflight._child is child  # none of these cost a process
    assert reply("crashes") == ("failed", "ended its process with SIGABRT")
    assert reply("good", case=CASES[1]) is None
    preflight._limit = 0.5
    assert reply("hangs") == ("hangs", "did not end within 0.5 s in a process of its own")
    asked: list[object] = []
    preflight._ask = lambda *key: asked.append(key)  # type: ignore[method-assign]
    assert reply("hangs") == ("hangs", "did not end within 0.5 s in a process of its own")
    assert asked == []
    assert preflight._child is None


def test_a_process_that_does_not_start_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import hgemm\nhgemm.register_backend('mine', print)\n")
    names = load(path)
    path.write_text("import os\nos._exit(3)\n")
    preflight = Preflight(torch.device("cpu"), [path], names, "own", 120.0)
    reply = preflight(Choice(hgemm.backends()["mine"], None), CASES[0])
    reason = "the process for its first call did not start: it ended with status 3; --preflight none leaves it out"
    assert reply == ("failed", reason)


@pytest.mark.parametrize(
    ("reach", "tried"),
    [("own", ["mine"]), ("all", ["mine", "torch"]), ("none", [])],
)
def test_who_goes_first_in_another_process(reach, tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    hgemm.register_backend("mine", print)
    hgemm.register_backend("local", print)
    preflight = Preflight(torch.device("cpu"), [], ["mine"], reach, 1.0)
    monkeypatch.setattr(preflight, "_start", lambda: "stopped by the test")
    names = ("mine", "local", "torch")
    asked = [name for name in names if preflight(Choice(hgemm.backends()[name], None), CASES[0])]
    assert asked == tried
