"""hgemm.check: right backends pass, and every way of being wrong that is tried here is found and named."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hgemm
from hgemm.backends import Properties
from hgemm.check import main
from hgemm.config import Config
from hgemm.conformance import DATA, Case, cases, check_backend, run_case
from hgemm.problem import Problem, UnsupportedProblem


def whole_vectors(problem: Problem, config: str | None) -> str | None:
    """A rule of a backend of ours."""
    return None if problem.K % 8 == 0 else f"K must be a multiple of 8, found K = {problem.K}; pad with zeros"


Kernel = Callable[[Tensor, Tensor, Tensor, "str | None"], None]
EVERY_CLAIM = Properties(deterministic=True, row_invariant=True)
calls = [0]


def right(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    """Exact, rounded once."""
    out.copy_(a.double() @ b.double())


def last_term_missing(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    out.copy_(a[..., :-1].double() @ b[..., :-1, :].double())


def last_column_left_out(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    out[:, :-1] = (a.double() @ b.double())[:, :-1].to(out.dtype)


def past_the_last_row(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out, config)
    out.as_strided((1, 8), (1, 1), out.storage_offset() + out.shape[0] * out.stride(0)).fill_(1)


def between_the_rows(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out, config)
    if out.stride(0) > out.shape[1]:
        out.as_strided((out.shape[0], 1), out.stride(), out.storage_offset() + out.shape[1]).fill_(0)


def reads_past_the_row(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    wide = a.as_strided((a.shape[0], a.shape[1] + 1), a.stride(), a.storage_offset())
    out.copy_(wide.double() @ torch.nn.functional.pad(b, (0, 0, 0, 1)).double())


def accumulates_into_out(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    out.add_((a.double() @ b.double()).to(out.dtype))


def spoils_an_input(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out, config)
    b[-1, -1] = 0


def changes_a_sign_bit(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out, config)
    a.view(torch.int16)[a == 0] ^= -(2**15)


def wrong_row_of_b(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    out.copy_(a.double() @ b.roll(1, 0).double())


def sums_in_half_precision(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    total = torch.zeros_like(out)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1]
    out.copy_(total)


def never_the_same(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out, config)
    calls[0] += 1
    out.view(torch.int16)[0, 0] ^= calls[0] % 2


def depends_on_the_number_of_rows(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out, config)
    if len(a) == 5:
        out.view(torch.int16)[0, 0] ^= 1


def only_once(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out, config)
    if len(a) == 5:
        raise RuntimeError("only once")


def raises(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    raise RuntimeError("out of luck")


def faults(kernel: Kernel, case: str, properties: Properties = EVERY_CLAIM, dtype: torch.dtype = torch.float16) -> str:
    record = hgemm.register_backend("subject", kernel, properties=properties)
    outcome = run_case(record, None, dtype, "cpu", Case.parse(case))
    assert outcome.refused is None
    return "; ".join(outcome.faults)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("shape", ["1x8x8", "9x24x40", "5x13x17"])
def test_a_right_backend_has_no_fault(data: str, shape: str, dtype: torch.dtype) -> None:
    assert faults(right, f"{shape}:{data}", dtype=dtype) == ""
    assert faults(right, f"{shape}:{data}:contiguous", dtype=dtype) == ""


@pytest.mark.parametrize(
    ("kernel", "case", "found"),
    [
        (last_term_missing, "9x24x40:integers", "elements wrong"),
        (last_term_missing, "9x24x40:signs", "elements wrong"),
        (last_term_missing, "9x24x40:normal", "times its bound"),
        (last_term_missing, "9x24x40:positive", "times its bound"),
        (last_term_missing, "9x24x40:one-hot", "all in rows 8 to 8, columns 0 to 23"),
        (last_column_left_out, "9x24x40:normal", "left or produced 9 NaN in out"),
        (last_column_left_out, "9x24x40:normal", "error is inf times its bound"),
        (last_column_left_out, "9x24x40:integers", "all in rows 0 to 8, columns 23 to 23"),
        (past_the_last_row, "9x24x40:normal", "wrote 8 elements outside of out"),
        (past_the_last_row, "9x24x40:normal:contiguous", "wrote 8 elements outside of out"),
        (between_the_rows, "9x24x40:normal", "wrote 9 elements outside of out"),
        (reads_past_the_row, "9x24x40:integers", "NaN in out"),
        (accumulates_into_out, "9x24x40:integers", "left or produced 216 NaN in out"),
        (spoils_an_input, "9x24x40:normal", "changed 1 elements of the input b"),
        (changes_a_sign_bit, "9x24x40:signs", "elements of the input a"),
        (wrong_row_of_b, "9x24x40:one-hot", "elements wrong"),
        (sums_in_half_precision, "9x24x400:positive", "times its bound"),
        (raises, "9x24x40:integers", "raised RuntimeError: out of luck"),
    ],
)
def test_a_wrong_backend_is_found_out(kernel: Kernel, case: str, found: str) -> None:
    assert found in faults(kernel, case)


def wrong_row_from_column_5_on(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
    right(a, b, out, config)
    wrong_row_of_b(a, b[:, 5:], out[:, 5:], config)


def test_a_one_hot_failure_names_the_source() -> None:
    text = faults(wrong_row_from_column_5_on, "9x24x40:one-hot")
    assert "columns 5 to 23" in text
    row, source = (int(text.partition(start)[2].partition(",")[0]) for start in ("out[", "which is what b["))
    seed = torch.Generator().manual_seed(9 * 1_000_003 + 24 * 1_009 + 40)
    chosen = [*torch.randint(40, (9,), generator=seed).tolist()[:-1], 39]
    assert source == (chosen[row] - 1) % 40


def test_what_is_declared_is_tried_and_nothing_else() -> None:
    case = "9x24x40:normal"
    assert "declared deterministic, but a second run gave other bits" in faults(never_the_same, case)
    assert faults(never_the_same, case, Properties()) == ""
    assert "declared row-invariant, but the first 5 rows alone" in faults(depends_on_the_number_of_rows, case)
    assert faults(depends_on_the_number_of_rows, case, Properties()) == ""
    assert "a further run raised RuntimeError: only once" in faults(only_once, case)
    coarse = Properties(exact_integers=False)
    case = "9x24x400:integers"
    assert "elements wrong" in faults(sums_in_half_precision, case, Properties(), torch.bfloat16)
    assert "elements wrong" not in faults(sums_in_half_precision, case, coarse, torch.bfloat16)


def test_a_refusal_is_an_outcome_if_it_is_done_properly() -> None:
    record = hgemm.register_backend("subject", right, accepts=whole_vectors)
    outcome = run_case(record, None, torch.float16, "cpu", Case(5, 13, 17, "integers"))
    assert outcome.refused == "K must be a multiple of 8, found K = 17; pad with zeros"
    assert outcome.faults == ()


def test_an_unannounced_refusal_is_a_fault() -> None:
    def refuses_late(a: Tensor, b: Tensor, out: Tensor, config: str | None) -> None:
        out.fill_(0)
        raise UnsupportedProblem("not on a Sunday")

    record = hgemm.register_backend("subject", refuses_late)
    outcome = run_case(record, None, torch.float16, "cpu", Case(9, 24, 40, "integers"))
    assert outcome.faults == (
        "raised not on a Sunday, though accepts() takes this product",
        "raised an error and wrote into out",
    )


def test_taking_what_accepts_refuses_is_a_fault() -> None:
    answers = iter(["only the second time", None])
    record = hgemm.register_backend("subject", right, accepts=lambda problem, config: next(answers))
    outcome = run_case(record, None, torch.float16, "cpu", Case(9, 24, 48, "integers"))
    assert outcome.faults == ("did not raise, though accepts() refuses this product",)


@pytest.mark.parametrize("config", [None, "128x128x32_s3_w64x32", "64x256x64_s4_w32x64", "a name of the user's"])
@pytest.mark.parametrize("quick", [False, True])
def test_shapes_are_near_the_edges_of_the_tile(config: str | None, quick: bool) -> None:
    tile = Config.parse(config) if config and config[0].isdecimal() else Config(128, 128, 32, 2, 64, 32)
    for device_type in ("cpu", "cuda"):
        listed = cases(config, device_type, quick)
        rows, columns, depths = ({getattr(case, size) for case in listed} for size in "MNK")
        assert {1, 7, tile.tile_m - 1, tile.tile_m + 1} <= rows
        assert {tile.tile_n - 8, tile.tile_n, tile.tile_n + 8} <= columns
        ring = tile.tile_k * tile.stages
        assert {8, tile.tile_k, ring + 8} <= depths
        assert any(case.K % tile.tile_k for case in listed)
        assert any(tile.tile_k > case.K for case in listed)
        assert quick or {ring - 8, ring, 2 * ring + 8} <= depths
        assert {case.gap == 0 for case in listed} == {False, True}
        assert {case.layout for case in listed} == {"nn", "nt", "tn", "tt"}
        assert {case.batch > 0 for case in listed} == {False, True}
        assert {case.shared for case in listed} == {False, True}
        assert {case.out for case in listed} == {"n", "t"}
        assert quick or {case.data for case in listed} == set(DATA)
        assert quick or {case.offset for case in listed} == set(range(8))
        assert {case.data for case in listed} >= {"integers", "signs", "one-hot", "normal"}
        assert len(listed) == len(set(listed))
        assert all(Case.parse(case.name) == case for case in listed)
        largest = max(case.M * case.N * case.K for case in listed)
        assert largest <= (tile.tile_m + 1) * (tile.tile_n + 8) * (ring + 8) if quick else largest


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("8x8", "'8x8' should read MxNxK"),
        ("8x8x0:normal", "'8x8x0' should read MxNxK"),
        ("8x8x8", "'' should be one of integers"),
        ("8x8x8:nromal", "'nromal' should be one of"),
        ("8x8x8:normal:strided", "'strided' should be left out"),
        ("8x8x8:normal:batch0", "'batch0' should be left out"),
        ("8x8x8:normal:xn", "'xn' should be left out"),
        ("8x8x8:normal:shared", "'shared' needs a batch"),
    ],
)
def test_a_case_that_cannot_be_read(name: str, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        Case.parse(name)
    assert complaint in str(caught.value)


def test_reports_add_up() -> None:
    record = hgemm.register_backend(
        "subject",
        lambda a, b, out, config: (right if config == "good" else last_term_missing)(a, b, out, config),
        accepts=whole_vectors,
        configs=("good", "bad"),
    )
    work: list[str] = []
    good, bad = check_backend(record, "cpu", dtypes=[torch.float16], quick=True, before=work.append)
    assert (good.backend, good.config, good.dtype) == ("subject", "good", torch.float16)
    assert good.passed
    assert (good.cases, good.refused) == (8, 1)
    assert good.refusal is not None
    assert "K = 17" in good.refusal
    assert 0 < good.worst <= 1
    assert not bad.passed
    assert bad.worst > 1
    assert len(bad.failures) == bad.cases == 8
    assert len(work) == 18
    assert work[0] == "subject good 1x8x8:normal"


def test_the_table_and_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    hgemm.register_backend("subject", right)
    assert main(["--backend", "subject", "--device", "cpu", "--quick"]) == 0
    shown = capsys.readouterr().out
    for word in ("subject", "float16", "bfloat16", "passed", "error / bound"):
        assert word in shown

    hgemm.register_backend("subject", last_term_missing, configs=("odd",))
    assert main(["--backend", "subject", "--device", "cpu", "--quick", "--dtype", "bfloat16"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED 9" in shown
    assert "the smallest case being 1x8x8:normal" in shown
    again = shown.partition("again: python -m hgemm.check ")[2].splitlines()[0]
    assert "--config odd --dtype bfloat16 --case 1x8x8:normal" in again
    assert main(shlex.split(again)) == 1
    assert "FAILED 1" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    hgemm.register_backend("subject", last_column_left_out)
    assert main(["--backend", "subject", "--device", "cpu", "--json", "--case", "9x24x40:normal"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is False
    assert document["device"] == "cpu"
    result = document["results"][0]
    assert (result["backend"], result["config"], result["dtype"]) == ("subject", None, "float16")
    assert (result["cases"], result["refused"], result["error_over_bound"]) == (1, 0, "inf")
    assert result["failures"][0]["case"] == "9x24x40:normal"
    assert "NaN in out" in " ".join(result["failures"][0]["faults"])
    assert result["again"].endswith("--backend subject --dtype float16 --case 9x24x40:normal")


def test_everything_that_can_run_here_and_why_the_rest_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    hgemm.register_backend("subject", right)
    assert main(["--device", "cpu", "--json", "--case", "5x8x8:integers", "--dtype", "float16"]) == 0
    document = json.loads(capsys.readouterr().out)
    tried = {result["backend"] for result in document["results"]}
    idle = {entry["backend"] for entry in document["not_run"]}
    assert {"torch", "subject"} <= tried
    assert {"cublas", "cublaslt"} <= idle
    assert tried | idle == set(hgemm.backends().names)
    assert not tried & idle
    assert all(entry["reason"] for entry in document["not_run"])


def test_a_backend_that_takes_nothing_has_not_passed(capsys: pytest.CaptureFixture[str]) -> None:
    hgemm.register_backend("subject", right, accepts=lambda problem, config: "not today")
    assert main(["--backend", "subject", "--device", "cpu", "--quick"]) == 1
    shown = capsys.readouterr().out
    assert "refused all" in shown
    assert "subject float16 refused every case: not today" in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--backend", "tritn"], "did you mean 'triton'"),
        (["--backend", "cublas", "--device", "cpu"], "cublas does not run on cpu"),
        (["--backend", "torch", "--config", "x"], "no configurations"),
        (["--case", "8x8"], "should read MxNxK"),
        (["--backend", "no_such_module:f"], "it must lie in the current folder or on PYTHONPATH"),
        (["--backend", "my_kernel:"], "module:function, as in my_kernel:matmul, found 'my_kernel:'"),
        (["--backend", ":f"], "a backend of your own is module:function"),
        (["--backend", "hgemm.check:verifi"], "module 'hgemm.check' has no function 'verifi', did you mean 'verify'?"),
        (["--backend", "json:decoder"], "fn must be a function, found module"),
        (["--backend", "json:loads", "--backend", "pickle:loads"], "two of the backends are called 'loads'"),
        (["--config", "128x128x32_s2_w64x33"], "no backend has a configuration '128x128x32_s2_w64x33', did you mean"),
        (["--backend", "torch", "--device", "cpu", "--case", f"{10**9}x{10**9}x8:integers"], "cannot be set up here"),
        (["--backend", "torch", "--device", "cpu", "--case", f"{10**30}x8x8:integers"], "cannot be set up here"),
    ],
)
def test_what_cannot_be_checked_is_status_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.out == ""


def test_a_configuration_alone_picks_the_backends_that_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    hgemm.register_backend("first", right, configs=("small",))
    hgemm.register_backend("second", right, configs=("large", "small"))
    hgemm.register_backend("third", right, configs=("large",))
    assert main(["--config", "small", "--device", "cpu", "--quick", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert {(result["backend"], result["config"]) for result in results} == {("first", "small"), ("second", "small")}


def test_nothing_that_runs_is_status_2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    record = hgemm.backends()["cublas"]
    monkeypatch.setattr("hgemm.check.backends", lambda: [record])
    assert main(["--device", "cpu"]) == 2
    assert "nothing that was asked for runs on cpu: cublas: " in capsys.readouterr().err


def test_a_function_of_ones_own_from_the_command_line(tmp_path: Path) -> None:
    # A file that prints, as the README's does, is heard on stderr: stdout may hold JSON.
    source = "print('loaded')\ndef {name}(a, b, out, config):\n    out.copy_(a.double() @ b.double(){error})\n"
    (tmp_path / "kernels.py").write_text(
        source.format(name="fine", error="") + source.format(name="off", error=" + 0.25")
    )
    command = [sys.executable, "-m", "hgemm.check", "--device", "cpu", "--quick", "--dtype", "float16"]
    path = str(Path(hgemm.__file__).parents[1])
    done = subprocess.run(
        [*command, "--backend", "kernels:fine", "--backend", "kernels:off"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    rows = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("│")}
    assert "passed" in rows["fine"]
    assert "FAILED" in rows["off"]
    assert "--backend kernels:off --dtype float16 --case" in done.stdout
    assert "loaded" not in done.stdout
    assert done.stderr == "loaded\n" * 2


@pytest.mark.gpu
def test_every_backend_passes_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--device", "cuda", "--quick", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert status == 0, [result for result in document["results"] if not result["passed"]]
