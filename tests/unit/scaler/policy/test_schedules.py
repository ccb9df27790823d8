"""Windows of the clock: when they are open, what is wrong with them, and what the law is told."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from scaler.policy.base import API_VERSION, Metadata
from scaler.policy.calendar import Calendar
from scaler.policy.fleet import Fleet, FleetSpec, Frozen
from scaler.policy.scaling_policy import FleetShare, ScalingPolicy, ScalingPolicySpec
from scaler.policy.schedules import SeatFloor, ServingFloor, floor_at, is_open

BERLIN = ZoneInfo("Europe/Berlin")


def window(start: str = "0 8 * * 1-5", end: str = "0 18 * * 1-5", zone: str = "Europe/Berlin") -> SeatFloor:
    return SeatFloor(name="day", time_zone=zone, start=start, end=end, min_seats=4)


@pytest.mark.parametrize(
    ("at", "answer"),
    [
        pytest.param(datetime(2026, 11, 30, 7, 59, tzinfo=BERLIN), False, id="before it opens"),
        pytest.param(datetime(2026, 11, 30, 8, 0, tzinfo=BERLIN), True, id="the moment it opens"),
        pytest.param(datetime(2026, 11, 30, 7, 0, tzinfo=UTC), True, id="in another time zone"),
        pytest.param(datetime(2026, 11, 30, 17, 59, tzinfo=BERLIN), True, id="before it closes"),
        pytest.param(datetime(2026, 11, 30, 18, 0, tzinfo=BERLIN), False, id="the moment it closes"),
        pytest.param(datetime(2026, 11, 29, 12, 0, tzinfo=BERLIN), False, id="on a Sunday"),
        pytest.param(datetime(2026, 7, 1, 6, 30, tzinfo=UTC), True, id="in summer time"),
    ],
)
def test_a_window_is_open_from_its_start_to_the_next_end(at: datetime, *, answer: bool) -> None:
    assert is_open(window(), at) is answer


def test_a_window_may_last_over_midnight() -> None:
    night = window("0 22 * * *", "0 6 * * *")
    assert is_open(night, datetime(2026, 11, 30, 23, tzinfo=BERLIN))
    assert is_open(night, datetime(2026, 12, 1, 5, tzinfo=BERLIN))
    assert not is_open(night, datetime(2026, 12, 1, 7, tzinfo=BERLIN))


def test_a_start_that_summer_time_skips_opens_the_window_when_the_clock_goes_on() -> None:
    early = window("30 2 * * *", "0 5 * * *")
    assert not is_open(early, datetime(2026, 3, 29, 0, 59, tzinfo=UTC))
    assert is_open(early, datetime(2026, 3, 29, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("europe/berlin", "did you mean Europe/Berlin?"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("Europe/Berln", "did you mean Europe/Berlin?"),
        ("America/New-York", "did you mean America/New_York?"),
        ("x", "Region/City as in Europe/Berlin, or Etc/UTC"),
    ],
)
def test_a_misspelt_time_zone_is_guessed(zone: str, hint: str) -> None:
    with pytest.raises(ValidationError) as raised:
        window(zone=zone)
    (found,) = raised.value.errors()
    assert (found["loc"], found["ctx"]) == (
        ("time_zone",),
        {"message": f'there is no time zone "{zone}"', "hint": hint},
    )


def test_a_window_has_some_length() -> None:
    (broken,) = window("0 8 * * *", "0  8 * * *").broken_rules()
    assert (broken.path, broken.message) == (("end",), "is the same moment as start")


def test_the_highest_floor_of_the_open_windows_rules() -> None:
    low, high = window(), SeatFloor(name="noon", start="0 11 * * *", end="0 14 * * *", min_seats=9)
    noon = floor_at([low, high], datetime(2026, 11, 30, 12, tzinfo=UTC))
    assert (noon.value, noon.schedule) == (9, "noon")
    assert noon.changes_at == datetime(2026, 11, 30, 14, tzinfo=UTC)
    later = floor_at([low, high], datetime(2026, 11, 30, 14, tzinfo=UTC))
    assert (later.value, later.schedule) == (4, "day")
    assert floor_at([], datetime(2026, 11, 30, tzinfo=UTC)).changes_at is None


# ------------------------------------------------------------------ in the law's time


def fleet(**more: object) -> Fleet:
    spec = FleetSpec(max_seats=9, **more)  # type: ignore[arg-type]
    return Fleet(api_version=API_VERSION, kind="Fleet", metadata=Metadata(name="spares"), spec=spec)


def test_the_law_is_told_in_its_own_time() -> None:
    share = FleetShare(name="spares", target_in_flight=8)
    hours = ServingFloor(name="hours", start="0 8 * * *", end="0 18 * * *", min_serving=2)
    policy = ScalingPolicy(
        api_version=API_VERSION,
        kind="ScalingPolicy",
        metadata=Metadata(name="chat"),
        spec=ScalingPolicySpec(fleets=(share,), schedules=(hours,)),
    )
    calendar = Calendar([fleet(schedules=(window(zone="Etc/UTC"),))], [policy])
    wall = datetime(2026, 11, 30, 7, 59, 50, tzinfo=UTC).timestamp()
    before = calendar.at(wall, 500.0)
    assert before.serving_floors["chat"].value == 0
    assert before.serving_floors["chat"].changes_at == pytest.approx(510.0)
    after = calendar.at(wall + 10.0, 510.0)
    assert (after.serving_floors["chat"].value, after.seat_floors["spares"].value) == (2, 4)
    back = calendar.at(wall, 511.0)
    assert back.seat_floors["spares"].value == 0, "the clock was set back"


def test_a_freeze_ends_by_itself() -> None:
    calendar = Calendar([fleet(frozen=Frozen(until="2026-12-24T18:00:00+01:00", reason="driver update"))])
    ends = datetime(2026, 12, 24, 17, tzinfo=UTC).timestamp()
    assert calendar.at(ends - 60.0, 100.0).frozen == {"spares": pytest.approx(160.0)}
    assert calendar.at(ends, 160.0).frozen == {}
