"""python -m hgemm.tune on a machine whose clock only candidates move: who wins, what is kept, what is done again."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_machine import BASE_SECONDS, FakeMachine, backend, product

import hgemm
from hgemm import check, tuned_file
from hgemm.backends import Backend
from hgemm.bench.suites import Case, Shape
from hgemm.bench.watchdog import Watchdog
from hgemm.tune import __main__ as command
from hgemm.tune.__main__ import main
from hgemm.tune.candidates import problem_of
from hgemm.tune.trials import STAGES, Trials
from hgemm.tune.tuner import Outcome, Tuner
from hgemm.tuned_file import Entry, Gpu, Product

CASE = Case(Shape(24, 16, 40))
ROUNDS = [rounds for _, rounds in STAGES]
H200 = Gpu("NVIDIA H200", (9, 0), 132)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("hgemm.cuda_kernels.cache.temporary_folder", lambda: tmp_path / "temporary")
    return tmp_path / "cache"


class Shop:
    """A machine, backends on it, and a log of who was called."""

    def __init__(self, **seconds: float) -> None:
        self.machine = FakeMachine()
        self.log: list[str] = []
        self.backends: list[Backend] = []
        for name, own in seconds.items():
            self.add(name, product(self.machine, own, self.log, name))
        self.stored: dict[Product, Entry] = {}
        self.compiled: list[tuple[str, str | None, Case]] = []

    def add(self, name: str, fn: Callable[..., None], configs: Sequence[str] = ()) -> None:
        self.backends.append(backend(name, fn, configs))

    def tune(self, *cases: Case, patterns: Sequence[str] = ("*",), **options: Any) -> Outcome:
        def compile_all(jobs: Any) -> dict[Any, str]:
            self.compiled += [(choice.backend.name, choice.config, case) for choice, case in jobs]
            return {}

        with self.machine.activate(), Watchdog(60, lambda: None) as watchdog:
            tuner = Tuner(
                self.machine,
                self.backends,
                patterns,
                Trials(self.machine, check.verify, watchdog),
                options.pop("compile_all", compile_all),
                lambda entry: self.stored.update({entry.product: entry}),
                dict(self.stored),
                **options,
            )
            return tuner.run(cases or (CASE,))


def ranked(shop: Shop, case: Case = CASE) -> list[tuple[str, float]]:
    entry = shop.stored[Product.of(problem_of(case, shop.machine.device))]
    return [(one.backend, one.us) for one in entry.ranking]


def test_the_order_is_that_of_the_times() -> None:
    shop = Shop(slow=3e-4, quick=1e-4, middle=1.1e-4)
    outcome = shop.tune()
    assert [(name, pytest.approx(us)) for name, us in [("quick", 200.0), ("middle", 210.0), ("slow", 400.0)]] == ranked(
        shop
    )
    assert outcome.stopped is None
    assert shop.machine.bursts_closed == shop.machine.bursts_opened == 3


def test_losers_drop_out_and_the_others_are_timed_to_the_end() -> None:
    # 200, 220 and 300 us: the slowest is out after the first stage, the one at 1.10 after the second.
    shop = Shop(quick=1e-4, middle=1.2e-4, slow=2e-4)
    shop.tune()
    sleeps = Counter(shop.machine.slept)
    assert sleeps == {0.02: 3 * ROUNDS[0] + 2 * ROUNDS[1] + 1 * ROUNDS[2]}
    # Two within 8% of each other go to the end.
    shop = Shop(quick=1e-4, middle=1.1e-4)
    shop.tune()
    assert len(shop.machine.slept) == 2 * sum(ROUNDS)


def test_who_is_wrong_leaves_poison_or_fails_is_left_out() -> None:
    shop = Shop(right=1e-4)
    shop.add("zero", lambda a, b, out, config: out.zero_())
    shop.add("lazy", lambda a, b, out, config: None)

    def fail(*arguments: object) -> None:
        raise RuntimeError("no such kernel")

    shop.add("fails", fail)
    (tuned,) = shop.tune().tuned
    assert [name for name, _ in ranked(shop)] == ["right"]
    reasons = {one.backend: one.reason for one in tuned.left_out}
    assert re.fullmatch(r"its result has an error of \S+ times its bound", reasons.pop("zero"))
    assert reasons == {
        "lazy": "its result leaves 384 of 384 elements unwritten or NaN",
        "fails": "RuntimeError: no such kernel",
    }
    assert tuned.wrong == ("zero", "lazy")


@pytest.mark.parametrize("bursts", [1, 3])
def test_a_candidate_that_fails_while_it_is_timed_is_left_out(bursts: int) -> None:
    """Whether in its first burst or when it has been timed already."""
    shop = Shop(right=1e-4)
    calls = 0

    def fail_later(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, config: str | None) -> None:
        nonlocal calls
        calls += 1
        if len(shop.machine.slept) >= bursts:
            raise RuntimeError("it fails now")
        out.copy_(a.float() @ b.float())

    shop.add("later", fail_later)
    (tuned,) = shop.tune().tuned
    assert calls > 1
    assert [name for name, _ in ranked(shop)] == ["right"]
    assert [(one.backend, one.reason) for one in tuned.left_out] == [("later", "RuntimeError: it fails now")]


def test_nothing_is_kept_where_nobody_can_be_timed() -> None:
    shop = Shop()
    shop.add("zero", lambda a, b, out, config: out.zero_())
    (tuned,) = shop.tune().tuned
    assert (tuned.entry, tuned.fault, shop.stored) == (None, "no configuration could be timed", {})


def test_what_cannot_be_compiled_is_not_tried() -> None:
    shop = Shop(good=1e-4, bad=1e-5)

    def compile_all(jobs: Any) -> dict[Any, str]:
        from hgemm.tune.compiling import Form

        return {Form.of(choice, case): "it hangs" for choice, case in jobs if choice.backend.name == "bad"}

    (tuned,) = shop.tune(compile_all=compile_all).tuned
    assert "bad" not in shop.log
    assert [(one.backend, one.reason) for one in tuned.left_out] == [("bad", "it hangs")]


def test_a_second_run_skips_what_was_tuned_and_goes_on_with_the_rest() -> None:
    shop = Shop(quick=1e-4)
    other = Case(Shape(8, 8, 8))
    shop.tune(CASE)
    shop.log.clear()
    outcome = shop.tune(CASE, other, other)
    assert outcome.known == [CASE]
    assert [one.case for one in outcome.tuned] == [other]
    assert shop.compiled == [("quick", None, CASE), ("quick", None, other)]
    shop.log.clear()
    one_row = [Case(Shape(1, 8, 8), layout=layout) for layout in ("nn", "tn")]  # the same product: a row has no layout
    assert [one.case for one in shop.tune(*one_row).tuned] == one_row[:1]
    assert shop.tune(*one_row).known == one_row[:1]
    shop.log.clear()
    assert shop.tune(CASE, other).known == [CASE, other]
    assert shop.log == []
    assert [one.case for one in shop.tune(CASE, again=True).tuned] == [CASE]


def test_a_candidate_that_was_not_tried_then_is_tried_beside_those_that_were() -> None:
    shop = Shop(quick=1e-4, new=2e-5)
    shop.tune(patterns=["quick"])
    assert [name for name, _ in ranked(shop)] == ["quick"]
    shop.tune(patterns=["new"])
    assert [name for name, _ in ranked(shop)] == ["new", "quick"]
    assert shop.tune(patterns=["quick"]).known == [CASE]
    shop.tune(patterns=["quick"], again=True)
    assert [name for name, _ in ranked(shop)] == ["quick"]


def test_the_budget_ends_a_run_between_products_and_not_before_the_first() -> None:
    shop = Shop(quick=1e-4)
    cases = [Case(Shape(8, 8, size)) for size in (8, 16, 24)]

    def compile_all(jobs: Any) -> dict[Any, str]:
        shop.machine.spend(100.0)
        return {}

    outcome = shop.tune(*cases, budget_s=50.0, compile_all=compile_all)
    assert outcome.stopped == "the budget is spent"
    assert [one.case for one in outcome.tuned] == cases[:1]
    assert len(shop.stored) == 1


def test_an_interrupt_keeps_the_products_that_ended() -> None:
    shop = Shop(quick=1e-4)

    def interrupt() -> None:
        if len(shop.stored) == 1:
            raise KeyboardInterrupt

    shop.machine.on_burst = interrupt
    outcome = shop.tune(CASE, Case(Shape(8, 8, 8)))
    assert outcome.interrupted
    assert [one.case for one in outcome.tuned] == [CASE]
    assert len(shop.stored) == 1


def test_a_broken_device_ends_the_run_and_keeps_what_there_is() -> None:
    shop = Shop(quick=1e-4)

    def breaks(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, config: str | None) -> None:
        if shop.stored:
            shop.machine.broken = "an illegal memory access"
            raise RuntimeError("it crashed")
        out.copy_(a.float() @ b.float())

    shop.add("breaks", breaks)
    outcome = shop.tune(CASE, Case(Shape(8, 8, 8)))
    assert outcome.lost
    assert "breaks broke the device" in (outcome.stopped or "")
    assert len(shop.stored) == 1


def test_no_room_for_the_operands_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("hgemm.tune.trials.Operands.allocate", full)
    (tuned,) = Shop(quick=1e-4).tune().tuned
    assert tuned.fault == "the operands take 0.0 GB and 0.0 GB of device memory are free"


@pytest.fixture
def command_shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The command's backends are two of the package's names, on a fake machine."""
    shop = Shop()
    for name, seconds in (("triton_pointer", 3e-4), ("cuda_tma", 1e-4)):
        record = hgemm.backends()[name]
        shop.add(name, product(shop.machine, seconds, shop.log, name), record.configs[:1])
    monkeypatch.setattr(command.hgemm, "backends", lambda: shop.backends)
    monkeypatch.setattr(command.compiling.adapter, "build", lambda *arguments: None)
    return shop


MNK = ["--mnk", "24,16,40"]


def test_the_command_tunes_shows_lists_and_forgets(
    command_shop: Shop, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    assert main([*MNK, "--dtypes", "fp16", "--layouts", "nt"], command_shop.machine) == 0
    printed = capsys.readouterr().out
    assert "24,16,40 fp16 nt: cuda_tma 128x128x64_s3_w64x32, 200 us" in printed
    assert "then triton_pointer 128x128x32_s2_w64x32, 400 us, 2.00 times as long" in printed
    assert "2 tried, 0 not" in printed
    (entry,) = tuned_file.entries_in_use(H200).values()
    assert entry.product == Product(24, 16, 40, 1, "fp16", "ntn")
    assert (cache / "tuned" / H200.file).exists()

    assert main([*MNK, "--dtypes", "fp16", "--layouts", "nt"], command_shop.machine) == 0
    assert capsys.readouterr().out == "1 product was tuned before; --again tunes once more\n"

    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert f"NVIDIA H200, torch {torch.__version__}" in listed
    assert "24,16,40 fp16 nt: cuda_tma 128x128x64_s3_w64x32, 200 us" in listed
    assert main(["--list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tables"][0]["tables"][0]["entries"][0]["ranking"][0]["backend"] == "cuda_tma"

    assert main([*MNK, "--forget"], command_shop.machine) == 0
    assert "0 tuned products" in capsys.readouterr().out, "bf16 nn was never tuned"
    assert main(["--forget", "--json"], command_shop.machine) == 0
    assert json.loads(capsys.readouterr().out) == {"gpu": "NVIDIA H200", "forgotten": 1}
    assert main(["--list"]) == 0
    assert capsys.readouterr().out == "nothing was tuned here\n"


def test_json_is_one_object_on_stdout(command_shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MNK, "--json"], command_shop.machine) == 0
    document = json.loads(capsys.readouterr().out)
    (tuned,) = document["tuned"]
    assert (tuned["M"], tuned["N"], tuned["K"], tuned["dtype"], tuned["layout"]) == (24, 16, 40, "bf16", "nn")
    assert [one["us"] for one in tuned["ranking"]] == pytest.approx([200.0, 400.0])
    assert document["stopped"] is None


def test_exit_statuses(command_shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    command_shop.add("triton_zero", lambda a, b, out, config: out.zero_())
    assert main(MNK, command_shop.machine) == 1
    assert "no time for triton_zero" in capsys.readouterr().out
    assert len(tuned_file.entries_in_use(H200)) == 1, "the winner is kept"

    def interrupt() -> None:
        raise KeyboardInterrupt

    command_shop.machine.on_burst = interrupt
    assert main([*MNK, "--again"], command_shop.machine) == 130
    assert "ended early: interrupted" in capsys.readouterr().err


def test_every_suite_has_its_layout(command_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Case] = []
    monkeypatch.setattr(Tuner, "run", lambda self, cases: seen.extend(cases) or Outcome())
    assert main(["--suite", "llm", "--dtypes", "bf16,fp16"], command_shop.machine) == 0
    assert {case.layout for case in seen} == {"nt"}
    assert len(seen) == 2 * 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "say what to tune: --mnk M,N,K, --suite NAME or --shapes FILE.csv"),
        (["--mnk", "4096"], "three positive integers M,N,K"),
        ([*MNK, "--budget", "0"], "--budget must be positive and finite, found 0"),
        ([*MNK, "--limit", "nan"], "--limit must be positive and finite, found nan"),
        ([*MNK, "--jobs", "-1"], "--jobs must be at least 0, found -1"),
        ([*MNK, "--backends", "cutlass"], "no backend matches 'cutlass'"),
        (["--list", "--forget"], "not allowed with argument"),
    ],
)
def test_a_bad_option_is_status_2_in_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(options, FakeMachine())
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_no_folder_to_write_is_said_before_anything_runs(
    command_shop: Shop, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    cache.write_text("a file, where a folder should be")
    (cache.parent / "temporary").write_text("and here")
    assert main(MNK, command_shop.machine) == 2
    assert "cannot write the kernel cache" in capsys.readouterr().err
    assert command_shop.log == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so_in_one_line_and_still_lists(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (MNK, ["--forget"]):
        assert main(options) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "needs a CUDA GPU" in line
    assert main(["--list"]) == 0


def test_matmul_knows_nothing_of_the_search() -> None:
    code = (
        "import sys, torch, hgemm; a = torch.ones(8, 8).half(); hgemm.matmul(a, a); hgemm.explain(a, a);"
        "print([name for name in sys.modules if name.split('.')[:2] in (['hgemm', 'tune'], ['hgemm', 'bench'])])"
    )
    root = Path(hgemm.__file__).resolve().parents[1]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=120)
    assert run.stdout == "[]\n", run.stderr


def test_times_are_seconds_of_the_machine() -> None:
    shop = Shop(only=0.0)
    shop.tune()
    assert ranked(shop) == [("only", pytest.approx(BASE_SECONDS * 1e6))]
