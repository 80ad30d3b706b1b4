"""Shared memory that pieces of C leave through: TMA reads it from when a store is issued until its thread has waited
for that, and sees what was written before a fence of those who wrote it."""

from collections import defaultdict

import numpy as np

Span = tuple[int, int]  # the first byte, and the first one behind


class Race(Exception):
    """A tile is read that has not arrived, or is overwritten while it is read."""


class Staging:
    """That of a block. The threads of a warp run together, so what one of them waits for is known by its warp. It never
    waits long: nothing else has to happen for a store to read."""

    def __init__(self) -> None:
        self.open: dict[int, list[Span]] = defaultdict(list)  # by warp: what its stores since the last commit read
        self.reading: dict[int, list[list[Span]]] = defaultdict(list)  # and those of each group before
        self.unseen: dict[int, list[np.ndarray]] = defaultdict(list)  # the first bytes of what it wrote since a fence

    def write(self, warp: int, addresses: np.ndarray, bytes: int) -> None:
        self.overwrite(addresses, bytes)
        self.unseen[warp].append(addresses)

    def overwrite(self, addresses: np.ndarray, bytes: int) -> None:
        """As many of them at each address."""
        read = [spans for groups in self.reading.values() for spans in groups]
        for first, end in (span for spans in (*read, *self.open.values()) for span in spans):
            if ((addresses < end) & (first < addresses + bytes)).any():
                raise Race("a piece of C is overwritten while it is read")

    def fence(self, warp: int) -> None:
        self.unseen[warp].clear()

    def store(self, warp: int, first: int, bytes: int) -> None:
        end = first + bytes
        if any(((first <= at) & (at < end)).any() for written in self.unseen.values() for at in written):
            raise Race("a piece of C is read by TMA that does not see it yet")
        self.open[warp].append((first, end))

    def commit(self, warp: int) -> None:
        self.reading[warp].append(self.open.pop(warp, []))

    def wait(self, warp: int, left: int) -> None:
        groups = self.reading[warp]
        del groups[: max(0, len(groups) - left)]

    def leave(self, warp: int) -> None:
        """Shared memory is given back when all have."""
        if self.open[warp] or any(self.reading[warp]):
            raise Race("a warp returns while its pieces of C are read")
