"""Which backend and configuration ``backend="auto"`` stands for."""

from __future__ import annotations

from dataclasses import dataclass

from hgemm.backends import TORCH, backends
from hgemm.problem import Problem

# On a CUDA device, the first of these that takes the product; the last takes every one.
PREFERENCE = ("triton", TORCH)


@dataclass(frozen=True)
class Choice:
    """What computes a product and why. ``config`` is None for a backend without configurations."""

    backend: str
    config: str | None
    reason: str


def choose(problem: Problem) -> Choice:
    """The backend and configuration for ``problem``; never fails, because ``torch`` takes every legal product.

    Tensors on the CPU go to ``torch``: there the kernels are interpreted, which is for study and not for speed. On a
    CUDA device it is ``triton`` with its default configuration wherever that takes the product, else ``torch``.
    """
    if problem.device.type == "cpu":
        return Choice(TORCH, None, "on a CPU the kernels are only interpreted")
    records = backends()
    refusals: list[str] = []
    for name in PREFERENCE[:-1]:
        record = records[name]
        rule = record.refuses(problem)
        if rule is None:
            return Choice(name, record.choose(problem), "; ".join([*refusals, f"{name} takes it"]))
        refusals.append(f"{name}: {rule}")
    return Choice(TORCH, None, "; ".join(refusals))
