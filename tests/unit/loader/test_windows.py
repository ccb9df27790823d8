"""The C part: what it reads, where it queues copies to, and what it says of failures. The driver's functions are Python's here."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.copiers.windows import Driver, Room, Stretch, Windows, open_windows
from loader.errors import LoadError

PAGE = 4096
WINDOW = 2 * PAGE
NOT_READY = 600

pytestmark = pytest.mark.skipif(open_windows() is None, reason="the C part isn't built: no C compiler")

Lock = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
CopyTo = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
Record = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
Query = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Device:
    """Memory of the host as the device's, copied to at once; it answers with the codes that it is given."""

    def __init__(self) -> None:
        self.lock_code = self.copy_code = self.record_code = 0
        self.pending: dict[int, int] = {}  # times that an event is not ready yet
        self.locked: list[int] = []
        self.copies = 0
        self.calls: list[str] = []
        self._functions = (
            Lock(self._lock),
            CopyTo(self._copy),
            Record(self._record),
            Query(self._query),
        )
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]
        self.driver = Driver(*addresses, 7)

    def _lock(self, memory: int, nbytes: int, flags: int) -> int:
        assert (nbytes, flags) == (WINDOW, 1)
        self.locked.append(memory)
        return self.lock_code

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> int:
        assert stream == 7
        self.copies += 1
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
        return 0


class Way:
    """One thread's way from a file into a buffer."""

    def __init__(self, slots: int = 2) -> None:
        self.device = Device()
        self._memory = [ctypes.create_string_buffer(WINDOW) for _ in range(slots)]
        rooms = [Room(ctypes.addressof(each), WINDOW, 1 + n, False) for n, each in enumerate(self._memory)]
        self.windows = Windows(self.device.driver, rooms, WINDOW)
        self.missing: list[int] = []

    def bring(self, stretch: Stretch, repair: Callable[[int], None] = lambda _: None) -> None:
        def read_again(begin: int) -> None:
            self.missing.append(begin)
            repair(begin)

        self.windows.bring(stretch, read_again)


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
    sizes=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 3 * WINDOW)), min_size=1, max_size=6),
)
def test_every_byte_arrives_where_it_belongs(
    tmp_path_factory: pytest.TempPathFactory, begin: int, sizes: list[tuple[int, int]]
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
    way = Way()
    with opened(tmp_path_factory.mktemp("w") / "f", data) as descriptor:
        way.bring(Stretch(descriptor, begin, nbytes, copies))
    assert memory.raw == expected + bytes(16)


def test_all_slots_are_locked_once_and_used_in_turns(tmp_path: Path) -> None:
    way = Way(slots=2)
    memory, address = target(4 * WINDOW)
    with opened(tmp_path / "f", bytes(4 * WINDOW)) as descriptor:
        stretch = Stretch(descriptor, 0, 4 * WINDOW, [(address, 0, 4 * WINDOW)])
        way.bring(stretch)
        way.bring(stretch)
    assert len(way.device.locked) == 2
    assert way.windows.locked == [True, True]
    assert [call for call in way.device.calls if call.startswith("record")] == ["record 1", "record 2"] * 4
    assert len(memory) == 4 * WINDOW


def test_a_slot_is_read_into_once_its_copy_is_done(tmp_path: Path) -> None:
    way = Way(slots=1)
    way.device.pending[1] = 3
    _, address = target(WINDOW)
    with opened(tmp_path / "f", bytes(WINDOW)) as descriptor:
        way.bring(Stretch(descriptor, 0, WINDOW, [(address, 0, WINDOW)]))
    assert way.device.pending[1] == 0
    assert way.device.calls == ["ready 1", "copy", "record 1"]


def test_windows_end_on_pages(tmp_path: Path) -> None:
    way = Way()
    memory, address = target(2 * WINDOW)
    with opened(tmp_path / "f", os.urandom(100 + 2 * WINDOW)) as descriptor:
        way.bring(Stretch(descriptor, 100, 2 * WINDOW, [(address, 100, 2 * WINDOW)]))
    assert way.device.copies == 3  # 100 to 8192, to 16384, and 100 bytes more
    assert len(memory) == 2 * WINDOW


def test_a_file_that_ends_too_early_is_explained_by_who_reads_again(tmp_path: Path) -> None:
    class Short(Exception):
        pass

    def explain(_: int) -> None:
        raise Short

    way = Way()
    _, address = target(3 * WINDOW)
    with opened(tmp_path / "f", bytes(WINDOW + 10)) as descriptor, pytest.raises(Short):
        way.bring(Stretch(descriptor, 0, 3 * WINDOW, [(address, 0, 3 * WINDOW)]), explain)
    assert way.missing == [WINDOW]


def test_a_read_that_fails_once_is_done_again_and_the_rest_follows(tmp_path: Path) -> None:
    data = os.urandom(3 * WINDOW)
    whole = tmp_path / "whole"
    whole.write_bytes(data)
    way = Way()
    memory, address = target(3 * WINDOW)
    with opened(tmp_path / "f", data[:WINDOW]) as descriptor:

        def repair(_: int) -> None:
            good = os.open(whole, os.O_RDONLY)
            os.dup2(good, descriptor)
            os.close(good)

        way.bring(Stretch(descriptor, 0, 3 * WINDOW, [(address, 0, 3 * WINDOW)]), repair)
    assert way.missing == [WINDOW]
    assert memory.raw == data


def test_a_read_that_fails_here_and_never_in_python_is_an_error(tmp_path: Path) -> None:
    way = Way()
    _, address = target(WINDOW)
    with opened(tmp_path / "f", b""):
        pass
    reader, writer = os.pipe()  # can't be read at an offset
    try:
        with pytest.raises(LoadError, match="byte 0 of a shard can't be read"):
            way.bring(Stretch(reader, 0, WINDOW, [(address, 0, WINDOW)]))
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        ("lock_code", "refuses to page-lock 8192 bytes .cudaError 2"),
        ("copy_code", "CUDA error 2"),
        ("record_code", "CUDA error 2"),
    ],
)
def test_what_the_driver_refuses(tmp_path: Path, refused: str, text: str) -> None:
    way = Way()
    setattr(way.device, refused, 2)
    _, address = target(WINDOW)
    with opened(tmp_path / "f", bytes(WINDOW)) as descriptor, pytest.raises(LoadError, match=text):
        way.bring(Stretch(descriptor, 0, WINDOW, [(address, 0, WINDOW)]))


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
