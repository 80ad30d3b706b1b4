"""What the counters of one call say: shared memory by kind of access, bytes, and why warps do not issue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hgemm.profile.metrics import ISSUING, METRICS, STALLS, stall_metric, value_of
from hgemm.profile.ncu import KernelCounters, Value

WAVEFRONT_BYTES = 128
"""Shared memory moves at most this in one wavefront: 32 banks of 4 bytes."""

LDMATRIX_WAVEFRONTS = 4
"""Of one ldmatrix.x4, the form that all kernels here use: four matrices of eight 16-byte rows, 512 bytes."""

SECTOR_BYTES = 32

NEGLIGIBLE = 0.001
"""Wavefronts beyond those needed, as a share of them, that count as none."""

PIPE_LOADS, PIPE_STORES = "loads in the pipe", "stores in the pipe"


@dataclass(frozen=True)
class SharedKind:
    """One kind of access to shared memory. None where there is no counter for it.

    ``least``: wavefronts without any conflict: 4 for each ldmatrix.x4, a 128th of the bytes that TMA moved, for others
    the wavefronts less the conflicts counted for the same instructions.
    """

    kind: str
    wavefronts: float | None
    least: float | None
    conflicts: float | None

    @property
    def ratio(self) -> float | None:
        """Wavefronts for each that is needed: 1 means no conflict."""
        return self.wavefronts / self.least if self.wavefronts is not None and self.least else None


@dataclass(frozen=True)
class Stall:
    """``share``: of the time that warps are resident."""

    reason: str
    share: float
    meaning: str


@dataclass(frozen=True)
class Counted:
    """What one call did. ``values`` by the names of METRICS, in their units; ``others``: kernels that the same call
    launched besides, whose counters are not in it."""

    kernel: str
    others: tuple[str, ...]
    values: Mapping[str, float | None]
    shared: tuple[SharedKind, ...]
    stalls: tuple[Stall, ...]

    @property
    def sentence(self) -> str | None:
        """What the wavefronts say of ldmatrix; None where there is none, or no counter."""
        kinds = {kind.kind: kind for kind in self.shared}
        ldmatrix = kinds.get("ldmatrix")
        if ldmatrix is None or ldmatrix.ratio is None:
            return None
        each = LDMATRIX_WAVEFRONTS * ldmatrix.ratio
        verdict = "no bank conflicts" if ldmatrix.ratio <= 1 + NEGLIGIBLE else "bank conflicts"
        aside, pipe = "", kinds.get(PIPE_LOADS)
        if pipe and pipe.conflicts and ldmatrix.ratio <= 1 + NEGLIGIBLE:
            aside = f"; the {pipe.conflicts:,.0f} that the pipe counts for loads are waits for other users of the banks"
        return f"ldmatrix took {each:.2f} wavefronts each where {LDMATRIX_WAVEFRONTS} are needed: {verdict}{aside}"


def read(kernels: Sequence[KernelCounters]) -> Counted:
    """Makes sense of the counters of one call: those of its longest kernel."""
    index = max(range(len(kernels)), key=lambda n: value_of(kernels[n].values, METRICS["time"]) or 0.0)
    main = kernels[index]
    values = {name: value_of(main.values, metric) for name, metric in METRICS.items()}
    if values["L2"] is None and (sectors := values["L2 sectors"]) is not None:
        values["L2"] = SECTOR_BYTES * sectors
    return Counted(
        kernel=main.name,
        others=tuple(kernel.name for n, kernel in enumerate(kernels) if n != index),
        values=values,
        shared=tuple(_shared(values)),
        stalls=tuple(_stalls(main.values)),
    )


def _shared(values: Mapping[str, float | None]) -> list[SharedKind]:
    kinds: dict[str, SharedKind] = {}
    for kind in ("ldmatrix", "load", "store", "cp.async"):
        wavefronts, conflicts = values[f"{kind} wavefronts"], values[f"{kind} conflicts"]
        instructions = values[f"{kind} instructions"]
        if not wavefronts and not instructions:
            continue
        if kind == "ldmatrix":
            least = None if instructions is None else LDMATRIX_WAVEFRONTS * instructions
        else:
            least = None if wavefronts is None or conflicts is None else wavefronts - conflicts
        kinds[kind] = SharedKind(kind, wavefronts, least, conflicts)
    for kind, name in (("TMA writes", "TMA loaded"), ("TMA reads", "TMA stored")):
        if moved := values[name]:
            kinds[kind] = SharedKind(kind, None, moved / WAVEFRONT_BYTES, None)
    for kind, name, parts in ((PIPE_LOADS, "pipe load", ("ldmatrix", "load")), (PIPE_STORES, "pipe store", ("store",))):
        if wavefronts := values[f"{name} wavefronts"]:
            needed = [kinds[part].least for part in parts if part in kinds]
            known = [least for least in needed if least is not None]
            least = sum(known) if known and len(known) == len(needed) else None
            kinds[kind] = SharedKind(kind, wavefronts, least, values[f"{name} conflicts"])
    if (total := values["shared wavefronts"]) is not None:
        kinds["all in the pipe"] = SharedKind("all in the pipe", total, None, values["shared conflicts"])
    return list(kinds.values())


def _stalls(values: Mapping[str, Value]) -> list[Stall]:
    """All reasons that were counted, the commonest first."""
    warps = {
        reason: value.number for reason in (*STALLS, ISSUING) if (value := values.get(stall_metric(reason))) is not None
    }
    total = sum(warps.values())
    reasons = [reason for reason in warps if reason != ISSUING and warps[reason] > 0]
    reasons.sort(key=lambda reason: -warps[reason])
    return [Stall(reason, warps[reason] / total, STALLS[reason]) for reason in reasons]
