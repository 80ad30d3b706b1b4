"""What was tuned on this machine, as ``hgemm.select`` looks it up; ``hgemm.tuned_file`` keeps it.

Only a table for the torch, the Triton and the kernels' sources in use counts. That there is one for others is said, so
that nothing of it is used, or missed, silently.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from hgemm import measured
from hgemm.backends import find
from hgemm.problem import Problem
from hgemm.tuned_file import Entry, Gpu, Product, Timed, folders, load, path_of, versions


@dataclass(frozen=True)
class Table:
    """The entries that hold for a device as things are; ``note``: why there are others that do not, for the user."""

    entries: dict[Product, Entry] = field(default_factory=dict)
    note: str = ""

    def exact(self, problem: Problem) -> Entry | None:
        return self.entries.get(Product.of(problem)) if self.entries else None

    def comparable(self, problem: Problem) -> Iterator[measured.Case]:
        """The entries that differ from the problem in M, N and K at most."""
        if not self.entries:
            return
        wanted = Product.of(problem)
        for product, entry in self.entries.items():
            if (product.batch, product.dtype, product.layout) == (wanted.batch, wanted.dtype, wanted.layout):
                ranking = tuple((one.backend, one.config) for one in entry.ranking)
                M, N, K = product.M, product.N, product.K
                yield measured.Case(M, N, K, problem.dtype, problem.layout, ranking, tuned=entry.date)


def table(device: torch.device) -> Table:
    """What was tuned on this machine for devices of this kind; an empty table where nothing was. Raises nothing."""
    if not any(folder.is_dir() for folder in folders()):
        return Table()
    gpu = Gpu.of(device)
    path = path_of(gpu)
    if path is None:
        return Table()
    try:
        status = path.stat()
        return _read_table(path, gpu, status.st_mtime_ns, status.st_size)
    except OSError as error:
        return Table(note=f"what was tuned here cannot be read ({error.strerror})")


@functools.lru_cache(maxsize=16)
def _read_table(path: Path, gpu: Gpu, changed: int, size: int) -> Table:
    """``changed`` and ``size`` tell this file from what it was before."""
    try:
        tables = load(path, gpu)
    except ValueError as error:
        return Table(note=f"what was tuned here is not used: {error}; tune again")
    if (now := versions()) in tables:
        return _usable(tables[now])
    dated = [(entry.utc, made_with) for made_with, entries in tables.items() for entry in entries.values()]
    if not dated:
        return Table()
    utc, made_with = max(dated, key=lambda found: found[0])
    return Table(note=f"what was tuned here on {utc[:10]} is not used: {made_with.difference(now)}; tune again")


def _usable(entries: dict[Product, Entry]) -> Table:
    """Those of the entries that name configurations there are; all, unless someone else has written the file."""
    usable = {product: entry for product, entry in entries.items() if all(map(_known, entry.ranking))}
    lost = len(entries) - len(usable)
    return Table(usable, f"{lost} of the products tuned here name configurations that there are not" if lost else "")


def _known(one: Timed) -> bool:
    record = find(one.backend)
    return record is not None and (one.config in record.configs if record.configs else one.config is None)
