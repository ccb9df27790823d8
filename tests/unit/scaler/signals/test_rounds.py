"""Rounds: their pace, and what a failure does."""

import asyncio
from collections.abc import Mapping

import pytest
import structlog

from scaler.errors import SignalError
from scaler.signals.port import Part, SignalKey
from scaler.signals.rounds import Observation, Rounds, failing
from warmpool.seats import PolicyName

pytestmark = pytest.mark.looptime

KEY = SignalKey(PolicyName("chat"), "queue")


class Heard:
    def __init__(self) -> None:
        self.at: list[float] = []
        self.words: list[object] = []

    def observed(self, key: SignalKey, parts: Mapping[Part, float], at: float, lacking: str = "") -> None:
        del lacking
        assert key == KEY
        self._add((dict(parts), at))

    def failed(self, key: SignalKey, why: str) -> None:
        assert key == KEY
        self._add(why)

    def _add(self, word: object) -> None:
        self.words.append(word)
        self.at.append(asyncio.get_running_loop().time())


class Answers:
    """Reads a list of answers, each of which takes its time."""

    def __init__(self, *answers: object, takes: float = 0.0) -> None:
        self._answers = list(answers)
        self._takes = takes

    async def __call__(self) -> Observation:
        await asyncio.sleep(self._takes)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return Observation({Part.REQUESTS: float(str(answer))}, 5.0)


async def run(answers: Answers, *, interval: float, seconds: float) -> Heard:
    heard = Heard()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await Rounds(KEY, interval).run(answers, heard)
    return heard


@pytest.mark.parametrize("takes", [0.0, 3.0])
async def test_rounds_begin_an_interval_apart_however_long_they_take(takes: float) -> None:
    heard = await run(Answers(1, takes=takes), interval=10.0, seconds=1000.0)
    gaps = [after - before for before, after in zip(heard.at, heard.at[1:], strict=False)]
    assert all(9.0 - 1e-6 <= gap <= 11.0 + 1e-6 for gap in gaps)
    assert 90 <= len(heard.at) <= 112
    assert len({round(gap, 6) for gap in gaps}) > 10  # they don't go in step


async def test_rounds_longer_than_their_interval_follow_each_other() -> None:
    heard = await run(Answers(1, takes=5.0), interval=1.0, seconds=101.0)
    assert len(heard.words) == 20


async def test_the_first_round_comes_at_once_even_of_slow_signals() -> None:
    heard = await run(Answers(1), interval=3600.0, seconds=10.0)
    assert len(heard.at) == 1
    assert heard.at[0] <= 0.25


async def test_what_was_read_is_handed_on_with_its_time() -> None:
    heard = await run(Answers(3), interval=10.0, seconds=5.0)
    assert heard.words == [({Part.REQUESTS: 3.0}, 5.0)]


async def test_failures_are_told_each_round_and_logged_once_and_so_is_their_end() -> None:
    answers = Answers(1, SignalError("refused"), SignalError("refused"), ValueError("odd\nanswer"), 2)
    with structlog.testing.capture_logs() as logs:
        heard = await run(answers, interval=10.0, seconds=55.0)
    assert heard.words[:5] == [
        ({Part.REQUESTS: 1.0}, 5.0),
        "refused",
        "refused",
        "unexpected ValueError: odd answer",
        ({Part.REQUESTS: 2.0}, 5.0),
    ]
    assert [(entry["event"], entry["policy"], entry["signal"]) for entry in logs] == [
        ("signal can't be read", "chat", "queue"),
        ("signal is read again", "chat", "queue"),
    ]
    assert logs[1]["after_seconds"] == pytest.approx(30, abs=4)


async def test_settings_that_cannot_be_asked_with_fail_in_every_round() -> None:
    heard = Heard()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(35):
            await Rounds(KEY, 10.0).run(failing(SignalError("no server")), heard)
    assert heard.words == ["no server"] * len(heard.words)
    assert len(heard.words) >= 3


async def test_a_round_is_cancelled_with_its_source() -> None:
    heard = await run(Answers(1, takes=1000.0), interval=10.0, seconds=5.0)
    assert not heard.words
