"""The C part: what it reads, where it queues copies to, and what it says of failures. The driver's functions are Python's here."""

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.copiers.windows import Driver, Room, Stretch, Team, open_windows
from loader.errors import LoadError

PAGE = 4096
WINDOW = 2 * PAGE
BLOCK = 2 * WINDOW
NOT_READY = 600

pytestmark = pytest.mark.skipif(open_windows() is None, reason="the C part isn't built: no C compiler")

Enter = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
Lock = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
CopyTo = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
Record = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
Query = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Device:
    """Memory of the host as the device's, copied to at once; it answers with the codes that it is given."""

    def __init__(self) -> None:
        self.enter_code = self.lock_code = self.copy_code = self.record_code = self.query_code = 0
        self.pending: dict[int, int] = {}  # times that an event is not ready yet
        self.locked: list[int] = []
        self.copies: list[int] = []  # bytes of each
        self.calls: list[str] = []
        self.entered = 0
        self._functions = (
            Enter(self._enter),
            Lock(self._lock),
            CopyTo(self._copy),
            Record(self._record),
            Query(self._query),
        )
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]
        self.driver = Driver(*addresses, 5, 7)

    def _enter(self, context: int) -> int:
        assert context == 5
        self.entered += 1
        return self.enter_code

    def _lock(self, memory: int, nbytes: int, flags: int) -> int:
        assert (nbytes, flags) == (BLOCK, 1)
        self.locked.append(memory)
        return self.lock_code

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> int:
        assert stream == 7
        self.copies.append(nbytes)
        self.calls.append("copy")
        if not self.copy_code:
            ctypes.memmove(target, source, nbytes)
        return self.copy_code

    def _record(self, event: int, stream: int) -> int:
        assert stream == 7
        self.calls.append(f"record {event}")
        return self.record_code

    def _query(self, event: int) -> int:
        left = self.pending.get(event, 0)
        if left:
            self.pending[event] = left - 1
            return NOT_READY
        self.calls.append(f"ready {event}")
        return self.query_code


class Way:
    """A team's way from a file into a buffer."""

    def __init__(self, device: Device, team: Team) -> None:
        self.device = device
        self.team = team
        self.missing: list[int] = []

    def bring(self, stretch: Stretch, repair: Callable[[int], None] = lambda _: None) -> None:
        def read_again(begin: int) -> None:
            self.missing.append(begin)
            repair(begin)

        self.team.bring(stretch, read_again)


@contextmanager
def way(readers: int = 1, slots: int = 2, device: Device | None = None) -> Iterator[Way]:
    """Slots of two windows each, and readers for them."""
    device = device or Device()
    memory = [mmap.mmap(-1, BLOCK) for _ in range(slots)]
    held = [ctypes.c_char.from_buffer(each) for each in memory]
    rooms = [Room(ctypes.addressof(each), BLOCK, 1 + number, False) for number, each in enumerate(held)]
    with Team(device.driver, rooms, readers, WINDOW) as team:
        yield Way(device, team)


@contextmanager
def opened(path: Path, data: bytes) -> Iterator[int]:
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def target(nbytes: int) -> tuple[ctypes.Array[ctypes.c_char], int]:
    memory = ctypes.create_string_buffer(nbytes)
    return memory, ctypes.addressof(memory)


@given(
    begin=st.integers(0, 3 * PAGE),
    sizes=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 3 * BLOCK)), min_size=1, max_size=6),
    readers=st.integers(1, 5),
    slots=st.integers(1, 3),
)
def test_every_byte_arrives_where_it_belongs(
    tmp_path_factory: pytest.TempPathFactory,
    begin: int,
    sizes: list[tuple[int, int]],
    readers: int,
    slots: int,
) -> None:
    nbytes = sum(gap + size for gap, size in sizes)
    data = os.urandom(begin + nbytes)
    memory, address = target(sum(size for _, size in sizes) + 16)
    copies, position, used, expected = [], begin, 0, b""
    for gap, size in sizes:
        position += gap
        copies.append((address + used, position, size))
        expected += data[position : position + size]
        position += size
        used += size
    with (
        way(readers, slots) as along,
        opened(tmp_path_factory.mktemp("w") / "f", data) as descriptor,
    ):
        along.bring(Stretch(descriptor, begin, nbytes, copies))
    assert memory.raw == expected + bytes(16)


@pytest.mark.parametrize("readers", [1, 4])
def test_all_slots_are_locked_once_and_used_in_turns(tmp_path: Path, readers: int) -> None:
    memory, address = target(3 * BLOCK)
    with way(readers) as along, opened(tmp_path / "f", bytes(3 * BLOCK)) as descriptor:
        stretch = Stretch(descriptor, 0, 3 * BLOCK, [(address, 0, 3 * BLOCK)])
        along.bring(stretch)
        along.bring(stretch)
        assert len(along.device.locked) == 2
        assert along.team.locked == [True, True]
        assert sorted(call for call in along.device.calls if call.startswith("record")) == [
            *["record 1"] * 3,
            *["record 2"] * 3,
        ]
    assert len(memory) == 3 * BLOCK


def test_a_block_is_copied_at_once_and_ends_on_a_page(tmp_path: Path) -> None:
    memory, address = target(2 * BLOCK)
    with way(readers=3) as along, opened(tmp_path / "f", os.urandom(100 + 2 * BLOCK)) as descriptor:
        along.bring(Stretch(descriptor, 100, 2 * BLOCK, [(address, 100, 2 * BLOCK)]))
        assert sorted(along.device.copies) == [100, BLOCK - 100, BLOCK]
    assert len(memory) == 2 * BLOCK


def test_a_slot_is_read_into_once_its_copy_is_done(tmp_path: Path) -> None:
    _, address = target(WINDOW)
    device = Device()
    device.pending[1] = 3
    with way(slots=1, device=device) as along, opened(tmp_path / "f", bytes(WINDOW)) as descriptor:
        along.bring(Stretch(descriptor, 0, WINDOW, [(address, 0, WINDOW)]))
    assert device.pending[1] == 0
    assert device.calls == ["ready 1", "copy", "record 1"]


def test_every_reader_enters_the_context(tmp_path: Path) -> None:
    _, address = target(WINDOW)
    with way(readers=3) as along, opened(tmp_path / "f", bytes(WINDOW)) as descriptor:
        along.bring(Stretch(descriptor, 0, WINDOW, [(address, 0, WINDOW)]))
        assert along.device.entered == 3


@pytest.mark.parametrize("readers", [1, 4])
def test_a_file_that_ends_too_early_is_explained_by_who_reads_again(tmp_path: Path, readers: int) -> None:
    class Short(Exception):
        pass

    def explain(_: int) -> None:
        raise Short

    _, address = target(3 * BLOCK)
    with way(readers) as along, opened(tmp_path / "f", bytes(WINDOW + 10)) as descriptor:
        stretch = Stretch(descriptor, 0, 3 * BLOCK, [(address, 0, 3 * BLOCK)])
        with pytest.raises(Short):
            along.bring(stretch, explain)
        assert along.missing == [WINDOW]


@pytest.mark.parametrize("readers", [1, 4])
@pytest.mark.parametrize("good", [WINDOW, BLOCK, BLOCK + WINDOW, 3 * BLOCK + 5])
def test_a_read_that_fails_once_is_done_again_and_the_rest_follows(
    tmp_path: Path, readers: int, good: int
) -> None:
    data = os.urandom(5 * BLOCK)
    whole = tmp_path / "whole"
    whole.write_bytes(data)
    memory, address = target(5 * BLOCK)
    with way(readers) as along, opened(tmp_path / "f", data[:good]) as descriptor:

        def repair(_: int) -> None:
            mended = os.open(whole, os.O_RDONLY)
            os.dup2(mended, descriptor)
            os.close(mended)

        along.bring(Stretch(descriptor, 0, 5 * BLOCK, [(address, 0, 5 * BLOCK)]), repair)
        assert along.missing == [good // WINDOW * WINDOW]
    assert memory.raw == data


@pytest.mark.parametrize("readers", [1, 4])
def test_a_read_that_fails_here_and_never_in_python_is_an_error(readers: int) -> None:
    _, address = target(BLOCK)
    reader, writer = os.pipe()  # can't be read at an offset
    try:
        with way(readers) as along, pytest.raises(LoadError, match="byte 0 of a shard can't be read"):
            along.bring(Stretch(reader, 0, BLOCK, [(address, 0, BLOCK)]))
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("readers", [1, 4])
@pytest.mark.parametrize(
    ("refused", "text"),
    [
        ("enter_code", "CUDA error 2"),
        ("lock_code", "refuses to page-lock 16384 bytes .cudaError 2"),
        ("copy_code", "CUDA error 2"),
        ("record_code", "CUDA error 2"),
        ("query_code", "CUDA error 2"),
    ],
)
def test_what_the_driver_refuses(tmp_path: Path, refused: str, text: str, readers: int) -> None:
    device = Device()
    setattr(device, refused, 2)
    _, address = target(5 * BLOCK)
    with (
        way(readers, device=device) as along,
        opened(tmp_path / "f", bytes(5 * BLOCK)) as descriptor,
        pytest.raises(LoadError, match=text),
    ):
        along.bring(Stretch(descriptor, 0, 5 * BLOCK, [(address, 0, 5 * BLOCK)]))


def test_a_team_that_was_refused_ends(tmp_path: Path) -> None:
    threads = Path("/proc/self/task")
    before = set(threads.iterdir())
    with way(readers=4) as along, opened(tmp_path / "f", b"") as descriptor, pytest.raises(LoadError):
        along.bring(Stretch(descriptor, 0, BLOCK, [(target(BLOCK)[1], 0, BLOCK)]))
    assert set(threads.iterdir()) <= before


def test_without_a_compiler_building_says_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loader.native"],
        env={**os.environ, "CC": "no-such-compiler"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "no C compiler no-such-compiler" in done.stderr
    assert "hint:" in done.stderr
