"""Figures of repeated measurements."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


def nearest_rank(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile: the least value that `share` of all values don't exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some measurements, in their unit."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return it for at least one value."""
        return cls(statistics.median(values), nearest_rank(values, 0.99), max(values))
