"""The ladder: configurations in an order in which each switches on one technique, and what a run says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hgemm.backends import Backend
from hgemm.bench.metrics import CEILING, find_row, label, main_kernel, relative, speed, timed_rows
from hgemm.bench.schema import CaseResult, Results, Row
from hgemm.bench.statistics import Summary

SIZES = (4096, 8192)
"""Of the square products that the ladder is measured on."""


@dataclass(frozen=True)
class Rung:
    """``contestant`` is ``backend:config``; ``base`` the one that the technique is added to, by default the rung
    before it."""

    technique: str
    contestant: str
    base: str | None = None


_ROTATE = "cuda_tma:256x128x64_s4_w64x64_rotate"
_PERSISTENT = f"{_ROTATE}_persistent"
_STORED = "cuda_tma:256x128x64_s3_w64x64_rotate_persistent_store-tma"
_PRODUCER = "cuda_tma:256x128x64_s4_w64x64_producer"
_PRODUCER_STORED = "cuda_tma:256x128x64_s3_w64x64_producer_persistent_store-tma"
_PRODUCER_SHARED = _PRODUCER_STORED.replace("_store", "_multicast_store")
_LARGER_WARP_TILE = "cuda_tma:192x256x64_s4_w96x64_rotate_persistent"

RUNGS = (
    Rung("cp.async, 3 stages, rows unswizzled", "cuda_cp_async:128x128x32_s3_w64x32_noswizzle"),
    Rung("64-byte swizzle, 2 stages", "cuda_cp_async:128x128x32_s2_w64x32"),
    Rung("third stage", "cuda_cp_async:128x128x32_s3_w64x32"),
    Rung("TMA, fragments double-buffered", "cuda_tma:128x128x32_s3_w64x32"),
    Rung("K = 64 a stage", "cuda_tma:128x128x64_s3_w64x32"),
    Rung("warp tile 64x64, 2 stages", "cuda_tma:128x256x64_s2_w64x64"),
    Rung("four stages", "cuda_tma:256x128x64_s4_w64x64"),
    Rung("TMA issued by warps in turn", _ROTATE),
    Rung("or by a producer warp", _PRODUCER, "cuda_tma:256x128x64_s4_w64x64"),
    Rung("persistent", _PERSISTENT, _ROTATE),
    Rung("or with a producer warp", f"{_PRODUCER}_persistent", _PRODUCER),
    Rung("A sent to two blocks at once", f"{_PRODUCER}_persistent_multicast", f"{_PRODUCER}_persistent"),
    Rung("C stored by TMA", _STORED, _PERSISTENT),
    Rung("or beside a producer warp", _PRODUCER_STORED, f"{_PRODUCER}_persistent"),
    Rung("last wave split along K", f"{_PERSISTENT}_tail", _PERSISTENT),
    Rung("C stored by TMA, last wave split", f"{_STORED}_tail", _STORED),
    Rung(
        "and A sent to two blocks at once",
        f"{_STORED.replace('_store', '_multicast_store')}_tail",
        f"{_STORED}_tail",
    ),
    Rung("or by producer warps to two blocks", _PRODUCER_SHARED, _PRODUCER_STORED),
    Rung("and the last wave split", f"{_PRODUCER_SHARED}_tail", _PRODUCER_SHARED),
    Rung("warp tile 96x64", _LARGER_WARP_TILE, _PERSISTENT),
    Rung("warp tile 96x64, last wave split", f"{_LARGER_WARP_TILE}_tail", _LARGER_WARP_TILE),
)


@dataclass(frozen=True)
class Figures:
    """What was measured of a rung at one size."""

    tflops: float
    share: Summary
    """Of the mma.sync ceiling of the same run."""


@dataclass(frozen=True)
class Step:
    """A rung, and all that is known of it. ``burst`` and ``sustained`` by size."""

    rung: Rung
    registers: int | None
    shared_bytes: int | None
    tensor_pipe: float | None
    """Cycles in which the tensor cores work, in percent, by ncu."""
    burst: Mapping[int, Figures]
    sustained: Mapping[int, Figures]


def contestants(backends: Iterable[Backend]) -> list[str]:
    """The rungs whose configuration exists."""
    known = {f"{backend.name}:{config}" for backend in backends for config in backend.configs}
    return [rung.contestant for rung in RUNGS if rung.contestant in known]


def steps(
    results: Results, dtype: str, sustained: Results | None = None, profile: Mapping[str, Any] | None = None
) -> list[Step]:
    """The rungs that ``results`` has times of. ``profile``: what ``python -m hgemm.profile --json`` printed."""
    cases, others = _cases(results, dtype), _cases(sustained, dtype)
    pipes = _tensor_pipes(profile)
    found = []
    for rung in RUNGS:
        rows = [row for case in cases.values() if (row := _row(case, rung.contestant))]
        if not rows:
            continue
        kernel = main_kernel(rows[0])
        found.append(
            Step(
                rung,
                kernel.registers if kernel else None,
                kernel.shared_bytes if kernel else None,
                pipes.get(rung.contestant),
                _figures(cases, rung.contestant),
                _figures(others, rung.contestant),
            )
        )
    return found


def gain(step: Step, among: Sequence[Step], size: int) -> float | None:
    """How much faster a step is than its base, as a fraction; None where either was not measured."""
    place = among.index(step)
    base = next((other for other in among if other.rung.contestant == step.rung.base), None)
    base = base or (among[place - 1] if place and step.rung.base is None else None)
    if base is None or size not in step.burst or size not in base.burst:
        return None
    return step.burst[size].tflops / base.burst[size].tflops - 1


def _cases(results: Results | None, dtype: str) -> dict[int, CaseResult]:
    cases = results.cases if results else []
    return {
        case.M: case
        for case in cases
        if case.dtype == dtype and case.M == case.N == case.K in SIZES and (case.batch, case.layout) == (1, "nn")
    }


def _row(case: CaseResult, contestant: str) -> Row | None:
    return next((row for row in timed_rows(case) if label(row) == contestant), None)


def _figures(cases: Mapping[int, CaseResult], contestant: str) -> dict[int, Figures]:
    found = {}
    for size, case in cases.items():
        row = _row(case, contestant)
        share = relative(row, find_row(case, CEILING, "roof")) if row else None
        if row and share:
            found[size] = Figures(speed(row).median, share)
    return found


def _tensor_pipes(profile: Mapping[str, Any] | None) -> dict[str, float]:
    pipes = {}
    for entry in (profile or {}).get("contestants", ()):
        values = (entry["counted"] or {}).get("values", {})
        if (pipe := values.get("tensor pipe")) is not None:
            pipes[f"{entry['backend']}:{entry['config']}"] = pipe
    return pipes
