"""What was tuned here: kept for this GPU, these versions and these kernels, followed before anything else, and never
silently when it no longer holds."""

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_select import H200 as MEASURED
from test_select import gpu, on_gpu  # noqa: F401  a fixture

from hgemm import select, tuned, tuned_file
from hgemm.backends import Backend
from hgemm.problem import Problem
from hgemm.select import choose
from hgemm.tune.__main__ import main
from hgemm.tuned_file import Entry, Gpu, LeftOut, Product, Timed, Versions, versions

H200 = Gpu("NVIDIA H200", (9, 0), 132)
TRITON = Timed("triton", "128x128x64_s4_w64x32", 20.0)
CUDA = Timed("cuda_tma", "256x128x64_s4_w64x64", 10.0)
CP_ASYNC = Timed("cuda_cp_async", "128x128x32_s2_w64x32", 40.0)
POINTER = Timed("triton_pointer", "128x128x32_s3_w64x32", 30.0)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of the test's own on a machine with an H200."""
    monkeypatch.setattr(tuned, "folders", tuned_file.folders)
    monkeypatch.setenv("HGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("hgemm.cuda_kernels.cache.temporary_folder", lambda: tmp_path / "temporary")
    properties = SimpleNamespace(name=H200.name, major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return tmp_path / "cache"


def entry(problem: Problem, *ranking: Timed, utc: str = "2026-05-04T03:02:01Z") -> Entry:
    return Entry(Product.of(problem), utc, ranking)


def chosen(problem: Problem) -> tuple[str, str | None]:
    choice = choose(problem)
    return choice.backend, choice.config


def test_a_tuned_product_goes_to_the_fastest_that_takes_it(gpu: dict[str, Backend]) -> None:  # noqa: F811
    problem = on_gpu(640, 512, 256)
    assert chosen(problem) == ("triton", "triton's default")
    tuned_file.store(H200, entry(problem, CUDA, TRITON))
    choice = choose(problem)
    assert (choice.backend, choice.config) == ("cuda_tma", "256x128x64_s4_w64x64")
    assert choice.reason == "tuned here on 2026-05-04"
    gpu["cuda_tma"] = replace(gpu["cuda_tma"], accepts=lambda problem, config: "no compiler")
    choice = choose(problem)
    assert (choice.backend, choice.config) == ("triton", "128x128x64_s4_w64x32")
    assert choice.reason == "cuda_tma: no compiler; tuned here on 2026-05-04"


def test_dtype_layout_and_batch_are_part_of_what_is_looked_up(gpu: dict[str, Backend]) -> None:  # noqa: F811
    problem = on_gpu(640, 512, 256)
    tuned_file.store(H200, entry(problem, CUDA))
    others = [
        on_gpu(640, 512, 256, torch.bfloat16),
        on_gpu(640, 512, 256, transposed=True),
        replace(problem, batch=(2,)),
        replace(problem, out=problem.out.transposed),
    ]
    for other in others:
        assert chosen(other)[0] != "cuda_tma"
    batched = replace(problem, batch=(3,))
    tuned_file.store(H200, entry(batched, CP_ASYNC))
    assert chosen(batched) == ("cuda_cp_async", "128x128x32_s2_w64x32")
    assert chosen(problem)[0] == "cuda_tma"


def test_an_exact_product_wins_over_a_near_one_and_a_measured_one_over_a_tuned_near_one(
    gpu: dict[str, Backend],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(select, "_device", lambda device: MEASURED)
    tuned_file.store(H200, entry(on_gpu(1024, 1024, 1024), POINTER))
    tuned_file.store(H200, entry(on_gpu(1032, 1024, 1024), CUDA))
    assert choose(on_gpu(1024, 1024, 1024)).reason == "tuned here on 2026-05-04"
    assert chosen(on_gpu(1024, 1024, 1024))[0] == "triton_pointer"
    near = choose(on_gpu(1040, 1024, 1024))
    assert near.backend == "cuda_tma"
    assert near.reason == "of what takes it, cuda_tma was the fastest as tuned here on 2026-05-04 at 1032x1024x1024"
    # 2048 is within twice of 1032, but the committed table has 2048 itself.
    assert "on NVIDIA H200 at 2048x2048x2048" in choose(on_gpu(2048, 2048, 2048)).reason
    tuned_file.store(H200, entry(on_gpu(2048, 2048, 2056), POINTER))
    assert "on NVIDIA H200 at 2048x2048x2048" in choose(on_gpu(2048, 2048, 2048)).reason
    tuned_file.store(H200, entry(on_gpu(2048, 2048, 2048), POINTER))
    assert choose(on_gpu(2048, 2048, 2048)).reason == "tuned here on 2026-05-04"
    assert "as tuned here on 2026-05-04 at 2048x2048x2048" in choose(on_gpu(2048, 2048, 2040)).reason
    assert "model for NVIDIA H200" in choose(on_gpu(8200, 8200, 8200)).reason  # nothing tuned is near


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"torch": "2.1.0"}, f"torch was 2.1.0 and is {torch.__version__}"),
        ({"triton": None}, f"triton was absent and is {versions().triton}"),
        ({"sources": "0"}, "the kernels' sources have changed"),
    ],
)
def test_what_was_tuned_with_other_versions_is_not_used_and_said(
    changed: dict[str, str],
    said: str,
    gpu: dict[str, Backend],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = on_gpu(640, 512, 256)
    now = versions()
    monkeypatch.setattr(tuned_file, "versions", lambda: replace(now, **changed))
    tuned_file.store(H200, entry(problem, CUDA))
    monkeypatch.setattr(tuned_file, "versions", lambda: now)
    choice = choose(problem)
    assert choice.backend == "triton"
    assert choice.reason.startswith(
        f"what was tuned here on 2026-05-04 is not used: {said}; tune again; triton takes it; model for "
    )
    # Both are kept: who goes back finds what was tuned then.
    tuned_file.store(H200, entry(problem, TRITON))
    assert choose(problem).reason == "tuned here on 2026-05-04"
    _, tables = tuned_file.contents(tuned_file.files()[0])
    assert [[one.ranking[0] for one in entries.values()] for entries in tables.values()] == [[CUDA], [TRITON]]


def test_another_gpu_has_a_file_of_its_own(gpu: dict[str, Backend]) -> None:  # noqa: F811
    problem = on_gpu(640, 512, 256)
    others = [replace(H200, name="NVIDIA H20"), replace(H200, capability=(10, 0)), replace(H200, multiprocessors=66)]
    for other in others:
        tuned_file.store(other, entry(problem, CUDA))
    assert len(tuned_file.files()) == 3
    assert choose(problem).reason.startswith("triton takes it; model for ")
    # One that was renamed is not taken for this one's.
    tuned_file.files()[0].rename(tuned_file.files()[0].parent / H200.file)
    assert "is not used: nvidia-h200-sm90-132.json is of NVIDIA" in choose(problem).reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "[" * 100_000,
        '{"schema": "hgemm-tuned", "schema_version": 99}',
        '{"schema": "hgemm-tuned", "schema_version": 1}',
        '{"schema": "hgemm-tuned", "schema_version": 1, "name": "NVIDIA H200", "capability": [9, 0], '
        '"multiprocessors": 132, "tables": [{"torch": 1}]}',
    ],
)
def test_a_damaged_file_is_no_obstacle(text: str, gpu: dict[str, Backend], cache: Path) -> None:  # noqa: F811
    problem = on_gpu(640, 512, 256)
    (cache / "tuned").mkdir(parents=True)
    (cache / "tuned" / H200.file).write_text(text)
    choice = choose(problem)
    assert choice.backend == "triton"
    assert "what was tuned here is not used: " in choice.reason
    assert tuned_file.entries_in_use(H200) == {}
    tuned_file.store(H200, entry(problem, CUDA))
    assert chosen(problem)[0] == "cuda_tma"


@pytest.mark.parametrize("us", [None, "20", [20.0], -1.0, 0.0, float("nan")], ids=str)
def test_a_time_that_is_none_is_damage(
    us: object,
    gpu: dict[str, Backend],  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    problem = on_gpu(640, 512, 256)
    path = tuned_file.store(H200, entry(problem, CUDA))
    document = json.loads(path.read_text())
    document["tables"][0]["entries"][0]["ranking"][0]["us"] = us
    path.write_text(json.dumps(document))
    assert "what was tuned here is not used: a table of hgemm.tune is damaged" in choose(problem).reason
    with pytest.raises(SystemExit, match="2"):
        main(["--list"])
    assert "a table of hgemm.tune is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "value"),
    [("config", "9x9x9_s9_w9x9"), ("config", None), ("backend", "cutlass")],
)
def test_names_that_there_are_not_are_left_out(
    where: str,
    value: str | None,
    gpu: dict[str, Backend],  # noqa: F811
    cache: Path,
) -> None:
    problem = on_gpu(640, 512, 256)
    path = tuned_file.store(H200, entry(problem, CUDA))
    document = json.loads(path.read_text())
    document["tables"][0]["entries"][0]["ranking"][0][where] = value
    path.write_text(json.dumps(document))
    choice = choose(problem)
    assert choice.backend == "triton"
    assert "1 of the products tuned here name configurations that there are not" in choice.reason


def test_an_entry_comes_back_as_it_was_stored_and_forgotten_ones_do_not(cache: Path) -> None:
    products = [on_gpu(640, 512, 256), on_gpu(8, 512, 256, torch.bfloat16), on_gpu(16, 512, 256)]
    entries = [entry(problem, CUDA, TRITON) for problem in products]
    entries[0] = replace(entries[0], left_out=(LeftOut("triton", "128x128x32_s4_w64x32", "it hangs"),))
    for one in entries:
        path = tuned_file.store(H200, one)
    assert path == cache / "tuned" / "nvidia-h200-sm90-132.json"
    assert tuned_file.entries_in_use(H200) == {one.product: one for one in entries}
    assert entries[0].tried == {(one.backend, one.config) for one in (CUDA, TRITON, *entries[0].left_out)}
    tuned_file.store(H200, replace(entries[1], ranking=(POINTER,)))
    assert tuned_file.entries_in_use(H200)[entries[1].product].ranking == (POINTER,)
    assert tuned_file.forget(H200, [entries[1].product, Product(1, 1, 1, 1, "fp16", "nnn")]) == 1
    assert list(tuned_file.entries_in_use(H200)) == [entries[0].product, entries[2].product]
    assert tuned_file.forget(H200) == 2
    assert tuned_file.forget(H200) == 0
    assert [path.name for path in (cache / "tuned").iterdir()] == [H200.file]


def _store_many(first: int) -> None:
    for number in range(20):
        product = Product(first + number, 8, 8, 1, "fp16", "nnn")
        tuned_file.store(H200, Entry(product, "2026-05-04T03:02:01Z", (CUDA,)))


def test_two_processes_lose_nothing_of_each_other() -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_store_many, args=(first,)) for first in (100, 200)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    found = {product.M for product in tuned_file.entries_in_use(H200)}
    assert found == {*range(100, 120), *range(200, 220)}


def test_a_file_is_replaced_or_left_as_it_was(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    path = tuned_file.store(H200, entry(on_gpu(640, 512, 256), CUDA))
    before = path.read_text()

    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context, pytest.raises(OSError, match="No space"):
        context.setattr(tuned_file.os, "replace", full)
        tuned_file.store(H200, entry(on_gpu(8, 8, 8), CUDA))
    assert path.read_text() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_versions_differ_in_words() -> None:
    old, new = Versions("2.10", "3.6", "a"), Versions("2.11", None, "a")
    assert old.difference(new) == "torch was 2.10 and is 2.11; triton was 3.6 and is absent"
    assert old.difference(old) == ""
