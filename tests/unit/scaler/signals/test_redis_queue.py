"""What a queue's entries and their times come to."""

import pytest

from scaler.signals.port import Part
from scaler.signals.redis_queue import Backlog

NOW = 2e9


@pytest.mark.parametrize(
    ("backlog", "parts"),
    [
        pytest.param(Backlog(entries=3, oldest=NOW - 5), {Part.BACKLOG: 3, Part.BACKLOG_AGE_SECONDS: 5}, id="aged"),
        pytest.param(Backlog(entries=3, oldest=NOW + 5), {Part.BACKLOG: 3, Part.BACKLOG_AGE_SECONDS: 0}, id="of a clock that is ahead"),
        pytest.param(Backlog(entries=3, oldest=7.0), {Part.BACKLOG: 3}, id="a number that is no time"),
        pytest.param(Backlog(entries=3), {Part.BACKLOG: 3}, id="nothing tells"),
        pytest.param(Backlog(entries=0), {Part.BACKLOG: 0, Part.BACKLOG_AGE_SECONDS: 0}, id="empty"),
        pytest.param(Backlog(entries=0, timed=False), {Part.BACKLOG: 0}, id="an empty one that never tells"),
    ],
)  # fmt: skip
def test_parts(backlog: Backlog, parts: dict[Part, float]) -> None:
    assert backlog.parts(NOW) == parts
