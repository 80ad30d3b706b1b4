"""Planted faults: one change to one line of a kernel each, and the check of the emulator that has to find it.

They are changes of the source text, so that the kernels themselves stay free of switches. A text that is not found
exactly once is an error: a kernel that changes takes its mutants along. The lists: mutants_cp_async.py, mutants_tma.py,
mutants_tma_rotating.py, mutants_rolling.py, mutants_producer.py, mutants_producer_tail.py, mutants_multicast.py,
mutants_multicast_rotating.py, mutants_split.py, mutants_parts.py, mutants_tail.py, mutants_store.py, mutants_shared.py.
"""

from __future__ import annotations

from dataclasses import dataclass

VALUES = "values"
"""In place of a kind of fault: no rule is broken, the product is wrong."""


@dataclass(frozen=True)
class Mutant:
    """One fault. It counts as caught if one of `caught_by` is found under at least one schedule."""

    name: str
    what: str
    file: str
    original: str
    changed: str
    caught_by: tuple[str, ...]
    family: str = "tma"
    config: str = "128x128x64_s3_w64x32"
    shape: tuple[int, int, int] = (200, 264, 456)  # M, N, K
    batch: int = 1
    aligned_rows: bool = True  # of C
    resident_blocks: int = 2  # that the device is said to hold of a persistent kernel
    part_starts: tuple[int, ...] = ()  # tiles of 64 of K where parts begin: sums that depend on the order of the parts
