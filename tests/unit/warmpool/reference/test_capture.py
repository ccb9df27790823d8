"""Graphs that are captured later: one after the other, while nothing else is to be computed, for as long as somebody waits for them."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from warmpool.reference.errors import NotEnoughMemory, WrongEngineState
from warmpool.reference.graphs import Graphs
from warmpool.reference.runner import TorchRunner
from warmpool.reference.scheduler import PauseMode

PROMPT = [256, 72, 101]
WAIT = 20.0


class Capturing:
    """A runner that has graphs to capture, and tells of each."""

    def __init__(self, runner: TorchRunner, graphs: int = 3) -> None:
        self._runner = runner
        self.left = graphs
        self.captured = threading.Semaphore(0)
        self.may = threading.Event()
        self.may.set()
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    @property
    def graphs(self) -> Graphs:
        return Graphs.PENDING if self.left else Graphs.CAPTURED

    def capture_next(self) -> bool:
        assert self.may.wait(WAIT)
        if self.fails:
            raise NotEnoughMemory("no room", hint="free some")
        self.left -= 1
        self.captured.release()
        return self.left > 0


@pytest.fixture
def over(runner: TorchRunner) -> Capturing:
    return Capturing(runner)


def test_all_of_them_are_captured_and_it_computes_as_before(
    make_drive: Callable[..., Any], over: Capturing
) -> None:
    drive = make_drive(over=over)
    before = drive.tokens([PROMPT], [8])[0]
    drive.engine.capture().result(WAIT)
    assert over.left == 0
    assert drive.tokens([PROMPT], [8])[0] == before


def test_they_are_captured_while_it_is_paused(make_drive: Callable[..., Any], over: Capturing) -> None:
    drive = make_drive(over=over)
    drive.engine.pause(PauseMode.WAIT).result(WAIT)
    drive.engine.capture().result(WAIT)
    assert over.left == 0


def test_a_request_that_comes_meanwhile_goes_first(make_drive: Callable[..., Any], over: Capturing) -> None:
    over.left = 100
    drive = make_drive(over=over)
    left: list[int] = []
    drive.on_output = lambda _: left.append(over.left)
    over.may.clear()
    done = drive.engine.capture()
    key = drive.submit(PROMPT, 4)
    over.may.set()
    drive.until(lambda: drive.ended(key))
    assert len(left) == 4
    assert left[0] >= 99  # one may have been under way
    assert set(left) == {left[0]}
    done.result(WAIT)


def test_who_gives_it_up_ends_it_after_the_one_under_way_and_the_next_one_goes_on(
    make_drive: Callable[..., Any], over: Capturing
) -> None:
    over.left = 1000
    drive = make_drive(over=over)
    done = drive.engine.capture()
    assert over.captured.acquire(timeout=WAIT)
    assert done.cancel()
    drive.engine.state().result(WAIT)  # what came before it has been done
    drive.engine.state().result(WAIT)
    left = over.left
    drive.tokens([PROMPT], [4])
    assert over.left == left > 0
    over.left = 2
    drive.engine.capture().result(WAIT)
    assert over.left == 0


def test_it_takes_memory_that_is_there(make_drive: Callable[..., Any], over: Capturing) -> None:
    drive = make_drive(over=over)
    drive.engine.pause(PauseMode.WAIT).result(WAIT)
    drive.engine.give_back_kv().result(WAIT)
    with pytest.raises(WrongEngineState, match="KV memory"):
        drive.engine.capture().result(WAIT)
    drive.engine.wake_up().result(WAIT)
    over.fails = True
    with pytest.raises(NotEnoughMemory, match="no room"):
        drive.engine.capture().result(WAIT)
    over.fails = False
    drive.engine.capture().result(WAIT)


def test_one_at_a_time(make_drive: Callable[..., Any], over: Capturing) -> None:
    drive = make_drive(over=over)
    over.may.clear()
    first, second = drive.engine.capture(), drive.engine.capture()
    over.may.set()
    first.result(WAIT)
    with pytest.raises(WrongEngineState, match="already"):
        second.result(WAIT)


def test_an_engine_without_graphs_has_none_to_capture(drive: Any, runner: TorchRunner) -> None:
    drive.engine.capture().result(WAIT)
    assert runner.graphs is Graphs.NONE
