"""Floors by the clock: from when to when, in which time zone, and how many at least.

The words are those of KEDA's cron scaler (`start`, `end`, a time zone), so that one can be read for the other. Outside
its windows a schedule says nothing; where several are open, the highest floor rules.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim

from scaler.policy.base import Broken, PolicyModel, form, integer, label, text
from scaler.policy.cron import cron_problem
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
TimeZone = Annotated[
    str,
    text(
        "a time zone by its IANA name",
        pattern=r"^[A-Za-z0-9_+/-]+$",
        longest=64,
        example="Europe/Berlin",
    ),
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
        """Yield the rules that the time zone exists and that the window has some length."""
        if self.time_zone not in _zones():
            hint = _zone_meant(self.time_zone) or "Region/City as in Europe/Berlin, or Etc/UTC"
            yield Broken(path=("timeZone",), message=f"there is no time zone {self.time_zone}", hint=hint)
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
    # Iterating back begins strictly before its argument, and a window opens with the very moment of its start.
    here = now.astimezone(ZoneInfo(schedule.time_zone)) + timedelta(microseconds=1)
    return _last(schedule.start, here) > _last(schedule.end, here)


def _last(cron: str, before: datetime) -> datetime:
    return next(CronSim(cron, before, reverse=True))


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _zone_meant(name: str) -> str:
    """Guess which time zone was meant, by its whole name or by its city alone; empty without a good guess."""
    zones = sorted(zone for zone in _zones() if "/" in zone)
    cities = {zone.rpartition("/")[2].lower(): zone for zone in zones}
    city = cities.get(name.rpartition("/")[2].lower().replace(" ", "_"))
    return f"did you mean {city}?" if city else did_you_mean(name, zones)
