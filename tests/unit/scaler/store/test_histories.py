"""What fleets have learned survives a restart, another clock, and a damaged file."""

import json
from pathlib import Path

import pytest

from scaler.core.rises import DAY_SECONDS, Rises
from scaler.store.histories import History, load, save
from warmpool.seats import FleetName

SPARES = FleetName("spares")


def learned(now: float) -> History:
    rises = Rises()
    for minute in range(2 * 1440):
        rises = rises.add(now - (2 * 1440 - minute) * 60.0, 3.0 if minute % 10 == 9 else 0.0, 60.0)
    return History(rises=rises, starts=(41.5, 39.0))


def test_a_history_comes_back_in_the_time_of_the_new_clock(tmp_path: Path) -> None:
    file, clock = tmp_path / "history.json", 500_000.0
    save(file, {SPARES: learned(clock)}, clock, 2e9)
    found = load(file, 40.0, 2e9 + 30.0)[SPARES]
    assert found.starts == (41.5, 39.0)
    assert found.rises.since == pytest.approx(40.0 - 30.0 - 2 * DAY_SECONDS)
    assert found.rises.quantile(99, 40.0, 7 * DAY_SECONDS) == 3


def test_a_long_outage_ages_the_history(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    save(file, {SPARES: learned(500_000.0)}, 500_000.0, 2e9)
    found = load(file, 10.0, 2e9 + 9 * DAY_SECONDS)[SPARES]
    assert found.rises.quantile(99, 10.0, 7 * DAY_SECONDS) is None
    assert found.rises.quantile(99, 10.0, 20 * DAY_SECONDS) == 3


def test_where_there_is_no_file_nothing_was_learned(tmp_path: Path) -> None:
    assert load(tmp_path / "history.json", 0.0, 2e9) == {}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '{"format": 9}'),
        '{"format": 1, "clock": 0, "savedAt": 0, "fleets": {"a": 1}}',
        '{"format": 1, "clock": 0, "savedAt": 0, "fleets": []}',
    ],
)
def test_a_file_that_cannot_be_read_is_set_aside(tmp_path: Path, text: str) -> None:
    file = tmp_path / "history.json"
    file.write_text(text)
    assert load(file, 0.0, 2e9) == {}
    assert (tmp_path / "history.unreadable").read_text() == text
    assert not file.exists()


def test_a_week_of_a_busy_fleet_is_small(tmp_path: Path) -> None:
    rises = Rises()
    for second in range(0, int(7 * DAY_SECONDS), 45):
        rises = rises.add(float(second), (second * 7919) % 90 / 3.0, 60.0)
    file = tmp_path / "history.json"
    save(file, {SPARES: History(rises=rises, starts=(60.0,) * 20)}, 7 * DAY_SECONDS, 2e9)
    assert json.loads(file.read_text())["format"] == 1
    assert file.stat().st_size < 64 * 1024
