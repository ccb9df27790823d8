import asyncio
import os
import weakref
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads

import pytest
import safetensors.torch
import torch

import loader
from loader import Control, FileChanged, LoadCancelled, Run


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    tensors = {f"w{n}": torch.full((2**18,), n, dtype=torch.int32) for n in range(20)}
    safetensors.torch.save_file(tensors | {"huge": torch.arange(2**21)}, path)
    return path


def test_every_tensor_arrives_once_in_the_order_of_the_file(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    expected = safetensors.torch.load_file(weights)
    seen = []
    for name, tensor in loader.arrivals(checkpoint, window_bytes=3 * 2**20):
        assert torch.equal(tensor, expected[name])
        seen.append(name)
    assert seen == list(checkpoint.tensors)


def test_no_more_than_two_windows_are_held(weights: Path) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    for _, tensor in loader.arrivals(loader.open_checkpoint(weights), window_bytes=3 * 2**20):
        alive.append(weakref.ref(tensor))
        held = sum(kept.nbytes for reference in alive if (kept := reference()) is not None)
        del kept
        assert held <= 2**24, "only the largest tensor is larger than a window"


def test_tensors_that_are_kept_stay_what_they_are(weights: Path) -> None:
    kept = dict(loader.arrivals(loader.open_checkpoint(weights), window_bytes=2**20))
    expected = safetensors.torch.load_file(weights)
    assert all(torch.equal(kept[name], tensor) for name, tensor in expected.items())


def test_an_early_end_leaves_no_thread(weights: Path) -> None:
    before = set(enumerate_threads())  # others' threads may end meanwhile
    run = Run()
    for _ in loader.arrivals(loader.open_checkpoint(weights), window_bytes=2**20, run=run):
        break
    assert set(enumerate_threads()) <= before
    assert run.control.cancelled


def test_a_load_that_came_to_its_end_is_not_called_off(weights: Path) -> None:
    run = Run()
    assert len(list(loader.arrivals(loader.open_checkpoint(weights), run=run))) == 21
    assert not run.control.cancelled


def test_an_error_comes_after_what_was_right(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    seen = []

    def take_all() -> None:
        for name, _ in loader.arrivals(checkpoint, window_bytes=2**20):
            if not seen:
                os.truncate(weights, weights.stat().st_size // 2)
            seen.append(name)

    with pytest.raises(FileChanged):
        take_all()
    assert 0 < len(seen) < len(checkpoint.tensors)


def test_nothing_arrives_from_an_empty_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes((2).to_bytes(8, "little") + b"{}")
    assert list(loader.arrivals(loader.open_checkpoint(path))) == []


async def test_a_load_is_awaited(weights: Path) -> None:
    result = await loader.aload(loader.open_checkpoint(weights))
    assert torch.equal(result.tensors["huge"], torch.arange(2**21))


async def test_an_error_is_raised_where_it_is_awaited(weights: Path) -> None:
    checkpoint = loader.open_checkpoint(weights)
    os.truncate(weights, 5000)
    with pytest.raises(FileChanged):
        await loader.aload(checkpoint)


async def test_cancelling_waits_for_the_end(weights: Path) -> None:
    run = Run(threads=1, progress=lambda _: reading.set())
    reading = Event()
    run.control.limit(1)
    task = asyncio.get_running_loop().create_task(loader.aload(loader.open_checkpoint(weights), run=run))
    assert await asyncio.to_thread(reading.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.control.cancelled


async def test_calling_off_is_an_error_for_whoever_awaits(weights: Path) -> None:
    control = Control(bytes_per_second=1)  # the second read waits until it is called off
    run = Run(threads=1, progress=lambda _: control.cancel(), control=control)
    with pytest.raises(LoadCancelled):
        await loader.aload(loader.open_checkpoint(weights), run=run)


def test_what_needs_torch_is_there_by_name() -> None:
    assert {"aload", "arrivals", "verify_resident", "digest_source"} <= set(loader.__all__)
    with pytest.raises(AttributeError, match="no attribute 'b'"):
        loader.b  # noqa: B018 - reading it is what is tested
