"""What the emulator found and counted, as Python values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

from hgemm.cuda_kernels.emulator.call_chain import callers


@dataclass(frozen=True)
class Waiter:
    """Lanes of one warp that wait for the same thing at the same line when nothing can go on any more."""

    block: int
    warp: int
    lanes: int  # as a mask: bit i for lane i
    operation: str
    file: str
    line: int
    sentence: str

    def __str__(self) -> str:
        lanes = "all lanes" if self.lanes == 0xFFFFFFFF else f"lanes {self.lanes:#010x}"
        return f"block {self.block} warp {self.warp} {lanes} at {_place(self.file, self.line)}: {self.sentence}"


@dataclass(frozen=True)
class Event:
    """One fault: what kind, who, where in the source, at which address, and a sentence about it.

    `kind` is one of "race", "in-flight", "uninitialised", "proxy-fence", "mbarrier", "transaction-bytes", "barrier",
    "divergence", "out-of-bounds", "misaligned", "unfinished-copy", "unwritten-output", "deadlock", "trap", "cancelled".
    """

    kind: str
    operation: str  # the name in ptx.cuh
    file: str
    line: int
    block: int
    warp: int  # -1, as for lane: none in particular
    lane: int
    space: str  # of the address: "shared", "global", or empty
    address: int
    sentence: str
    count: int  # how often the same was seen at the same line
    waiters: tuple[Waiter, ...] = ()
    callers: tuple[str, ...] = ()  # the lines that led to it, from the inside out: ("mainloop.cuh:50", "tma.cuh:95")

    @property
    def place(self) -> str:
        return _place(self.file, self.line)

    def __str__(self) -> str:
        who = f"block {self.block}"
        who += f" warp {self.warp}" if self.warp >= 0 else ""
        who += f" lane {self.lane}" if self.lane >= 0 else ""
        at = f" at {self.place}" if self.line else ""
        at += f" (from {', '.join(self.callers)})" if self.callers else ""
        times = f" ({self.count:,} times)" if self.count > 1 else ""
        return "\n    ".join([f"[{self.kind}] {who}{at}: {self.sentence}{times}", *map(str, _merged(self.waiters))])


@dataclass(frozen=True)
class Report:
    """All of one run.

    `counters` holds "mma" and "ldmatrix" (instructions of warps), and by name of operation "executed" (once a warp for
    what a warp does together and for access to shared memory, else once a thread), "bank_conflicts" (wavefronts beyond
    the minimum), "shared_bytes" and "global_bytes".
    """

    schedule: str
    shared_base: int
    blocks: int
    counters: Mapping[str, Any]
    events: tuple[Event, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.events

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of fault that were found, each once."""
        return tuple(dict.fromkeys(event.kind for event in self.events))

    def __str__(self) -> str:
        if self.clean:
            return f"schedule {self.schedule}: {self.blocks} blocks, no fault found"
        head = f"schedule {self.schedule}: {len(self.events)} fault{'s' if len(self.events) > 1 else ''} found"
        return "\n".join([head, *(f"  {event}" for event in self.events)])

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], library: Path | None = None) -> Report:
        """The report that the library wrote; given its path, the callers of each line are looked up."""
        places = [_place(event["file"], event["line"]) for event in data["events"]]
        stacks = [event["stack"] if library else [] for event in data["events"]]
        chains = callers(library or Path(), stacks, places)
        events = []
        for event, chain in zip(data["events"], chains, strict=True):
            fields = {name: value for name, value in event.items() if name != "stack"}
            fields["waiters"] = tuple(Waiter(**waiter) for waiter in event["waiters"])
            events.append(Event(**fields, callers=chain))
        return cls(data["schedule"], data["shared_base"], data["blocks"], data["counters"], tuple(events))


def _place(file: str, line: int) -> str:
    return f"{PurePath(file).name}:{line}"


def _merged(waiters: tuple[Waiter, ...], shown: int = 12) -> list[Waiter | str]:
    """The first waiter of each kind; a deadlock of a block is easier to read without its eight equal warps."""
    kinds: dict[tuple[str, int, str], list[Waiter]] = {}
    for waiter in waiters:
        kinds.setdefault((waiter.file, waiter.line, waiter.sentence), []).append(waiter)
    lines: list[Waiter | str] = []
    for same in list(kinds.values())[:shown]:
        lines.append(same[0] if len(same) == 1 else f"{same[0]} (and {len(same) - 1} more warps)")
    return lines + ([f"and {len(kinds) - shown} more"] if len(kinds) > shown else [])
