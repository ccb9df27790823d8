"""Which rule a policy is under: stable, burst or hold, and when that changes.

Burst begins when the burst window's demand reaches threshold × capacity, when the objective is at risk, or when there
is demand and no capacity. It ends after one whole stable window of fresh readings below all of these: readings that are
stale or missing, and gaps between them, begin that window anew. A start without a past begins in burst, and so does the
return from a Hold, so that neither shrinks anything before a stable window has been seen.

Hold begins when demand has been unknown for longer than the failure threshold. It is the way out of a burst for which
no data come any more.
"""

from scaler.core.demand import Demand
from scaler.core.memory import BurstState, PolicyMemory
from scaler.core.model import Mode, PolicySpec, Quality
from scaler.core.need import Terms
from scaler.core.placement import count
from scaler.core.values import frozen

GAP_SECONDS = 5.0
"""Between two fresh readings further apart than this lies a gap: what happened in it is unknown."""
_FRESH, _MISSING, _STABLE, _BURST = Quality.FRESH, Quality.MISSING, Mode.STABLE, Mode.BURST
"""By names of their own: looking an enum's members up takes long (`scaler.core.demand`)."""


@frozen()
class Phase:
    """The mode of one policy at one moment.

    Attributes:
        mode: the rule.
        burst: the burst that is on (also kept through a Hold), or None.
        entered: burst began with this decision.
        ended: burst ended with this decision.
        changes_at: when time alone ends the mode, or begins a Hold; None if it can't.
    """

    mode: Mode
    burst: BurstState | None
    entered: bool = False
    ended: bool = False
    changes_at: float | None = None


_CALM = Phase(mode=_STABLE, burst=None)
"""What most policies are in nearly always."""


def is_hot(terms: Terms, spec: PolicySpec, capacity: float) -> bool:
    """Whether demand calls for burst at this moment."""
    if terms.at_risk:
        return True
    if capacity <= 0.0:
        return terms.peak > 0.0
    return terms.peak >= spec.burst.threshold * capacity


def next_phase(memory: PolicyMemory, demand: Demand, *, hot: bool, spec: PolicySpec, now: float) -> Phase:
    """Return the mode that follows from the last one, the demand, and whether it is hot."""
    holds_at = memory.fresh_at + count(spec.failure_threshold)
    if demand.quality is _MISSING and now >= holds_at:
        return Phase(mode=Mode.HOLD, burst=BurstState(since=now, restarted=True))
    fresh = demand.quality is _FRESH
    before = memory.burst
    if before is None and not hot and demand.quality is not _MISSING:
        return _CALM
    gap = now >= memory.fresh_at + GAP_SECONDS
    burst = _burst_after(before, hot=hot, calm=fresh and not hot, gap=gap, now=now)
    if burst is not None and burst.calm_since is not None:
        ends_at = burst.calm_since + spec.burst.stable_window
        if now >= ends_at:
            return Phase(mode=Mode.STABLE, burst=None, ended=True)
        return Phase(_BURST, burst, before is None, ended=False, changes_at=ends_at)
    return Phase(
        _STABLE if burst is None else _BURST,
        burst,
        burst is not None and before is None,  # entered
        False,  # ended
        None if demand.quality is not _MISSING else holds_at,  # changes_at
    )


def _burst_after(
    before: BurstState | None, *, hot: bool, calm: bool, gap: bool, now: float
) -> BurstState | None:
    if before is None:
        return BurstState(since=now) if hot else None
    if not calm:
        since = None
    elif before.calm_since is None or gap:
        since = now
    else:
        since = before.calm_since
    restarted = before.restarted and not hot  # from here on demand keeps it up
    if since == before.calm_since and restarted == before.restarted:
        return before
    return BurstState(before.since, since, restarted)
