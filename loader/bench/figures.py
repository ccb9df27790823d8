"""What several measurements of one way come to. PURE."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from loader.bench.fresh import Facts

_GIGABYTE = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured of one way, over all rounds.

    Attributes:
        load: median seconds until the call returned and the device was done.
        used: median seconds until every byte was used once.
        best: the least of the latter.
        nbytes: bytes moved.
    """

    load: float
    used: float
    best: float
    nbytes: int

    @property
    def rate(self) -> float:
        """GB per second until loaded, by the median."""
        return self.nbytes / self.load / _GIGABYTE


def figure_of(runs: Sequence[Facts]) -> Figure:
    """The figure of one way.

    Args:
        runs: its measurements, at least one, all of the same bytes.
    """
    load, used = ([cast("float", run[key]) for run in runs] for key in ("load", "all"))
    return Figure(
        load=statistics.median(load),
        used=statistics.median(used),
        best=min(used),
        nbytes=cast("int", runs[0]["bytes"]),
    )
