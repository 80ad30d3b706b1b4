"""Which backend and configuration ``backend="auto"`` stands for: the one place that ranks those of all families."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hgemm import measured
from hgemm.backends import TORCH, backends
from hgemm.problem import Problem

# On a CUDA device, the first of these that takes the product. The Triton kernels need no compiler besides Triton's own,
# `cuda_cp_async` takes every layout, torch needs neither.
PREFERENCE = ("triton", "triton_pointer", "cuda_cp_async", TORCH)


@dataclass(frozen=True)
class Choice:
    """What computes a product and why. ``config`` is None for a backend without configurations."""

    backend: str
    config: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}{f' {self.config}' if self.config else ''}: {self.reason}"


def choose(problem: Problem) -> Choice:
    """The backend and configuration for ``problem``; never fails, because ``torch`` takes every legal product.

    Tensors on the CPU go to ``torch``: there the kernels are interpreted, which is for study and not for speed. On a
    CUDA device that was measured, sizes near a measured case (``measured.NEAR``) go to the configuration that was
    fastest there among those that take the product; the cases were row-major, and their order is followed for every
    layout. Everything else goes to the first of ``PREFERENCE`` that takes it, with its default configuration.
    """
    if problem.device.type == "cpu":
        return Choice(TORCH, None, "on a CPU the kernels are only interpreted")
    records = backends()
    refusals: list[str] = []
    for name, config, reason in _candidates(problem):
        record = records[name]
        if (rule := record.refuses(problem, config)) is None:
            return Choice(name, config or record.choose(problem), "; ".join([*refusals, reason]))
        refusal = f"{name}: {rule}"
        if refusal not in refusals:
            refusals.append(refusal)
    raise AssertionError("torch takes every product")


def _candidates(problem: Problem) -> Iterator[tuple[str, str | None, str]]:
    """Backends with a configuration, or None for the default, and why they come at this place."""
    device = _device_name(problem.device)
    if case := measured.nearest(device, problem):
        for name, config in case.ranking:
            yield name, config, f"of what takes it, {name} was the fastest on {device} at {case.name}"
    for name in PREFERENCE:
        yield name, None, f"{name} takes it"


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device)
