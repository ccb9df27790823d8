"""The stage daemon and its client, both in this process, over a real socket."""

import json
import os
import resource
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest
import safetensors.torch
import torch

import loader
from loader import DeviceUnavailable, DigestMismatch, FileChanged, LoaderError, OutOfMemory, Run, Tier
from loader.errors import CheckpointNotFound, DestinationMismatch, LoadError, StageFull, StageUnreachable
from loader.manifest import describe, render_manifest
from loader.proof import digest_source
from loader.sources.limits import read_limits
from loader.stage import wire
from loader.stage.client import StageClient, StageSource, attach, load_to_device
from loader.stage.daemon import Daemon
from loader.stage.pool import Pool

MIB = 2**20


def write_model(directory: Path, value: int = 0, mib: int = 1) -> Path:
    directory.mkdir(exist_ok=True)
    tensors = {"w": torch.arange(mib * MIB // 8) + value, "b": torch.full((3,), value, dtype=torch.bfloat16)}
    safetensors.torch.save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    for number in range(3):
        write_model(tmp_path / "models" / f"m{number}", number)
    return tmp_path / "models"


@pytest.fixture
def pool(models: Path) -> Pool:
    return Pool(int(2.5 * MIB), (str(models),))


@pytest.fixture
def socket_path(pool: Pool, tmp_path: Path) -> Iterator[Path]:
    daemon = Daemon(pool, tmp_path / "stage.sock")
    thread = Thread(target=daemon.serve)
    thread.start()
    yield tmp_path / "stage.sock"
    daemon.close()
    thread.join()


@pytest.fixture
def client(socket_path: Path) -> Iterator[StageClient]:
    with StageClient(socket_path) as made:
        yield made


def memory_files() -> int:
    """Of the daemon and its clients, which are one process here."""
    links = [link for link in Path("/proc/self/fd").iterdir() if "memfd:emberpool" in os.path.realpath(link)]
    return len({link.stat().st_ino for link in links})


def test_what_is_attached_is_the_file(client: StageClient, models: Path) -> None:
    tensors = attach(client, loader.open_checkpoint(models / "m1"))
    assert torch.equal(tensors["w"], torch.arange(MIB // 8) + 1)
    assert torch.equal(tensors["b"], torch.full((3,), 1, dtype=torch.bfloat16))


def test_writing_to_what_is_attached_changes_it_for_nobody_else(client: StageClient, models: Path) -> None:
    checkpoint = loader.open_checkpoint(models / "m1")
    attach(client, checkpoint)["w"].zero_()
    assert int(attach(client, checkpoint)["w"][1]) == 2


def test_what_is_given_out_is_sealed(client: StageClient, models: Path) -> None:
    ((descriptor, _),) = client.take(str(models / "m0")).values()
    try:
        for attack in (
            lambda: os.pwrite(descriptor, b"x", 0),
            lambda: os.ftruncate(descriptor, 10),
            lambda: os.ftruncate(descriptor, 10 * MIB),
        ):
            with pytest.raises(PermissionError):
                attack()
    finally:
        os.close(descriptor)


def test_a_load_from_the_stage_says_so(client: StageClient, models: Path) -> None:
    result = loader.load(loader.open_checkpoint(models / "m2"), run=Run(source=StageSource(client)))
    assert result.tier is Tier.STAGED
    assert torch.equal(result.tensors["w"], torch.arange(MIB // 8) + 2)


def test_one_file_is_staged_by_its_own_path(client: StageClient, models: Path) -> None:
    checkpoint = loader.open_checkpoint(models / "m1" / "model.safetensors")
    assert int(attach(client, checkpoint)["w"][0]) == 1


def test_bytes_are_copied_into_memory_that_is_handed_over(client: StageClient, models: Path) -> None:
    entry = loader.open_checkpoint(models / "m1").tensors["w"]
    target = os.memfd_create("target")
    try:
        os.ftruncate(target, entry.nbytes + 16)
        moves = [(entry.file, entry.begin, entry.nbytes, 16)]
        assert client.copy(str(models / "m1"), moves, target) == entry.nbytes
        data = torch.frombuffer(bytearray(os.pread(target, entry.nbytes, 16)), dtype=torch.int64)
    finally:
        os.close(target)
    assert torch.equal(data, torch.arange(MIB // 8) + 1)


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(("model.safetensors", 0, 100, 60), id="past the target"),
        pytest.param(("model.safetensors", 2**40, 1, 0), id="past the shard"),
        pytest.param(("../x", 0, 1, 0), id="no such shard"),
        pytest.param(("model.safetensors", -1, 1, 0), id="before the shard"),
    ],
)
def test_a_copy_that_does_not_fit_is_refused(
    client: StageClient, models: Path, move: tuple[str, int, int, int]
) -> None:
    target = os.memfd_create("target")
    try:
        os.ftruncate(target, 100)
        with pytest.raises(DestinationMismatch):
            client.copy(str(models / "m0"), [move], target)
        assert os.pread(target, 100, 0) == bytes(100)
    finally:
        os.close(target)


def test_a_target_that_is_no_memory_is_refused(client: StageClient, models: Path) -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(DestinationMismatch, match="no memory"):
            client.copy(str(models / "m0"), [("model.safetensors", 0, 1, 0)], writing)
    finally:
        os.close(reading)
        os.close(writing)


def test_the_longest_unused_checkpoint_goes_when_room_is_wanted(
    socket_path: Path, pool: Pool, models: Path
) -> None:
    for number in (0, 1, 2):
        with StageClient(socket_path) as client:
            attach(client, loader.open_checkpoint(models / f"m{number}"))
        wait_for_release(pool)
    assert [Path(status.path).name for status in pool.statuses()] == ["m1", "m2"]
    assert memory_files() == 2


def wait_for_release(pool: Pool) -> None:
    """The daemon notices a closed connection in its own time."""
    while any(status.leases for status in pool.statuses()):
        os.sched_yield()


def test_leased_checkpoints_stay_and_the_next_is_refused(client: StageClient, models: Path) -> None:
    for number in (0, 1):
        attach(client, loader.open_checkpoint(models / f"m{number}"))
    with pytest.raises(StageFull, match="don't fit"):
        attach(client, loader.open_checkpoint(models / "m2"))
    assert [status["leases"] for status in client.statuses()] == [1, 1]
    assert not client.drop(str(models / "m0"))


def test_a_checkpoint_is_dropped_on_request(
    socket_path: Path, client: StageClient, pool: Pool, models: Path
) -> None:
    with StageClient(socket_path) as other:
        attach(other, loader.open_checkpoint(models / "m0"))
    wait_for_release(pool)
    assert client.drop(str(models / "m0"))
    assert client.statuses() == []
    assert memory_files() == 0


def test_a_checkpoint_that_was_written_anew_is_staged_anew(client: StageClient, models: Path) -> None:
    old = loader.open_checkpoint(models / "m0")
    kept = attach(client, old)
    write_model(models / "m0", value=70)
    os.utime(models / "m0" / "model.safetensors", ns=(1, 1))
    assert int(attach(client, loader.open_checkpoint(models / "m0"))["w"][0]) == 70
    assert int(kept["w"][0]) == 0
    with pytest.raises(FileChanged, match="another version"):
        attach(client, old)


def test_a_manifest_is_checked_before_anything_is_given_out(client: StageClient, models: Path) -> None:
    checkpoint = loader.open_checkpoint(models / "m0")
    manifest = render_manifest(describe(checkpoint, digest_source(checkpoint)))
    (models / "m0" / "model.emberpool.json").write_text(manifest)
    attach(client, checkpoint)
    assert client.statuses()[0]["proven"] is True
    damaged = json.loads(manifest)
    damaged["tensors"]["b"] = "0" * 32
    (models / "m0" / "model.emberpool.json").write_text(json.dumps(damaged))
    client.drop(str(models / "m0"))
    pool_with_lease = client.statuses()
    assert pool_with_lease, "a leased checkpoint isn't dropped"


def test_a_wrong_tensor_is_not_staged(pool: Pool, models: Path) -> None:
    checkpoint = loader.open_checkpoint(models / "m0")
    digests = dict.fromkeys(checkpoint.tensors, "0" * 32)
    (models / "m0" / "model.emberpool.json").write_text(render_manifest(describe(checkpoint, digests)))
    with pytest.raises(DigestMismatch):
        pool.take(str(models / "m0"), 1)
    assert (pool.statuses(), memory_files()) == ([], 0)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("{models}/m9", CheckpointNotFound),
        ("{models}/../secret", CheckpointNotFound),
        ("/etc", CheckpointNotFound),
        ("{models}/m0/link", CheckpointNotFound),
    ],
)
def test_only_what_lies_below_its_directories_is_served(
    client: StageClient, models: Path, path: str, error: type[LoaderError]
) -> None:
    write_model(models.parent / "secret")
    (models / "m0" / "link").symlink_to(models.parent / "secret")
    with pytest.raises(error):
        client.take(path.format(models=models))
    assert client.statuses() == []


def test_a_broken_checkpoint_is_the_same_error_as_when_it_is_opened(
    client: StageClient, models: Path
) -> None:
    (models / "m0" / "model.safetensors").write_bytes(b"short")
    with pytest.raises(LoadError, match="no safetensors file"):
        client.take(str(models / "m0"))


def test_where_no_daemon_is(tmp_path: Path) -> None:
    with pytest.raises(StageUnreachable, match="no stage daemon answers"):
        StageClient(tmp_path / "none.sock")


def test_a_daemon_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        client = StageClient(tmp_path / "silent.sock", timeout_seconds=0.01)
        with client, pytest.raises(StageUnreachable, match="timed out"):
            client.devices()


def test_a_second_daemon_finds_out(socket_path: Path, pool: Pool) -> None:
    with pytest.raises(StageUnreachable, match="already"):
        Daemon(pool, socket_path)


@pytest.mark.parametrize("place", ["models/m0/model.safetensors/stage.sock", "s" * 120])
def test_where_no_socket_can_be_made(pool: Pool, tmp_path: Path, place: str) -> None:
    for _ in range(2):  # the first leaves no lock behind
        with pytest.raises(StageUnreachable, match=r"the socket can't be made: [A-Z]"):
            Daemon(pool, tmp_path / place)


def test_a_file_that_is_no_socket_is_left_alone(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("mine")
    with pytest.raises(StageUnreachable, match="the socket can't be made"):
        Daemon(pool, file)
    assert file.read_text() == "mine"


def test_who_speaks_otherwise_at_the_socket_is_no_stage_daemon() -> None:
    assert isinstance(wire.raised({"refused": "what is this?"}), StageUnreachable)
    assert "no stage daemon" in str(wire.raised({}))


def test_requests_that_are_none(socket_path: Path, client: StageClient) -> None:
    with pytest.raises(LoadError, match="no request"):
        client._ask({"op": "dance"})
    for garbage in (b"\xff\xff\xff\xff", (5).to_bytes(4, "big") + b"[1,2]", b"\0\0\0\2{", b"\0"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(socket_path))
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
    assert client.statuses() == []


def test_descriptors_that_nobody_asked_for_are_closed(client: StageClient, socket_path: Path) -> None:
    client.statuses()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with open("/dev/null") as null:  # noqa: PTH123 - a descriptor is wanted
            client._ask({"op": "drop", "path": "/x"}, null.fileno())
    client.statuses()  # by then the one before is done with
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_errors_come_through_with_place_and_mend() -> None:
    error = wire.raised(wire.failure(StageFull("no room", file="f", hint="more")))
    assert (type(error), str(error)) == (StageFull, "f: no room\n\nhint: more")


def test_two_clients_that_want_the_same_read_it_once(socket_path: Path, models: Path, pool: Pool) -> None:
    checkpoint = loader.open_checkpoint(models / "m0")
    found: list[int] = []

    def work() -> None:
        with StageClient(socket_path) as client:
            found.append(int(attach(client, checkpoint)["w"][5]))

    threads = [Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [5] * 6
    assert memory_files() == 1


@pytest.fixture
def gate() -> Iterator[Event]:
    """While it is shut no read ends."""
    made = Event()
    yield made
    made.set()


@pytest.fixture
def gated(models: Path, gate: Event) -> Iterator[Pool]:
    """A pool with room for two, whose reads end when the gate is opened."""

    def ready(_: torch.Tensor) -> None:
        assert gate.wait(30)

    made = Pool(int(2.5 * MIB), (str(models),), ready=ready)
    yield made
    gate.set()
    made.close()


def until_told(pool: Pool, leases: list[int]) -> None:
    while [status.leases for status in pool.statuses()] != leases:
        time.sleep(0.001)


def test_what_is_being_read_does_not_go_for_another(gated: Pool, gate: Event, models: Path) -> None:
    """It takes part of the budget, and nobody has it yet: still it must not be what goes when room is wanted."""
    with ThreadPoolExecutor(3) as threads:
        coming = [
            threads.submit(gated.take, str(models / name), holder) for holder, name in enumerate(["m0", "m1"])
        ]
        until_told(gated, [1, 1])
        with pytest.raises(StageFull):
            gated.take(str(models / "m2"), 2)
        gate.set()
        for each in coming:
            each.result(30).close()
    gated.release(0)
    gated.take(str(models / "m2"), 2).close()
    assert [Path(status.path).name for status in gated.statuses()] == ["m1", "m2"]


def test_who_waits_for_a_read_has_a_lease_as_soon_as_it_is_over(
    gated: Pool, gate: Event, models: Path
) -> None:
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(gated.take, str(models / "m0"), holder) for holder in range(2)]
        until_told(gated, [2])
        gate.set()
        both[0].result(30).close()
        assert [status.leases for status in gated.statuses()] == [2]
        both[1].result(30).close()
    gated.release(0)
    gated.release(1)
    assert gated.drop(str(models / "m0"))


def test_many_connections_at_once_are_all_answered(socket_path: Path) -> None:
    with ExitStack() as closing:
        clients = [closing.enter_context(StageClient(socket_path)) for _ in range(40)]
        for _ in range(2):
            assert [client.statuses() for client in clients] == [[]] * 40


def test_closing_leaves_no_memory_and_no_socket(tmp_path: Path, models: Path) -> None:
    pool = Pool(10 * MIB, (str(models),))
    daemon = Daemon(pool, tmp_path / "s.sock")
    thread = Thread(target=daemon.serve)
    thread.start()
    client = StageClient(tmp_path / "s.sock")
    tensors = attach(client, loader.open_checkpoint(models / "m0"))
    daemon.close()
    thread.join()
    with client, pytest.raises(StageUnreachable):
        client.statuses()
    assert not (tmp_path / "s.sock").exists()
    assert memory_files() == 0 or int(tensors["w"][1]) == 1


def test_memory_that_is_not_there_is_an_error_and_all_of_it_is_given_back(pool: Pool, models: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, before[1]))
    try:
        with pytest.raises(OutOfMemory):
            pool.take(str(models / "m0"), 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (pool.statuses(), memory_files()) == ([], 0)
    pool.take(str(models / "m0"), 1).close()
    pool.close()


@pytest.mark.skipif(
    (read_limits().locked or MIB**2) < 2 * MIB, reason="ulimit -l is too low to lock a checkpoint"
)
def test_locked_memory_is_counted_as_locked(models: Path) -> None:
    pool = Pool(10 * MIB, (str(models),), lock=True)
    pool.take(str(models / "m0"), 1).close()
    (row,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck")]
    assert int(row.split()[1]) >= 1024
    pool.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_driver_nothing_is_loaded_to_a_device(client: StageClient, models: Path) -> None:
    with pytest.raises(DeviceUnavailable, match="no CUDA driver"):
        load_to_device(client, loader.open_checkpoint(models / "m0"), torch.device("cuda", 0))


def test_a_daemon_that_was_not_asked_to_copies_to_no_device(client: StageClient, models: Path) -> None:
    target = os.memfd_create("target")
    try:
        with pytest.raises(DeviceUnavailable, match="--cuda"):
            client.copy(str(models / "m0"), [("model.safetensors", 0, 1, 0)], target, ("00", 100))
    finally:
        os.close(target)


STRANGER = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
data = b""
while part := connection.recv(4096):
    data += part
print(data[4:].decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_user_who_is_not_allowed_is_told_so_and_gets_nothing(pool: Pool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        path = Path(directory) / "stage.sock"
        daemon = Daemon(pool, path, users=frozenset({12345}))
        thread = Thread(target=daemon.serve)
        thread.start()
        try:
            command = ["/usr/bin/env", "python3", "-I", "-c", STRANGER, str(path)]
            run = subprocess.run(command, user=65534, cwd="/", stdout=subprocess.PIPE, text=True, check=True)
        finally:
            daemon.close()
            thread.join()
    assert "user 65534 may not use this stage daemon" in json.loads(run.stdout)["message"]
