"""What a sweep's points say: frontiers, cheapest points, savings, and whether the targets are met. PURE."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scaler.runtime.bench.law.arms import ALONE, ARMS
from scaler.runtime.bench.law.grids import PLAIN
from scaler.runtime.bench.law.sweep import Point

LATE_SHARE: Final = 0.005
"""Share of the requests that may be late for a point to count as good service."""
SAVING: Final = 0.30
"""Target: share of the GPU-seconds of the best arm without sharing that sharing saves."""
SAVING_AIM: Final = 0.40
FEWER_LATE: Final = 10.0
"""Target: how many times fewer requests are late than under HPA's or KPA's rule, at no more GPU-seconds."""
SHARING: Final = tuple(name for name in ARMS if name not in ALONE)
RULES: Final = ("hpa", "kpa")
"""The rules of others."""


def of_arms(points: Iterable[Point], arms: Iterable[str]) -> list[Point]:
    """Return the points of some arms."""
    chosen = set(arms)
    return [point for point in points if point.arm in chosen]


def frontier(points: Iterable[Point]) -> list[Point]:
    """Return the points to which none is better in both GPU-seconds and late requests, the cheapest first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.outcome.held, p.outcome.late)):
        if not best or point.outcome.late < best[-1].outcome.late:
            best.append(point)
    return best


def cheapest(points: Iterable[Point]) -> Point | None:
    """Return the point of good service that holds the fewest GPU-seconds; None if no point serves well."""
    good = (point for point in points if point.outcome.late_share <= LATE_SHARE)
    return min(good, key=lambda point: point.outcome.held, default=None)


def plain(points: Iterable[Point], arm: str) -> Point:
    """Return the point with which one would begin."""
    return next(point for point in points if point.arm == arm and point.knobs == PLAIN[arm])


def saving(points: Sequence[Point], arm: str) -> float | None:
    """Return the share of the best arm without sharing that an arm saves at good service; None if either has none."""
    base, mine = cheapest(of_arms(points, ALONE)), cheapest(of_arms(points, [arm]))
    if base is None or mine is None:
        return None
    return 1.0 - mine.outcome.held / base.outcome.held


def times_fewer(points: Sequence[Point], other: Point) -> float | None:
    """Return how many times fewer requests are late with sharing, at no more GPU-seconds than another point.

    Returns:
        infinity when none is; None when no point with sharing holds so few.
    """
    within = [p.outcome.late for p in of_arms(points, SHARING) if p.outcome.held <= other.outcome.held]
    if not within:
        return None
    return other.outcome.late / min(within) if min(within) else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A target, what came out, and whether that meets it.

    Attributes:
        target: what was aimed at.
        found: what came out.
        met: whether it is met.
    """

    target: str
    found: str
    met: bool


def verdicts(points: Sequence[Point]) -> list[Verdict]:
    """Judge the targets on the points of one scenario."""
    return [_saved(points), *(_late(points, rule) for rule in RULES)]


def _saved(points: Sequence[Point]) -> Verdict:
    target = (
        f"at most {LATE_SHARE:.1%} late: at least {SAVING:.0%} fewer GPU-seconds than the best arm without sharing "
        f"(aim {SAVING_AIM:.0%})"
    )
    savings: Mapping[str, float] = {
        arm: saved for arm in SHARING if (saved := saving(points, arm)) is not None
    }
    base = cheapest(of_arms(points, ALONE))
    if base is None or not savings:
        return Verdict(target=target, found="one side has no point of such service", met=False)
    arm = max(savings, key=savings.__getitem__)
    mine = cheapest(of_arms(points, [arm]))
    assert mine is not None
    found = (
        f"{arm} {mine.outcome.held:,.0f} against {base.arm} {base.outcome.held:,.0f}: {abs(savings[arm]):.0%} "
        f"{'fewer' if savings[arm] >= 0.0 else 'more'}{', the aim too' if savings[arm] >= SAVING_AIM else ''}"
    )
    return Verdict(target=target, found=found, met=savings[arm] >= SAVING)


def _late(points: Sequence[Point], rule: str) -> Verdict:
    other = plain(points, rule)
    times = times_fewer(points, other)
    target = f"at no more GPU-seconds than {rule} as one begins: at least {FEWER_LATE:.0f} times fewer late requests"
    theirs = f"{rule} {other.outcome.held:,.0f} GPU-seconds and {other.outcome.late:,} late"
    if times is None:
        return Verdict(target=target, found=f"{theirs}; nothing that shares is so cheap", met=False)
    mine = "none is late" if math.isinf(times) else f"{times:,.0f} times fewer"
    factors = [
        factor
        for point in frontier(of_arms(points, [rule]))
        if point.outcome.late and (factor := times_fewer(points, point)) is not None
    ]
    least = min(factors, default=math.inf)
    swept = "none" if math.isinf(least) else f"{least:,.1f} times fewer"
    return Verdict(
        target=target,
        found=f"{theirs}; with sharing {mine}; against its whole frontier at least {swept}"
        if factors
        else f"{theirs}; with sharing {mine}",
        met=times >= FEWER_LATE,
    )
