"""Floors by the clock: from when to when, in which time zone, and how many at least.

The words are those of KEDA's cron scaler (`start`, `end`, a time zone), so that one can be read for the other. Outside
its windows a schedule says nothing; where several are open, the highest floor rules.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Annotated, Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim

from scaler.policy.base import Broken, Misshapen, PolicyModel, form, integer, label, text
from scaler.policy.cron import cron_problem
from scaler.policy.document import show
from scaler.policy.wording import did_you_mean

Cron = Annotated[
    str,
    text(
        "five cron fields: minute, hour, day of month, month, day of week",
        pattern=r"^\s*(\S+\s+){4}\S+\s*$",
        longest=200,
        example="0 8 * * 1-5",
    ),
    form(cron_problem),
]

_A_MOMENT: Final = timedelta(microseconds=1)


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _zone_problem(name: str) -> Misshapen | None:
    """Say that there is no time zone of a name; None if there is."""
    if name in _zones():
        return None
    hint = _zone_meant(name) or "Region/City as in Europe/Berlin, or Etc/UTC"
    return f"there is no time zone {show(name)}", hint


def _zone_meant(name: str) -> str:
    """Guess which time zone was meant, by its whole name or by its city alone; empty without a good guess."""
    zones = sorted(zone for zone in _zones() if "/" in zone)
    cities = {zone.rpartition("/")[2].lower(): zone for zone in zones}
    city = cities.get(name.rpartition("/")[2].lower().replace(" ", "_"))
    return f"did you mean {city}?" if city else did_you_mean(name, zones)


TimeZone = Annotated[
    str,
    text(
        "a time zone by its IANA name",
        pattern=r"^[A-Za-z0-9_+/-]+$",
        longest=64,
        example="Europe/Berlin",
    ),
    form(_zone_problem),
]


class Schedule(PolicyModel):
    """A window that the clock opens again and again."""

    name: Annotated[str, label("office-hours")]
    """Name of the window; decisions give it as their reason."""
    time_zone: TimeZone = "Etc/UTC"
    """IANA name of the time zone that `start` and `end` are read in, daylight saving time included. The default is UTC."""
    start: Cron
    """When the window opens, as five cron fields: minute, hour, day of month, month, day of week. Where both days are
    given, either is enough, unless one of them begins with a star. Write it in quotes: YAML takes a star at the beginning
    for an alias."""
    end: Cron
    """When it closes, as five cron fields. It is open from a `start` to the next `end`."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that the window has some length."""
        if " ".join(self.start.split()) == " ".join(self.end.split()):
            yield Broken(
                path=("end",), message="is the same moment as start", hint="a window needs some length"
            )


class SeatFloor(Schedule):
    """A window in which a fleet has a number of seats at least."""

    min_seats: Annotated[int, integer("seats", 1, 100_000, example=6)]
    """Seats that the fleet has at least while the window is open. Those that nobody needs are spare seats."""


class ServingFloor(Schedule):
    """A window in which a number of residents serve at least."""

    min_serving: Annotated[int, integer("residents", 1, 100_000, example=4)]
    """Residents that serve at least while the window is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the schedules say at one moment.

    Attributes:
        value: the highest floor of the open windows; 0 when none is open.
        schedule: name of the window that it comes from; empty when none is open.
        changes_at: the next moment at which any window opens or closes; None without schedules.
    """

    value: int = 0
    schedule: str = ""
    changes_at: datetime | None = None


def floor_at(schedules: Iterable[SeatFloor | ServingFloor], now: datetime) -> Said:
    """Return the floor that schedules set at a moment.

    Args:
        schedules: windows that keep their rules.
        now: the moment, with a time zone.
    """
    value, ruling, changes = 0, "", list[datetime]()
    for schedule in schedules:
        here = now.astimezone(ZoneInfo(schedule.time_zone))
        changes += [next(CronSim(schedule.start, here)), next(CronSim(schedule.end, here))]
        count = schedule.min_seats if isinstance(schedule, SeatFloor) else schedule.min_serving
        if is_open(schedule, now) and count > value:
            value, ruling = count, schedule.name
    return Said(value=value, schedule=ruling, changes_at=min(changes, default=None))


def is_open(schedule: Schedule, now: datetime) -> bool:
    """Whether a window is open at a moment: its last start is later than its last end.

    Args:
        schedule: a window that keeps its rules.
        now: the moment, with a time zone.
    """
    return _is_open(schedule.start, schedule.end, now.astimezone(ZoneInfo(schedule.time_zone)))


def _is_open(start: str, end: str, here: datetime) -> bool:
    # Iterating back begins strictly before its argument, and a window opens with the very moment of its start.
    after = here + _A_MOMENT
    return _last(start, after) > _last(end, after)


def _last(cron: str, before: datetime) -> float:
    """Return a cron expression's last moment; as Unix time, because within one zone Python compares what clocks show."""
    return next(CronSim(cron, before, reverse=True)).timestamp()


class Span(NamedTuple):
    """From when to when a window is open, in Unix time."""

    begin: float
    end: float


def spans(start: str, end: str, begin: datetime, until: datetime) -> Iterator[Span]:
    """Yield when a window is open, in order: first what is open at the beginning, last what opens before the end.

    A start at the very moment of an end opens nothing: a span without length stands for it.

    Args:
        start: cron expression of the window's start.
        end: cron expression of its end.
        begin: where to begin, in the window's time zone.
        until: where to end.
    """
    here = begin
    if _is_open(start, end, begin):
        here = next(CronSim(end, begin))
        yield Span(begin.timestamp(), here.timestamp())
    while (opens := next(CronSim(start, here))).timestamp() < until.timestamp():
        just_before = (opens.astimezone(UTC) - _A_MOMENT).astimezone(opens.tzinfo)
        closes = next(CronSim(end, just_before))
        yield Span(opens.timestamp(), closes.timestamp())
        here = closes
