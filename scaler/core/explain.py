"""Reasons as sentences, for whoever is on call: the command line, Events and logs all use these.

Every code has one sentence. A reason that time alone can end says how long that takes, if the reader's `now` is known.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from scaler.core.demand import FORGOTTEN_AFTER_SECONDS
from scaler.core.model import Decision, FleetDecision, Mode, PolicyDecision, Reason, ReasonCode

Facts = Mapping[str, float | str]


def explain(reason: Reason, now: float | None = None) -> str:
    """Return the sentence of one reason: what is so, since when, for how long, and what to do.

    Args:
        reason: the reason.
        now: time of the same clock as `reason.until`; without it the sentence says neither since when nor for how long.
    """
    code, facts = reason.code, reason.facts
    sentence = _SENTENCES[code](facts)
    if now is not None and math.isfinite(now):
        since = facts.get("since")
        if isinstance(since, float | int) and math.isfinite(since):
            sentence += f"; it has been so for {_span(max(0.0, now - since))}"
        if reason.until is not None:
            sentence += f"; this may change in {_span(max(0.0, reason.until - now))}"
    mend = _MENDS.get(code)
    return f"{sentence}." if mend is None else f"{sentence}; {mend(facts)}."


def explain_policy(decision: PolicyDecision, now: float | None = None) -> tuple[str, ...]:
    """Return what was decided for a policy, then why, the ruling reason first."""
    demand = "demand unknown" if decision.demand is None else f"demand {_requests(decision.demand)}"
    where = ", ".join(f"{seats} on {fleet}" for fleet, seats in decision.serving.items()) or "none anywhere"
    given, wanted = sum(decision.serving.values()), sum(decision.wanted.values())
    more = f" ({wanted} wanted)" if wanted != given else ""
    head = (
        f"{decision.policy}: {_MODES[decision.mode]}, {demand}, capacity needed {_number(decision.needed)}, "
        f"capacity serving {_number(decision.capacity)}: {_plural(given, 'resident')} to serve{more}, {where}."
    )
    return (head, *(explain(reason, now) for reason in decision.reasons))


def explain_fleet(decision: FleetDecision, now: float | None = None) -> tuple[str, ...]:
    """Return what was decided for a fleet, then why."""
    kept = f" ({decision.kept} of them only out of caution, which count as spare)" if decision.kept else ""
    head = (
        f"{decision.fleet}: {_plural(decision.total, 'seat')}: {decision.serving} to serve{kept}, "
        f"{decision.spare} spare, {decision.held} held."
    )
    return (head, *(explain(reason, now) for reason in decision.reasons))


def explain_decision(decision: Decision) -> tuple[str, ...]:
    """Return a whole decision: every policy, then every fleet, in the order of their names."""
    lines: list[str] = []
    for policy in sorted(decision.policies):
        lines += explain_policy(decision.policies[policy], decision.at)
    for fleet in sorted(decision.fleets):
        lines += explain_fleet(decision.fleets[fleet], decision.at)
    return tuple(lines)


_MINUTES_FROM = 600.0
"""Seconds from which on a time is written in larger units; windows of a few minutes are written in seconds."""
_MODES = MappingProxyType({Mode.STABLE: "stable", Mode.BURST: "in burst", Mode.HOLD: "on hold"})


def _number(value: float | str | None) -> str:
    if value is None:
        return "?"
    if isinstance(value, str):
        return value
    if isinstance(value, int):  # as half of all numbers are, and rounding would take five times as long
        return str(int(value))
    if not math.isfinite(value):
        return "unlimited"
    if value > 0.0:
        return f"{value:.1f}".removesuffix(".0")
    rounded = round(value, 1)
    return str(int(rounded)) if rounded == int(rounded) else str(rounded)


def _seconds(value: float | str | None) -> str:
    if isinstance(value, (float, int)) and 0.0 < value < 1.0:  # a union takes four times as long
        return f"{round(value * 1000)} ms"
    return f"{_number(value)} s"


def _span(seconds: float) -> str:
    """Write a time from now as people do: in its two largest units, in seconds up to ten minutes."""
    if not _MINUTES_FROM <= seconds < math.inf:
        return _seconds(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next(index for index, (value, _) in enumerate(parts) if value)
    return " ".join(f"{value} {unit}" for value, unit in parts[first : first + 2] if value)


def _plural(value: float | str | None, noun: str, plural: str = "") -> str:
    return f"{_number(value)} {noun if value == 1 else plural or f'{noun}s'}"


def _requests(value: float | str | None) -> str:
    return _plural(value, "request")


def _concurrency(facts: Facts) -> str:
    window = _seconds(facts.get("windowSeconds"))
    if facts.get("window") == "burst":
        return (
            f"Demand reached {_requests(facts.get('demand'))} within the last {window}; "
            f"what serves holds {_number(facts.get('capacity'))}"
        )
    return f"Demand was {_requests(facts.get('demand'))} on average over the last {window}"


def _queue_drain(facts: Facts) -> str:
    return (
        f"{_requests(facts.get('queued'))} waiting; to admit them within {_seconds(facts.get('drainSeconds'))} "
        f"takes capacity for {_requests(facts.get('needed'))} in flight"
    )


def _backlog(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('backlog'), 'entry', 'entries')} in the work queue, the oldest for "
        f"{_seconds(facts.get('oldestSeconds'))}; to take them within {_seconds(facts.get('drainSeconds'))} takes capacity "
        f"for {_requests(facts.get('needed'))} in flight"
    )


def _ttft_late(facts: Facts) -> str:
    return (
        f"{_number(facts.get('latePercent'))} % of first tokens come later than {_seconds(facts.get('objectiveSeconds'))}, "
        f"and {_number(facts.get('allowedPercent'))} % may; capacity for {_requests(facts.get('needed'))} corrects that"
    )


def _deadline(facts: Facts) -> str:
    wait = facts.get("predictedWaitSeconds")
    more = (
        "nothing finishes, so no end is in sight"
        if wait is None
        else f"about {_seconds(wait)} more are predicted"
    )
    return (
        f"{_requests(facts.get('queued'))} waiting, the oldest for {_seconds(facts.get('oldestWaitSeconds'))}, and {more}: "
        f"the first-token objective of {_seconds(facts.get('objectiveSeconds'))} is at risk"
    )


def _floor(facts: Facts) -> str:
    floor = facts.get("floor")
    serve = "serves" if floor == 1 else "serve"
    return f"At least {_plural(floor, 'resident')} always {serve}, and demand calls for no more"


def _scheduled(facts: Facts) -> str:
    return (
        f"The schedule {_number(facts.get('schedule'))} is on: at least {_number(facts.get('floor'))}, "
        "and demand calls for no more"
    )


def _ordered(facts: Facts) -> str:
    return (
        f"{_number(facts.get('kept'))} on {_number(facts.get('fleet'))} are kept because a person ordered it"
    )


def _max(facts: Facts) -> str:
    return (
        f"No more than {_plural(facts.get('max'), 'resident')} may serve (serving.max), "
        f"though demand calls for capacity for {_requests(facts.get('needed'))}"
    )


def _burst_entered(facts: Facts) -> str:
    return (
        f"Burst began: demand reached {_requests(facts.get('demand'))} against a capacity of "
        f"{_number(facts.get('capacity'))} (threshold {_number(facts.get('thresholdPercent'))} %), or an objective is at risk"
    )


def _burst_held(facts: Facts) -> str:
    return (
        f"Burst goes on: nothing is scaled down until demand has stayed below the threshold for a whole stable window "
        f"({_seconds(facts.get('stableWindowSeconds'))}); it now peaks at {_requests(facts.get('demand'))} "
        f"against a capacity of {_number(facts.get('capacity'))}"
    )


def _burst_ended(facts: Facts) -> str:
    return f"Burst ended: demand stayed below the threshold for {_seconds(facts.get('stableWindowSeconds'))}"


def _restarted(facts: Facts) -> str:
    return (
        "The law has no past yet (started, or signals just came back): nothing is scaled down before it has seen "
        f"{_seconds(facts.get('stableWindowSeconds'))} of fresh signals"
    )


def _signals_missing(facts: Facts) -> str:
    what = f"Demand is unknown, nothing fresh from: {_number(facts.get('source'))}"
    if facts.get("mode") == Mode.HOLD:
        return f"{what}; on hold, neither up nor down, apart from floors and the fallback"
    return f"{what}; nothing is scaled down, and after {_seconds(facts.get('thresholdSeconds'))} the policy goes on hold"


def _signals_stale(facts: Facts) -> str:
    return f"No fresh reading from: {_number(facts.get('source'))}; until there is one, the answer may rise and not fall"


def _missing_mend(facts: Facts) -> str:
    """A signal that a policy names is waited for without end."""
    why = "`emberpool signals get` says why"
    return f"{why}: mend its source, or take it out of the policy" if _is_named(facts) else why


def _stale_mend(facts: Facts) -> str:
    """What nobody names is given up after a while (`scaler.core.demand`)."""
    mend = _missing_mend(facts)
    if _is_named(facts):
        return mend
    return f"{mend}; what says nothing for {_span(FORGOTTEN_AFTER_SECONDS)} counts as removed"


def _is_named(facts: Facts) -> bool:
    """Whether a signal that the policy names is among what is silent."""
    return "signal " in _number(facts.get("source"))


def _demote_delayed(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('kept'), 'resident')} on {_number(facts.get('fleet'))} could be paused, but a smaller "
        f"answer has to last for {_seconds(facts.get('demoteAfterSeconds'))} before one is paused"
    )


def _survivors(facts: Facts) -> str:
    return (
        f"One resident fewer on {_number(facts.get('fleet'))} would leave room for {_requests(facts.get('survivors'))} "
        f"there, and the short window saw {_number(facts.get('demand'))}"
    )


def _bridged(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('bridged'), 'resident')} on {_number(facts.get('on'))} bridge the gap until "
        f"{_number(facts.get('fleet'))} has {_number(facts.get('missing'))} more"
    )


def _spares_exhausted(facts: Facts) -> str:
    return (
        f"The seats that exist give {_number(facts.get('given'))} of {_plural(facts.get('wanted'), 'resident')}: capacity "
        f"for {_requests(facts.get('capacity'))}, and {_number(facts.get('needed'))} are needed; the rest waits for seats"
        f"{_where_it_is_up(facts)}"
    )


def _where_it_is_up(facts: Facts) -> str:
    """Say on how many seats it could serve at all, where others can serve on more."""
    if (up := facts.get("up")) is None or up == facts.get("given"):
        return ""
    return f" (its residents are up on {_plural(up, 'seat')}, and others have those that it was not given)"


def _preempted(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('lost'), 'resident')} gave way to a policy that needs the seats more; "
        f"{_number(facts.get('given'))} left"
    )


def _lent(facts: Facts) -> str:
    if not facts.get("lent"):
        return (
            f"Nothing can be borrowed at present: what is spare is kept for bursts; its own "
            f"{_plural(facts.get('owned'), 'resident')} hold {_number(facts.get('capacity'))} of the "
            f"{_requests(facts.get('needed'))} that it could use"
        )
    return (
        f"{_plural(facts.get('lent'), 'spare seat')} borrowed beside {_number(facts.get('owned'))} of its own: capacity for "
        f"{_requests(facts.get('capacity'))} of the {_number(facts.get('needed'))} it could use, until somebody wants them"
    )


def _resident_starting(facts: Facts) -> str:
    return (
        f"None of its residents is up anywhere; {_plural(facts.get('seats'), 'seat')} on {_number(facts.get('on'))} "
        f"{'is' if facts.get('seats') == 1 else 'are'} kept free until one has started, since a resident starts only while "
        "nothing serves on its seat"
    )


def _resident_waiting(facts: Facts) -> str:
    what = (
        f"None of its residents is up anywhere, and {_plural(facts.get('wanted'), 'resident')} "
        f"{'is' if facts.get('wanted') == 1 else 'are'} wanted"
    )
    if facts.get("aside"):
        return f"{what}; it has had a seat to start on for as long as a start may take, or found no memory there, and leaves seats to others for as long"
    return f"{what}; {_plural(facts.get('seats'), 'seat')} on which one could start serve others, whose turn it is"


def _warmed(facts: Facts) -> str:
    warm = _plural(facts.get("warm"), "resident")
    what = (
        f"{warm} on {_number(facts.get('fleet'))} shall stand paused, and {_number(facts.get('paused'))} do"
    )
    if not facts.get("risen"):
        return f"{what}: others share the fleet, and there is demand"
    return (
        f"{what}: demand has risen by up to {_requests(facts.get('risen'))} within the "
        f"{_seconds(facts.get('wakeSeconds'))} that bringing one back from host memory takes"
    )


def _seats_at_max(facts: Facts) -> str:
    return f"{_plural(facts.get('wanted'), 'seat')} wanted, and the fleet may have {_number(facts.get('maxSeats'))} (maxSeats)"


def _seats_held(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('held'), 'seat')} can serve nobody at present (a silent agent, a GPU that is not Ok, or no "
        f"resident that came up); beside the {_number(facts.get('wanted'))} wanted the fleet's "
        f"{_number(facts.get('maxSeats'))} (maxSeats) leave no room for others in their place"
    )


def _budget_exhausted(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('wanted'), 'seat')} wanted, and {_number(facts.get('total'))} fit into the budget of "
        f"{_number(facts.get('budget'))} {facts.get('unit', 'seats')} over all fleets"
    )


def _order_limited(facts: Facts) -> str:
    start = facts.get("startSeconds")
    while_ = f", which takes {_number(start)} s" if isinstance(start, float | int) and start > 0 else ""
    return (
        f"New seats are made for {_number(facts.get('ordered'))} requests in flight and not for "
        f"{_number(facts.get('needed'))}: much of what waits does so until a seat has started{while_}, and a later one "
        "would come no earlier"
    )


def _budget_not_shared_out(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('wanted'), 'seat')} wanted; it stays at {_number(facts.get('total'))} until the budget over all "
        "fleets is shared out next, which is within a second"
    )


def _spares_learned(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('spare'), 'spare seat')} instead of {_number(facts.get('min'))}: in "
        f"{_number(facts.get('quantile'))} % of the past, demand rose by no more before a new seat had started"
    )


def _replenishing(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('seats'), 'seat')} to be started so that {_plural(facts.get('spareTarget'), 'spare seat')} "
        "are there again"
    )


def _replenish_limited(facts: Facts) -> str:
    limits = {"perMinute": "may be started in any minute", "maxConcurrent": "may be starting at once"}
    limit = limits.get(_number(facts.get("limit")), "may be started")
    return (
        f"{_plural(facts.get('lacking'), 'spare seat')} still lacking: no more than {_number(facts.get('value'))} {limit}, "
        f"and {_number(facts.get('starting'))} are on their way"
    )


def _scale_down_delayed(facts: Facts) -> str:
    if facts.get("lent"):
        return (
            f"{_plural(facts.get('target'), 'seat')} would do; {_number(facts.get('total'))} stay until "
            f"{_number(facts.get('lent'))} that are lent, or drain, are free, so that the spares stay idle"
        )
    return (
        f"{_plural(facts.get('target'), 'seat')} would do, but a smaller total has to last for "
        f"{_seconds(facts.get('windowSeconds'))} before seats are deleted; {_number(facts.get('total'))} stay"
    )


def _starts_cancelled(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('seats'), 'start')} cancelled: nothing has asked for "
        f"{'it' if facts.get('seats') == 1 else 'them'} for {_seconds(facts.get('seconds'))}, and nobody is served there yet"
    )


def _scale_up_delayed(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('target'), 'seat')} are asked for, but a larger total has to last for "
        f"{_seconds(facts.get('windowSeconds'))} before seats are added; {_number(facts.get('total'))} for now"
    )


def _pace_limited(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('target'), 'seat')} are asked for, and the fleet's scaling policies (selectPolicy "
        f"{_number(facts.get('select'))}) let it go to {_number(facts.get('total'))} for now"
    )


def _within_tolerance(facts: Facts) -> str:
    return (
        f"{_plural(facts.get('target'), 'seat')} are asked for, within the tolerance of "
        f"{_number(facts.get('tolerancePercent'))} % around the {_number(facts.get('total'))} there are"
    )


def _frozen(facts: Facts) -> str:
    return (
        f"The fleet is frozen: it stays at {_plural(facts.get('total'), 'seat')}, "
        f"though {_number(facts.get('target'))} are asked for"
    )


def _wished(facts: Facts) -> str:
    return (
        f"Somebody else (a person, another trigger) raised the workload to {_plural(facts.get('replicas'), 'replica')}, and "
        f"{_plural(facts.get('target'), 'seat')} would do; the total follows for {_seconds(facts.get('windowSeconds'))} and "
        "lapses then"
    )


def _kept_above(facts: Facts) -> str:
    return (
        f"The workload is asked for {_plural(facts.get('replicas'), 'replica')}, though no more than "
        f"{_number(facts.get('published'))} were published for {_seconds(facts.get('seconds'))}: whatever writes its size keeps "
        "them (its minReplicas, its tolerance, another trigger, slower rules for scaling down), and the total doesn't follow"
    )


_SENTENCES: Mapping[ReasonCode, Callable[[Facts], str]] = MappingProxyType(
    {
        ReasonCode.CONCURRENCY: _concurrency,
        ReasonCode.QUEUE_DRAIN: _queue_drain,
        ReasonCode.BACKLOG: _backlog,
        ReasonCode.DEADLINE_AT_RISK: _deadline,
        ReasonCode.TTFT_LATE: _ttft_late,
        ReasonCode.FLOOR: _floor,
        ReasonCode.SCHEDULED: _scheduled,
        ReasonCode.ORDERED: _ordered,
        ReasonCode.MAX: _max,
        ReasonCode.BURST_ENTERED: _burst_entered,
        ReasonCode.BURST_HELD: _burst_held,
        ReasonCode.BURST_ENDED: _burst_ended,
        ReasonCode.RESTARTED: _restarted,
        ReasonCode.SIGNALS_MISSING: _signals_missing,
        ReasonCode.SIGNALS_STALE: _signals_stale,
        ReasonCode.DEMOTE_DELAYED: _demote_delayed,
        ReasonCode.SURVIVORS_TOO_FEW: _survivors,
        ReasonCode.BRIDGED: _bridged,
        ReasonCode.SPARES_EXHAUSTED: _spares_exhausted,
        ReasonCode.ORDER_LIMITED: _order_limited,
        ReasonCode.PREEMPTED: _preempted,
        ReasonCode.LENT: _lent,
        ReasonCode.RESIDENT_STARTING: _resident_starting,
        ReasonCode.RESIDENT_WAITING: _resident_waiting,
        ReasonCode.WARMED: _warmed,
        ReasonCode.SEATS_AT_MAX: _seats_at_max,
        ReasonCode.SEATS_HELD: _seats_held,
        ReasonCode.BUDGET_EXHAUSTED: _budget_exhausted,
        ReasonCode.BUDGET_NOT_SHARED_OUT: _budget_not_shared_out,
        ReasonCode.SPARES_LEARNED: _spares_learned,
        ReasonCode.REPLENISHING: _replenishing,
        ReasonCode.REPLENISH_LIMITED: _replenish_limited,
        ReasonCode.SCALE_UP_DELAYED: _scale_up_delayed,
        ReasonCode.SCALE_DOWN_DELAYED: _scale_down_delayed,
        ReasonCode.STARTS_CANCELLED: _starts_cancelled,
        ReasonCode.PACE_LIMITED: _pace_limited,
        ReasonCode.WITHIN_TOLERANCE: _within_tolerance,
        ReasonCode.FROZEN: _frozen,
        ReasonCode.WISHED: _wished,
        ReasonCode.KEPT_ABOVE: _kept_above,
    }
)

_MENDS: Mapping[ReasonCode, Callable[[Facts], str]] = MappingProxyType(
    {ReasonCode.SIGNALS_MISSING: _missing_mend, ReasonCode.SIGNALS_STALE: _stale_mend}
)
"""What to do about it, where somebody has to."""
