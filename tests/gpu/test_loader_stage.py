"""The stage daemon and a real device: memory handed over by descriptor, filled from page-locked memory, and given back."""

import gc
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
import safetensors.torch
import torch

import loader
from loader.bench.shapes import make
from loader.cuda.driver import Driver, device_uuids
from loader.cuda.opening import open_devices
from loader.cuda.shared import SharedMemory, allocate_shared
from loader.errors import StageFull
from loader.manifest import describe
from loader.proof import digest_source
from loader.stage.client import StageClient, load_to_device
from loader.stage.daemon import Daemon
from loader.stage.device import Devices
from loader.stage.holder import Holder
from loader.stage.pool import Pool

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

GIBIBYTE = 2**30
DEVICE = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tensors = {f"w{n}": torch.randn(4096, 2048).to(torch.bfloat16) for n in range(8)}
    tensors |= {f"b{n}": torch.randn(17) for n in range(50)}
    safetensors.torch.save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture
def client(model: Path, tmp_path: Path) -> Iterator[StageClient]:
    devices = Devices(open_devices())
    pool = Pool(2 * GIBIBYTE, (str(model),), ready=devices.lock)
    daemon = Daemon(pool, tmp_path / "s.sock", holder=Holder(pool, devices, 0))
    thread = Thread(target=daemon.serve)
    thread.start()
    with StageClient(tmp_path / "s.sock") as made:
        yield made
    daemon.close()
    thread.join()


@pytest.fixture
def driver() -> Driver:
    torch.empty(1, device=DEVICE)
    return Driver(0)


def test_every_byte_arrives_aligned(client: StageClient, model: Path) -> None:
    expected = safetensors.torch.load_file(model / "model.safetensors")
    for _ in range(2):  # the second finds the pages locked
        loaded = load_to_device(client, loader.open_checkpoint(model), DEVICE)
        for name, tensor in expected.items():
            assert torch.equal(loaded[name].cpu(), tensor)
            assert loaded[name].data_ptr() % 256 == 0


def test_columns_for_a_rank(client: StageClient, model: Path) -> None:
    checkpoint = loader.open_checkpoint(model).only(["w3"])
    part = loader.rank_part(checkpoint.tensors["w3"], dim=1, rank=1, ranks=2)
    loaded = load_to_device(client, loader.take_parts(checkpoint, {"w3": part}), DEVICE)["w3"]
    whole = safetensors.torch.load_file(model / "model.safetensors")["w3"]
    assert torch.equal(loaded.cpu(), whole[:, 1024:])


def test_it_is_proved_on_the_device(client: StageClient, model: Path) -> None:
    checkpoint = loader.open_checkpoint(model)
    digests = digest_source(checkpoint)
    load_to_device(client, checkpoint, DEVICE, manifest=describe(checkpoint, digests))
    wrong = describe(checkpoint, digests | {"w1": "0" * 32})
    with pytest.raises(loader.DigestMismatch):
        load_to_device(client, checkpoint, DEVICE, manifest=wrong)


def test_memory_goes_with_the_last_tensor(client: StageClient, model: Path) -> None:
    checkpoint = loader.open_checkpoint(model)
    load_to_device(client, checkpoint, DEVICE)  # contexts and kernels
    gc.collect()
    before = torch.cuda.mem_get_info()[0]
    loaded = load_to_device(client, checkpoint, DEVICE)
    last = loaded["b3"]
    del loaded
    gc.collect()
    assert torch.cuda.mem_get_info()[0] < before
    del last
    gc.collect()
    assert torch.cuda.mem_get_info()[0] == before


def test_nothing_is_held_without_a_budget(client: StageClient, model: Path, driver: Driver) -> None:
    with pytest.raises(StageFull, match="don't fit"):
        client.hold(str(model), driver.uuid)
    assert client.held() == []


def test_a_large_shard_is_locked_in_pieces_and_copied_over_their_borders(
    tmp_path: Path, driver: Driver
) -> None:
    """A bit more than two pieces, so that copies cross from one to the next."""
    directory = tmp_path / "large"
    make(directory, [{"small": (3,), "w": (2100, 1_000_000), "v": (500, 1000)}])
    devices = Devices(open_devices())
    pool = Pool(8 * GIBIBYTE, (str(directory),), ready=devices.lock)
    holder = Holder(pool, devices, 8 * GIBIBYTE)
    try:
        holder.hold(str(directory), driver.uuid)  # which compares every tensor's digest
        holder.verify(str(directory), driver.uuid)
    finally:
        holder.close()
        pool.close()


def test_what_is_exported_is_the_same_memory(driver: Driver) -> None:
    exported = allocate_shared(driver, 3 * 2**20)
    exported.data.fill_(7)
    torch.cuda.synchronize()
    seen = torch.as_tensor(
        SharedMemory(driver, driver.take(exported.descriptor), exported.nbytes), device=DEVICE
    )
    assert int(seen[: 3 * 2**20].min()) == 7
    seen[5] = 9
    assert int(exported.data[5]) == 9


def test_more_than_there_is_takes_nothing(driver: Driver) -> None:
    gc.collect()
    free = torch.cuda.mem_get_info()[0]
    with pytest.raises(loader.OutOfMemory):
        allocate_shared(driver, free + GIBIBYTE)
    assert torch.cuda.mem_get_info()[0] == free


def test_a_device_s_id_is_told_without_a_context_as_with_one(driver: Driver) -> None:
    assert device_uuids()[0] == driver.uuid
