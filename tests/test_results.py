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
from hgemm.bench.results import LARGEST_FILE, ResultsError, dumps, read, write
from hgemm.bench.schema import Results

MADE_UP = results(dtypes=("bf16", "fp16"))


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write(MADE_UP, path)
    assert read(path) == MADE_UP
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_document_is_plain_json_with_its_schema_first() -> None:
    document = json.loads(dumps(MADE_UP))
    assert list(document)[:2] == ["schema", "schema_version"]
    assert document["schema_version"] == 1
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
        (lambda d: d.update(schema_version=2), "schema version 2; this release reads version 1"),
        (lambda d: d.pop("env"), "env: missing"),
        (lambda d: d["run"].update(host="me"), "run.host: no such field"),
        (lambda d: d["run"].update(utc="yesterday"), "run.utc: expected a time"),
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


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"null", b'{"schema": "hgemm-bench"', b"\xff\xfe\x00"])
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
