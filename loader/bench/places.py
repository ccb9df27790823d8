"""Where files to measure with lie: in tmpfs, in the page cache, or on the disk alone."""

import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loader.bench.fresh import Facts
from loader.sources.tier import file_system, read_mount_table

_READ_BYTES = 16 * 2**20
_THREADS = 8
_SPARE_BYTES = 2**28
_GROWTH_BYTES = 2**30


class NoRoom(Exception):
    """A place can't hold the files; the text says which and why."""


def warm(files: Sequence[str]) -> None:
    """Bring files into the page cache."""
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(_read_through, files))


def settle(files: Sequence[str]) -> None:
    """Have files written to the disk, so that nothing is written while they are read."""
    for file in files:
        with Path(file).open("rb") as opened:
            os.fsync(opened.fileno())


def evict(files: Sequence[str]) -> None:
    """Take files out of the page cache, as far as nobody else uses them."""
    settle(files)
    for file in files:
        with Path(file).open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_through(file: str) -> None:
    buffer = bytearray(_READ_BYTES)
    with Path(file).open("rb", buffering=0) as opened:
        while opened.readinto(buffer):
            pass


@contextmanager
def folder(directory: Path, nbytes: int) -> Iterator[Path]:
    """A new folder in a directory that has room for so much; gone afterwards.

    Raises:
        NoRoom: it hasn't.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _check_room(directory, nbytes)
    made = Path(tempfile.mkdtemp(prefix="loader-bench-", dir=directory))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def memory_folder(directory: Path, nbytes: int) -> Iterator[Path]:
    """The same in memory: in this tmpfs, or in one that is mounted for it where this one is too small and root asks.

    A tmpfs is half as large as memory was when the machine started, and some machines get more of that only later.

    Raises:
        NoRoom: there is none, and none could be mounted.
    """
    with ExitStack() as closing:
        try:
            if kind(directory) not in {"tmpfs", "ramfs"}:
                raise NoRoom(f"{directory} is no tmpfs")
            made = closing.enter_context(folder(directory, nbytes))
        except NoRoom as error:
            if os.geteuid():
                raise
            made = closing.enter_context(_mounted(nbytes, f"{error}, and none could be mounted"))
        yield made


@contextmanager
def huge_folder(nbytes: int) -> Iterator[Path]:
    """The same in a tmpfs whose files come in pages of 2 MiB where the kernel has them, which is mounted for it.

    Raises:
        NoRoom: it couldn't be, as for anybody but root.
    """
    with _mounted(nbytes, "no tmpfs with huge=always could be mounted", "huge=always") as point:
        yield point


@contextmanager
def _mounted(nbytes: int, refused: str, *more: str) -> Iterator[Path]:
    point = Path(tempfile.mkdtemp(prefix="loader-bench-"))
    try:
        options = ",".join((f"size={nbytes + 2 * _SPARE_BYTES}", *more))
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise NoRoom(f"{refused}: {run.stderr.strip()}")
        try:
            yield point
        finally:
            subprocess.run(["umount", str(point)], check=False)  # noqa: S607 - whichever the system has
    finally:
        point.rmdir()


def kind(directory: Path) -> str:
    """The type of file system that a directory is on, or will be."""
    return file_system(read_mount_table(), os.path.realpath(directory))


def _check_room(directory: Path, nbytes: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < nbytes + _SPARE_BYTES:
        raise NoRoom(f"{directory} has {free / 1e9:.1f} GB free and {nbytes / 1e9:.1f} GB are needed")


def grow_memory(nbytes: int) -> Facts:
    """Use so much memory once, and let go of it: for machines that get their memory only as it is used.

    For a process of its own, since too much of it ends that.
    """
    count = max(1, nbytes // _GROWTH_BYTES)
    pieces = [mmap.mmap(-1, _GROWTH_BYTES) for _ in range(count)]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(_touch, pieces))
    return {"bytes": count * _GROWTH_BYTES}


def _touch(piece: mmap.mmap) -> None:
    with Path("/dev/zero").open("rb", buffering=0) as zeros:  # a read lets other threads run meanwhile
        zeros.readinto(piece)


def machine() -> Facts:
    """What the figures depend on besides the device."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory": _line("/proc/meminfo"),
        "kernel": os.uname().release,
        "hugePages": _line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "sharedHugePages": _line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
    }


def _line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()[0]
    except (OSError, IndexError):
        return ""
