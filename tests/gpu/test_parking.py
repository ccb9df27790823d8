"""Weights that leave a CUDA device and come back: what graphs compute afterwards, what the driver gets, what a flipped bit does."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.rig import WAIT_SECONDS, Batch, build_runner, filled, some_prompts
from warmpool.reference.bench.device import used_bytes
from warmpool.reference.errors import NotEnoughMemory, WeightsDamaged, WrongEngineState
from warmpool.reference.expect import answers
from warmpool.reference.options import ModelOptions
from warmpool.reference.place import Place
from warmpool.reference.runner import TorchRunner
from warmpool.reference.scheduler import PauseMode
from warmpool.reference.sums import BLOCK_BYTES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture(scope="module", params=["tiny", "llama-1b"])
def checkpoint(request: pytest.FixtureRequest, made: Callable[[str], Path]) -> Path:
    return made(request.param)


@pytest.fixture(scope="module")
def runner(checkpoint: Path) -> Iterator[TorchRunner]:
    made = build_runner(checkpoint)
    yield made
    made.give_back_kv()
    made.park()  # so that the next one finds the device's memory free


@pytest.fixture
def batch(runner: TorchRunner) -> Iterator[Batch]:
    made = Batch(runner)
    yield made
    made.engine.pause(PauseMode.ABORT).result(WAIT_SECONDS)
    made.engine.unpark().result(WAIT_SECONDS)
    made.engine.wake_up().result(WAIT_SECONDS)
    made.engine.stop()
    assert made.engine.join(WAIT_SECONDS)


def park(batch: Batch) -> None:
    batch.engine.pause(PauseMode.WAIT).result(WAIT_SECONDS)
    batch.engine.park().result(WAIT_SECONDS)


def wake(batch: Batch) -> None:
    batch.engine.unpark().result(WAIT_SECONDS)
    batch.engine.wake_up().result(WAIT_SECONDS)


def copy_of(runner: TorchRunner) -> torch.Tensor:
    """The bytes of its copy in host memory."""
    bytes_: torch.Tensor = runner._weights._copy._bytes  # type: ignore[attr-defined]
    return bytes_


@torch.inference_mode()
def flip(runner: TorchRunner, place: int, bit: int) -> None:
    """Flip one bit of its copy in host memory; again, and it is as it was."""
    copy_of(runner)[place] ^= 1 << bit


def test_captured_graphs_compute_the_same_after_each_time(batch: Batch, runner: TorchRunner) -> None:
    assert runner.facts["graphs"]
    prompts, counts = some_prompts(8)
    before = batch.tokens(prompts, counts)
    for _ in range(3):
        park(batch)
        wake(batch)
        assert batch.tokens(prompts, counts) == before


def test_answers_are_those_computed_without_serving_and_parking(batch: Batch, checkpoint: Path) -> None:
    prompts, _ = some_prompts(8)
    expected = answers(ModelOptions(checkpoint=checkpoint, device="cuda", max_model_len=2), prompts, 6)
    park(batch)
    wake(batch)
    served = batch.tokens(prompts, [6] * 8)
    assert [tokens[: len(known)] for tokens, known in zip(served, expected, strict=True)] == expected


def test_weights_and_kv_memory_go_back_to_the_driver(batch: Batch, runner: TorchRunner) -> None:
    batch.engine.pause(PauseMode.WAIT).result(WAIT_SECONDS)
    held = torch.cuda.mem_get_info()[0]
    park(batch)
    assert torch.cuda.mem_get_info()[0] - held >= 0.99 * runner.weights_bytes + 0.9 * runner.kv_bytes
    assert (runner.weights_taken_bytes, runner.kv_taken_bytes) == (0, 0)


def test_the_copy_is_page_locked_and_stays(batch: Batch, runner: TorchRunner) -> None:
    park(batch)
    assert copy_of(runner)[:MIB].is_pinned()
    assert runner.parked_bytes >= runner.weights_bytes
    at = copy_of(runner).data_ptr()
    wake(batch)
    park(batch)
    assert copy_of(runner).data_ptr() == at


def test_parking_again_and_again_leaves_nothing_behind(batch: Batch) -> None:
    prompts, counts = some_prompts(4)
    before = batch.tokens(prompts, counts)
    free = []
    for _ in range(20):
        park(batch)
        free.append(torch.cuda.mem_get_info()[0])
        wake(batch)
        assert batch.tokens(prompts, counts) == before
    assert free[-1] >= free[2]


@pytest.mark.parametrize("share", [0.0, 0.37, 1.0])
def test_a_flipped_bit_in_the_host_copy_is_seen_and_the_memory_given_back(
    batch: Batch, runner: TorchRunner, share: float
) -> None:
    prompts, counts = some_prompts(4)
    before = batch.tokens(prompts, counts)
    park(batch)
    free = torch.cuda.mem_get_info()[0]
    copy = copy_of(runner)
    place = int(share * (len(copy) - 1))
    for bit in (0, 6, 7):
        flip(runner, place, bit)
        with pytest.raises(WeightsDamaged, match=f"from byte {place // BLOCK_BYTES * BLOCK_BYTES};"):
            batch.engine.unpark().result(WAIT_SECONDS)
        flip(runner, place, bit)
        assert runner.weights_place is Place.PARKED
        assert torch.cuda.mem_get_info()[0] >= free - 8 * MIB
    wake(batch)
    assert batch.tokens(prompts, counts) == before


@torch.inference_mode()
def swap_first_blocks(runner: TorchRunner) -> None:
    """Have two blocks of its copy in host memory change places; again, and they are back."""
    blocks = copy_of(runner).view(-1, BLOCK_BYTES)
    blocks[:2] = blocks[:2].flip(0)


def test_blocks_of_the_host_copy_that_have_changed_places_are_seen(batch: Batch, runner: TorchRunner) -> None:
    park(batch)
    swap_first_blocks(runner)
    with pytest.raises(WeightsDamaged):
        batch.engine.unpark().result(WAIT_SECONDS)
    swap_first_blocks(runner)
    wake(batch)


def test_a_device_without_room_leaves_it_parked(batch: Batch, runner: TorchRunner) -> None:
    if runner.weights_bytes < 2 * GIB:
        pytest.skip("torch takes memory in steps that are larger than these weights")
    prompts, counts = some_prompts(4)
    before = batch.tokens(prompts, counts)
    park(batch)
    with filled(GIB):
        with pytest.raises(NotEnoughMemory, match="MiB"):
            batch.engine.unpark().result(WAIT_SECONDS)
        assert runner.weights_place is Place.PARKED
    wake(batch)
    assert batch.tokens(prompts, counts) == before


def test_weights_of_torchs_allocator_cannot_be_parked_and_say_so(made: Callable[[str], Path]) -> None:
    runner = build_runner(made("tiny"), kv_memory="allocated")
    assert "no fixed address" in runner.cannot_park
    with pytest.raises(WrongEngineState):
        runner.park()
    runner.give_back_kv()


# ---------------------------------------------------------------- a process


@pytest.fixture
def process(made: Callable[[str], Path]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """An engine's process with the smaller of the real shapes, and its control listener."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "warmpool.reference", "serve", "--model", "m", "--checkpoint"]
    command += [str(made("llama-1b")), "--device", "cuda", "--port", "0", "--control-port", "0"]
    command += ["--ready-fd", str(writing), "--die-with-parent"]
    with os.fdopen(reading) as pipe:
        engine = subprocess.Popen(command, pass_fds=[writing])
        os.close(writing)
        ready = json.loads(pipe.readline())
    yield engine, f"http://127.0.0.1:{ready['controlPort']}"
    engine.kill()
    engine.wait(WAIT_SECONDS)


def order(control: str, path: str) -> Any:
    request = urllib.request.Request(control + path, method="POST")
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("parked", [True, False])
def test_a_killed_process_leaves_no_memory_behind(
    process: tuple[subprocess.Popen[bytes], str], *, parked: bool
) -> None:
    engine, control = process
    serving = used_bytes()
    order(control, "/pause?mode=wait&clear_cache=true")
    order(control, "/sleep?level=1&mode=wait")
    asleep = used_bytes()
    assert serving - asleep > 2_000 * MIB
    if not parked:
        order(control, "/wake_up")
        assert used_bytes() - asleep > 2_000 * MIB
    engine.send_signal(signal.SIGKILL)
    engine.wait(WAIT_SECONDS)
    deadline = time.monotonic() + WAIT_SECONDS
    while used_bytes() > asleep - 200 * MIB:  # its context goes with it
        assert time.monotonic() < deadline
        time.sleep(0.05)
