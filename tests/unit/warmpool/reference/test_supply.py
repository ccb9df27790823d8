"""Where weights come from: each tier that is there, why another one isn't, and attached ones that are parked and come back."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree
from threading import Thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import loader
from loader.cuda.nvml import Basis, ContextCost
from loader.cuda.opening import Opened
from loader.cuda.port import Device
from loader.cuda.shared import allocate_shared
from loader.errors import DeviceUnavailable, DtypeUnsupported, HeldInUse, NotHeld
from loader.stage.client import StageClient
from loader.stage.daemon import Daemon
from loader.stage.device import Devices
from loader.stage.holder import Holder
from loader.stage.layout import Move
from loader.stage.pool import Pool
from tests.unit.loader.stage_device import UUID, MemoryFileDevice
from tests.unit.warmpool.reference.fixed_device import FixedDeviceContract, FixedMemoryDevice
from warmpool.reference.attached import AttachedWeights, Attachment, require_dtype
from warmpool.reference.checkpoints import make_checkpoint
from warmpool.reference.config import LlamaConfig, parse_config
from warmpool.reference.copies import FileCopy
from warmpool.reference.errors import WeightsDamaged
from warmpool.reference.handed import Chunk, left_by, moves_into
from warmpool.reference.identity import identify
from warmpool.reference.metrics import Metrics
from warmpool.reference.model import LlamaModel, weight_names, weight_shapes
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.place import Place
from warmpool.reference.runner import build
from warmpool.reference.shares import split_dimension, take_share
from warmpool.reference.startup import Startup
from warmpool.reference.supply import Supply
from warmpool.reference.weights import AnonymousMemory, FixedWeights, Weights, bytes_for

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", "tiny", seed=1)


@pytest.fixture(scope="module")
def checkpoint(path: Path) -> loader.Checkpoint:
    return loader.open_checkpoint(path)


@pytest.fixture(scope="module")
def config(checkpoint: loader.Checkpoint) -> LlamaConfig:
    return parse_config(checkpoint.config)


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "stage.sock"


class Unlinked(MemoryFileDevice):
    """A device that reaches no other one."""

    def reach(self, address: int, nbytes: int) -> None:
        raise DeviceUnavailable(f"no link leads to {nbytes} bytes at {address}")


class Neighbour(MemoryFileDevice):
    """Another device of the host."""

    uuid = UUID[::-1]

    def __init__(self, first: MemoryFileDevice) -> None:
        super().__init__()
        self._locked = first._locked  # page-locking is for all devices


@contextmanager
def daemon(path: Path, socket: Path, *, linked: bool = True) -> Iterator[None]:
    """A stage daemon with two devices."""
    cost = ContextCost(nbytes=None, basis=Basis.UNKNOWN)
    first = MemoryFileDevice() if linked else Unlinked()
    both = (first, Neighbour(first))
    devices = Devices(
        [Opened(device=device, ordinal=number, context=cost) for number, device in enumerate(both)]
    )
    holder = Holder(Pool(2**26, (str(path),), ready=devices.lock), devices, 2**26)
    serving = Daemon(holder.pool, socket, holder=holder)
    thread = Thread(target=serving.serve)
    thread.start()
    try:
        yield
    finally:
        serving.close()
        thread.join()


def stage(client: StageClient, path: Path) -> None:
    """Have a checkpoint in the daemon's memory."""
    for descriptor, _ in client.take(str(path)).values():
        os.close(descriptor)


def model_of(config: LlamaConfig, dtype: torch.dtype, weights: Weights | None = None) -> LlamaModel:
    return LlamaModel(config, device=CPU, dtype=dtype, weights=weights)


@pytest.fixture(scope="module")
def dtype(checkpoint: loader.Checkpoint) -> torch.dtype:
    """The files' own."""
    return loader.load(checkpoint).tensors["model.norm.weight"].dtype


@pytest.fixture(scope="module")
def loaded(checkpoint: loader.Checkpoint, config: LlamaConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights as files have them."""
    parameters = dict(model_of(config, dtype).parameters())
    loader.load(checkpoint.only(parameters.keys()), into=parameters)
    return parameters


class TestFixedDevice(FixedDeviceContract):
    @pytest.fixture
    def fixed(self) -> Device:
        return FixedMemoryDevice()

    @pytest.fixture
    def giver(self) -> Device:
        return MemoryFileDevice()


def test_each_weight_s_names_are_those_of_the_tensors_that_lie_in_it(config: LlamaConfig) -> None:
    model = model_of(config, torch.float32)
    parameters = model.parameters()
    assert sorted(parameters) == sorted(name for names in weight_names(config) for name in names)
    for names, shape in zip(weight_names(config), weight_shapes(config), strict=True):
        parts = [parameters[name] for name in names]
        assert sum(part.shape[0] for part in parts) == shape[0]
        ends = [part.data_ptr() + part.nbytes for part in parts]
        assert [part.data_ptr() for part in parts[1:]] == ends[:-1]


# ---------------------------------------------------------------- tiers


def supplied(supply: Supply, config: LlamaConfig, dtype: torch.dtype) -> str:
    return supply.load(model_of(config, dtype).parameters()).tier


def codes(supply: Supply) -> list[tuple[str, str]]:
    return [(each.tier, each.code) for each in supply.passed]


def test_without_a_daemon_s_socket_only_the_files_are_tried(
    checkpoint: loader.Checkpoint, config: LlamaConfig, dtype: torch.dtype
) -> None:
    supply = Supply(checkpoint.only(config.tensor_shapes()), None)
    assert supply.attach(CPU, dtype) is None
    assert supplied(supply, config, dtype) not in {"Staged", "Attached"}
    assert supply.passed == []


def test_what_is_in_the_daemon_s_memory_comes_from_there(
    path: Path, checkpoint: loader.Checkpoint, config: LlamaConfig, dtype: torch.dtype, socket: Path
) -> None:
    with daemon(path, socket):
        supply = Supply(checkpoint.only(config.tensor_shapes()), socket)
        assert supplied(supply, config, dtype) not in {"Staged", "Attached"}
        assert codes(supply) == [("Sibling", "NotHandedOver"), ("Staged", "NotStaged")]
        with StageClient(socket) as client:
            stage(client, path)
        again = Supply(checkpoint.only(config.tensor_shapes()), socket)
        assert supplied(again, config, dtype) == "Staged"
        assert codes(again) == [("Sibling", "NotHandedOver")]


def test_a_daemon_that_is_gone_is_passed_over_and_told(
    checkpoint: loader.Checkpoint, config: LlamaConfig, dtype: torch.dtype, socket: Path
) -> None:
    supply = Supply(checkpoint.only(config.tensor_shapes()), socket)
    assert supplied(supply, config, dtype) not in {"Staged", "Attached"}
    assert codes(supply) == [("Sibling", "StageUnreachable"), ("Staged", "StageUnreachable")]
    assert "no stage daemon answers" in supply.passed[0].reason


def test_on_the_cpu_weights_are_the_engine_s_own(
    checkpoint: loader.Checkpoint, dtype: torch.dtype, socket: Path
) -> None:
    supply = Supply(checkpoint, socket)
    assert supply.attach(CPU, dtype) is None
    assert codes(supply) == [("Attached", "WeightsTurned")]


def test_what_would_have_to_be_converted_can_t_be_attached_to(
    checkpoint: loader.Checkpoint, dtype: torch.dtype
) -> None:
    require_dtype(checkpoint, dtype)
    with pytest.raises(DtypeUnsupported, match="float64"):
        require_dtype(checkpoint, torch.float64)


def test_the_start_s_record_and_the_metrics_tell_what_was_passed_over(path: Path, socket: Path) -> None:
    options = ModelOptions(checkpoint=path, device="cpu", max_num_seqs=1, max_model_len=32, stage=socket)
    startup = Startup()
    build(open_model(options), options, startup)
    told = startup.as_json()["weights"]
    assert [(each["tier"], each["code"]) for each in told["passedOver"]] == [
        ("Attached", "WeightsTurned"),
        ("Sibling", "StageUnreachable"),
        ("Staged", "StageUnreachable"),
    ]
    assert all(each["reason"] for each in told["passedOver"])
    metrics = Metrics("m", 32)
    metrics.weights(told)
    page = metrics.text().decode()
    assert 'code="StageUnreachable",engine="0",model_name="m",tier="Staged"} 1.0' in page
    assert f'reference:weight_load_seconds{{engine="0",model_name="m",tier="{told["tier"]}"}}' in page


# ---------------------------------------------------------------- attached


@pytest.fixture
def held(path: Path, socket: Path) -> Iterator[Path]:
    """The socket of a daemon that holds the checkpoint on its device."""
    with daemon(path, socket):
        with StageClient(socket) as client:
            client.hold(str(path), UUID)
        yield socket


def attached(checkpoint: loader.Checkpoint, config: LlamaConfig, socket: Path) -> AttachedWeights:
    wanted = checkpoint.only([name for names in weight_names(config) for name in names])
    attachment = Attachment(wanted, FixedMemoryDevice(), socket)
    return AttachedWeights(
        attachment, weight_names(config), lambda nbytes: FixedWeights(AnonymousMemory(nbytes), FileCopy)
    )


def test_attached_weights_are_those_of_the_files_and_have_their_digest(
    checkpoint: loader.Checkpoint,
    config: LlamaConfig,
    dtype: torch.dtype,
    loaded: dict[str, Tensor],
    held: Path,
) -> None:
    weights = attached(checkpoint, config, held)
    model = model_of(config, dtype, weights)
    copied = weights.fill()
    assert weights.attached_bytes + copied == model.weights_bytes
    assert 0 < copied <= weights.taken_bytes < model.weights_bytes
    parameters = model.parameters()
    assert all(torch.equal(parameters[name], tensor) for name, tensor in loaded.items())
    assert identify(parameters) == identify(loaded)


def test_parking_lets_go_of_the_copy_and_unparking_attaches_at_the_same_addresses(
    path: Path,
    checkpoint: loader.Checkpoint,
    config: LlamaConfig,
    dtype: torch.dtype,
    loaded: dict[str, Tensor],
    held: Path,
) -> None:
    weights = attached(checkpoint, config, held)
    parameters = model_of(config, dtype, weights).parameters()
    weights.fill()
    addresses = {name: tensor.data_ptr() for name, tensor in parameters.items()}
    with StageClient(held) as client:
        for _ in range(2):
            weights.park()
            weights.park()
            assert (weights.place, weights.taken_bytes) == (Place.PARKED, 0)
            until_free(client, path)
            client.hold(str(path), UUID)  # another copy of the same files
            weights.unpark()
            weights.unpark()
            assert weights.place is Place.HELD
            assert {name: tensor.data_ptr() for name, tensor in parameters.items()} == addresses
            assert all(torch.equal(parameters[name], tensor) for name, tensor in loaded.items())


def until_free(client: StageClient, path: Path) -> None:
    """Release the copy, as soon as the daemon has noticed that nobody is attached any more."""
    while True:
        try:
            client.release(str(path), UUID)
        except HeldInUse:
            continue
        return


def test_the_daemon_s_death_takes_nothing_away_and_who_was_parked_says_that_it_can_t_come_back(
    path: Path,
    checkpoint: loader.Checkpoint,
    config: LlamaConfig,
    dtype: torch.dtype,
    loaded: dict[str, Tensor],
    socket: Path,
) -> None:
    with daemon(path, socket):
        with StageClient(socket) as client:
            client.hold(str(path), UUID)
        weights = attached(checkpoint, config, socket)
        parameters = model_of(config, dtype, weights).parameters()
        weights.fill()
    assert all(torch.equal(parameters[name], tensor) for name, tensor in loaded.items())
    weights.park()
    with pytest.raises(WeightsDamaged, match="can't be attached to again: no stage daemon answers"):
        weights.unpark()
    assert (weights.place, weights.taken_bytes) == (Place.PARKED, 0)


def test_what_isn_t_held_can_t_be_attached_to(
    path: Path, checkpoint: loader.Checkpoint, config: LlamaConfig, socket: Path
) -> None:
    with daemon(path, socket), pytest.raises(NotHeld):
        attached(checkpoint, config, socket)


# ---------------------------------------------------------------- handed over


class Lending:
    """Memory of a device that its owner maps, and the daemon may fill."""

    uuid = UUID
    refused = ""

    def __init__(self, nbytes: int) -> None:
        self.exported = allocate_shared(MemoryFileDevice(), nbytes)
        address = self.exported.data.data_ptr()
        self.chunks = [Chunk(address, self.exported.nbytes, self.exported.descriptor)]
        self.nbytes = self.taken_bytes = nbytes

    def take(self, _grown: object) -> Tensor:
        return self.exported.data

    def give_back(self) -> None:
        raise AssertionError("nobody parks here")

    def stop_sharing(self) -> None:
        for chunk in self.chunks:
            os.close(chunk.descriptor)
        self.chunks = []


def test_the_daemon_fills_memory_that_is_handed_over_and_its_descriptors_are_closed(
    path: Path,
    checkpoint: loader.Checkpoint,
    config: LlamaConfig,
    dtype: torch.dtype,
    loaded: dict[str, Tensor],
    socket: Path,
) -> None:
    home = Lending(bytes_for(weight_shapes(config), dtype))
    parameters = model_of(config, dtype, FixedWeights(home, FileCopy)).parameters()
    with daemon(path, socket):
        with StageClient(socket) as client:
            stage(client, path)
        supply = Supply(checkpoint.only(parameters.keys()), socket, home)
        found = supply.load(parameters)
    assert (found.tier, dict(found.steps)) == ("Staged", {"Copy": found.seconds})
    assert codes(supply) == [("Sibling", "NoSibling")]
    assert all(torch.equal(parameters[name], tensor) for name, tensor in loaded.items())
    assert home.chunks == []


def test_with_a_cap_the_engine_reads_the_daemon_s_memory_itself_and_no_faster(
    path: Path,
    checkpoint: loader.Checkpoint,
    config: LlamaConfig,
    dtype: torch.dtype,
    loaded: dict[str, Tensor],
    socket: Path,
) -> None:
    """The daemon would copy as fast as it can, whoever serves beside it."""
    home = Lending(bytes_for(weight_shapes(config), dtype))
    parameters = model_of(config, dtype, FixedWeights(home, FileCopy)).parameters()
    nbytes = sum(entry.nbytes for entry in checkpoint.tensors.values())
    with daemon(path, socket):
        with StageClient(socket) as client:
            stage(client, path)
        wanted = checkpoint.only(parameters.keys())
        supply = Supply(wanted, socket, home, bytes_per_second=4.0 * nbytes)
        found = supply.load(parameters)
    assert (found.tier, codes(supply)) == ("Staged", [("Sibling", "NoSibling")])
    assert set(found.steps) > {"Copy"}
    assert all(torch.equal(parameters[name], tensor) for name, tensor in loaded.items())
    assert home.chunks == []


def test_where_the_daemon_can_t_fill_it_the_engine_copies_by_itself_and_says_so(
    path: Path,
    checkpoint: loader.Checkpoint,
    config: LlamaConfig,
    loaded: dict[str, Tensor],
    socket: Path,
) -> None:
    home = Lending(bytes_for(weight_shapes(config), torch.float32))
    parameters = model_of(config, torch.float32, FixedWeights(home, FileCopy)).parameters()
    with daemon(path, socket):
        with StageClient(socket) as client:
            stage(client, path)
        supply = Supply(checkpoint.only(parameters.keys()), socket, home)
        assert supply.load(parameters).tier == "Staged"
    assert codes(supply) == [("Sibling", "NoSibling"), ("Staged", "DtypeUnsupported")]
    assert all(torch.equal(parameters[name], tensor.float()) for name, tensor in loaded.items())
    assert home.chunks == []


def test_a_driver_that_gives_out_no_memory_is_told(
    path: Path, checkpoint: loader.Checkpoint, config: LlamaConfig, dtype: torch.dtype, socket: Path
) -> None:
    home = Lending(bytes_for(weight_shapes(config), dtype))
    home.refused = "no descriptors"
    parameters = model_of(config, dtype, FixedWeights(home, FileCopy)).parameters()
    with daemon(path, socket):
        with StageClient(socket) as client:
            stage(client, path)
        supply = Supply(checkpoint.only(parameters.keys()), socket, home)
        assert supply.load(parameters).tier == "Staged"
    assert codes(supply) == [("Sibling", "NoSibling"), ("Staged", "DeviceUnavailable")]


# ---------------------------------------------------------------- siblings


def lent(config: LlamaConfig, dtype: torch.dtype) -> tuple[Lending, dict[str, Tensor]]:
    """Memory for a model's weights that can be handed over, and the weights."""
    home = Lending(bytes_for(weight_shapes(config), dtype))
    return home, dict(model_of(config, dtype, FixedWeights(home, FileCopy)).parameters())


def test_what_another_device_holds_is_copied_from_there(
    path: Path,
    checkpoint: loader.Checkpoint,
    config: LlamaConfig,
    dtype: torch.dtype,
    loaded: dict[str, Tensor],
    socket: Path,
) -> None:
    home, parameters = lent(config, dtype)
    with daemon(path, socket):
        with StageClient(socket) as client:
            client.hold(str(path), Neighbour.uuid)
        supply = Supply(checkpoint.only(parameters.keys()), socket, home)
        found = supply.load(parameters)
    assert (found.tier, dict(found.steps), supply.passed) == ("Sibling", {"Copy": found.seconds}, [])
    assert all(torch.equal(parameters[name], tensor) for name, tensor in loaded.items())
    assert home.chunks == []


def test_one_rank_s_parts_come_from_another_device_and_those_that_lie_apart_from_elsewhere(
    path: Path,
    checkpoint: loader.Checkpoint,
    config: LlamaConfig,
    dtype: torch.dtype,
    loaded: dict[str, Tensor],
    socket: Path,
) -> None:
    home, parameters = lent(config.share(2), dtype)
    with daemon(path, socket):
        with StageClient(socket) as client:
            client.hold(str(path), Neighbour.uuid)
        supply = Supply(take_share(checkpoint.only(parameters.keys()), config, 1, 2), socket, home)
        found = supply.load(parameters)
    assert (found.tier, sorted(found.steps)) == ("Sibling", ["Apart", "Copy"])
    for name, tensor in loaded.items():
        dim = split_dimension(name)
        part = tensor if dim is None else tensor.chunk(2, dim)[1]
        assert torch.equal(parameters[name], part), name


def test_a_sibling_that_no_link_leads_to_is_passed_over_with_its_reason(
    path: Path,
    checkpoint: loader.Checkpoint,
    config: LlamaConfig,
    dtype: torch.dtype,
    loaded: dict[str, Tensor],
    socket: Path,
) -> None:
    home, parameters = lent(config, dtype)
    with daemon(path, socket, linked=False):
        with StageClient(socket) as client:
            client.hold(str(path), Neighbour.uuid)
        supply = Supply(checkpoint.only(parameters.keys()), socket, home)
        assert supply.load(parameters).tier == "Staged"
    assert codes(supply) == [("Sibling", "DeviceUnavailable")]
    assert "no link leads to" in supply.passed[0].reason
    assert all(torch.equal(parameters[name], tensor) for name, tensor in loaded.items())


def test_a_sibling_with_another_version_of_the_files_is_passed_over(
    path: Path,
    checkpoint: loader.Checkpoint,
    config: LlamaConfig,
    dtype: torch.dtype,
    socket: Path,
    tmp_path: Path,
) -> None:
    copy = tmp_path / "copy"
    copytree(path, copy)
    home, parameters = lent(config, dtype)
    with daemon(copy, socket):
        with StageClient(socket) as client:
            client.hold(str(copy), Neighbour.uuid)
            client.drop(str(copy))
        for file in copy.glob("*.safetensors"):
            os.utime(file, ns=(1, 1))
        supply = Supply(loader.open_checkpoint(copy).only(parameters.keys()), socket, home)
        supply.load(parameters)
    assert codes(supply) == [("Sibling", "FileChanged"), ("Staged", "NotStaged")]


def test_attached_weights_of_one_rank_are_its_parts_and_come_back_after_parking(
    checkpoint: loader.Checkpoint,
    config: LlamaConfig,
    dtype: torch.dtype,
    loaded: dict[str, Tensor],
    held: Path,
) -> None:
    wanted = take_share(checkpoint.only(config.tensor_shapes()), config, 1, 2)
    weights = AttachedWeights(
        Attachment(wanted, FixedMemoryDevice(), held),
        weight_names(config),
        lambda nbytes: FixedWeights(AnonymousMemory(nbytes), FileCopy),
    )
    parameters = model_of(config.share(2), dtype, weights).parameters()
    weights.fill()
    for _ in range(2):
        for name, tensor in loaded.items():
            dim = split_dimension(name)
            part = tensor if dim is None else tensor.chunk(2, dim)[1]
            assert torch.equal(parameters[name], part), name
        weights.park()
        weights.unpark()


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    moves=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30), st.integers(0, 30)), max_size=6),
)
def test_chunks_together_get_every_byte_once(sizes: list[int], moves: list[tuple[int, int, int]]) -> None:
    begins = [sum(sizes[:count]) for count in range(len(sizes))]
    chunks = [Chunk(begin, size, -1) for begin, size in zip(begins, sizes, strict=True)]
    left: list[Move] = [("f", begin, nbytes, address) for begin, nbytes, address in moves]
    wanted = bytes_of(left)
    got = Counter[tuple[int, int]]()
    for chunk in chunks:
        inside = [
            (f, begin, size, chunk.address + offset) for f, begin, size, offset in moves_into(chunk, left)
        ]
        assert all(chunk.address <= to < chunk.address + chunk.nbytes for _, to in bytes_of(inside))
        got += bytes_of(inside)
        left = list(left_by(chunk, left))
    assert got + bytes_of(left) == wanted
    assert not [to for _, to in bytes_of(left) if to < sum(sizes)]


def bytes_of(moves: Iterable[Move]) -> Counter[tuple[int, int]]:
    """Each byte that is copied: from where, and where to."""
    return Counter((begin + n, to + n) for _, begin, size, to in moves for n in range(size))
