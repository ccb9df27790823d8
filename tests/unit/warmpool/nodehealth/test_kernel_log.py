"""Reading the kernel's log: a pipe that keeps records apart stands for it, as /dev/kmsg does, and /dev/kmsg where it may be read."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from warmpool.nodehealth.kernel_log import KMSG, KernelLog
from warmpool.nodehealth.kmsg import KernelXid

WAIT_SECONDS = 10.0


def record(sequence: int, xid: int = 79) -> bytes:
    return f"4,{sequence},1000000,-;NVRM: Xid (PCI:0000:3b:00): {xid}, text\n".encode()


class Pipe:
    """A log that the test writes."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
        self.path = Path(f"/proc/self/fd/{self._read}")
        self.told: list[KernelXid] = []
        self.log = KernelLog(self.path, self.told.append)

    def write(self, *records: bytes) -> None:
        for each in records:
            os.write(self._write, each)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)

    async def until(self, found: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not found():
                await asyncio.sleep(0.001)


@asynccontextmanager
async def reading(pipe: Pipe, *, after: int | None) -> AsyncIterator[Pipe]:
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(pipe.log.run(after=after))
        try:
            yield pipe
        finally:
            run.cancel()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


async def test_errors_are_told_as_they_come(pipe: Pipe) -> None:
    pipe.write(record(5))
    async with reading(pipe, after=-1):
        await pipe.until(lambda: len(pipe.told) == 1)
        pipe.write(b"6,6,1,-;something else\n", record(7, 13), b"no record\n")
        await pipe.until(lambda: len(pipe.told) == 2)
    assert [(each.sequence, each.xid) for each in pipe.told] == [(5, 79), (7, 13)]
    assert (pipe.log.sequence, pipe.log.reason) == (7, "")


async def test_what_was_read_before_is_not_told_again(pipe: Pipe) -> None:
    pipe.write(record(5), record(6), record(7))
    async with reading(pipe, after=6):
        await pipe.until(lambda: bool(pipe.told))
    assert [each.sequence for each in pipe.told] == [7]


async def test_who_reads_for_the_first_time_begins_with_what_comes_next(pipe: Pipe) -> None:
    pipe.write(record(5), record(6))
    async with reading(pipe, after=None):
        await pipe.until(lambda: pipe.log.sequence == 6)
        pipe.write(record(7))
        await pipe.until(lambda: bool(pipe.told))
    assert [each.sequence for each in pipe.told] == [7]


async def test_a_flood_lets_the_loop_have_its_turn(pipe: Pipe) -> None:
    turns = 0

    async def writer() -> None:
        nonlocal turns
        for sequence in range(5000):
            while True:
                try:
                    pipe.write(record(sequence))
                    break
                except BlockingIOError:
                    turns += 1
                    await asyncio.sleep(0)

    async with reading(pipe, after=-1):
        await writer()
        await pipe.until(lambda: len(pipe.told) == 5000)
    assert turns > 0


async def test_a_log_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "none", lambda _: None)
    await log.run(after=None)
    assert log.reason == f"{tmp_path}/none can't be read: {os.strerror(errno.ENOENT)}"


async def test_a_file_that_is_no_log_is_said(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(record(1))
    log = KernelLog(path, lambda _: None)
    await log.run(after=-1)
    assert "can't be read" in log.reason


async def test_the_kernels_own_log_is_read_where_it_may_be() -> None:
    try:
        os.close(os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"{KMSG} can't be read: {error}")
    log = KernelLog(KMSG, lambda _: None)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(log.run(after=-1))
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while log.sequence < 0 and not log.reason.startswith(str(KMSG)):
                    await asyncio.sleep(0.001)
        finally:
            run.cancel()
    assert log.sequence >= 0 or "can't be read" in log.reason
