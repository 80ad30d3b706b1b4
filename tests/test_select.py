"""backend="auto": what it stands for, by the committed table of a device or the documented order, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hgemm
from hgemm import cost, measured, ranking, select
from hgemm.backends import Backend, backends
from hgemm.cost import Size
from hgemm.devices import rates
from hgemm.problem import Problem, row_major_rule
from hgemm.select import PREFERENCE, Choice, choose

ROOT = Path(__file__).parents[1]
H200 = rates("NVIDIA H200", (9, 0), 132)
SOMETHING = rates("NVIDIA Something", (12, 0), 100)  # of a kind that the model was not fitted on


def test_on_a_cpu_auto_is_torch() -> None:
    choice = hgemm.explain(torch.ones(8, 8).half(), torch.ones(8, 8).half())
    assert (choice.backend, choice.config) == ("torch", None)
    assert "CPU" in choice.reason
    assert str(choice) == f"torch: {choice.reason}"
    assert str(Choice("x", "y", "z")) == "x y: z"


def test_explain_refuses_what_matmul_refuses_and_computes_nothing() -> None:
    a = torch.ones(8, 8).half()
    out = torch.full((8, 8), torch.nan).half()
    assert hgemm.explain(a, a, out).backend == "torch"
    assert out.isnan().all()
    for wrong in (torch.ones(7, 8).half(), a, out.float()):
        with pytest.raises((TypeError, ValueError)) as expected:
            hgemm.matmul(a, a, out=wrong)
        with pytest.raises(type(expected.value)) as found:
            hgemm.explain(a, a, wrong)
        assert str(found.value) == str(expected.value)
    assert "nothing to multiply" in hgemm.explain(a[:0], a).reason
    assert "negated" in hgemm.explain(torch._neg_view(a), a).reason
    with pytest.raises(ValueError, match="meta"):
        hgemm.explain(a.to("meta"), a.to("meta"))


class Records(dict[str, Backend]):
    """By name, and in their order, as ``backends()`` are."""

    def __iter__(self) -> Iterator[Backend]:  # type: ignore[override]
        return iter(self.values())


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Backend]:
    """Stands in for an unmeasured GPU on which Triton's kernels take row-major matrices and the rest everything."""

    def on_it(record: Backend) -> Backend:
        rows_only = record.name.startswith("triton")
        return replace(
            record,
            unavailable=lambda device_type: None,
            accepts=lambda problem, config: row_major_rule(problem) if rows_only else None,
            choose=lambda problem: f"{record.name}'s default" if record.configs else None,
        )

    records = Records({record.name: on_it(record) for record in backends()})
    monkeypatch.setattr(select, "backends", lambda: records)
    monkeypatch.setattr(select, "_device", lambda device: SOMETHING)
    return records


def on_gpu(M: int, N: int, K: int, dtype: torch.dtype = torch.float16, transposed: bool = False) -> Problem:
    a, b = torch.empty(M, K, dtype=dtype, device="meta"), torch.empty(K, N, dtype=dtype, device="meta")
    if transposed:
        a = torch.empty(K, M, dtype=dtype, device="meta").t()
    return replace(Problem.from_tensors(a, b), device=torch.device("cuda", 0))


def test_on_an_unmeasured_gpu_the_first_that_takes_it(gpu: dict[str, Backend]) -> None:
    assert PREFERENCE == ("triton", "triton_pointer", "cuda_cp_async", "torch")
    choice = choose(on_gpu(64, 64, 64))
    assert (choice.backend, choice.config) == ("triton", "triton's default")
    assert choice.reason.startswith("triton takes it; model for NVIDIA Something: ")
    choice = choose(on_gpu(64, 64, 64, transposed=True))
    assert (choice.backend, choice.config) == ("cuda_cp_async", "cuda_cp_async's default")
    assert "triton: a must be row-major" in choice.reason
    gpu["cuda_cp_async"] = replace(gpu["cuda_cp_async"], accepts=lambda problem, config: "no compiler")
    choice = choose(on_gpu(64, 64, 64, transposed=True))
    assert (choice.backend, choice.config) == ("torch", None)
    assert "cuda_cp_async: no compiler" in choice.reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_a_measured_gpu_the_fastest_that_takes_it(
    dtype: torch.dtype, gpu: dict[str, Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "_device", lambda device: H200)
    name = {torch.float16: "h200-squares-fp16.json", torch.bfloat16: "h200-squares.json"}[dtype]
    document = json.loads((ROOT / "plots" / "results" / name).read_text())
    (rows,) = (case["rows"] for case in document["cases"] if case["M"] == 2048)
    medians = {
        (row["backend"], row["config"]): sorted(row["timing"]["samples_us"])[len(row["timing"]["samples_us"]) // 2]
        for row in rows
        if row["role"] == "contestant" and row["backend"] not in ("torch", "cublas")
    }
    choice = choose(on_gpu(2048, 2048, 2048, dtype))
    assert (choice.backend, choice.config) == min(medians, key=lambda key: medians[key])
    assert "on NVIDIA H200 at 2048x2048x2048" in choice.reason
    gpu["triton"] = replace(gpu["triton"], accepts=lambda problem, config: "no Triton")
    choice = choose(on_gpu(2048, 2048, 2048, dtype))
    others = {key: median for key, median in medians.items() if key[0] != "triton"}
    assert (choice.backend, choice.config) == min(others, key=lambda key: others[key])


def test_next_to_a_measured_size_the_model_ranks_all_families(
    gpu: dict[str, Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "_device", lambda device: H200)
    for sizes in ((8200, 8192, 8192), (8192, 8192, 64), (3, 8192, 8192)):
        problem = on_gpu(*sizes)
        ranking = [p for record in gpu.values() for p in record.predictions(problem, H200)]
        best = min(ranking, key=lambda prediction: prediction.seconds)
        choice = choose(problem)
        assert (choice.backend, choice.config) == (best.kernel.backend, best.config)
        assert choice.reason == str(best)
        assert "us by" in choice.reason or "by tensor work" in choice.reason
    # Triton's kernels take no transposed matrix here, and are not chosen for what they would be worth.
    choice = choose(on_gpu(8192, 8192, 8192, transposed=True))
    assert not choice.backend.startswith("triton")
    assert "model for NVIDIA H200" in choice.reason


def test_a_batch_is_no_measured_case(gpu: dict[str, Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "_device", lambda device: H200)
    assert "model for NVIDIA H200" in choose(replace(on_gpu(8192, 8192, 8192), batch=(2,))).reason


def test_a_board_of_the_fitted_kind_is_predicted_with_its_own_rates(
    gpu: dict[str, Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    pcie = rates("NVIDIA H100 PCIe", (9, 0), 114)
    monkeypatch.setattr(select, "_device", lambda device: pcie)
    assert cost.committed().capability == (9, 0)
    assert "model for NVIDIA H100 PCIe" in choose(on_gpu(8192, 8192, 8192)).reason


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("h200-squares.json", "2048x2048x2048 bf16"),
        ("h200-squares-fp16.json", "2048x2048x2048 fp16"),
        ("h200-llm.json", "16x28672x4096 bf16"),
        ("h200-llm-fp16.json", "16x28672x4096 fp16"),
        ("h200-llm-128.json", "128x28672x4096 bf16"),
        ("h200-llm-128-fp16.json", "128x28672x4096 fp16"),
    ],
)
def test_the_committed_table_is_what_the_rule_makes(name: str, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (ROOT / "plots" / "results").rglob(name)
    source = str(path)
    assert ranking.main(["--json", source]) == 0
    assert capsys.readouterr().out == (ROOT / "hgemm" / "tables" / name).read_text()
    assert ranking.main([source]) == 0
    assert f"{case} on NVIDIA H200" in capsys.readouterr().out


def test_committed_tables_name_what_there_is() -> None:
    for path in (ROOT / "hgemm" / "tables").glob("*.json"):
        for case in json.loads(path.read_text())["cases"]:
            for entry in case["ranking"] if "ranking" in case else case["quickest"]:
                record = backends()[entry["backend"]]
                assert entry["config"] is None or entry["config"] in record.configs
                assert record.properties.exact_integers


def test_the_committed_configurations_are_what_the_rule_makes(capsys: pytest.CaptureFixture[str]) -> None:
    results = ROOT / "plots" / "results"
    names = ("llm", "llm-fp16", "squares", "squares-fp16", "techniques")
    sources = [results / f"h200-{name}.json" for name in names]
    sources += sorted((results / "configurations").glob("*.json"))
    assert ranking.main(["--configurations", "--json", *map(str, sources)]) == 0
    assert capsys.readouterr().out == (ROOT / "hgemm" / "tables" / "h200-configurations.json").read_text()
    assert ranking.main(["--configurations", *map(str, sources)]) == 0
    assert "4096x4096x4096 nt on NVIDIA H200" in capsys.readouterr().out


def times(samples: list[float]) -> dict[str, Any]:
    return {"samples_us": samples, "dropped": 0}


def run_of(
    us: dict[tuple[str, str | None], list[float]], day: int = 1, mode: str = "rotating", dtype: str = "bf16"
) -> dict[str, Any]:
    """What the rule reads of a file of results: a case of two rounds, with a row for each backend and configuration."""
    rows = [
        {"backend": backend, "config": config, "role": "contestant", "status": "ok", "timing": times(samples)}
        for (backend, config), samples in us.items()
    ]
    return {
        "env": {"gpu": "NVIDIA H200"},
        "run": {"utc": f"2026-01-0{day}T00:00:00Z", "options": {"mode": mode, "rounds": 2}},
        "cases": [{"M": 8, "N": 16, "K": 32, "dtype": dtype, "layout": "nn", "rows": rows}],
    }


def test_a_case_that_lacks_a_backend_of_the_file_ranks_nobody() -> None:
    document = run_of({("cuda_tma", "a"): [2.0, 2.0], ("triton", "b"): [1.0, 1.0]})
    document["run"]["options"]["tune_cublaslt"] = False
    (case,) = document["cases"]
    document["cases"].append({**case, "M": 16, "rows": case["rows"][:1]})
    (ranked,) = ranking.from_results(document, "made up")["cases"]
    assert (ranked["M"], [entry["backend"] for entry in ranked["ranking"]]) == (8, ["triton", "cuda_tma"])


def test_of_each_backend_the_quickest_configuration_by_its_share_of_torchs_time() -> None:
    early = run_of({("torch", None): [1.0, 1.0], ("cuda_tma", "a"): [2.0, 2.0], ("cuda_tma", "b"): [3.0, 3.0]}, day=1)
    # On another board, or with another torch, b takes twice as long: so would a.
    late = run_of({("torch", None): [1.0, 1.0], ("cuda_tma", "b"): [6.0, 6.0], ("cuda_tma", "c"): [4.5, 4.5]}, day=2)
    table = ranking.configurations({"early": early, "late": late})
    quickest = {"backend": "cuda_tma", "config": "a", "of_torch": 4.0}
    assert table["cases"] == [{"M": 8, "N": 16, "K": 32, "layout": "nn", "quickest": [quickest]}]
    assert [source["file"] for source in table["sources"]] == ["early", "late"]
    assert ranking.configurations({"late": late, "early": early})["cases"] == table["cases"]
    # What was timed again counts as it was the last time; without anything in common, shares of torch's time do.
    again = run_of({("torch", None): [2.0, 2.0], ("cuda_tma", "a"): [8.6, 8.6], ("cuda_tma", "c"): [9.0, 9.0]}, day=3)
    (case,) = ranking.configurations({"again": again, "late": late})["cases"]
    assert case["quickest"] == [{"backend": "cuda_tma", "config": "a", "of_torch": 4.3}]
    apart = run_of({("torch", None): [2.0, 2.0], ("cuda_tma", "d"): [5.0, 5.0]}, day=3)
    (case,) = ranking.configurations({"apart": apart, "early": early})["cases"]
    assert case["quickest"] == [{"backend": "cuda_tma", "config": "a", "of_torch": 2.0}]
    alone, two = {("torch", None): [1.0, 1.0], ("triton", "c"): [5.0, 5.0]}, {("triton", "e"): [2.0, 2.0]}
    cut_short = {("triton", "f"): [1.0]}  # nobody's turn counts in a round that the others did not finish
    assert ranking.configurations({"one": run_of(alone), "none": run_of({})})["cases"] == []
    assert ranking.configurations({"cut short": run_of(alone | two | cut_short)})["cases"] == []
    assert ranking.configurations({"whole": run_of(alone | two)})["cases"]
    sustained = run_of(alone | two)
    sustained["run"]["options"]["sustained"] = True
    with pytest.raises(ValueError, match="sustained: a ranking is made of bursts"):
        ranking.configurations({"sustained": sustained})
    with pytest.raises(ValueError, match="'e2e'"):
        ranking.configurations({"host": run_of({}, mode="e2e")})
    with pytest.raises(ValueError, match="one device, found NVIDIA H100, NVIDIA H200"):
        ranking.configurations({"early": early, "other": late | {"env": {"gpu": "NVIDIA H100"}}})


def test_a_later_run_makes_no_configuration_quicker_that_it_did_not_time() -> None:
    def quickest(*runs: dict[tuple[str, str | None], list[float]], dtypes: tuple[str, ...] = ("bf16", "bf16")) -> str:
        documents = {str(day): run_of(us, day, dtype=dtypes[day - 1]) for day, us in enumerate(runs, 1)}
        (case,) = ranking.configurations(documents)["cases"]
        (found,) = case["quickest"]
        return found["config"]

    def run(torch: float, **us: float) -> dict[tuple[str, str | None], list[float]]:
        return {("torch", None): [torch] * 2, **{("triton", config): [time] * 2 for config, time in us.items()}}

    # The kernel of b and c was improved, and they alone were timed again: a is the kernel that it was.
    assert quickest(run(10, a=10.5, b=10.6, c=11), run(10, b=9.8, c=10.2)) == "b"
    # b is slower than a. torch is slower in fp16, and it was that last run which timed b alone.
    both, alone = run(10, a=10.1, b=10.8), run(12, b=11.4)
    assert quickest(both, alone, dtypes=("bf16", "fp16")) == "a"
    assert quickest(alone, both, dtypes=("fp16", "bf16")) == "a"
    assert quickest(both, run(12, a=11.9, b=11.4), dtypes=("bf16", "fp16")) == "a"
    assert quickest(run(12, a=11.9, b=11.4), dtypes=("fp16",)) == "b"  # nothing else is known


def test_a_backends_own_default_follows_the_table_in_this_very_product() -> None:
    table = json.loads((ROOT / "hgemm" / "tables" / "h200-configurations.json").read_text())
    (case,) = (c for c in table["cases"] if (c["M"], c["N"], c["K"], c["layout"]) == (4096, 4096, 4096, "nt"))
    size = Size(4096, 4096, 4096, layout="nt")
    for entry in case["quickest"]:
        assert measured.configuration("NVIDIA H200", entry["backend"], size) == entry["config"]
    assert measured.configuration("NVIDIA H100", "triton", size) is None
    for other in (replace(size, layout="tt"), replace(size, batch=2), replace(size, K=4104)):
        assert measured.configuration("NVIDIA H200", "triton", other) is None


def test_of_two_cases_of_one_size_that_of_the_same_layout_counts() -> None:
    x, w = (torch.empty(8192, 8192, dtype=torch.bfloat16, device="meta") for _ in "xw")
    for problem in (Problem.from_tensors(x, w), Problem.from_tensors(x, w.t())):
        case = measured.exact("NVIDIA H200", problem)
        assert case is not None
        assert (case.name, case.layout) == ("8192x8192x8192", problem.layout)
    assert measured.exact("NVIDIA H200", Problem.from_tensors(x.t(), w)) is None
    assert measured.exact("NVIDIA H100", Problem.from_tensors(x, w)) is None


def test_results_that_make_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ranking.main([str(tmp_path / "none.json")]) == 2
    document = json.loads((ROOT / "plots" / "results" / "h200-squares.json").read_text())
    for case in document["cases"]:  # of each, the run had made one round
        for row in filter(lambda row: row["timing"], case["rows"]):
            del row["timing"]["samples_us"][1:]
    (tmp_path / "part.json").write_text(json.dumps(document))
    assert ranking.main([str(tmp_path / "part.json")]) == 2
    captured = capsys.readouterr()
    assert "no case of part.json was measured to its end" in captured.err
    assert captured.out == ""


def test_the_nearest_case_is_the_one_with_the_fewest_doublings() -> None:
    def case(size: int) -> measured.Case:
        return measured.Case(size, size, size, torch.float16, "nn", (("triton", None),), tuned="2026-05-04")

    cases = [case(3072), case(4096)]
    nearest = measured.nearest(on_gpu(3600, 3600, 3600), cases)  # 3 x log2(4096 / 3600) < 3 x log2(3600 / 3072)
    assert nearest is cases[1]
    assert measured.nearest(on_gpu(40, 200, 9000), cases) is None
