"""NAME:default where no device is there to choose for: what a backend would choose on a board of the table."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence

import torch

from hgemm import devices
from hgemm.backends import Backend
from hgemm.bench.contestants import DEFAULT_CONFIG
from hgemm.bench.suites import Case
from hgemm.cuda_kernels import adapter
from hgemm.devices import Device
from hgemm.profile.static import CUDA_FAMILIES, TRITON_FAMILIES, problem_of
from hgemm.triton_kernels import adapter as triton_adapter


def default_config(backend: Backend, case: Case, board: Device) -> str | None:
    """The configuration that ``backend`` chooses for the case on ``board``; None if it has none."""
    shape = case.shape
    problem = problem_of(case, torch.device("cpu"))
    problem = dataclasses.replace(problem, batch=(shape.batch,) if shape.batch > 1 else ())
    if family := CUDA_FAMILIES.get(backend.name):
        limits = board.limits
        device = adapter.DeviceLimits(
            name=board.names[0],
            capability=board.compute_capability,
            shared_bytes_per_block=limits.shared_bytes_per_block,
            shared_bytes_per_multiprocessor=limits.shared_bytes_per_multiprocessor,
            multiprocessors=board.multiprocessors,
        )
        return adapter.default_config(family, device, problem).name
    if twin := TRITON_FAMILIES.get(backend.name):
        rates = devices.rates(board.names[0], board.compute_capability, board.multiprocessors)
        return triton_adapter.default_config(twin, rates, problem)
    return backend.choose(problem)


def without_default(
    patterns: Sequence[str], backends: Sequence[Backend], case: Case, boards: Sequence[Device]
) -> list[str]:
    """The patterns with the configurations that NAME:default stands for on each of ``boards``.

    Raises ValueError, with what could be named instead, for such a pattern if there is no board.
    """
    named = []
    for pattern in patterns:
        name, _, config = pattern.partition(":")
        if config != DEFAULT_CONFIG:
            named.append(pattern)
            continue
        matched = [backend for backend in backends if fnmatch.fnmatchcase(backend.name, name)]
        if not boards:
            only = matched[0].configs if len(matched) == 1 else ()
            there = f": {', '.join(only)}" if only else ""
            raise ValueError(
                f"{pattern}: without a CUDA device there is no default to choose; name a board with --gpu, or a "
                f"configuration{there}"
            )
        for backend in matched:
            for board in boards:
                chosen = default_config(backend, case, board)
                named.append(f"{backend.name}:{chosen}" if chosen else backend.name)
    return named
