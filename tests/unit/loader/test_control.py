import os
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch

import loader
from loader import Control, LoadCancelled, Priority, Progress, Run
from loader.control import Rate

WAIT_SECONDS = 20.0


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Six chunks of 4 MiB."""
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"w": torch.arange(6 * 2**20, dtype=torch.int32)}, path)
    return path


def test_a_cap_spaces_reads_out() -> None:
    rate = Rate(100)
    assert [rate.reserve(50, now=0.0) for _ in range(3)] == [0.0, 0.5, 1.0]


def test_idle_time_is_not_saved_up() -> None:
    rate = Rate(100)
    rate.reserve(50, now=0.0)
    assert [rate.reserve(50, now=10.0) for _ in range(2)] == [10.0, 10.5]


@pytest.mark.parametrize("cap", [0, -1])
def test_a_cap_must_be_positive(cap: float) -> None:
    with pytest.raises(ValueError, match="bandwidth cap"):
        Control(bytes_per_second=cap)


def test_a_capped_load_takes_its_time_and_is_right(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    result = loader.load(checkpoint, run=Run(control=Control(bytes_per_second=200e6), threads=2))
    assert result.seconds >= (checkpoint.total_bytes - 4 * 2**20) / 200e6
    assert torch.equal(result.tensors["w"], torch.arange(6 * 2**20, dtype=torch.int32))


class Loading:
    """A load on another thread."""

    def __init__(self, weights: Path, run: Run) -> None:
        self.error: BaseException | None = None
        self.result: loader.LoadResult | None = None
        self._thread = threading.Thread(target=self._work, args=(weights, run))
        self._thread.start()

    def _work(self, weights: Path, run: Run) -> None:
        try:
            self.result = loader.load(loader.open_checkpoint(weights), run=run)
        except LoadCancelled as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()


def test_a_load_that_waits_can_be_called_off(weights: Path) -> None:
    control = Control()
    control.pause()
    loading = Loading(weights, Run(control=control))
    control.cancel()
    loading.join()
    assert isinstance(loading.error, LoadCancelled)
    assert control.cancelled


def test_a_paused_load_reads_nothing_and_goes_on_when_resumed(weights: Path) -> None:
    control = Control(bytes_per_second=1)  # the second read waits for the first one's callback
    first = threading.Event()

    def pause_once(_: Progress) -> None:
        if not first.is_set():
            control.pause()
            control.limit(None)
            first.set()

    loading = Loading(weights, Run(control=control, threads=1, progress=pause_once))
    assert first.wait(WAIT_SECONDS)
    assert loading.result is None
    control.resume()
    loading.join()
    assert loading.result is not None


def test_a_cap_is_lifted_meanwhile(weights: Path) -> None:
    control = Control(bytes_per_second=1)
    begun = threading.Event()
    loading = Loading(weights, Run(control=control, threads=1, progress=lambda _: begun.set()))
    assert begun.wait(WAIT_SECONDS)
    control.limit(None)
    loading.join()
    assert loading.result is not None


def test_a_lower_priority_waits_while_a_higher_one_reads(weights: Path) -> None:
    background = Control(priority=Priority.BACKGROUND)
    read: list[str] = []
    urgent_reads = threading.Event()

    def note_urgent(_: Progress) -> None:
        read.append("urgent")
        urgent_reads.set()

    slow = Control(priority=Priority.URGENT, bytes_per_second=400e6)
    urgent = Loading(weights, Run(control=slow, threads=1, progress=note_urgent))
    assert urgent_reads.wait(WAIT_SECONDS)
    loading = Loading(weights, Run(control=background, progress=lambda _: read.append("background")))
    urgent.join()
    loading.join()
    assert set(read) == {"urgent", "background"}
    assert read == sorted(read, reverse=True)


def test_a_paused_load_holds_up_nobody(weights: Path) -> None:
    urgent = Control(priority=Priority.URGENT)
    urgent.pause()
    paused = Loading(weights, Run(control=urgent))
    loader.load(loader.open_checkpoint(weights), run=Run(control=Control(priority=Priority.BACKGROUND)))
    urgent.resume()
    paused.join()
    assert paused.result is not None


def test_niceness_stays_with_the_loads_own_threads(weights: Path) -> None:
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    loader.load(loader.open_checkpoint(weights), run=Run(control=Control(priority=Priority.BACKGROUND)))
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
