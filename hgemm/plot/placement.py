"""Keeping marks apart: positions in points, moved as little as needed so that nothing overlaps."""

from __future__ import annotations

from collections.abc import Sequence


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least ``gap`` apart and within ``low`` and ``high``, in the order given, each near its own.

    Neighbours that are too close share the displacement. Where the room does not suffice the gap shrinks.
    """
    if not positions:
        return []
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    gap = min(gap, (high - low) / max(1, len(positions) - 1))
    # Blocks of touching marks: (marks, sum of the places that each of them wishes for the first).
    blocks: list[tuple[int, float]] = []
    for index in order:
        count, wished = 1, positions[index]
        while blocks:
            before, total = blocks[-1]
            if _start(before, total, gap, low, high) + before * gap <= _start(count, wished, gap, low, high):
                break
            blocks.pop()
            # Behind ``before`` others, each of these marks wishes the first one that much further down.
            wished = total + wished - count * before * gap
            count += before
        blocks.append((count, wished))
    starts = [(_start(count, total, gap, low, high), count) for count, total in blocks]
    ranked = [start + offset * gap for start, count in starts for offset in range(count)]
    placed = dict(zip(order, ranked, strict=True))
    return [placed[index] for index in range(len(positions))]


def _start(count: int, total: float, gap: float, low: float, high: float) -> float:
    return min(max(total / count, low), high - (count - 1) * gap)


def swarm(heights: Sequence[float], diameter: float) -> list[float]:
    """Sideways offsets for marks of ``diameter`` at ``heights``: as near the middle as they fit without overlap."""
    offsets = [0.0] * len(heights)
    placed: list[tuple[float, float]] = []
    for index in sorted(range(len(heights)), key=lambda index: -heights[index]):
        step = 0
        while True:
            # 0, +1, -1, +2, -2, ... half diameters from the middle.
            offset = (step + 1) // 2 * (1 if step % 2 else -1) * diameter / 2
            height = heights[index]
            if all((offset - x) ** 2 + (height - y) ** 2 >= diameter**2 for x, y in placed):
                break
            step += 1
        offsets[index] = offset
        placed.append((offset, heights[index]))
    return offsets
