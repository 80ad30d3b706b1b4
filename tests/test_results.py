"""Results files: what is written is read back, what is broken is refused with its place, nothing personal gets in."""

import copy
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up_results import RAGGED, SQUARES, results

from hgemm.bench.environment import scrub, sources_digest
from hgemm.bench.results import LARGEST_FILE, PACKAGED, ResultsError, dumps, read, write
from hgemm.bench.schema import Results, Row

MADE_UP = results(dtypes=("bf16", "fp16"))


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write(MADE_UP, path)
    assert read(path) == MADE_UP
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_document_is_plain_json_with_its_schema_first() -> None:
    document = json.loads(dumps(MADE_UP))
    assert list(document)[:2] == ["schema", "schema_version"]
    assert document["schema_version"] == 2
    row = document["cases"][0]["rows"][3]
    assert (row["backend"], row["role"], row["status"]) == ("torch", "contestant", "ok")
    assert len(row["timing"]["samples_us"]) == 7


def test_a_study_of_both_dtypes_stays_far_below_the_limit() -> None:
    assert len(dumps(results((*SQUARES, RAGGED), ("bf16", "fp16"), rounds=20))) < LARGEST_FILE / 5


def test_a_file_that_would_be_too_long_is_refused_and_the_old_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hgemm.bench.results.LARGEST_FILE", 20_000)
    path = tmp_path / "run.json"
    path.write_text("before")
    with pytest.raises(ResultsError, match="at most 20,000; measure fewer"):
        write(MADE_UP, path)
    assert path.read_text() == "before"


def test_nothing_is_left_behind_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_text("before")

    def no_space(source: str, target: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(OSError, match="no space"):
        write(MADE_UP, path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
    assert path.read_text() == "before"


def change(edit: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(dumps(MADE_UP))
    edit(document)
    return json.dumps(document)


ROW = "cases[0].rows[3]"


def timed(document: dict[str, Any]) -> dict[str, Any]:
    return document["cases"][0]["rows"][3]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.update(schema="other"), "not a results file of hgemm.bench"),
        (lambda d: d.update(schema_version=3), "schema version 3; this release reads versions 1 and 2"),
        (lambda d: d.update(schema_version=True), "schema version True; this release reads versions 1 and 2"),
        (lambda d: d.pop("env"), "env: missing"),
        (lambda d: d["run"].update(host="me"), "run.host: no such field"),
        (lambda d: d["run"].update(utc="yesterday"), "run.utc: expected a time"),
        (
            lambda d: d["env"].update(gpu="H200\x1b[31m"),
            "env.gpu: expected text without control characters, found 'H200\\x1b[31m'",
        ),
        (lambda d: d["env"].update(multiprocessors="many"), "env.multiprocessors: expected an integer, found 'many'"),
        (lambda d: d["env"].update(multiprocessors=True), "env.multiprocessors: expected an integer, found True"),
        (lambda d: d.update(cases={}), "cases: expected a list"),
        (lambda d: timed(d).update(status="fine"), f"{ROW}.status: expected one of 'ok', 'refused'"),
        (lambda d: timed(d).update(status="wrong"), f"{ROW}.timing: there are times, and the status is 'wrong'"),
        (lambda d: timed(d).update(check=None), f"{ROW}.check: there are times without a check that passed"),
        (lambda d: timed(d)["check"].update(passed=False), f"{ROW}.check: there are times without a check that passed"),
        (lambda d: timed(d).update(timing=None), f"{ROW}.timing: missing, and the status is 'ok'"),
        (lambda d: timed(d)["timing"].update(samples_us=[]), f"{ROW}.timing.samples_us: expected positive numbers"),
        (lambda d: timed(d)["timing"]["samples_us"].__setitem__(2, -1.0), f"{ROW}.timing.samples_us"),
        (
            lambda d: timed(d)["timing"]["samples_us"].__setitem__(2, None),
            f"{ROW}.timing.samples_us[2]: expected a",
        ),
        (
            lambda d: timed(d)["timing"]["rounds"].pop(),
            f"{ROW}.timing.rounds: expected 7 entries, one a sample",
        ),
        (lambda d: timed(d)["timing"]["clocks"]["sm_mhz"].pop(), f"{ROW}.timing.clocks.sm_mhz: expected 7 entries"),
        (lambda d: timed(d)["timing"].update(timer="sundial"), f"{ROW}.timing.timer: expected one of 'graph'"),
        (lambda d: d["cases"][0].update(K=0), "cases[0]: sizes, flops and bytes must be positive"),
        (lambda d: d["cases"][0].update(batch=0), "cases[0]: sizes, flops and bytes must be positive"),
        (lambda d: d["cases"][0].update(batch=2), "cases[0].flops: expected 2 M N K for each product of the batch"),
        (lambda d: d["cases"][0].update(dtype="fp8"), "cases[0].dtype: expected one of 'bf16', 'fp16', found 'fp8'"),
        (lambda d: d["cases"][0].update(layout="xx"), "cases[0].layout: expected one of 'nn', 'nt', 'tn', 'tt', found"),
        (lambda d: d["cases"][0].update(distribution="ones"), "cases[0].distribution: expected one of 'normal', 'zero"),
        (lambda d: d["roofs"][0].update(dtype="fp8"), "roofs[0].dtype: expected one of 'bf16', 'fp16', found 'fp8'"),
        (lambda d: d["cases"][0].update(M=10**400), f"cases[0].M: expected a number below 2^63, found 1{'0' * 79}..."),
        (lambda d: d["cases"][0].update(M=2**62, N=2**62), "cases[0]: no device computes a product of 8.71e+40 op"),
        (lambda d: timed(d)["timing"].update(burst_ms=10**400), f"{ROW}.timing.burst_ms: expected a number below 2^63"),
        (lambda d: d.update(schema_version=10**400), f"schema version 1{'0' * 39}; this release"),
        (lambda d: d["cases"][0].update(label="8B\nup"), "cases[0].label: expected text without control characters"),
        (lambda d: timed(d).update(backend="t\x1b[31m"), f"{ROW}.backend: expected text without control"),
        (lambda d: timed(d).update(config="\x07"), f"{ROW}.config: expected text without control"),
        (lambda d: timed(d).update(reason="no\x9b31m"), f"{ROW}.reason: expected text without control"),
        (lambda d: d["run"]["options"].update({"\x1b": 1}), "a name in run.options: expected text without control"),
        (lambda d: d["run"].update({"\x1b[31m": 1}), "run.\\x1b[31m: no such field"),
        (lambda d: d["cases"][0].update(label=" "), "cases[0].label: expected a name or null, found ' '"),
        (lambda d: timed(d).update(allocates=True), f"{ROW}.allocates: only calls in mode e2e allocate"),
        (lambda d: timed(d)["timing"].update(finished_us=[9.0] * 7), f"{ROW}.timing.finished_us: expected a positive"),
        (
            lambda d: timed(d)["timing"].update(mode="e2e", finished_us=[9.0] * 6),
            f"{ROW}.timing.finished_us: expected a positive entry a sample",
        ),
        (
            lambda d: d["roofs"][0].update(samples=[]),
            "roofs[0]: expected a positive value below 1e+09 with its samples",
        ),
        (lambda d: d["roofs"][0].update(value=1e308), "roofs[0]: expected a positive value below 1e+09"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(
    edit: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(change(edit))
    with pytest.raises(ResultsError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert len(str(error.value)) < 400
    assert str(error.value).isprintable()


def test_no_name_and_no_reason_makes_a_finished_run_unwritable(tmp_path: Path) -> None:
    odd = copy.deepcopy(MADE_UP)
    odd.env.gpu, odd.cases[0].label = "H200\x1b[31m", "8B\tup\u00a0\u200b"
    odd.cases[0].rows[3].config, odd.cases[0].rows[-1].reason = "a\nb", "two\r\nlines \udcff"
    write(odd, tmp_path / "run.json")
    kept = read(tmp_path / "run.json")
    assert (kept.env.gpu, kept.cases[0].label) == ("H200\\x1b[31m", "8B up \\u200b")
    assert (kept.cases[0].rows[3].config, kept.cases[0].rows[-1].reason) == ("a b", "two  lines \\udcff")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b"null", b'{"schema": "hgemm-bench"', b"\xff\xfe\x00", b"[" * 100_000]
)
def test_what_is_no_results_file_at_all_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(ResultsError, match=r"not JSON|not a results file"):
        read(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"absent.json: No such file"):
        read(tmp_path / "absent.json")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_are_finite(number: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(change(lambda d: timed(d)["timing"].update(burst_ms="HERE")).replace('"HERE"', number))
    with pytest.raises(ResultsError, match=r"burst_ms: expected a finite number"):
        read(path)


def test_what_version_2_added_reads_back(tmp_path: Path) -> None:
    added = copy.deepcopy(MADE_UP)
    case = added.cases[0]
    case.batch, case.label, case.flops = 3, "8B gate_up", 3 * case.flops
    row = case.rows[3]
    assert row.timing is not None
    row.timing.mode, row.timing.finished_us, row.allocates = "e2e", [9.0] * 7, True
    case.rows[4].timing.mode = "cold"  # type: ignore[union-attr]
    case.rows.append(Row("contestant", "spins", None, "hangs", "did not end within 20 s"))
    write(added, tmp_path / "run.json")
    assert read(tmp_path / "run.json") == added


def test_a_file_of_version_1_is_read_with_defaults_and_written_as_version_2(tmp_path: Path) -> None:
    def before(document: dict[str, Any]) -> None:
        document["schema_version"] = 1
        for case in document["cases"]:
            del case["batch"], case["label"]
            for row in case["rows"]:
                del row["allocates"]
                if row["timing"]:
                    del row["timing"]["finished_us"]

    path = tmp_path / "old.json"
    path.write_text(change(before))
    results = read(path)
    assert results == MADE_UP
    assert json.loads(dumps(results))["schema_version"] == 2


def test_the_committed_files_are_read() -> None:
    paths = [path for path in PACKAGED.glob("*.json") if not path.stem.endswith("-check")]  # reports of hgemm.check
    assert paths
    for path in paths:
        assert read(path).cases


def test_times_without_a_check_cannot_be_stored(tmp_path: Path) -> None:
    unchecked = copy.deepcopy(MADE_UP)
    unchecked.cases[0].rows[3].check = None
    with pytest.raises(ResultsError, match="times without a check that passed"):
        write(unchecked, tmp_path / "run.json")
    assert list(tmp_path.iterdir()) == []


def test_optional_fields_may_be_missing() -> None:
    document = json.loads(dumps(MADE_UP))
    for case in document["cases"]:
        for row in case["rows"]:
            del row["kernels"], row["reason"]
    from hgemm.bench.decode import decode

    assert decode(Results, document).cases[0].rows[0].kernels is None


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("cannot open /home/ann/.cache/hgemm/unit_1.so: no", "cannot open unit_1.so: no"),
        ("in ../../private/place/kernel.cuh:12", "in kernel.cuh:12"),
        ("in ~/place/kernel.cuh", "in kernel.cuh"),
        ("two\n  lines", "two lines"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("128x128x64_s3 takes 96/100 KB, 1.5 TB/s", "128x128x64_s3 takes 96/100 KB, 1.5 TB/s"),
        (f"on {platform.node()} today", "on localhost today"),
    ],
)
def test_reasons_are_scrubbed(text: str, kept: str) -> None:
    assert scrub(text) == kept


def test_a_long_reason_is_cut() -> None:
    assert scrub("word " * 200, limit=50) == ("word " * 200)[:47] + "..."


def test_the_digest_of_the_sources_is_stable() -> None:
    assert sources_digest() == sources_digest()
    assert len(sources_digest()) == 64


def test_the_digest_is_of_the_kernels_and_not_of_the_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = tmp_path / "cuda_kernels"
    (kernels / "emulator").mkdir(parents=True)
    monkeypatch.setattr("hgemm.sources._PACKAGE", tmp_path)
    (kernels / "tma.cuh").write_text("one")
    before = sources_digest()
    (kernels / "emulator" / "session.cpp").write_text("one")
    assert sources_digest() == before
    (kernels / "tma.cuh").write_text("two")
    assert sources_digest() != before
