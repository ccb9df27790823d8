"""How fast nodes may be excluded, so that a wrong rule or a storm can't empty the cluster. PURE.

Exclusions are counted over a window that slides, against the nodes that the cluster had when the window began: a cluster that shrinks
by what is excluded would else give the breaker ever less to allow. What is over the cap waits, and is decided anew each time: it may
have recovered by then. Recoveries are never limited and never counted.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    """What the breaker allows.

    Attributes:
        max_percent: share of the cluster's GPU nodes that may be newly excluded within the window, rounded up; 0 excludes none.
        at_least: nodes that may be, however small the share.
        at_most: nodes that may be, however large it is; None: no such limit.
        window_seconds: the window.
    """

    max_percent: int = 20
    at_least: int = 1
    at_most: int | None = None
    window_seconds: float = 600.0

    def allowed(self, nodes: int) -> int:
        """Return how many of so many nodes may be newly excluded within the window."""
        if self.max_percent == 0:
            return 0
        share = -(-nodes * self.max_percent // 100)
        most = max(self.at_least, share)
        return most if self.at_most is None else min(most, self.at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerState:
    """What the breaker remembers.

    Attributes:
        excluded: when each node was excluded that was within the window, in Unix seconds.
        sizes: how many GPU nodes the cluster had, by when it was looked at; the last look before the window, and those within.
    """

    excluded: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    sizes: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What the breaker says.

    Attributes:
        admitted: nodes that are to be excluded now.
        waiting: nodes that would be, were it not for the breaker.
        allowed: exclusions that the window allows in all.
        used: those that it has seen, these included.
        free_at: when the next one is allowed; None where one is now, or time alone doesn't allow any.
    """

    admitted: tuple[str, ...]
    waiting: tuple[str, ...]
    allowed: int
    used: int
    free_at: float | None

    @property
    def tripped(self) -> bool:
        """Whether exclusions wait."""
        return bool(self.waiting)


def admit(
    state: BreakerState, wanted: Sequence[str], nodes: int, limits: BreakerLimits, now: float
) -> tuple[Admission, BreakerState]:
    """Say which nodes are to be excluded now, and remember it.

    Args:
        state: what is remembered.
        wanted: nodes that should be excluded and aren't, the most urgent first.
        nodes: GPU nodes that the cluster has, excluded ones included.
        limits: what is allowed.
        now: Unix seconds.
    """
    state = _seen(_forgotten(state, limits, now), nodes, now)
    allowed = limits.allowed(state.sizes[0][1])
    left = max(0, allowed - len(state.excluded))
    again = [
        node for node in wanted if node in state.excluded
    ]  # it was counted, and somebody has taken the mark away
    fresh = [node for node in dict.fromkeys(wanted) if node not in state.excluded]
    admitted, waiting = (*again, *fresh[:left]), tuple(fresh[left:])
    state = replace(state, excluded=MappingProxyType({**state.excluded, **dict.fromkeys(fresh[:left], now)}))
    used = len(state.excluded)
    ends = min(state.excluded.values(), default=None)
    admission = Admission(
        admitted=tuple(dict.fromkeys(admitted)),
        waiting=waiting,
        allowed=allowed,
        used=used,
        free_at=None if used < allowed or ends is None or not allowed else ends + limits.window_seconds,
    )
    return admission, state


def recovered(state: BreakerState, nodes: Collection[str]) -> BreakerState:
    """Return what is remembered when nodes are no longer there; a node that has recovered stays counted, so that flapping is too."""
    kept = {node: at for node, at in state.excluded.items() if node in nodes}
    return replace(state, excluded=MappingProxyType(kept))


def _forgotten(state: BreakerState, limits: BreakerLimits, now: float) -> BreakerState:
    """Forget what is out of the window; a time in the future, after the clock was set back, counts as now."""
    began = now - limits.window_seconds
    excluded = {node: min(at, now) for node, at in state.excluded.items() if min(at, now) > began}
    before = [each for each in state.sizes if each[0] <= began][-1:]
    within = [each for each in state.sizes if began < each[0] <= now]
    return BreakerState(excluded=MappingProxyType(excluded), sizes=(*before, *within))


def _seen(state: BreakerState, nodes: int, now: float) -> BreakerState:
    """Note the cluster's size, where it is another than before."""
    if state.sizes and state.sizes[-1][1] == nodes:
        return state
    return replace(state, sizes=(*state.sizes, (now, nodes)))
