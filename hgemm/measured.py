"""The committed tables of what was fastest where, hgemm/tables/*.json: which backend, and which configuration of each;
``hgemm.ranking`` makes them. What the user tuned is in ``hgemm.tuned``."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch

from hgemm.cost import Size
from hgemm.problem import Problem

NEAR = 2.0  # a case speaks for sizes within this factor of its own, in each of M, N and K
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """One measured size; ``ranking`` holds (backend, configuration), the fastest first."""

    M: int
    N: int
    K: int
    dtype: torch.dtype
    layout: str
    ranking: tuple[tuple[str, str | None], ...]
    tuned: str | None = None  # the date, of a case that the user tuned

    @property
    def name(self) -> str:
        return f"{self.M}x{self.N}x{self.K}"


def exact(device: str, problem: Problem) -> Case | None:
    """The measurement of this very product on a device of this name, in the layout of its operands; None if there is
    none."""
    wanted = problem.M, problem.N, problem.K, problem.dtype, problem.layout
    for case in () if problem.batch else _tables().get(device, ()):
        if (case.M, case.N, case.K, case.dtype, case.layout) == wanted:
            return case
    return None


def configuration(device: str, backend: str, size: Size) -> str | None:
    """The configuration of ``backend`` that was its quickest in this very product, of all of them that were timed on a
    device of this name; None if there is no such measurement. One in bf16 speaks for fp16 too: the bytes and the rate
    are the same."""
    if size.batch > 1:
        return None
    return _configurations(device).get((size.M, size.N, size.K, size.layout), {}).get(backend)


def nearest(problem: Problem, cases: Iterable[Case]) -> Case | None:
    """Of ``cases``, which are of products of the problem's kind, the closest to it in size; None if none is near."""
    found = [(case, _distances(case, problem)) for case in cases]
    near = [(sum(distances), case.name, case) for case, distances in found if max(distances) <= math.log2(NEAR)]
    return min(near, key=lambda entry: entry[:2])[2] if near else None


def _distances(case: Case, problem: Problem) -> tuple[float, float, float]:
    """How many doublings lie between the sizes."""
    M, N, K = (abs(math.log2(getattr(problem, name) / getattr(case, name))) for name in ("M", "N", "K"))
    return M, N, K


@functools.cache
def _tables() -> dict[str, tuple[Case, ...]]:
    """The cases of every committed table of backends, by the name of the device."""
    tables: dict[str, tuple[Case, ...]] = {}
    for document in _documents("hgemm-ranking"):
        tables[document["device"]] = tables.get(document["device"], ()) + tuple(
            Case(
                case["M"],
                case["N"],
                case["K"],
                _DTYPES[case["dtype"]],
                case["layout"],
                tuple((entry["backend"], entry["config"]) for entry in case["ranking"]),
            )
            for case in document["cases"]
        )
    return tables


@functools.cache
def _configurations(device: str) -> dict[tuple[int, int, int, str], dict[str, str]]:
    """By M, N, K and layout, the quickest configuration of each backend."""
    return {
        (case["M"], case["N"], case["K"], case["layout"]): {one["backend"]: one["config"] for one in case["quickest"]}
        for document in _documents("hgemm-configurations")
        if document["device"] == device
        for case in document["cases"]
    }


def _documents(schema: str) -> list[dict[str, Any]]:
    paths = sorted(
        (path for path in files("hgemm").joinpath("tables").iterdir() if path.name.endswith(".json")), key=str
    )
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return [document for document in found if document["schema"] == schema]
