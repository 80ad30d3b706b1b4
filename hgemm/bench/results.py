"""Results files: written whole or not at all, and read with every field checked."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hgemm.bench.decode import LARGEST, SchemaError, decode
from hgemm.bench.schema import READABLE_VERSIONS, SCHEMA, SCHEMA_VERSION, CaseResult, Results, Row
from hgemm.bench.suites import DISTRIBUTIONS, DTYPES, LAYOUTS
from hgemm.program import printable

LARGEST_FILE = 2_000_000
"""Bytes. Results files are meant to be attached to an issue and committed."""


PACKAGED = Path(__file__).resolve().parents[1] / "results"
"""The results files that come with the package."""


class ResultsError(ValueError):
    """A results file that cannot be used; the message names the file, the place in it and the way out."""


class FileFull(ResultsError):
    """Results that are too long for one file."""


IMPLAUSIBLE = 1e9
"""TFLOPS or GB/s that no device reaches: a file that says so is broken."""


def dumps(results: Results) -> str:
    """The text of a results file, in which control characters are escaped. Raises ResultsError for results that the
    schema does not allow."""
    document = _printable(dataclasses.asdict(results))
    try:
        _validate(decode(Results, document))
    except SchemaError as error:
        raise ResultsError(f"these results cannot be stored: {error}") from None
    # A row goes on one line, and so does a list of plain values: a file of one number a line is unreadable and long.
    rows: list[str] = []
    for case in document["cases"]:
        rows += [json.dumps(row, separators=(",", ":"), allow_nan=False) for row in case["rows"]]
        case["rows"] = ["@row"] * len(case["rows"])
    text = json.dumps({"schema": SCHEMA, "schema_version": SCHEMA_VERSION} | document, indent=1, allow_nan=False)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text)
    lines = iter(rows)
    return re.sub(r' "@row"', lambda match: f"\n   {next(lines)}", text) + "\n"


def _printable(value: Any) -> Any:
    """Plain data with every text as `hgemm.program.printable` has it: no name and no reason keeps a run from being
    stored."""
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def write(results: Results, path: Path) -> None:
    """Writes a results file, whole or not at all.

    Raises FileFull if it would be longer than LARGEST_FILE, ResultsError if it breaks the schema, OSError if it cannot
    be written.
    """
    text = dumps(results)
    if len(text) > LARGEST_FILE:
        raise FileFull(
            f"the results take {len(text):,} bytes and a results file has at most {LARGEST_FILE:,}; "
            "measure fewer cases, contestants or rounds at a time"
        )
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path) -> Results:
    """Reads and checks a results file. Raises ResultsError, naming the file, the place in it and the rule broken."""
    try:
        if path.stat().st_size > 4 * LARGEST_FILE:
            raise ResultsError(f"{path}: {path.stat().st_size:,} bytes is too long for a results file")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except ResultsError:
        raise
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ResultsError(f"{path}: not a results file of hgemm.bench (no schema {SCHEMA!r})")
    version = document.get("schema_version")
    if type(version) is not int or version not in READABLE_VERSIONS:
        readable = " and ".join(map(str, READABLE_VERSIONS))
        raise ResultsError(f"{path}: schema version {version!r:.40}; this release reads versions {readable}")
    try:
        return _validate(decode(Results, document | {"schema_version": SCHEMA_VERSION}))
    except SchemaError as error:
        raise ResultsError(f"{path}: {error}") from None


def _validate(results: Results) -> Results:
    """The rules that types do not express. Raises SchemaError."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", results.run.utc):
        raise SchemaError(f"run.utc: expected a time as 2026-01-31T12:00:00Z, found {results.run.utc!r:.80}")
    for index, case in enumerate(results.cases):
        _validate_case(case, f"cases[{index}]")
        for number, row in enumerate(case.rows):
            _validate_row(row, f"cases[{index}].rows[{number}]")
    for index, roof in enumerate(results.roofs):
        _validate_word(roof.dtype, (*DTYPES, None), f"roofs[{index}].dtype")
        if not 0 < roof.value < IMPLAUSIBLE or not roof.samples:
            raise SchemaError(
                f"roofs[{index}]: expected a positive value below {IMPLAUSIBLE:g} with its samples, found {roof.value}"
            )
    return results


def _validate_case(case: CaseResult, where: str) -> None:
    if min(case.batch, case.M, case.N, case.K, case.flops, case.compulsory_bytes) <= 0:
        raise SchemaError(f"{where}: sizes, flops and bytes must be positive")
    for name, known in (("dtype", DTYPES), ("layout", LAYOUTS), ("distribution", DISTRIBUTIONS)):
        _validate_word(getattr(case, name), known, f"{where}.{name}")
    flops = 2 * case.batch * case.M * case.N * case.K
    if flops >= LARGEST:
        raise SchemaError(f"{where}: no device computes a product of {flops:.3g} operations")
    if case.flops != flops:
        raise SchemaError(f"{where}.flops: expected 2 M N K for each product of the batch, {flops}, found {case.flops}")
    if case.label is not None and not case.label.strip():
        raise SchemaError(f"{where}.label: expected a name or null, found {case.label!r}")


def _validate_word(word: str | None, known: Iterable[str | None], where: str) -> None:
    if word not in known:
        raise SchemaError(f"{where}: expected one of {', '.join(map(repr, filter(None, known)))}, found {word!r:.80}")


def _validate_row(row: Row, where: str) -> None:
    if row.timing is None:
        if row.status == "ok":
            raise SchemaError(f"{where}.timing: missing, and the status is 'ok'")
        return
    if row.status != "ok":
        raise SchemaError(f"{where}.timing: there are times, and the status is {row.status!r}")
    if row.role != "roof" and not (row.check and row.check.passed):
        raise SchemaError(f"{where}.check: there are times without a check that passed")
    timing = row.timing
    count = len(timing.samples_us)
    if count == 0 or min(timing.samples_us) <= 0:
        raise SchemaError(f"{where}.timing.samples_us: expected positive numbers, found {timing.samples_us!r:.80}")
    clocks = timing.clocks
    columns: dict[str, list[Any]] = {"rounds": timing.rounds, "at_s": timing.at_s}
    columns |= {f"clocks.{entry.name}": getattr(clocks, entry.name) for entry in dataclasses.fields(clocks)}
    if not clocks.counted_mhz:
        del columns["clocks.counted_mhz"]
    for name, column in columns.items():
        if len(column) != count:
            raise SchemaError(f"{where}.timing.{name}: expected {count} entries, one a sample, found {len(column)}")
    finished = timing.finished_us
    if finished and (timing.mode != "e2e" or len(finished) != count or min(finished) <= 0):
        raise SchemaError(f"{where}.timing.finished_us: expected a positive entry a sample in mode e2e, else none")
    if row.allocates and timing.mode != "e2e":
        raise SchemaError(f"{where}.allocates: only calls in mode e2e allocate, found mode {timing.mode!r}")
    if timing.calls < 1 or timing.flops_per_call < 0 or timing.bytes_per_call < 0:
        raise SchemaError(f"{where}.timing: calls must be positive, flops and bytes not negative")


def packaged() -> Iterator[Path]:
    """The results files that come with the package, newest run first; those that cannot be read are left out."""
    dated = []
    for path in PACKAGED.glob("*.json"):
        try:
            dated.append((read(path).run.utc, path))
        except ResultsError:
            continue
    return (path for _, path in sorted(dated, reverse=True))
