"""Copies that the stage daemon holds in device memory, and attaching to them, on a device without a GPU."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
import safetensors.torch
import torch

from loader.cuda.nvml import Basis, ContextCost
from loader.cuda.opening import Opened
from loader.cuda.port import Device
from loader.errors import DeviceUnavailable, DigestMismatch, LoaderError, LoadError, OutOfMemory
from loader.stage.client import StageClient
from loader.stage.daemon import Daemon
from loader.stage.device import Devices
from loader.stage.holder import Holder
from loader.stage.pool import Pool
from tests.unit.loader.stage_contract import DeviceContract, HolderContract, wait_until
from tests.unit.loader.stage_device import GRANULARITY, MemoryFileDevice, used_bytes


@pytest.fixture
def device() -> Device:
    return MemoryFileDevice()


@pytest.fixture
def other() -> Device:
    return MemoryFileDevice()


class TestDevice(DeviceContract):
    pass


class TestHolder(HolderContract):
    pass


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    safetensors.torch.save_file({"w": torch.arange(9000)}, tmp_path / "m" / "model.safetensors")
    return tmp_path / "m"


Daemons = Callable[[Device], Path]


@pytest.fixture
def serve(model: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Daemons:
    """Starts a daemon on a device; its socket."""

    def start(device: Device) -> Path:
        cost = ContextCost(nbytes=None, basis=Basis.UNKNOWN)
        devices = Devices([Opened(device=device, ordinal=0, context=cost)])
        holder = Holder(Pool(2**24, (str(model),), ready=devices.lock), devices, GRANULARITY)
        daemon = Daemon(holder.pool, tmp_path / "s.sock", holder=holder)
        thread = Thread(target=daemon.serve)
        thread.start()
        request.addfinalizer(thread.join)
        request.addfinalizer(daemon.close)
        return tmp_path / "s.sock"

    return start


class FaultyDevice(MemoryFileDevice):
    """Fails at one step, once."""

    def __init__(self, step: str, error: type[Exception], text: str) -> None:
        super().__init__()
        self._failed = False
        right = getattr(self, step)

        def faulty(*arguments: object, **named: object) -> object:
            if not self._failed:
                self._failed = True
                raise error(text)
            return right(*arguments, **named)

        setattr(self, step, faulty)


@pytest.mark.parametrize(
    ("step", "error", "text"),
    [
        ("lock_pages", OutOfMemory, "no more"),
        ("free_bytes", DeviceUnavailable, "gone"),
        ("create", OutOfMemory, "no more"),
        ("export", DeviceUnavailable, "too many"),
        ("copy_to_device", DeviceUnavailable, "the link"),
        ("protect", DeviceUnavailable, "not supported"),
        ("tensor", RuntimeError, "CUDA error: an illegal memory access"),
        ("tensor", torch.OutOfMemoryError, "CUDA out of memory"),
        ("trim", DeviceUnavailable, "gone"),
    ],
)
def test_whatever_fails_is_told_all_memory_is_back_and_the_next_time_it_works(
    serve: Daemons, model: Path, step: str, error: type[Exception], text: str
) -> None:
    with StageClient(serve(FaultyDevice(step, error, text))) as client:
        with pytest.raises(error if issubclass(error, LoaderError) else LoadError, match=text):
            client.hold(str(model), "0")
        wait_until(lambda: used_bytes("self") == 0)
        assert (client.held(), client.devices()[0].held_bytes) == ([], 0)
        assert client.hold(str(model), "0")["nbytes"] == GRANULARITY


def test_a_copy_that_lands_wrong_is_not_held(serve: Daemons, model: Path) -> None:
    class Flipping(MemoryFileDevice):
        def copy_to_device(self, moves: list[tuple[int, int, int]]) -> None:
            super().copy_to_device(moves)
            torch.frombuffer((ctypes.c_char * 8).from_address(moves[0][0]), dtype=torch.uint8)[5] ^= 16

    with StageClient(serve(Flipping())) as client:
        with pytest.raises(DigestMismatch) as caught:
            client.hold(str(model), "0")
        assert caught.value.tensors == ("w",)
        wait_until(lambda: used_bytes("self") == 0)
        assert client.held() == []
