"""Copies of checkpoints in a real device's memory: held by the stage daemon, attached to by engines, whoever is killed.

`pytest -s` prints the figures. They are of 17 GB; LOADER_GPU_SCALE takes a share of that.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest
import torch

import loader
from loader.bench.shapes import Shapes, make, shapes, total_bytes
from loader.checkpoint import Checkpoint
from loader.cuda.driver import Driver
from loader.cuda.nvml import usage_of
from loader.cuda.opening import Opened, open_devices
from loader.cuda.port import Device
from loader.cuda.shared import allocate_shared
from loader.errors import LoaderError
from loader.stage.client import HeldCopy, StageClient, attach_held, load_to_device
from loader.stage.layout import place_shards, whole_moves
from tests.integration.loader.hold_rig import Process, Weights, start_engine
from tests.unit.loader.stage_contract import (
    MIB,
    WAIT_SECONDS,
    DeviceContract,
    HolderContract,
    settled,
    wait_until,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]

SCALE = float(os.environ.get("LOADER_GPU_SCALE", "1"))
DEVICE = torch.device("cuda", 0)
SLACK_BYTES = 64 * MIB
"""What a device's used memory may differ by for what drivers do by themselves."""
LINK_BYTES = 2**30
STEADY_SECONDS = 1.0


def say(what: str) -> None:
    sys.stdout.write(f"\n  {what}")
    sys.stdout.flush()


@pytest.fixture(scope="module")
def opened() -> Opened:
    return open_devices()[0]


@pytest.fixture(scope="module")
def device(opened: Opened) -> Device:
    return opened.device


@pytest.fixture(scope="module")
def other() -> Device:
    return Driver(0)


class TestDevice(DeviceContract):
    pass


class TestHolder(HolderContract):
    pass


@dataclass(frozen=True, slots=True)
class Big:
    """A daemon with a checkpoint of 17 GB, for the tests that leave it alive.

    Attributes:
        path: its socket.
        weights: the checkpoint.
        before: what was used of the device before it came.
    """

    path: Path
    weights: Weights
    before: int

    @property
    def model(self) -> Path:
        return Path(self.weights.checkpoint.path)


@contextmanager
def written(layout: Sequence[Shapes]) -> Iterator[Weights]:
    """A checkpoint, in memory where that has room for it."""
    shm, nbytes = Path("/dev/shm"), total_bytes(layout) + 2**30
    place = shm if shm.is_dir() and shutil.disk_usage(shm).free > nbytes else Path(tempfile.gettempdir())
    directory = Path(tempfile.mkdtemp(prefix="loader-held-", dir=place))
    try:
        make(directory, layout)
        yield Weights(directory)
    finally:
        shutil.rmtree(directory)


def start_daemon(weights: Weights, path: Path) -> Process:
    """A stage daemon, with the checkpoint staged and its pages locked."""
    gigabytes = str(1.05 * weights.checkpoint.total_bytes / 1e9 + 0.1)
    command = ["-m", "loader", "stage", "run", weights.checkpoint.path, "--cuda", "--budget", gigabytes]
    daemon = Process([*command, "--hold-budget", gigabytes, "--socket", str(path)])
    try:
        begun = time.perf_counter()
        assert daemon.expect("ready: ") == "1 staged", "see `python -m loader stage run` for why"
        say(f"daemon up, checkpoint staged and locked after {time.perf_counter() - begun:.1f} s")
    except BaseException:
        daemon.kill()
        raise
    return daemon


@pytest.fixture(scope="module")
def big(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Big]:
    path = tmp_path_factory.mktemp("big") / "s.sock"
    with written(shapes(SCALE)["dense"]) as weights:
        device.enter()
        before = baseline(device)
        with start_daemon(weights, path):
            yield Big(path, weights, before)
        wait_back(device, before)  # nothing is left of it


@pytest.fixture(scope="module")
def weights() -> Iterator[Weights]:
    """A smaller checkpoint, for daemons that are killed."""
    with written([{"w": (1000, 1_000_000), "b": (3,)}, {"v": (300, 100_000)}]) as made:
        yield made


@pytest.fixture
def start(weights: Weights, tmp_path: Path) -> Iterator[Callable[[], Process]]:
    """Starts a daemon with it, at the socket `s.sock`."""
    with ExitStack() as ending:
        yield lambda: ending.enter_context(start_daemon(weights, tmp_path / "s.sock"))


def used(device: Device) -> int:
    """Memory that is used on the device, by whomever, as NVML counts it."""
    settled(device)
    usage = usage_of(device.uuid)
    assert usage is not None, "NVML doesn't answer"
    return usage.nbytes


def baseline(device: Device) -> int:
    """Memory that is used once nothing changes any more: that of a process that has ended may come back a moment later."""
    last, since = used(device), time.monotonic()
    deadline = since + WAIT_SECONDS
    while time.monotonic() - since < STEADY_SECONDS:
        assert time.monotonic() < deadline, "the device's used memory changes all the time: is it in use?"
        reading = used(device)
        if reading != last:
            last, since = reading, time.monotonic()
    return last


def wait_back(device: Device, before: int) -> None:
    """Wait until a device has all memory back that was taken since."""
    try:
        wait_until(lambda: used(device) <= before + SLACK_BYTES)
    except AssertionError:
        pytest.fail(f"{(used(device) - before) / MIB:.0f} MiB are still used")


def link_rate(device: Device) -> float:
    """What the link gives at best: bytes per second of copies from page-locked memory, alone."""
    host = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(LINK_BYTES, dtype=torch.uint8, device=DEVICE)
    seconds = []
    for _ in range(5):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    del there
    device.trim()
    return LINK_BYTES / min(seconds)


def attach_seconds(checkpoint: Checkpoint, device: Device, connect: Callable[[], StageClient]) -> float:
    """How long it takes until a held copy is mapped."""
    begun = time.perf_counter()
    copy = HeldCopy(checkpoint, device, connect())
    seconds = time.perf_counter() - begun
    assert copy.nbytes >= checkpoint.total_bytes
    return seconds


def steps(checkpoint: Checkpoint, device: Device, path: Path) -> list[str]:
    """How long each step takes: the least of ten."""
    found: dict[str, list[float]] = {"connect": [], "ask": [], "import": [], "map": [], "unmap": []}
    for _ in range(10):
        times = [time.perf_counter()]
        with StageClient(path) as client:
            times.append(time.perf_counter())
            answer, descriptor = client.attach(checkpoint.path, device.uuid)
            times.append(time.perf_counter())
            handle = device.take(descriptor)
            times.append(time.perf_counter())
            address = device.map(handle, int(number(answer, "size")), writable=False)
            times.append(time.perf_counter())
            device.unmap(address, int(number(answer, "size")))
            times.append(time.perf_counter())
            os.close(descriptor)
        for step, (first, second) in zip(found.values(), pairwise(times), strict=True):
            step.append(second - first)
    return [f"{step} {min(seconds) * 1000:.2f} ms" for step, seconds in found.items()]


def shown(rates: list[float]) -> str:
    return f"{', '.join(f'{rate / 1e9:.1f}' for rate in rates)} GB/s"


def number(row: dict[str, object], key: str) -> float:
    value = row[key]
    assert isinstance(value, int | float), row
    return value


def test_held_at_the_speed_of_the_link_and_attached_in_a_millisecond(big: Big, device: Device) -> None:
    link = link_rate(device)
    checkpoint, path = big.weights.checkpoint, big.path
    with StageClient(path) as client:
        use = next(use for use in client.devices() if use.device == device.uuid)
        context = use.context_bytes
        assert context is not None, "the context's cost couldn't be measured: NVML doesn't answer"
        if client.held():  # by another test
            client.release(checkpoint.path, device.uuid)
        grown = baseline(device) - big.before
        say(f"the daemon's context: {context / MIB:.0f} MiB ({use.context_basis})")
        say(f"the device's used memory grew by {grown / MIB:.0f} MiB since it started")
        assert abs(grown - context) <= 4 * SLACK_BYTES
        (staged,) = client.statuses()
        say(
            f"pages of {staged['page_bytes']} bytes ({staged['page_way']}); refused: {staged['pages_refused']}"
        )

        held = client.hold(checkpoint.path, device.uuid)
        rate = number(held, "nbytes") / number(held, "copy_seconds")
        say(
            f"link {link / 1e9:.1f} GB/s; held {number(held, 'nbytes') / 1e9:.2f} GB at {rate / 1e9:.1f} GB/s"
        )
        say(f"digest where it landed: {number(held, 'digest_seconds') * 1000:.1f} ms")
        say(f"digest once more: {client.verify(checkpoint.path, device.uuid) * 1000:.1f} ms")

        fresh = [attach_seconds(checkpoint, device, lambda: StageClient(path)) for _ in range(20)]
        clients = [StageClient(path) for _ in range(20)]
        ready = [attach_seconds(checkpoint, device, clients.pop) for _ in range(20)]
        for what, seconds in (("connecting and attaching", fresh), ("attaching", ready)):
            say(f"{what}: {min(seconds) * 1000:.2f} ms, median {statistics.median(seconds) * 1000:.2f} ms")
        say(f"of that, {', '.join(steps(checkpoint, device, path))}")
        copy = HeldCopy(checkpoint, device, StageClient(path))
        begun = time.perf_counter()
        count = len(copy.tensors())
        say(f"{count} tensors made in {(time.perf_counter() - begun) * 1000:.2f} ms")
        del copy

        command = [sys.executable, "-m", "loader", "stage", "attach", checkpoint.path, "--socket", str(path)]
        run = subprocess.run([*command, "-o", "json"], stdout=subprocess.PIPE, check=True, text=True)
        say(f"in a fresh process: attach {json.loads(run.stdout)['attachSeconds'] * 1000:.2f} ms")

        tensors = attach_held(checkpoint, DEVICE, path)
        proof = loader.verify_resident(checkpoint, tensors)
        assert (len(proof.proven), proof.unproven) == (len(checkpoint.tensors), frozenset())
        del tensors
        wait_until(lambda: client.held()[0]["attached"] == [])
        client.release(checkpoint.path, device.uuid)
        wait_back(device, big.before + grown)
    assert min(*fresh, *ready) <= 0.001
    if SCALE >= 1:
        assert rate >= 0.94 * link


def test_into_an_engine_s_own_memory_at_the_speed_of_the_link(big: Big, device: Device) -> None:
    link = link_rate(device)
    checkpoint = big.weights.checkpoint
    bases, nbytes = place_shards(checkpoint.shards)
    moves = whole_moves(checkpoint.shards, bases)
    with StageClient(big.path) as client:
        exported = allocate_shared(device, nbytes)
        copies = []
        for _ in range(3):
            begun = time.perf_counter()
            client.copy(checkpoint.path, moves, exported.descriptor, (device.uuid, exported.nbytes))
            copies.append(checkpoint.total_bytes / (time.perf_counter() - begun))
        os.close(exported.descriptor)
        del exported
        rates = []
        for _ in range(3):
            begun = time.perf_counter()
            tensors = load_to_device(client, checkpoint, DEVICE)
            rates.append(checkpoint.total_bytes / (time.perf_counter() - begun))
            proof = loader.verify_resident(checkpoint, tensors)
            assert len(proof.proven) == len(checkpoint.tensors)
            del tensors
    say(
        f"link {link / 1e9:.1f} GB/s; copied in {shown(copies)}; load_to_device, memory and all, {shown(rates)}"
    )
    if SCALE >= 1:
        assert max(copies) >= 0.94 * link


def test_an_engine_that_is_killed_leaves_the_copy_to_the_next(big: Big, device: Device) -> None:
    path, model = big.path, big.model
    with StageClient(path) as client:
        client.hold(str(model), device.uuid)
        before = baseline(device)
        with start_engine(path, model, "0") as engine:
            assert big.weights.are(engine.ask("digest"))
            (row,) = client.held()
            assert isinstance(row["attached"], list)
            assert len(row["attached"]) == 1
            engine.kill()
            wait_until(lambda: client.held()[0]["attached"] == [])
        wait_back(device, before)
        begun = time.perf_counter()
        tensors = attach_held(big.weights.checkpoint, DEVICE, path)
        say(f"the next engine has its tensors after {(time.perf_counter() - begun) * 1000:.2f} ms")
        loader.verify_resident(big.weights.checkpoint, tensors)
        client.verify(str(model), device.uuid)


def test_an_engine_cannot_write_to_what_is_attached(big: Big, device: Device) -> None:
    path, model = big.path, big.model
    with StageClient(path) as client:
        client.hold(str(model), device.uuid)
        with start_engine(path, model, "0") as reading, start_engine(path, model, "0") as writing:
            with pytest.raises(AssertionError, match="it ended"):
                writing.ask("write")
            assert big.weights.are(reading.ask("digest"))
        say(f"digest afterwards: {client.verify(str(model), device.uuid) * 1000:.1f} ms")


def test_what_is_attached_outlives_a_daemon_that_is_killed_and_then_nothing_is_left(
    start: Callable[[], Process], weights: Weights, device: Device, tmp_path: Path
) -> None:
    before, path = baseline(device), tmp_path / "s.sock"
    checkpoint = weights.checkpoint
    daemon = start()
    with StageClient(path) as client:
        client.hold(checkpoint.path, device.uuid)
    tensors = attach_held(checkpoint, DEVICE, path)
    daemon.kill()
    loader.verify_resident(checkpoint, tensors)
    assert used(device) >= before + checkpoint.total_bytes
    with pytest.raises(LoaderError):
        StageClient(path)
    del tensors
    wait_back(device, before)
    # A new one takes over the socket, and what was there is held again.
    start()
    with StageClient(path) as client:
        assert client.held() == []
        client.hold(checkpoint.path, device.uuid)
        with start_engine(path, Path(checkpoint.path), "0") as engine:
            assert weights.are(engine.ask("digest"))


def test_a_daemon_that_is_killed_while_it_copies_leaves_nothing(
    start: Callable[[], Process], weights: Weights, device: Device, tmp_path: Path
) -> None:
    before, path = baseline(device), tmp_path / "s.sock"
    checkpoint = weights.checkpoint
    daemon = start()
    failed: list[LoaderError] = []

    def hold() -> None:
        try:
            with StageClient(path) as client:
                client.hold(checkpoint.path, device.uuid)
        except LoaderError as error:
            failed.append(error)

    thread = Thread(target=hold)
    thread.start()
    wait_until(lambda: used(device) >= before + checkpoint.total_bytes)
    daemon.kill()
    thread.join()
    say(f"the hold ended with {failed or 'success'}")
    wait_back(device, before)
