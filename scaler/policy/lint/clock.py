"""What the clock does to a set: freezes that are over, and windows that open while a fleet is frozen."""

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim

from scaler.policy.fleet import Fleet
from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import Finding, Place, Severity
from scaler.policy.lint.subject import Subject
from scaler.policy.schedules import Schedule, is_open


def clock_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is to be said of every fleet's freeze."""
    for fleet in subject.policies.fleets.values():
        if fleet.spec.frozen is None:
            continue
        until = datetime.fromisoformat(fleet.spec.frozen.until)
        if until <= subject.now:
            yield _expired(fleet, until)
        else:
            yield from _frozen_windows(subject, fleet, until)


def _expired(fleet: Fleet, until: datetime) -> Finding:
    return Finding(
        code=Code.FREEZE_EXPIRED,
        severity=Severity.WARNING,
        place=Place.of(fleet, "spec", "frozen", "until"),
        message=f"ended at {_written(until)}: the fleet is not frozen any more",
        hint="remove frozen, or set a later end",
    )


def _frozen_windows(subject: Subject, fleet: Fleet, until: datetime) -> Iterator[Finding]:
    """A frozen fleet gets no seats for a window that opens before the freeze ends, its own or a policy's on it."""
    windows: list[tuple[Place, Schedule]] = [
        (Place.of(fleet, "spec", "schedules", index, "start"), each)
        for index, each in enumerate(fleet.spec.schedules)
    ]
    for policy in subject.policies_on(fleet):
        windows += [
            (Place.of(policy, "spec", "schedules", index, "start"), each)
            for index, each in enumerate(policy.spec.schedules)
        ]
    for place, window in windows:
        opens = _opens(window, subject.now)
        if opens < until:
            yield Finding(
                code=Code.SCHEDULE_WHILE_FROZEN,
                severity=Severity.WARNING,
                place=place,
                message=(
                    f"window {window.name} {'is open' if opens == subject.now else f'opens at {_written(opens)}'}, while fleet {fleet.metadata.name} is frozen until"
                    f" {_written(until)}: no seat is created for it"
                ),
                hint="end the freeze before, or see that the fleet has the seats already",
            )


def _opens(window: Schedule, now: datetime) -> datetime:
    """Return when a window opens next; now if it is open."""
    if is_open(window, now):
        return now
    return next(CronSim(window.start, now.astimezone(ZoneInfo(window.time_zone))))


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="minutes")
