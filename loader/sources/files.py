"""Checkpoints in a file system: opened with bounded reads, then read with `preadv` under a watch for changes."""

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from loader.checkpoint import (
    CONFIG_FILE,
    INDEX_FILE,
    Checkpoint,
    FileIdentity,
    Shard,
    assemble,
    parse_config,
    parse_index,
    refuse_format,
    select_shards,
)
from loader.errors import (
    CheckpointError,
    CheckpointNotFound,
    ConfigInvalid,
    FileChanged,
    FormatUnsupported,
    IndexInvalid,
    ReadFailed,
    ShortRead,
)
from loader.header import MAX_HEADER_BYTES, PREFIX_BYTES, header_length, parse_header

_MAX_CONFIG_BYTES = 16 * 2**20
_MAX_INDEX_BYTES = MAX_HEADER_BYTES
# O_NONBLOCK so that opening a FIFO that somebody named like a shard doesn't wait for a writer.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read and check everything about a checkpoint but its payload.

    Args:
        path: a directory (its index, else ``model.safetensors``, else the only file or a complete numbered set
            decides), or one safetensors file of any name.

    Raises:
        CheckpointError: the checkpoint is not usable; the subclass says why.
        ReadFailed: the operating system refuses to read it.
    """
    location = Path(path).absolute()
    if location.is_dir():
        return _open_directory(str(location))
    refuse_format(str(location))
    root = str(location.parent)
    return assemble([_open_shard(root, location.name)], root=root)


def _open_directory(root: str) -> Checkpoint:
    try:
        # is_file follows links, so a dangling one in a model cache counts as the missing shard that it is.
        with os.scandir(root) as entries:
            present = frozenset(entry.name for entry in entries if entry.is_file())
    except OSError as error:
        raise _read_failed(root, error) from error
    index = None
    if INDEX_FILE in present:
        file = f"{root}/{INDEX_FILE}"
        index = parse_index(_read_document(file, _MAX_INDEX_BYTES, IndexInvalid), file=file)
    files = select_shards(present, index, root=root)
    config: Mapping[str, object] | None = None
    if CONFIG_FILE in present:
        file = f"{root}/{CONFIG_FILE}"
        config = parse_config(_read_document(file, _MAX_CONFIG_BYTES, ConfigInvalid), file=file)
    return assemble([_open_shard(root, file) for file in files], root=root, index=index, config=config)


def _open_shard(root: str, file: str) -> Shard:
    path = f"{root}/{file}"
    descriptor = _open_file(path)
    try:
        identity = _identity(descriptor)
        prefix = _read_range(descriptor, 0, min(PREFIX_BYTES, identity.size_bytes), path)
        length = header_length(prefix, file_bytes=identity.size_bytes, file=path)
        raw = _read_range(descriptor, PREFIX_BYTES, length, path)
        header = parse_header(raw, file_bytes=identity.size_bytes, file=path)
    finally:
        os.close(descriptor)
    return Shard(file=file, header=header, identity=identity)


def _read_document(path: str, limit_bytes: int, error: type[CheckpointError]) -> bytes:
    descriptor = _open_file(path)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes > limit_bytes:
            raise error(f"{size_bytes} bytes are over the cap of {limit_bytes}", file=path)
        return _read_range(descriptor, 0, size_bytes, path)
    finally:
        os.close(descriptor)


def _open_file(path: str) -> int:
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except FileNotFoundError:
        raise CheckpointNotFound("no such file or directory", file=path, hint="check the path") from None
    except OSError as error:
        raise _read_failed(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatUnsupported("not a regular file", file=path, hint="pass a file, or a directory of files")
    return descriptor


def _identity(descriptor: int) -> FileIdentity:
    status = os.fstat(descriptor)
    return FileIdentity(
        size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, device=status.st_dev, inode=status.st_ino
    )


def _read_range(descriptor: int, offset: int, nbytes: int, path: str) -> bytes:
    buffer = bytearray(nbytes)
    if _fill(descriptor, [memoryview(buffer)], offset, path) < nbytes:
        raise ShortRead(f"ended before byte {offset + nbytes} while its header was read", file=path)
    return bytes(buffer)


def _fill(descriptor: int, buffers: Sequence[memoryview], offset: int, path: str) -> int:
    """Read into the buffers until they are full or the file ends; the bytes read."""
    wanted = [buffer for buffer in buffers if buffer.nbytes]
    done = 0
    while wanted:
        try:
            count = os.preadv(descriptor, wanted, offset + done)
        except OSError as error:
            raise _read_failed(path, error, offset + done) from error
        if count == 0:
            break
        done += count
        wanted = _after(wanted, count)
    return done


def _after(buffers: Sequence[memoryview], count: int) -> list[memoryview]:
    """What is left of the buffers once their first bytes are filled."""
    for position, buffer in enumerate(buffers):
        if count < buffer.nbytes:
            return [buffer[count:], *buffers[position + 1 :]]
        count -= buffer.nbytes
    return []


def _read_failed(path: str, error: OSError, offset: int | None = None) -> ReadFailed:
    hint = (
        "check who may read it"
        if isinstance(error, PermissionError)
        else "check the disk or the mount it is on"
    )
    return ReadFailed(f"cannot be read: {error.strerror or error}", file=path, offset=offset, hint=hint)


class ShardReader:
    """The shards of a checkpoint, open for reading by any number of threads.

    A context manager. Entering opens every shard and compares it with the file whose header was read; leaving closes
    them. Between the two, a file that is rewritten or cut is noticed by `read` or, at the latest, by `verify`.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._descriptors: dict[str, int] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            for file in self._checkpoint.shards:
                descriptor = _open_file(self.path(file))
                opened.callback(os.close, descriptor)
                self._descriptors[file] = descriptor
            self.verify()
            self._closing = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._descriptors.clear()
        self._closing.close()

    def path(self, file: str) -> str:
        """Absolute path of a shard."""
        return f"{self._checkpoint.root}/{file}"

    def descriptor(self, file: str) -> int:
        """The open file of a shard, for calls that want one; it stays ours to close."""
        return self._descriptors[file]

    def read(self, file: str, begin: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers, in order, with the file's bytes from begin on.

        Raises:
            FileChanged: the file ended too early because it is not what it was.
            ShortRead: it ended too early though it looks the same.
            ReadFailed: the operating system reports an error.
        """
        nbytes = sum(buffer.nbytes for buffer in buffers)
        done = _fill(self._descriptors[file], buffers, begin, self.path(file))
        if done < nbytes:
            self._verify_file(file)
            raise ShortRead(
                f"ended {nbytes - done} bytes too early",
                file=self.path(file),
                offset=begin + done,
                hint="the file system reports a length that it doesn't deliver: check it, then try again",
            )

    def verify(self) -> None:
        """Check that every shard is still what it was when its header was read.

        Raises:
            FileChanged: one is not.
        """
        for file in self._descriptors:
            self._verify_file(file)

    def _verify_file(self, file: str) -> None:
        expected = self._checkpoint.shards[file].identity
        found = _identity(self._descriptors[file])
        if found == expected:
            return
        what = (
            f"changed since its header was read: it had {expected.size_bytes} bytes and has {found.size_bytes}"
            if found.size_bytes != expected.size_bytes
            else "was written to or replaced since its header was read"
        )
        raise FileChanged(
            what,
            file=self.path(file),
            hint="let whatever writes the checkpoint finish, then open and load it again",
        )
