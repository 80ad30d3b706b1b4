"""The process that ncu watches: it makes one warmed call of one contestant between cudaProfilerStart and Stop.

    ncu --profile-from-start off ... python -m hgemm.profile.launch SPEC ANSWER

SPEC is a file that holds a ``Launch`` in JSON; ANSWER is one that is written to say how it went, as ncu has a way of
its own with exit statuses. Only the call lies between start and stop: operands, warm-up and check are not profiled.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from hgemm.backends import get
from hgemm.bench import contestants
from hgemm.bench.suites import Case, Shape
from hgemm.check import verify
from hgemm.problem import Problem

WARM_UP = 3
"""Calls before the one that is profiled: they compile, load modules and fill caches of descriptors."""

Status = Literal["ok", "refused", "wrong", "failed"]


@dataclass(frozen=True)
class Launch:
    """What to call: a backend in a configuration, on the operands of a case, on a CUDA device.

    ``files``: Python files that register backends of the user's, absolute paths.
    """

    backend: str
    config: str | None
    case: Case
    device: int
    files: tuple[str, ...] = ()

    def dumps(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def loads(cls, text: str) -> Launch:
        fields = json.loads(text)
        case = Case(**(fields["case"] | {"shape": Shape(**fields["case"]["shape"])}))
        return cls(**(fields | {"case": case, "files": tuple(fields["files"])}))


@dataclass(frozen=True)
class Answer:
    """How it went; ``reason`` is empty if the call was made and its product is right."""

    status: Status
    reason: str = ""

    @classmethod
    def read(cls, path: Path) -> Answer | None:
        """None if the process ended before it could say anything."""
        text = path.read_text() if path.exists() else ""
        return cls(**json.loads(text)) if text else None


def call(launch: Launch) -> Answer:
    """Makes the call. Raises what the backend raises."""
    for file in launch.files:
        contestants.load(Path(file))
    backend, device = get(launch.backend), torch.device("cuda", launch.device)
    with torch.cuda.device(device):
        a, b, out = _operands(launch.case, device)
        if rule := backend.refuses(Problem.from_tensors(a, b, out), launch.config):
            return Answer("refused", rule)
        for _ in range(WARM_UP):
            backend.run(a, b, out, launch.config)
        out.fill_(float("nan"))
        backend.run(a, b, out, launch.config)
        verdict = verify(a, b, out)
        if not verdict.passed:
            return Answer("wrong", f"its error is {verdict.error_over_bound:.3g} times the bound")
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        backend.run(a, b, out, launch.config)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    return Answer("ok")


def main(arguments: Sequence[str]) -> int:
    spec_path, answer_path = arguments
    try:
        answer = call(Launch.loads(Path(spec_path).read_text()))
    except Exception as error:
        answer = Answer("failed", f"{type(error).__name__}: {error}")
    Path(answer_path).write_text(json.dumps(dataclasses.asdict(answer)))
    return 0


def _operands(case: Case, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a, b and out of a case, filled with N(0, 1) from its seed; out is row-major."""
    shape, dtype = case.shape, case.torch_dtype
    generator = torch.Generator(device).manual_seed(case.seed)

    def operand(rows: int, columns: int, letter: str) -> torch.Tensor:
        stored = (rows, columns) if letter == "n" else (columns, rows)
        filled = torch.randn(stored, generator=generator, device=device).to(dtype)
        return filled if letter == "n" else filled.t()

    a, b = operand(shape.M, shape.K, case.layout[0]), operand(shape.K, shape.N, case.layout[1])
    return a, b, torch.empty(shape.M, shape.N, dtype=dtype, device=device)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
