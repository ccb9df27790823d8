"""Which seats are replaced because their engines don't start as they should, and when that is left alone. PURE: time is an argument.

A start counts against its seat if the engine fails before it has started soundly, or takes longer to be ready than it may; so many of them
in a row make the seat ailing, and so do as many restarts of a container that ends again and again. A sound start makes all of them forgotten. A fault that a seat has of its own (its node, its GPU, leaked
memory) goes with the seat. One that the seats share (a bad image, a missing model) doesn't, and must not burn the fleet: after each
replacement that no sound start of a younger seat has justified, the pause before the next one doubles, and after a few there are no more.
Where nothing has been seen to start at all, the first one waits, too.

A pre-flight that keeps an engine from starting is no bad start: it is told of, and what acts is what is said of the GPU and its node.

What serves, or is about to, is left alone: only seats on which nobody computes are ever called ailing.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from warmpool.claim import in_force
from warmpool.seats import LOOPS, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState
from warmpool.timeline import init_seconds

FIRST_PAUSE_SECONDS: Final = 60.0
"""Pause after the first replacement that wasn't justified."""
LONGEST_PAUSE_SECONDS: Final = 3600.0
BUDGET: Final = 5
"""Replacements in a row of which none was justified. A sixth one would be no better."""
FORGIVEN_SECONDS: Final = 6 * 3600.0
"""After so long without a replacement the budget is whole again: what was wrong may have been mended since."""

_NO_CAUSES: Mapping[SeatName, "Cause"] = MappingProxyType({})
_IN_USE: Final = frozenset({ResidentState.PROMOTING, ResidentState.SERVING, ResidentState.DRAINING})
_NO_SEATS: Mapping[SeatName, str] = MappingProxyType({})
_NONE_SPARED: Mapping[str, int] = MappingProxyType({})
CALM_SECONDS: Final = 600.0
"""A container that hasn't been seen to wait for so long runs soundly: after ten minutes the kubelet begins its pauses anew, too."""
_POD: Final = PolicyName("")
"""Stands for a seat's containers where residents' names stand."""


class Cause(StrEnum):
    """What is wrong with a seat's starts."""

    CRASH_LOOP = "CrashLoop"
    """Its engine, or a container of it, ends again and again."""
    CANNOT_START = "CannotStart"
    """A container of it can't even be started: its image isn't there, say. A new pod of the same template couldn't be either."""
    SLOW_START = "SlowStart"
    """Its engine takes longer to be ready than it may."""
    PRE_FLIGHT = "PreFlight"
    """A pre-flight keeps its engine from starting, which says nothing against the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a fleet says of it.

    Attributes:
        init_seconds: what an engine may take from the order to start its process until it is ready.
        consecutive: bad starts in a row that make a seat ailing.
        replaces: such a seat is replaced; else it is only told of.
    """

    init_seconds: float = 600.0
    consecutive: int = 3
    replaces: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Streak:
    """The bad starts in a row of one resident on one seat.

    Attributes:
        bad: how many.
        why: what was wrong with the last one, in words.
        started: when the last completed start that was counted began; None before the first.
        failed: since when it was Failed when that was last looked at; None before the first time.
        sound: it has started soundly before, so that what its seat is made of can.
        cause: what was wrong with the last one; None before the first.
        refused: what a pre-flight has found that keeps it from starting, in words; empty while none does.
        spared: of containers' restarts, by name, those that are no bad starts since a pre-flight had ended them by then.
    """

    bad: int = 0
    why: str = ""
    started: float | None = None
    failed: float | None = None
    sound: bool = False
    cause: Cause | None = None
    refused: str = ""
    spared: Mapping[str, int] = field(default_factory=lambda: _NONE_SPARED)


_NOTHING: Final = Streak()
_FAILED: Final = ResidentState.FAILED

Key = tuple[str, PolicyName]
"""A seat's uid, and whose resident; of its containers, nobody's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is remembered of a fleet.

    Attributes:
        streaks: of residents on its seats, as far as there is something to remember.
        replaced: when its last replacements in a row were, of which none was justified yet, oldest first.
        chosen: the seats that are being replaced, by uid.
    """

    streaks: Mapping[Key, Streak] = field(default_factory=lambda: MappingProxyType({}))
    replaced: tuple[float, ...] = ()
    chosen: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a look comes to.

    Attributes:
        ailing: seats whose engines don't start as they should and on which nobody computes, each with why.
        causes: what is wrong with each of them.
        replace: those of them that are to be replaced now; one at most is begun at a time.
        held_back: why no other is, in words; empty if none needs to be.
        look_again: when that may be otherwise; None if time alone changes nothing.
    """

    ailing: Mapping[SeatName, str] = field(default_factory=lambda: _NO_SEATS)
    causes: Mapping[SeatName, Cause] = field(default_factory=lambda: _NO_CAUSES)
    replace: Mapping[SeatName, str] = field(default_factory=lambda: _NO_SEATS)
    held_back: str = ""
    look_again: float | None = None


def look(history: History, rule: Rule, seats: Sequence[Seat], now: float) -> tuple[Found, History]:
    """Look at a fleet's seats, and say which are to be replaced.

    Args:
        history: what is remembered of it.
        rule: what it says.
        seats: all its seats.
        now: Unix time.

    Returns:
        What was found, and what is to be remembered.
    """
    streaks, troubled = _count(history.streaks, rule, seats, now)
    replaced = _still_counted(history.replaced, streaks, seats, now)
    ailing = {seat.name: trouble for seat, trouble in troubled if _is_idle(seat, now)}
    told = Found(
        ailing={name: _in_words(trouble) for name, trouble in ailing.items()},
        causes={name: trouble.cause for name, trouble in ailing.items()},
    )
    # One that is claimed or silent for a moment stays chosen: its replacement is counted already.
    still = {seat.uid for seat, trouble in troubled if trouble.cause in CURABLE}
    chosen = history.chosen & still if rule.replaces else frozenset()
    curable = [seat for seat in seats if told.causes.get(seat.name) in CURABLE]
    if not curable or not rule.replaces:
        return told, History(streaks=streaks, replaced=replaced, chosen=chosen)
    going = {seat.name: told.ailing[seat.name] for seat in curable if seat.uid in chosen}
    seat = min(curable, key=lambda each: (each.created_at, each.name))
    known = any(each.sound for each in streaks.values())
    begun = replaced or (() if known else (seat.created_at,))
    held_back, look_again = _held_back(begun, seats, now)
    if not going and not held_back:
        going, chosen = {seat.name: told.ailing[seat.name]}, frozenset({seat.uid})
        replaced = (*replaced, now)
    found = replace(told, replace=going, held_back="" if going else held_back, look_again=look_again)
    return found, History(streaks=streaks, replaced=replaced, chosen=chosen)


CURABLE: Final = frozenset({Cause.CRASH_LOOP, Cause.SLOW_START})
"""What may be a seat's own fault, so that another may do better."""


def _in_words(trouble: "_Trouble") -> str:
    policy, streak = trouble.policy, trouble.streak
    if policy == _POD:
        return streak.why
    if trouble.cause is Cause.PRE_FLIGHT:
        return f"a pre-flight keeps {policy} from starting: {streak.refused}"
    return f"{streak.bad} starts of {policy} in a row were bad, the last one because {streak.why}"


def pause_seconds(replacements: int) -> float:
    """Return the pause after so many replacements in a row that weren't justified; infinity once the budget is spent."""
    if replacements >= BUDGET:
        return math.inf
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** max(0, replacements - 1))


class _Trouble(NamedTuple):
    """Whose starts aren't as they should be, what is wrong with them, and how often."""

    policy: PolicyName
    cause: Cause
    streak: Streak


def _count(
    before: Mapping[Key, Streak], rule: Rule, seats: Iterable[Seat], now: float
) -> tuple[Mapping[Key, Streak], list[tuple[Seat, _Trouble]]]:
    """Count what has happened since the last look; return what is to be remembered, and the seats that ail, with why.

    Nearly all residents are as they were, and on a large fleet that has to be found out fast.
    """
    streaks: dict[Key, Streak] = {}
    ailing = []
    for seat in seats:
        troubles: list[_Trouble] = []
        for resident in seat.residents:
            key = (seat.uid, resident.policy)
            known = before.get(key, _NOTHING)
            start = resident.start
            if (start is not None and start.at != known.started) or (
                resident.state is _FAILED and resident.since != known.failed
            ):
                known = _counted(known, rule, resident)
            if known is _NOTHING:
                continue
            streaks[key] = known
            troubles += _troubles(resident.policy, known, rule)
        if seat.crash is not None or (seat.uid, _POD) in before:
            known = _of_containers(before.get((seat.uid, _POD), _NOTHING), seat, now)
            if known is not _NOTHING:
                streaks[seat.uid, _POD] = known
            troubles += _troubles(_POD, known, rule)
        if troubles:
            ailing.append((seat, min(troubles, key=lambda each: each.cause is Cause.PRE_FLIGHT)))
    return streaks, ailing


def _troubles(policy: PolicyName, streak: Streak, rule: Rule) -> Iterator[_Trouble]:
    """Yield what is wrong with somebody's starts, if anything is."""
    if streak.bad >= rule.consecutive or streak.cause is Cause.CANNOT_START:
        yield _Trouble(policy, streak.cause or Cause.CRASH_LOOP, streak)
    elif streak.refused:
        yield _Trouble(policy, Cause.PRE_FLIGHT, streak)


def _of_containers(known: Streak, seat: Seat, now: float) -> Streak:
    """Count a seat's containers. One that ends again and again isn't told of while it runs, so what was seen counts for a while.

    The kubelet counts all restarts of a container, so those up to the last one that a pre-flight ended are taken off.
    """
    crash = seat.crash
    if crash is None:
        calm = known.failed is None or now - known.failed >= CALM_SECONDS
        if not calm and known.cause is not Cause.CANNOT_START:
            return known
        return Streak(spared=known.spared) if known.spared else _NOTHING
    if crash.refused:
        spared = {**known.spared, crash.container: crash.restarts}
        return Streak(why=str(crash), failed=now, refused=str(crash), spared=spared)
    cause = Cause.CRASH_LOOP if crash.reason == LOOPS else Cause.CANNOT_START
    bad = max(0, crash.restarts - known.spared.get(crash.container, 0))
    return Streak(bad=bad, why=str(crash), failed=now, cause=cause, spared=known.spared)


def _counted(known: Streak, rule: Rule, resident: Resident) -> Streak:
    """Count what has happened to a resident."""
    start = resident.start
    if start is not None and start.at != known.started:
        took = init_seconds(resident.phases)
        if took <= rule.init_seconds:
            known = Streak(started=start.at, failed=known.failed, sound=True)
        else:
            why = f"its engine took {took:.0f} s to be ready, more than the {rule.init_seconds:.0f} s that it may"
            known = replace(
                known, bad=known.bad + 1, why=why, started=start.at, cause=Cause.SLOW_START, refused=""
            )
    if resident.state is not _FAILED or resident.since == known.failed:
        return known
    why = resident.failure or "its engine failed"
    if resident.refused:
        return replace(known, failed=resident.since, refused=why)
    return replace(
        known, bad=known.bad + 1, why=why, failed=resident.since, cause=Cause.CRASH_LOOP, refused=""
    )


def _still_counted(
    replaced: tuple[float, ...], streaks: Mapping[Key, Streak], seats: Iterable[Seat], now: float
) -> tuple[float, ...]:
    """Return the replacements in a row that nothing has justified: neither a sound start of a younger seat, nor a long time."""
    if not replaced or now - replaced[-1] >= FORGIVEN_SECONDS:
        return ()
    if any(seat.created_at > replaced[-1] and _has_started(seat, streaks) for seat in seats):
        return ()
    return replaced


def _has_started(seat: Seat, streaks: Mapping[Key, Streak]) -> bool:
    """Whether all residents of a seat have started soundly."""
    if not seat.residents:
        return False
    return all(
        (streak := streaks.get((seat.uid, resident.policy))) is not None
        and streak.started is not None
        and not streak.bad
        for resident in seat.residents
    )


def _is_idle(seat: Seat, now: float) -> bool:
    """Whether nobody computes on a seat for anyone, and nobody is about to.

    A seat that is silent may only be hard to reach; one whose containers don't come up has nobody who could speak.
    """
    claimed = seat.claim is not None and in_force(seat.claim, now)
    if claimed or seat.serving or seat.terminating or not (seat.reachable or seat.crash is not None):
        return False
    return not any(resident.state in _IN_USE for resident in seat.residents)


def _held_back(replaced: tuple[float, ...], seats: Iterable[Seat], now: float) -> tuple[str, float | None]:
    """Say what keeps another seat from being replaced now, and when that may be otherwise.

    Where nothing has ever been seen to start, the seat itself counts as a replacement that nothing has justified yet.
    """
    if any(seat.terminating for seat in seats):
        return "another seat is ending", None
    if not replaced:
        return "", None
    pause = pause_seconds(len(replaced))
    until = replaced[-1] + min(pause, FORGIVEN_SECONDS)
    if now >= until:
        return "", None
    if pause == math.inf:
        return (
            f"{len(replaced)} seats were replaced and none has started soundly since: what is wrong is the same everywhere",
            until,
        )
    return (
        f"the last new seat was made {now - replaced[-1]:.0f} s ago, and nothing has started soundly since",
        until,
    )
