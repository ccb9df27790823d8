"""Whether floors and spares find room: what must be at one moment has to fit into the seats that there may be.

Floors by the clock come and go, so the highest of each policy say nothing of any moment. They are only a bound: where even
they fit, nothing more is looked at. Where they don't, the windows of a year are gone through for the moment that asks for
the most, and it is that moment which is told. Nothing is refused because of windows that never meet.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, islice
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from scaler.errors import PolicyFault
from scaler.policy.base import Unsound, sound_entries
from scaler.policy.document import Document
from scaler.policy.fleet import Fleet
from scaler.policy.scaling_policy import ScalingPolicy
from scaler.policy.schedules import Span, spans

_YEAR: Final = (datetime(2028, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC))
"""A leap year, which has each day that a schedule can name; it stands for all others."""
_MOST_SPANS: Final = 10_000
"""Openings of windows that are gone through, about a second's work. Those of schedules that open
every few minutes may be more; then a moment may be missed, and none is told that doesn't come."""


@dataclass(frozen=True, slots=True)
class _Window:
    """A floor that the clock sets, with the name that it has in a sum."""

    what: str
    floor: int
    cron: tuple[str, str, str]  # start, end, time zone


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a policy always has at least, and what it has by the clock, on fleets that it can't do without.

    Attributes:
        number: its place among the policies.
        document: the policy.
        fleets: the fleets that it names, in its order.
        always: its floor at any moment, and where that is written.
        windows: those that raise it.
    """

    number: int
    document: Document
    fleets: tuple[str, ...]
    always: tuple[str, int]
    windows: Sequence[_Window]

    @property
    def most(self) -> int:
        """The highest floor that it ever has."""
        return max([self.always[1], *(window.floor for window in self.windows)])


class _Sum(NamedTuple):
    """What some claims come to at one moment; None: at any."""

    moment: datetime | None
    terms: Sequence[tuple[str, int]]

    @property
    def total(self) -> int:
        return sum(number for _, number in self.terms)


def no_room(
    fleets: Mapping[str, tuple[Document, Fleet]], policies: Sequence[tuple[Document, ScalingPolicy]]
) -> Iterator[PolicyFault]:
    """Find sets of fleets that can't hold the floors that only they can hold, with their spares beside them.

    The sets looked at are those that some policy names: a floor that finds no room anywhere shows up in its own. What is
    wrong itself counts as nothing, so that what is found is certain.

    Args:
        fleets: fleets that are there once.
        policies: the policies.
    """
    claims, openings = _claims(fleets, policies), _Openings()
    for first, confined in _confined(claims):
        with suppress(Unsound):
            yield from _overfull([fleets[name] for name in first.fleets], first.document, confined, openings)


def _claims(
    fleets: Mapping[str, tuple[Document, Fleet]], policies: Sequence[tuple[Document, ScalingPolicy]]
) -> list[_Claim]:
    """List what policies claim of fleets that are all known."""
    found = []
    for number, (document, policy) in enumerate(policies):
        with suppress(Unsound):
            names = tuple(dict.fromkeys(share.name for share in policy.spec.fleets))
            if fleets.keys() >= set(names):
                always = _always(policy)
                windows = tuple(_windows(policy, always[1]))
                found.append(_Claim(number, document, names, always, windows))
    return found


def _always(policy: ScalingPolicy) -> tuple[str, int]:
    what = f"{policy.metadata.name} serving.min"
    with suppress(Unsound):
        return what, policy.spec.serving.min
    return what, 0


def _windows(policy: ScalingPolicy, above: int) -> Iterator[_Window]:
    with suppress(Unsound):
        for _, each in sound_entries(policy.spec.schedules):
            with suppress(Unsound):
                if each.min_serving > above:
                    what = f"{policy.metadata.name} schedule {each.name} minServing"
                    yield _Window(what, each.min_serving, (each.start, each.end, each.time_zone))


def _confined(claims: Sequence[_Claim]) -> Iterator[tuple[_Claim, Sequence[_Claim]]]:
    """Yield, for each set of fleets that a policy names, the first that does, and the claims that no other fleet can take.

    A set that lies within another one has each of its fleets there. So it is looked for under one of them only, the one
    that the fewest sets have: a fleet of spares that everybody names leads nowhere, and nothing is looked at squared.
    """
    groups: dict[frozenset[str], list[_Claim]] = defaultdict(list)
    for claim in claims:
        groups[frozenset(claim.fleets)].append(claim)
    popularity: dict[str, int] = defaultdict(int)
    for names in groups:
        for name in names:
            popularity[name] += 1
    under: dict[str, list[frozenset[str]]] = defaultdict(list)
    for names in groups:
        under[min(names, key=lambda name: (popularity[name], name))].append(names)
    for names, group in groups.items():
        inside = (
            claim for name in names for inner in under[name] if inner <= names for claim in groups[inner]
        )
        yield group[0], sorted(inside, key=lambda claim: claim.number)


def _overfull(
    chosen: Sequence[tuple[Document, Fleet]],
    document: Document,
    claims: Sequence[_Claim],
    openings: "_Openings",
) -> Iterator[PolicyFault]:
    """Tell of fleets that can't hold some claims and their spares at one moment.

    Raises:
        Unsound: it isn't known how large one of the fleets may be.
    """
    room = sum(fleet.spec.max_seats for _, fleet in chosen)
    spares = [(f"{fleet.metadata.name} spare.min", _spare(fleet)) for _, fleet in chosen]
    beside = sum(number for _, number in spares)
    most = sum(claim.most for claim in claims)
    if not most or most + beside <= room:
        return
    worst = _worst(claims, openings)
    needed = worst.total + beside
    if not worst.total or needed <= room:
        return
    terms = [(what, number) for what, number in (*worst.terms, *spares) if number]
    arithmetic = " + ".join(f"{number} ({what})" for what, number in terms)
    limit = " + ".join(f"{fleet.spec.max_seats} ({fleet.metadata.name} maxSeats)" for _, fleet in chosen)
    when = "" if worst.moment is None else f" {_in_words(worst.moment)}"
    message = f"floors and spares need {arithmetic} = {needed} seats{when}, but there are at most {limit}"
    message += f" = {room}" if len(chosen) > 1 else ""
    hint = "raise maxSeats, or lower serving.min or spare.min"
    if worst.moment is not None:
        hint = "raise maxSeats, lower minServing, serving.min or spare.min, or part the windows"
    if len(chosen) == 1:
        yield chosen[0][0].fault(("spec", "maxSeats"), message, hint)
    else:
        yield document.fault(("spec", "serving", "min"), message, hint)


def _spare(fleet: Fleet) -> int:
    with suppress(Unsound):
        return fleet.spec.spare.min
    return 0


def _in_words(moment: datetime) -> str:
    """Name a moment in its time zone: the day of the week is what repeats, the date makes it one."""
    return f"on {moment:%A}, as on {moment:%Y-%m-%d} at {moment:%H:%M} {moment.tzinfo}"


# ------------------------------------------------------------------ the worst moment


class _Openings:
    """When windows are open within the year: each cron expression is gone through once, and so many openings in all."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], Sequence[Span]] = {}
        self._left = _MOST_SPANS

    def of(self, window: _Window) -> Sequence[Span]:
        """Return when a window is open."""
        if window.cron not in self._known:
            start, end, zone = window.cron
            begin, until = (moment.astimezone(ZoneInfo(zone)) for moment in _YEAR)
            looked = list(islice(spans(start, end, begin, until), self._left))
            self._left -= len(looked)
            self._known[window.cron] = [span for span in looked if span.end > span.begin]
        return self._known[window.cron]

    def is_open(self, window: _Window, at: float) -> bool:
        """Whether a window is open at a moment."""
        found = self.of(window)
        before = bisect_right(found, at, key=lambda span: span.begin)
        return before > 0 and at < found[before - 1].end


def _worst(claims: Sequence[_Claim], openings: _Openings) -> _Sum:
    """Find the moment at which claims come to the most, the first if there are several."""
    changes = sorted(
        (moment, claim.number, index, opens)
        for claim in claims
        for index, window in enumerate(claim.windows)
        for span in openings.of(window)
        for moment, opens in ((span.begin, True), (span.end, False))
    )
    by_number = {claim.number: claim for claim in claims}
    open_now: dict[int, list[int]] = {claim.number: [] for claim in claims}
    level = {claim.number: claim.always[1] for claim in claims}
    total = worst = sum(level.values())
    at: float | None = None
    for moment, together in groupby(changes, key=lambda change: change[0]):
        for _, number, index, opens in together:
            claim, here = by_number[number], open_now[number]
            floor = claim.windows[index].floor
            here.append(floor) if opens else here.remove(floor)
            now = max(here, default=claim.always[1])
            total += now - level[number]
            level[number] = now
        if total > worst:
            worst, at = total, moment
    return _sum_at(claims, openings, at)


def _sum_at(claims: Sequence[_Claim], openings: _Openings, at: float | None) -> _Sum:
    """Add up what claims come to at a moment; the time zone that it is told in is that of the first window in the sum."""
    terms, zone = list[tuple[str, int]](), ""
    for claim in claims:
        term = claim.always
        for window in claim.windows if at is not None else ():
            if window.floor > term[1] and openings.is_open(window, at or 0.0):
                term, zone = (window.what, window.floor), zone or window.cron[2]
        terms.append(term)
    if at is None or not zone:
        return _Sum(None, terms)
    return _Sum(datetime.fromtimestamp(at, UTC).astimezone(ZoneInfo(zone)), terms)
