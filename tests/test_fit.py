"""Fitting the cost model and judging it: on made-up timings of a known model, and on the committed measurements."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hgemm import cost, fit, published, timings
from hgemm.backends import backends
from hgemm.bench.results import PACKAGED, read
from hgemm.config import Config
from hgemm.cost import Fit, Kernel, Known, Size, Traits
from hgemm.devices import DEVICES, rates

H200 = rates("NVIDIA H200", (9, 0), 132)
LARGE = Kernel("cuda_tma", Config.parse("256x128x64_s4_w64x64"), 196_640, 1)
TWIN = Kernel("triton", Config.parse("256x128x64_s4_w64x64"), 196_640, 1)
SMALL = Kernel("cuda_tma", Config.parse("128x128x64_s3_w64x32"), 98_328, 2)
THIN = Kernel("cuda_tma", Config.parse("16x64x64_s7_w16x16"), 71_736, 3)
TRUTH = {
    LARGE: Traits(pace=0.95, wait=100.0, tile=2600.0, reach=0.75, launch=1.5),
    SMALL: Traits(pace=1.4, wait=300.0, tile=1200.0, reach=0.7, launch=2.5),
    THIN: Traits(pace=1.1, wait=40.0, tile=900.0, reach=0.9, launch=2.0),
}
SIZES = [Size(n, n, n) for n in (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288)] + [
    Size(M, N, K) for M in (1, 16, 128, 1024) for N, K in ((4096, 4096), (28672, 4096), (4096, 14336))
]


def timed(size: Size, us: dict[Kernel, float]) -> timings.Case:
    return timings.Case(size, "bf16", tuple(timings.Timing(kernel, size, time) for kernel, time in us.items()))


def made_up(sizes: Sequence[Size] = SIZES) -> list[timings.Case]:
    """Cases in which everybody takes as long as a model with the traits of TRUTH says."""
    return [
        timed(size, {k: cost.predict(k, size, H200, Known(traits)).seconds * 1e6 for k, traits in TRUTH.items()})
        for size in sizes
    ]


def test_a_fit_to_timings_of_a_known_model_makes_its_choices() -> None:
    fitted, judged = timings.split(made_up())
    found = fit.fit(fitted, H200)
    truth = Fit("NVIDIA H200", (9, 0), {kernel.name: traits for kernel, traits in TRUTH.items()})
    for case in judged:
        predictions = {p.kernel: p.seconds for p in cost.rank(TRUTH, case.size, H200, found)}
        for timing in case.timings:
            assert predictions[timing.kernel] * 1e6 == pytest.approx(timing.us, rel=0.05)
        best, second = cost.rank(TRUTH, case.size, H200, truth)[:2]
        if second.seconds > 1.05 * best.seconds:
            assert min(predictions, key=lambda kernel: predictions[kernel]) == best.kernel
    regrets = fit.judge(judged, H200, found)
    assert regrets["auto"] == regrets["cuda_tma"]
    assert regrets["auto"].cases == len(judged) and regrets["auto"].passes
    assert fit.fit(fitted, H200) == found or fit.fit(fitted, H200).traits == found.traits, "it depends on nothing else"


def test_a_kernel_timed_in_one_shape_is_not_fitted_and_not_judged() -> None:
    twice = Size(512, 512, 512)
    cases = [case if case.size == twice else replace(case, timings=case.timings[:2]) for case in made_up()]
    found = fit.fit([*cases, *cases], H200)
    assert set(found.traits) == {LARGE.name, SMALL.name}
    assert fit.judge([timed(twice, {LARGE: 9.0, SMALL: 8.0, THIN: 1.0})], H200, found)["auto"].worst <= 9 / 8 - 1


def test_one_case_that_nothing_explains_does_not_spoil_the_others() -> None:
    fitted, judged = timings.split(made_up())
    odd = Size(2048, 2048, 2048, 8)
    strange = timed(
        odd, {kernel: 3e6 * cost.predict(kernel, odd, H200, Known(TRUTH[kernel])).seconds for kernel in TRUTH}
    )
    found = fit.fit([*fitted, strange], H200)
    for case in judged:
        predictions = {p.kernel: p.seconds for p in cost.rank(TRUTH, case.size, H200, found)}
        for timing in case.timings:
            assert predictions[timing.kernel] * 1e6 == pytest.approx(timing.us, rel=0.1)


def test_regret_is_how_much_longer_the_chosen_one_takes() -> None:
    size = Size(4096, 4096, 4096)
    found = Fit("NVIDIA H200", (9, 0), {kernel.name: traits for kernel, traits in TRUTH.items()})
    assert cost.rank(TRUTH, size, H200, found)[0].kernel == LARGE
    cases = [timed(size, {LARGE: us, SMALL: 100.0}) for us in (*[90.0] * 18, 104.0, 110.0)]
    regret = fit.judge([*cases, timed(size, {LARGE: 900.0})], H200, found)["auto"]
    assert regret.cases == 20  # where one alone was timed there was nothing to choose
    assert (regret.median, regret.tail, regret.worst) == pytest.approx((0.0, 0.04, 0.10))
    assert regret.worst_case == f"4096x4096x4096 bf16: {LARGE.name}"
    assert regret.passes
    assert not fit.judge([timed(size, {LARGE: 108.0, SMALL: 100.0})], H200, found)["auto"].passes


def test_both_halves_have_squares_and_others_and_share_no_shape() -> None:
    fitted, judged = timings.split([*made_up(), *[replace(case, dtype="fp16") for case in made_up()]])
    assert len(fitted) + len(judged) == 2 * len(SIZES)
    assert not {case.size for case in fitted} & {case.size for case in judged}
    for half in (fitted, judged):
        squares = [case for case in half if case.size.M == case.size.N == case.size.K]
        assert len(squares) == 10
        assert {case.size.M for case in half if case not in squares} == {1, 16, 128, 1024}


def test_what_auto_never_chooses_teaches_nothing() -> None:
    squares = read(PACKAGED / "h200-squares.json")
    timed_there = {timing.kernel.backend for case in timings.cases_of(squares, H200) for timing in case.timings}
    assert {"cuda_tma", "triton"} <= timed_there
    assert not {"torch", "cublas"} & timed_there
    assert "cublaslt" in timed_there
    squares.run.options["tune_cublaslt"] = True  # which matmul never does
    assert not any(t.kernel.backend == "cublaslt" for case in timings.cases_of(squares, H200) for t in case.timings)


def test_the_committed_fit_keeps_to_the_bounds_on_shapes_that_it_has_not_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = fit.PATH.read_bytes()
    assert fit.main(["--check", "--json"]) == 0, "python -m hgemm.fit fits it anew"
    assert fit.PATH.read_bytes() == before
    regrets = json.loads(capsys.readouterr().out)
    assert {"auto", "cuda_tma"} <= set(regrets)
    for regret in regrets.values():
        assert regret["median"] <= 0.01 and regret["tail"] <= 0.07
        assert regret["cases"] >= 2
    assert fit.main(["--check"]) == 0
    assert "cases that the fit has not seen" in capsys.readouterr().out


def test_the_committed_fit_is_of_the_committed_measurements() -> None:
    document = json.loads(fit.PATH.read_text())
    assert document["schema"] == fit.SCHEMA
    _, device, sources = timings.load([])
    assert document["device"] == device.title == timings.GPU
    assert document["sources"] == sources, "python -m hgemm.fit fits it anew"
    for source in document["sources"]:
        (path,) = PACKAGED.rglob(source["file"])
        assert hashlib.sha256(path.read_bytes()).hexdigest() == source["sha256"]
    for name in document["traits"]:
        backend, _, config = name.partition(":")
        assert config in (backends()[backend].configs or ("",))


def test_files_that_teach_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit.main(["--check", str(tmp_path / "none.json")]) == 2
    document = json.loads((PACKAGED / "h200-batched.json").read_text())
    document["run"]["options"]["mode"] = "e2e"
    (tmp_path / "host.json").write_text(json.dumps(document))
    assert fit.main(["--check", str(tmp_path / "host.json")]) == 2
    document["run"]["options"]["mode"], document["env"]["gpu"] = "rotating", "NVIDIA GeForce RTX 5090"
    (tmp_path / "other.json").write_text(json.dumps(document))
    assert fit.main(["--check", str(tmp_path / "other.json"), str(PACKAGED / "h200-batched.json")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    assert "no run with rotating operands" in errors[1]
    assert "found NVIDIA GeForce RTX 5090, NVIDIA H200" in errors[2]


def test_of_a_run_that_was_cut_short_whole_cases_count() -> None:
    results = read(PACKAGED / "h200-batched.json")
    whole = timings.cases_of(results, H200)
    (first, *_) = (row for row in results.cases[0].rows if row.role == "contestant" and row.backend == "triton")
    assert first.timing is not None
    del first.timing.samples_us[1:]
    cut = timings.cases_of(results, H200)
    assert whole[0].timings
    assert not cut[0].timings
    assert cut[1:] == whole[1:]


def test_of_a_kernel_that_was_timed_again_the_last_time_counts() -> None:
    size = SIZES[0]
    early, late = timed(size, {LARGE: 5.0, TWIN: 3.0}), timed(size, {LARGE: 4.0})
    other = replace(early, dtype="fp16")
    assert timings._latest([early, other, late]) == [timed(size, {LARGE: 4.0, TWIN: 3.0}), other]
    # On the later board torch took 10% longer, and so would what was timed on the earlier one alone; of its backend
    # another kernel took 20% less.
    early = replace(timed(size, {LARGE: 5.0, SMALL: 3.0, TWIN: 3.0}), torch=10.0)
    (merged,) = timings._latest([early, replace(late, torch=11.0)])
    assert merged.torch == 11.0
    found = {timing.kernel: timing.us for timing in merged.timings}
    assert found == {LARGE: 4.0, SMALL: pytest.approx(2.4), TWIN: pytest.approx(3.3)}


def test_published_figures_are_printed_beside_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    found = {(figure.card, figure.size.M, figure.what): tflops for figure, _, tflops in published.predictions()}
    laptop = {what: tflops for (card, _, what), tflops in found.items() if card == "RTX 5060 Laptop"}
    # As published: two blocks of K = 32 hide what one of K = 64 waits for.
    assert laptop["TMA, K = 32, two blocks"] > laptop["TMA, K = 64, one block"]
    for figure, prediction, tflops in published.predictions():
        peak = next(device for device in DEVICES if device.title == figure.card).tensor_tflops()
        assert 0.5 * peak < tflops <= peak, "no kernel is quicker than the tensor cores"
        assert prediction.kernel.name.startswith(figure.kernel)
    assert fit.main(["--predict"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(published.FIGURES)
    assert lines[2].startswith("RTX 5060 Laptop, bf16, 4096^3 nn: TMA, K = 32, two blocks: published 34.3, predicted ")
    assert "model for RTX 5060 Laptop" in lines[3]
    assert fit.main(["--predict", "--json"]) == 0
    assert [entry["published"] for entry in json.loads(capsys.readouterr().out)] == [
        f.tflops for f in published.FIGURES
    ]
