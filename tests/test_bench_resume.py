"""A long run in short sittings: complete cases are kept, the rest is measured, and unlike runs are kept apart."""

import dataclasses
import json
from pathlib import Path

import pytest
from bench_machine import FakeCeiling, FakeMachine, backend, environment, product, verify

import hgemm
from hgemm.bench.__main__ import main
from hgemm.bench.measure import Bench
from hgemm.bench.plan import DutyCycle, Plan
from hgemm.bench.results import read
from hgemm.bench.resume import Previous
from hgemm.bench.schema import CaseResult, Row
from hgemm.bench.suites import Case, Shape

RUN = ["--mnk", "64,32,48", "2x32,32,32", "16,8,8", "--layouts", "nt", "--rounds", "3", "--burst-ms", "0.5"]
RUN += ["--idle-ms", "0", "--backends", "torch", "--quiet"]
FILE = Path("run.json")


@pytest.fixture(autouse=True)
def small_control(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hgemm.bench.yardsticks.CONTROL_SIZE", 16)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def begun() -> bytes:
    """A run that ended in its second case: the file holds the first whole and one round of the second."""
    machine = FakeMachine()
    bursts = 0

    def interrupt() -> None:
        nonlocal bursts
        bursts += FILE.exists()
        if bursts == 12:  # two to check torch, the warm-up and a round of four (there is no ceiling), and into the next
            raise KeyboardInterrupt

    machine.on_burst = interrupt
    assert main([*RUN, "--out", str(FILE)], machine=machine) == 130
    kept = read(FILE)
    assert [case.complete for case in kept.cases] == [True, False]
    assert not kept.run.complete
    return FILE.read_bytes()


def test_the_rest_is_measured_and_what_was_complete_is_kept(begun: bytes) -> None:
    before = read(FILE)
    assert main(["--resume", str(FILE), "--quiet"], machine=FakeMachine()) == 0
    after = read(FILE)
    assert after.run.complete
    assert [(case.M, case.batch, case.layout, case.complete) for case in after.cases] == [
        (64, 1, "nt", True),
        (32, 2, "nt", True),
        (16, 1, "nt", True),
    ]
    assert after.cases[0] == before.cases[0]
    assert (after.run.utc, after.run.options) == (before.run.utc, before.run.options)
    # The second sitting's clock goes on where the first one's stopped.
    assert after.run.seconds >= before.run.seconds
    late = [at for case in after.cases[1:] for row in case.rows if row.timing for at in row.timing.at_s]
    early = [at for row in after.cases[0].rows if row.timing for at in row.timing.at_s]
    assert min(late) >= before.run.seconds >= max(early)
    for case in after.cases:
        assert {len(row.timing.rounds) for row in case.rows if row.timing} == {3}


def test_the_same_options_may_be_given_again_and_another_budget(begun: bytes) -> None:
    assert main([*RUN, "--resume", str(FILE), "--budget", "5"], machine=FakeMachine()) == 0
    assert read(FILE).run.complete


def test_a_budget_ends_each_sitting(begun: bytes) -> None:
    for complete in ([True, False], [True, False]):
        main(["--resume", str(FILE), "--budget", "1e-9", "--quiet"], machine=FakeMachine())
        assert [case.complete for case in read(FILE).cases] == complete
    assert main(["--resume", str(FILE), "--quiet"], machine=FakeMachine()) == 0


def test_a_complete_file_is_left_as_it_is(begun: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--resume", str(FILE), "--quiet"], machine=FakeMachine())
    before = FILE.read_bytes()
    machine = FakeMachine()
    assert main(["--resume", str(FILE)], machine=machine) == 0
    assert "run.json is complete: nothing is left to measure" in capsys.readouterr().out
    assert (machine.bursts_opened, FILE.read_bytes()) == (0, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "5"], "option rounds was 3 and is 5"),
        (["--mode", "cold"], "option mode was rotating and is cold"),
        (["--layouts", "nn"], "option layouts was nt and is nn"),
        (["--mnk", "64,32,48"], "option mnk was 64,32,48,2x32,32,32,16,8,8 and is 64,32,48"),
        (["--sustained"], "option sustained was False and is True"),
        (["--out", "other.json"], "--resume and --out exclude each other"),
        (["--from", "run.json"], "--resume and --from exclude each other"),
    ],
)
def test_other_options_are_refused(
    options: list[str], message: str, begun: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(["--resume", str(FILE), *options], message, capsys)
    assert FILE.read_bytes() == begun


def refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], **environment_of) -> None:
    machine = FakeMachine()
    if environment_of:
        machine.environment = lambda: dataclasses.replace(environment(), **environment_of)  # type: ignore[method-assign]
    with pytest.raises(SystemExit) as stop:
        main(arguments, machine=machine)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert machine.bursts_opened == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gpu": "NVIDIA H100"}, "gpu was NVIDIA H200 and is NVIDIA H100"),
        ({"torch": "2.12.0"}, "torch was 2.11.0 and is 2.12.0"),
        ({"driver": None}, "driver was 580.00 and is nothing"),
        ({"power_limit_w": 500.0}, "power_limit_w was 700.0 and is 500.0"),
    ],
)
def test_another_machine_or_version_is_refused(
    changed: dict, message: str, begun: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(["--resume", str(FILE)], message, capsys, **changed)
    assert FILE.read_bytes() == begun


def test_other_kernel_sources_are_refused(
    begun: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hgemm.bench.__main__.sources_digest", lambda: "f" * 64)
    refused(["--resume", str(FILE)], "kernel sources was", capsys)


def test_other_flags_of_torch_are_refused(
    begun: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hgemm.bench.__main__.torch_flags", lambda: {"allow_tf32": "maybe"})
    refused(["--resume", str(FILE)], "flag allow_tf32 was False and is maybe", capsys)


def test_a_file_of_another_release_is_refused(begun: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(begun)
    del document["run"]["options"]["shapes"]
    FILE.write_text(json.dumps(document))
    refused(["--resume", str(FILE)], "run.json: its options are those of another release ('shapes')", capsys)


def test_a_file_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    refused(["--resume", "absent.json"], "absent.json: No such file", capsys)


def test_contestants_are_named_again(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("mine.py")
    path.write_text("import hgemm\nhgemm.register_backend('mine', lambda a, b, out, config: out.copy_(a @ b))\n")
    run = [
        "--preflight",
        "none",
        "--quiet",
        "--rounds",
        "2",
        "--burst-ms",
        "0.5",
        "--idle-ms",
        "0",
        "--backends",
        "torch",
    ]
    run += ["--mnk", "16,8,8", "8,8,8"]
    main([*run, "--contestant", "mine.py", "--budget", "1e-9", "--out", str(FILE)], machine=FakeMachine())
    hgemm.backends()["mine"]
    refused(["--resume", str(FILE)], "Name the same files with --contestant again", capsys)
    from hgemm.backends import _registered

    _registered.clear()
    again = ["--resume", str(FILE), "--contestant", "mine.py", "--preflight", "none", "--quiet"]
    assert main(again, machine=FakeMachine()) == 0
    (first, second) = read(FILE).cases
    assert [row.backend for row in second.rows if row.role == "contestant"] == ["torch", "mine"]
    assert first.complete


def test_who_failed_in_an_unfinished_case_is_not_tried_again() -> None:
    machine = FakeMachine()
    cases = (Case(Shape(24, 16, 40)), Case(Shape(8, 8, 8)))
    calls = []

    def hangs(a, b, out, config) -> None:
        calls.append(a.shape)
        out.copy_(a.float() @ b.float())

    gone = Row("contestant", "hangs", None, "hangs", "did not end within 300 s")
    unfinished = CaseResult(24, 16, 40, "bf16", "nn", {}, "normal", 0, 30720, 3968, [gone], complete=False)
    bench = Bench(
        Plan(cases, ("*",), duty=DutyCycle(2.0, 1.0), rounds=1),
        machine,
        [backend("torch", product(machine)), backend("hangs", hangs)],
        verify,
        previous=Previous(cases={cases[0]: unfinished}),
        make_ceiling=lambda limit, device: FakeCeiling(machine),
        control_size=16,
    )
    first, second = bench.run().results.cases
    assert set(calls) == {(8, 8)}  # in the case after it, it may try
    assert [row.status for row in first.rows if row.backend == "hangs"] == ["hangs"]
    assert [row.status for row in second.rows if row.backend == "hangs"] == ["ok"]
    assert first.complete
