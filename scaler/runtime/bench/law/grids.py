"""The knobs that each arm is swept over. Every arm is given the best of its own, with hindsight."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from scaler.runtime.bench.law.arms import ALONE
from scaler.runtime.bench.law.run import MOST_SEATS, Knobs

Grids = Mapping[str, Sequence[Knobs]]
"""Per arm, the knobs that it is swept over."""

PLAIN: Final[Mapping[str, Knobs]] = {
    "hpa": Knobs(least=1),
    "kpa": Knobs(least=1, share=0.7),
    "serving": Knobs(spares=1),
    "paused": Knobs(spares=1),
    "shared": Knobs(spares=2),
    "bridge": Knobs(least=1, spares=2),
    "lending": Knobs(least=1, spares=2),
}
"""What one would begin with: each rule's defaults, one replica or spare a model, two shared spares."""

_LONG: Final = (6.0, 60.0, 60.0)
"""Burst window, stable window and demote-after of a policy that says nothing."""
_SHORT: Final = (6.0, 10.0, 3.0)
"""The same of one that gives seats back soon."""
_QUICK: Final = (2.0, 10.0, 3.0)
"""The same of one that remembers no peak for longer than it has to."""


def whole(models: int) -> Grids:
    """Return the whole sweep for so many models."""
    seats = _sizes(models, (1.0, 1.5, 2.0, 2.33, 2.5, 2.66, 2.83, 3.0, 3.33))
    behind = _sizes(models, (0.33, 0.67, 1.0, 1.33, 1.67))
    growing = [(spares, MOST_SEATS) for spares in (2, 4, 8)]
    per_model = list(product((1, 2), (5, 6, MOST_SEATS)))
    return {
        "hpa": _replicas(range(1, 7), (1.0, 0.7, 0.5, 0.35, 0.25), (5, MOST_SEATS)),
        "kpa": _replicas(range(7), (1.0, 0.7, 0.35), (5, MOST_SEATS)),
        "serving": _law(per_model, [_SHORT, _QUICK]),
        "paused": _law(per_model, [_LONG, _SHORT, _QUICK]),
        "shared": _law([*_fixed(seats), *growing], [_SHORT, _QUICK])
        + _law([*_fixed(seats[4:]), *growing[2:]], [_LONG]),
        "bridge": _law([*_fixed(behind), *growing[:1]], [_LONG, _SHORT, _QUICK], least=1),
        "lending": _law(_fixed(behind[2:4]), [_LONG, _SHORT, _QUICK], least=1),
    }


def around(models: int) -> Grids:
    """Return the sweep of a sensitivity: around what the whole one finds good."""
    seats = _sizes(models, (1.5, 2.0, 2.33, 2.5, 2.66, 2.83, 3.0, 4.5, 6.0))
    behind = _sizes(models, (0.67, 1.0, 1.33))
    return {
        "hpa": _replicas((1, 3, 4, 5), (1.0, 0.35, 0.25), (5, MOST_SEATS)),
        "kpa": _replicas((1, 3, 4, 5), (0.7,), (5, MOST_SEATS)),
        "paused": _law([(1, 5), (1, 6), (2, 5)], [_SHORT, _QUICK]),
        "shared": _law(_fixed(seats), [_SHORT, _QUICK]),
        "bridge": _law(_fixed(behind), [_LONG, _SHORT], least=1),
    }


def rare(seats: Iterable[int]) -> Grids:
    """Return the sweep for models that are asked rarely: one GPU each is more than enough, a group shares a few."""
    return {
        "hpa": _replicas((1,), (1.0,), (MOST_SEATS,)),
        "kpa": _replicas((0, 1), (0.7,), (MOST_SEATS,)),
        "paused": _law([(1, 1)], [_LONG]),
        "shared": _law(_fixed(seats), [_SHORT]),
    }


def alone() -> Grids:
    """Return the sweep for one model."""
    return {name: grid for name, grid in whole(1).items() if name in ALONE}


def _sizes(models: int, per_model: Iterable[float]) -> list[int]:
    return sorted({math.ceil(models * seats) for seats in per_model})


def _fixed(sizes: Iterable[int]) -> list[tuple[int, int]]:
    """Return spares and seats of fleets that never change their size: all that doesn't serve is spare."""
    return [(size, size) for size in sizes]


def _law(
    seats: Iterable[tuple[int, int]], windows: Sequence[tuple[float, float, float]], least: int = 0
) -> list[Knobs]:
    """Return the knobs of the law, for pairs of spares and most seats, and for windows."""
    return [
        replace(Knobs(least=least, spares=spares, most=most), burst=burst, stable=stable, demote=demote)
        for (spares, most), (burst, stable, demote) in product(seats, windows)
    ]


def _replicas(least: Iterable[int], share: Iterable[float], most: Iterable[int]) -> list[Knobs]:
    return [Knobs(least=a, share=b, most=c) for a, b, c in product(least, share, most) if a <= c]
