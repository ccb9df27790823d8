"""An engine whose weights go to host memory and come back, on the compute thread that uses them."""

from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from warmpool.reference.errors import NotEnoughHostMemory, NotEnoughMemory, WrongEngineState
from warmpool.reference.place import Place
from warmpool.reference.runner import TorchRunner
from warmpool.reference.scheduler import PauseMode

PROMPT = [256, 72, 101, 108, 108, 111]
PROMPTS = [PROMPT, [256, 65], [256, *range(33, 120)]]
WAIT = 20.0


class Short:
    """The real runner, on a machine or device that is short of memory."""

    def __init__(self, runner: TorchRunner) -> None:
        self._runner = runner
        self.host_is_short = self.device_is_short = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def park(self) -> None:
        if self.host_is_short:
            raise NotEnoughHostMemory("16384 MiB are needed", hint="raise the limit")
        self._runner.park()

    def unpark(self) -> None:
        if self.device_is_short:
            raise NotEnoughMemory("none is left", hint="park others")
        self._runner.unpark()


@pytest.fixture
def short(runner: TorchRunner) -> Iterator[Short]:
    yield Short(runner)
    runner.unpark()


@pytest.fixture
def drive(make_drive: Any, short: Short) -> Any:
    return make_drive(over=short)


def test_it_computes_the_same_after_each_time(drive: Any) -> None:
    before = drive.tokens(PROMPTS, [20] * 3)
    for _ in range(3):
        drive.engine.pause(PauseMode.WAIT).result(WAIT)
        drive.engine.park().result(WAIT)
        drive.engine.unpark().result(WAIT)
        drive.engine.wake_up().result(WAIT)
        assert drive.tokens(PROMPTS, [20] * 3) == before


def test_weights_and_kv_memory_go_back_to_the_system(drive: Any, runner: TorchRunner) -> None:
    drive.tokens(PROMPTS, [2] * 3)
    drive.engine.pause(PauseMode.WAIT).result(WAIT)
    process = psutil.Process()
    held = process.memory_info().rss
    drive.engine.park().result(WAIT)
    assert held - process.memory_info().rss >= 0.9 * (runner.kv_bytes + runner.weights_bytes)
    assert (runner.weights_taken_bytes, runner.kv_taken_bytes) == (0, 0)
    assert runner.parked_bytes >= runner.weights_bytes


def test_an_unparked_engine_is_still_paused_and_has_no_kv_memory(drive: Any, runner: TorchRunner) -> None:
    drive.engine.pause(PauseMode.WAIT).result(WAIT)
    drive.engine.park().result(WAIT)
    held = drive.submit(PROMPT, 2)
    drive.engine.unpark().result(WAIT)
    assert (runner.weights_place, runner.kv_is_taken) == (Place.HELD, False)
    with pytest.raises(WrongEngineState, match="KV memory has been given back"):
        drive.engine.resume().result(WAIT)
    assert not drive.tokens_of(held)
    drive.engine.wake_up().result(WAIT)
    drive.until(lambda: drive.ended(held))


def test_a_parked_engine_neither_resumes_nor_takes_kv_memory(drive: Any, runner: TorchRunner) -> None:
    drive.engine.pause(PauseMode.WAIT).result(WAIT)
    drive.engine.park().result(WAIT)
    for order in (drive.engine.resume, drive.engine.wake_up):
        with pytest.raises(WrongEngineState, match="the weights are parked"):
            order().result(WAIT)
    assert not runner.kv_is_taken


def test_only_a_paused_engine_is_parked(drive: Any, runner: TorchRunner) -> None:
    with pytest.raises(WrongEngineState, match="isn't paused"):
        drive.engine.park().result(WAIT)
    assert (runner.weights_place, runner.kv_is_taken) == (Place.HELD, True)


def test_sequences_that_were_frozen_go_on_once_it_is_back(drive: Any) -> None:
    expected = drive.tokens([PROMPT], [60])[0]
    key = drive.submit(PROMPT, 60)
    drive.until(lambda: len(drive.tokens_of(key)) >= 5)
    drive.engine.pause(PauseMode.KEEP).result(WAIT)
    drive.engine.park().result(WAIT)
    drive.engine.unpark().result(WAIT)
    drive.engine.wake_up().result(WAIT)
    drive.until(lambda: drive.ended(key))
    assert drive.tokens_of(key) == expected


def test_a_host_that_is_short_leaves_everything_as_it_was(
    drive: Any, short: Short, runner: TorchRunner
) -> None:
    before = drive.tokens(PROMPTS, [4] * 3)
    drive.engine.pause(PauseMode.WAIT).result(WAIT)
    short.host_is_short = True
    with pytest.raises(NotEnoughHostMemory):
        drive.engine.park().result(WAIT)
    assert (runner.weights_place, runner.kv_is_taken) == (Place.HELD, True)
    drive.engine.resume().result(WAIT)
    assert drive.tokens(PROMPTS, [4] * 3) == before


def test_a_device_that_is_short_leaves_it_parked_and_may_be_asked_again(drive: Any, short: Short) -> None:
    drive.engine.pause(PauseMode.WAIT).result(WAIT)
    drive.engine.park().result(WAIT)
    short.device_is_short = True
    with pytest.raises(NotEnoughMemory):
        drive.engine.unpark().result(WAIT)
    assert short.weights_place is Place.PARKED
    short.device_is_short = False
    drive.engine.unpark().result(WAIT)
    drive.engine.wake_up().result(WAIT)
    assert len(drive.tokens([PROMPT], [2])[0]) == 2
