"""What holds for every device of the stage daemon, a real one and the stand-in alike, and for copies that are held on it.

Whoever derives from these has fixtures `device` and `other`: the same device, as two processes would see it.
"""

import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
import safetensors.torch
import torch

import loader
from loader import (
    CheckpointNotFound,
    DestinationMismatch,
    DeviceUnavailable,
    DigestMismatch,
    FileChanged,
    LoadRefused,
    OutOfMemory,
)
from loader.copiers.destinations import TORCH_DTYPES
from loader.cuda.nvml import Basis, ContextCost
from loader.cuda.opening import Opened
from loader.cuda.port import Device
from loader.cuda.shared import SharedMemory, allocate_shared, create_exported
from loader.errors import HeldInUse, NotHeld, StageFull
from loader.manifest import describe, render_manifest
from loader.proof import digest_source
from loader.stage.client import HeldCopy, StageClient, lease_held
from loader.stage.daemon import Daemon
from loader.stage.device import Devices
from loader.stage.holder import Holder
from loader.stage.layout import pack, place_shards, place_tensors
from loader.stage.pool import Pool

MIB = 2**20
WAIT_SECONDS = 30.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it didn't come about"
        os.sched_yield()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()


def settled(device: Device) -> int:
    """Free memory of a device once nothing is left over from computing on it."""
    device.wait()
    device.trim()
    return device.free_bytes()


def fill_up(device: Device) -> list[int]:
    """Take all memory of a device that can be had; the handles."""
    handles = []
    granularity = device.shared_granularity()
    nbytes = granularity << 16
    while nbytes >= granularity:
        try:
            handles.append(device.create(nbytes))
        except OutOfMemory:
            nbytes //= 2
    return handles


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(bits(left), bits(right))


class DeviceContract:
    """`loader.cuda.port.Device`."""

    @pytest.fixture(autouse=True)
    def _entered(self, device: Device) -> None:
        device.enter()
        device.trim()

    @pytest.fixture
    def nbytes(self, device: Device) -> int:
        return 2 * device.shared_granularity()

    def test_its_id_is_hexadecimal(self, device: Device) -> None:
        assert len(device.uuid) == 32
        assert int(device.uuid, 16)

    def test_a_descriptor_stands_for_the_memory_wherever_it_is_mapped(
        self, device: Device, other: Device, nbytes: int
    ) -> None:
        handle, descriptor = create_exported(device, nbytes)
        here = device.tensor(SharedMemory(device, handle, nbytes))
        there = other.tensor(SharedMemory(other, other.take(descriptor), nbytes, writable=False))
        os.close(descriptor)
        here.fill_(7)
        here[5] = 9
        device.wait()
        assert bits(there)[:7].tolist() == [7, 7, 7, 7, 7, 9, 7]
        assert int(there[-1]) == 7

    def test_a_descriptor_alone_keeps_the_memory(self, device: Device, nbytes: int) -> None:
        handle, descriptor = create_exported(device, nbytes)
        memory = SharedMemory(device, handle, nbytes)
        device.tensor(memory).fill_(3)
        del memory
        again = device.tensor(SharedMemory(device, device.take(descriptor), nbytes))
        os.close(descriptor)
        assert int(again.min()) == int(again.max()) == 3

    def test_memory_goes_with_the_last_that_has_it(self, device: Device, nbytes: int) -> None:
        free = settled(device)
        handle, descriptor = create_exported(device, nbytes)
        assert settled(device) <= free - nbytes
        tensor = device.tensor(SharedMemory(device, handle, nbytes))
        part = tensor[10:20]
        os.close(descriptor)
        del tensor
        assert settled(device) <= free - nbytes
        del part
        assert settled(device) == free

    def test_a_handle_that_is_not_mapped_can_be_given_up(self, device: Device, nbytes: int) -> None:
        free = settled(device)
        handle, descriptor = create_exported(device, nbytes)
        device.release(handle)
        os.close(descriptor)
        assert settled(device) == free

    def test_more_than_there_is_takes_nothing(self, device: Device) -> None:
        free = settled(device)
        granularity = device.shared_granularity()
        with pytest.raises(OutOfMemory):
            create_exported(device, (free // granularity + 512) * granularity)
        assert settled(device) == free

    def test_what_is_protected_can_still_be_read(self, device: Device, nbytes: int) -> None:
        handle, descriptor = create_exported(device, nbytes)
        os.close(descriptor)
        memory = SharedMemory(device, handle, nbytes)
        device.tensor(memory).fill_(4)
        device.wait()
        device.protect(memory.address, nbytes)
        assert int(device.tensor(memory).sum(dtype=torch.int64)) == 4 * nbytes

    def test_what_is_no_memory_is_refused(self, device: Device) -> None:
        stranger = os.memfd_create("stranger")
        try:
            with pytest.raises(DeviceUnavailable):
                device.take(stranger)
        finally:
            os.close(stranger)

    def test_locked_pages_are_copied(self, device: Device, nbytes: int) -> None:
        block = mmap.mmap(-1, 4 * mmap.PAGESIZE)
        host = torch.frombuffer(block, dtype=torch.uint8)
        host.copy_(torch.arange(host.numel()) % 251)
        handle, descriptor = create_exported(device, nbytes)
        os.close(descriptor)
        memory = SharedMemory(device, handle, nbytes)
        device.lock_pages(host.data_ptr(), host.numel())
        try:
            with pytest.raises(DeviceUnavailable):
                device.lock_pages(host.data_ptr(), host.numel())
            moves = [(memory.address + 256, host.data_ptr() + 3, 1000), (memory.address, host.data_ptr(), 1)]
            device.copy_to_device(moves)
        finally:
            device.unlock_pages(host.data_ptr())
        seen = device.tensor(memory)
        assert torch.equal(bits(seen[256:1256]), host[3:1003])
        assert int(seen[0]) == 0

    def test_memory_of_a_device_is_copied_to_another_s(
        self, device: Device, other: Device, nbytes: int
    ) -> None:
        handle, descriptor = create_exported(other, nbytes)
        os.close(descriptor)
        source = SharedMemory(other, handle, nbytes)
        other.tensor(source).copy_(torch.arange(nbytes) % 251)
        other.wait()
        handle, descriptor = create_exported(device, nbytes)
        os.close(descriptor)
        target = SharedMemory(device, handle, nbytes)
        if device.uuid != other.uuid:
            device.reach(source.address, nbytes)
        device.copy_between([(target.address + 5, source.address + 300, 1000)])
        assert torch.equal(
            bits(device.tensor(target)[5:1005]), (torch.arange(300, 1300) % 251).to(torch.uint8)
        )


class HolderContract:
    """A daemon that holds copies, and its clients, over a real socket."""

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """Two shards: every dtype, tensors that don't begin on their elements in the file, empty ones, and a scalar."""
        directory = tmp_path / "model"
        directory.mkdir()
        raw = torch.arange(240, dtype=torch.uint8)
        first = {
            f"all.{dtype}": (raw % 2).bool() if dtype is torch.bool else raw.clone().view(dtype)
            for dtype in TORCH_DTYPES.values()
        }
        second = {
            "w": torch.arange(4096 * 96, dtype=torch.int32).view(4096, 96),
            "bias": torch.arange(17, dtype=torch.int8),
            "none": torch.empty(0, 5),
            "scalar": torch.tensor(2.5),
            "cube": torch.arange(6 * 8 * 10, dtype=torch.int16).view(6, 8, 10),
        }
        safetensors.torch.save_file(first, directory / "model-00001-of-00002.safetensors")
        safetensors.torch.save_file(second, directory / "model-00002-of-00002.safetensors")
        return directory

    @pytest.fixture
    def expected(self, model: Path) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for file in sorted(model.glob("*.safetensors")):
            found |= safetensors.torch.load_file(file)
        return found

    @pytest.fixture
    def holder(self, device: Device, model: Path) -> Holder:
        cost = ContextCost(nbytes=500 * MIB, basis=Basis.PROCESS)
        devices = Devices([Opened(device=device, ordinal=0, context=cost)])
        return Holder(
            Pool(64 * MIB, (str(model.parent),), ready=devices.lock), devices, 4 * device.shared_granularity()
        )

    @pytest.fixture
    def path(self, holder: Holder, tmp_path: Path) -> Iterator[Path]:
        daemon = Daemon(holder.pool, tmp_path / "s.sock", holder=holder)
        thread = Thread(target=daemon.serve)
        thread.start()
        yield tmp_path / "s.sock"
        daemon.close()
        thread.join()

    @pytest.fixture
    def client(self, path: Path) -> Iterator[StageClient]:
        with StageClient(path) as made:
            yield made

    @pytest.fixture
    def held(self, client: StageClient, device: Device, model: Path) -> dict[str, object]:
        return client.hold(str(model), device.uuid)

    @pytest.fixture
    def attach(
        self, path: Path, other: Device, model: Path, held: dict[str, object]
    ) -> Callable[[], HeldCopy]:
        assert held["path"] == str(model)
        return lambda: HeldCopy(loader.open_checkpoint(model), other, StageClient(path))

    def test_what_is_attached_is_the_file_bit_for_bit(
        self, attach: Callable[[], HeldCopy], expected: dict[str, torch.Tensor]
    ) -> None:
        tensors = attach().tensors()
        assert tensors.keys() == expected.keys()
        assert [name for name, tensor in expected.items() if not same(tensors[name], tensor)] == []
        assert all(tensor.data_ptr() % 256 == 0 for tensor in tensors.values() if tensor.numel())
        assert all(tensor.is_contiguous() for tensor in tensors.values())

    @pytest.mark.usefixtures("held")
    def test_parts_and_some_tensors(
        self, path: Path, other: Device, model: Path, expected: dict[str, torch.Tensor]
    ) -> None:
        checkpoint = loader.open_checkpoint(model).only(["w", "cube", "bias", "all.torch.bfloat16"])
        parts = {
            "w": loader.Part(dim=1, start=32, stop=64),
            "cube": loader.Part(dim=1, start=2, stop=5),
            "bias": loader.Part(dim=0, start=3, stop=9),
        }
        tensors = HeldCopy(loader.take_parts(checkpoint, parts), other, StageClient(path)).tensors()
        assert same(tensors["w"], expected["w"][:, 32:64])
        assert same(tensors["cube"], expected["cube"][:, 2:5])
        assert same(tensors["bias"], expected["bias"][3:9])
        assert same(tensors["all.torch.bfloat16"], expected["all.torch.bfloat16"])

    def test_it_is_held_once_however_often_it_is_asked_for(
        self, client: StageClient, device: Device, model: Path, held: dict[str, object]
    ) -> None:
        free = settled(device)
        assert client.hold(str(model), "0") == held
        assert (settled(device), len(client.held())) == (free, 1)

    @pytest.mark.usefixtures("held")
    def test_what_is_held_is_copied_into_memory_that_is_handed_over(
        self, client: StageClient, device: Device, model: Path, expected: dict[str, torch.Tensor]
    ) -> None:
        checkpoint = loader.open_checkpoint(model)
        offsets, size = pack(entry.nbytes for entry in checkpoint.tensors.values())
        exported = allocate_shared(device, size)
        places = dict(zip(checkpoint.tensors, offsets, strict=True))
        moves = [
            (entry.file, entry.begin, entry.nbytes, places[name])
            for name, entry in checkpoint.tensors.items()
        ]
        on = (device.uuid, exported.nbytes)
        copied = client.copy(str(model), moves, exported.descriptor, on, sibling=device.uuid)
        assert copied == checkpoint.total_bytes
        for name, tensor in expected.items():
            assert torch.equal(
                bits(exported.data[places[name] : places[name] + tensor.nbytes]), bits(tensor)
            ), name
        file = next(iter(checkpoint.shards))
        with pytest.raises(DestinationMismatch, match="doesn't fit"):
            client.copy(str(model), [(file, 0, 2**40, 0)], exported.descriptor, on, sibling=device.uuid)
        client.release(str(model), device.uuid)
        with pytest.raises(NotHeld):
            client.copy(str(model), moves, exported.descriptor, on, sibling=device.uuid)
        os.close(exported.descriptor)

    @pytest.mark.usefixtures("held")
    def test_a_lease_keeps_a_held_copy_and_knows_its_version(
        self, client: StageClient, path: Path, device: Device, model: Path
    ) -> None:
        checkpoint = loader.open_checkpoint(model)
        with StageClient(path) as leasing:
            lease_held(leasing, checkpoint, device.uuid)
            with pytest.raises(HeldInUse):
                client.release(str(model), device.uuid)
        os.utime(model / "model-00001-of-00002.safetensors", ns=(1, 1))
        with StageClient(path) as leasing, pytest.raises(FileChanged):
            lease_held(leasing, loader.open_checkpoint(model), device.uuid)

    @pytest.mark.usefixtures("held")
    def test_host_memory_is_leased_only_while_it_is_copied(self, client: StageClient) -> None:
        assert [status["leases"] for status in client.statuses()] == [0]

    def test_who_is_attached_is_known_until_the_last_tensor_goes(
        self, client: StageClient, attach: Callable[[], HeldCopy]
    ) -> None:
        def attached() -> list[object]:
            (status,) = client.held()
            peers = status["attached"]
            assert isinstance(peers, list)
            return [(peer["process"], peer["user"]) for peer in peers]

        copy = attach()
        tensors = copy.tensors()
        assert attached() == [(os.getpid(), os.geteuid())]
        last = tensors["bias"]
        del tensors, copy
        assert attached() == [(os.getpid(), os.geteuid())]
        del last
        wait_until(lambda: attached() == [])

    def test_it_is_not_released_while_somebody_is_attached(
        self, client: StageClient, device: Device, model: Path, attach: Callable[[], HeldCopy]
    ) -> None:
        copy = attach()
        with pytest.raises(HeldInUse, match=f"process {os.getpid()}"):
            client.release(str(model), device.uuid)
        del copy
        wait_until(lambda: client.held()[0]["attached"] == [])
        assert client.release(str(model), device.uuid) == device.shared_granularity()
        assert client.held() == []

    def test_released_memory_is_the_device_s_again(
        self, client: StageClient, device: Device, model: Path
    ) -> None:
        client.hold(str(model), device.uuid)
        client.release(str(model), device.uuid)
        free = settled(device)
        client.hold(str(model), device.uuid)
        assert settled(device) <= free - device.shared_granularity()
        client.release(str(model), device.uuid)
        assert settled(device) == free

    def test_what_is_not_held_can_neither_be_attached_to_nor_released(
        self, client: StageClient, path: Path, device: Device, model: Path
    ) -> None:
        for attempt in (
            lambda: HeldCopy(loader.open_checkpoint(model), device, StageClient(path)),
            lambda: client.release(str(model), device.uuid),
            lambda: client.verify(str(model), device.uuid),
        ):
            with pytest.raises(NotHeld, match="not held"):
                attempt()

    def test_a_device_that_is_not_there(self, client: StageClient, model: Path) -> None:
        for name in ("7", "GPU-00000000-0000-0000-0000-000000000000", ""):
            with pytest.raises(DeviceUnavailable, match="no device"):
                client.hold(str(model), name)

    def test_a_device_by_its_names(self, holder: Holder, device: Device) -> None:
        uuid = device.uuid
        dashed = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
        for name in ("0", uuid, f"GPU-{dashed}", f"GPU-{dashed}".upper()):
            assert holder.devices.find(name) is device

    def test_only_what_lies_below_its_directories_is_held(self, client: StageClient, device: Device) -> None:
        with pytest.raises(CheckpointNotFound, match="not below"):
            client.hold("/etc", device.uuid)

    def test_the_budget_of_a_device_holds(
        self, client: StageClient, device: Device, model: Path, held: dict[str, object]
    ) -> None:
        large = model.parent / "large"
        large.mkdir()
        size = 4 * device.shared_granularity()
        safetensors.torch.save_file({"w": torch.zeros(size)[: size // 4]}, large / "model.safetensors")
        with pytest.raises(StageFull, match="don't fit"):
            client.hold(str(large), device.uuid)
        assert client.held() == [held]
        (row,) = client.devices()
        assert (row.held_bytes, row.budget_bytes) == (device.shared_granularity(), size)

    def test_a_device_without_room(self, device: Device, model: Path) -> None:
        devices = Devices(
            [Opened(device=device, ordinal=0, context=ContextCost(nbytes=None, basis=Basis.UNKNOWN))]
        )
        pool = Pool(64 * MIB, (str(model),))
        holder = Holder(pool, devices, 2**50)
        ballast = fill_up(device)
        try:
            # Not all that is free can be had, on some devices; then it is found out one step later.
            with pytest.raises((LoadRefused, OutOfMemory)):
                holder.hold(str(model), "0")
        finally:
            for handle in ballast:
                device.release(handle)
        assert holder.statuses() == []
        holder.hold(str(model), "0")
        holder.close()
        pool.close()

    def test_errors_come_with_their_reasons(self, client: StageClient, device: Device, model: Path) -> None:
        checkpoint = loader.open_checkpoint(model)
        digests = digest_source(checkpoint) | {"bias": "0" * 32}
        (model / loader.MANIFEST_FILE).write_text(render_manifest(describe(checkpoint, digests)))
        with pytest.raises(DigestMismatch) as caught:
            client.hold(str(model), device.uuid)
        assert caught.value.tensors == ("bias",)
        assert client.held() == []

    def test_it_is_proven_by_its_manifest(self, client: StageClient, device: Device, model: Path) -> None:
        checkpoint = loader.open_checkpoint(model)
        text = render_manifest(describe(checkpoint, digest_source(checkpoint)))
        (model / loader.MANIFEST_FILE).write_text(text)
        assert client.hold(str(model), device.uuid)["proven"] is True

    def test_without_one_it_is_what_was_read(self, held: dict[str, object]) -> None:
        assert (held["state"], held["proven"], held["attached"]) == ("Held", False, [])

    def test_a_bit_that_changes_later_is_found(
        self, client: StageClient, path: Path, device: Device, model: Path, held: dict[str, object]
    ) -> None:
        assert client.verify(str(model), device.uuid) > 0
        nbytes = held["nbytes"]
        assert isinstance(nbytes, int)
        with StageClient(path) as damaging:
            _, descriptor = damaging.attach(str(model), device.uuid)
            block = device.tensor(SharedMemory(device, device.take(descriptor), nbytes))
            os.close(descriptor)
            checkpoint = loader.open_checkpoint(model)
            block[place_tensors(checkpoint, place_shards(checkpoint.shards)[0])["w"] + 1000] ^= 4
            device.wait()
            del block
        with pytest.raises(DigestMismatch) as caught:
            client.verify(str(model), device.uuid)
        assert caught.value.tensors == ("w",)

    def test_another_version_of_the_files(
        self, client: StageClient, device: Device, model: Path, attach: Callable[[], HeldCopy]
    ) -> None:
        old = attach()
        os.utime(model / "model-00001-of-00002.safetensors", ns=(1, 1))
        with pytest.raises(FileChanged, match="another version"):
            attach()
        with pytest.raises(HeldInUse):
            client.hold(str(model), device.uuid)
        del old
        wait_until(lambda: client.held()[0]["attached"] == [])
        client.hold(str(model), device.uuid)
        attach()

    def test_what_is_attached_outlives_the_daemon(
        self, holder: Holder, device: Device, model: Path, tmp_path: Path, expected: dict[str, torch.Tensor]
    ) -> None:
        holder.hold(
            str(model), "0"
        )  # what is done for the first time takes memory of its own on some devices
        holder.release(str(model), "0")
        free = settled(device)
        daemon = Daemon(holder.pool, tmp_path / "s.sock", holder=holder)
        thread = Thread(target=daemon.serve)
        thread.start()
        try:
            with StageClient(tmp_path / "s.sock") as client:
                client.hold(str(model), "0")
            tensors = HeldCopy(
                loader.open_checkpoint(model), device, StageClient(tmp_path / "s.sock")
            ).tensors()
        finally:
            daemon.close()
            thread.join()
        assert same(tensors["w"], expected["w"])
        assert settled(device) < free
        del tensors
        assert settled(device) == free

    def test_its_context_is_told(self, client: StageClient, device: Device) -> None:
        (row,) = client.devices()
        assert (row.device, row.ordinal) == (device.uuid, 0)
        assert (row.context_bytes, row.context_basis) == (500 * MIB, "Process")
        assert row.taken_bytes == 500 * MIB

    def test_those_who_ask_at_once_share_one_copy(
        self, path: Path, device: Device, model: Path, expected: dict[str, torch.Tensor]
    ) -> None:
        found: list[bool] = []

        def work() -> None:
            with StageClient(path) as client:
                client.hold(str(model), device.uuid)
            tensors = HeldCopy(loader.open_checkpoint(model), device, StageClient(path)).tensors()
            found.append(same(tensors["w"], expected["w"]))

        threads = [Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 4
