"""Which backend and configuration ``backend="auto"`` stands for: the one place that ranks those of all families."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hgemm import measured, tuned
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
    CUDA device, a product that the user tuned (``hgemm.tuned``) goes to the fastest that takes it. Sizes near a case
    (``measured.NEAR``) go to the configuration that was fastest there among those that take the product. A case is one
    that the user tuned with the same dtype, layout and batch, or one measured on such a device, whose order is
    followed for every layout. Everything else goes to the first of ``PREFERENCE`` that takes it,
    with its default configuration.
    """
    if problem.device.type == "cpu":
        return Choice(TORCH, None, "on a CPU the kernels are only interpreted")
    records = backends()
    table = tuned.table(problem.device)
    refusals = [table.note] if table.note else []
    for name, config, reason in _candidates(problem, table):
        record = records[name]
        if (rule := record.refuses(problem, config)) is None:
            return Choice(name, config or record.choose(problem), "; ".join([*refusals, reason]))
        refusal = f"{name}: {rule}"
        if refusal not in refusals:
            refusals.append(refusal)
    raise AssertionError("torch takes every product")


def _candidates(problem: Problem, table: tuned.Table) -> Iterator[tuple[str, str | None, str]]:
    """Backends with a configuration, or None for the default, and why they come at this place."""
    device = _device_name(problem.device)
    if entry := table.exact(problem):
        for one in entry.ranking:
            yield one.backend, one.config, f"tuned here on {entry.date}"
    if case := measured.nearest(device, problem, table.comparable(problem)):
        where = f"as tuned here on {case.tuned}" if case.tuned else f"on {device}"
        for name, config in case.ranking:
            yield name, config, f"of what takes it, {name} was the fastest {where} at {case.name}"
    for name in PREFERENCE:
        yield name, None, f"{name} takes it"


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device)
