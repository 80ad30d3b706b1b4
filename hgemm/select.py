"""Which backend and configuration ``backend="auto"`` stands for: the one place that ranks those of all families."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from hgemm import cost, measured, tuned
from hgemm.backends import TORCH, backends
from hgemm.cost import Prediction
from hgemm.devices import Rates, rates
from hgemm.problem import Problem

# On a CUDA device of a kind that the cost model was not fitted on, the first of these that takes the product. Triton's
# kernels need no compiler besides its own, `cuda_cp_async` takes every layout, torch needs neither.
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
    CUDA device the first of these counts, and of what it ranks the first that takes the product: what the user tuned
    (``hgemm.tuned``) for this very product; what was measured of it (hgemm/tables); what the user tuned for a size near
    it (``measured.NEAR``); the cost model (``hgemm.cost``), which ranks the configurations of all families on devices
    of the compute capability that it was fitted on. Elsewhere nothing says how families compare: ``PREFERENCE`` does,
    and the model chooses the configuration.
    """
    if problem.device.type == "cpu":
        return Choice(TORCH, None, "on a CPU the kernels are only interpreted")
    records = backends()
    table = tuned.table(problem.device)
    refusals = [table.note] if table.note else []
    absent = set()  # not asked again for each of their configurations
    for name, config, reason in _candidates(problem, table):
        if name in absent:
            continue
        record = records[name]
        if (rule := record.refuses(problem, config)) is None:
            return Choice(name, config or record.choose(problem), "; ".join([*refusals, reason]))
        if record.refuses_device(problem.device.type):
            absent.add(name)
        refusal = f"{name}: {rule}"
        if refusal not in refusals:
            refusals.append(refusal)
    raise AssertionError("torch takes every product")


def _candidates(problem: Problem, table: tuned.Table) -> Iterator[tuple[str, str | None, str]]:
    """Backends with a configuration, or None for the default, and why they come at this place."""
    device = _device(problem.device)
    if entry := table.exact(problem):
        for one in entry.ranking:
            yield one.backend, one.config, f"tuned here on {entry.date}"
    if case := measured.exact(device.title, problem):
        for name, config in case.ranking:
            yield name, config, f"of what takes it, {name} was the fastest on {device.title} at {case.name}"
    if case := measured.nearest(problem, table.comparable(problem)):
        for name, config in case.ranking:
            reason = f"of what takes it, {name} was the fastest as tuned here on {case.tuned} at {case.name}"
            yield name, config, reason
    if device.capability == cost.committed().capability:
        for prediction in _predictions(problem, device):
            yield prediction.kernel.backend, prediction.config, str(prediction)
    records = backends()
    for name in PREFERENCE:
        ranking = records[name].predictions(problem, device)
        yield name, None, f"{name} takes it{f'; {ranking[0]}' if ranking else ''}"


def _predictions(problem: Problem, device: Rates) -> list[Prediction]:
    """Those of all families that may be chosen unasked, the quickest first."""
    found = []
    for record in backends():
        if record.properties.exact_integers:
            found += record.predictions(problem, device)
    return sorted(found, key=lambda prediction: prediction.seconds)


def _device(device: torch.device) -> Rates:
    found: Any = torch.cuda.get_device_properties(device)
    return rates(found.name, (found.major, found.minor), found.multi_processor_count)
