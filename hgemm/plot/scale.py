"""A logarithmic axis in points: what a picture needs to know to keep its marks apart."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """One logarithmic axis: from data to points along it, and back."""

    low: float
    high: float
    points: float

    def place(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low) * self.points

    def value(self, place: float) -> float:
        return self.low * math.exp(place / self.points * math.log(self.high / self.low))


def lower_end(value: float, room: float, high: float, points: float) -> float:
    """The lower end of a logarithmic axis of so many ``points`` up to ``high`` with ``room`` points below ``value``."""
    share = min(room / points, 0.9)
    return math.exp((math.log(value) - share * math.log(high)) / (1 - share))
