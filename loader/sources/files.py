"""Checkpoints in a file system: opened with bounded reads, then read with `preadv` under a watch for changes."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from types import MappingProxyType, TracebackType
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
    ManifestInvalid,
    ReadFailed,
    ShardOutside,
    ShortRead,
    shown,
)
from loader.garbage import uncollected
from loader.header import MAX_HEADER_BYTES, PREFIX_BYTES, header_length, parse_header
from loader.manifest import MANIFEST_FILE, Manifest, parse_manifest
from loader.plan import PAGE_BYTES
from loader.sources.port import Fallback, Nearness
from loader.sources.tier import probe, read_mount_table

_MAX_CONFIG_BYTES = 16 * 2**20
_MAX_INDEX_BYTES = MAX_HEADER_BYTES
_DIRECT_REFUSALS = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOENT, errno.EACCES})
"""What file systems answer that take no O_DIRECT, and what a sandbox without /proc does."""
# O_NONBLOCK so that opening a FIFO that somebody named like a shard doesn't wait for a writer.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def open_checkpoint(path: str | os.PathLike[str], *, follow_links: bool = False) -> Checkpoint:
    """Read and check everything about a checkpoint but its payload.

    Args:
        path: a directory (its index, else ``model.safetensors``, else the only file or a complete numbered set
            decides), or one safetensors file of any name.
        follow_links: whether links in a directory may lead out of it. Those of Hugging Face's cache, which lead to the
            same repository's blobs, may always; so may the path itself be one.

    Raises:
        CheckpointError: the checkpoint is not usable; the subclass says why.
        ReadFailed: the operating system refuses to read it.
    """
    location = Path(path).absolute()
    with uncollected():
        if location.is_dir():
            return _open_directory(str(location), _allowed_homes(location) if not follow_links else ())
        refuse_format(str(location))
        root = str(location.parent)
        return assemble([_open_shard(root, location.name)], root=root, path=str(location))


def read_manifest(checkpoint: Checkpoint, path: str | os.PathLike[str] | None = None) -> Manifest | None:
    """The manifest of a checkpoint; None where it has none of its own.

    Args:
        checkpoint: the opened checkpoint.
        path: where the manifest is, if not beside the shards; it must be there then.

    Raises:
        ManifestInvalid: it is malformed.
        CheckpointNotFound: there is no such file.
        ReadFailed: the operating system refuses to read it.
    """
    file = os.fspath(path) if path is not None else f"{checkpoint.root}/{MANIFEST_FILE}"
    if path is None and not os.path.lexists(file):
        return None
    return parse_manifest(_read_document(file, _MAX_INDEX_BYTES, ManifestInvalid), file=file)


def _allowed_homes(location: Path) -> tuple[str, ...]:
    """Where files of a checkpoint's directory may lie once links are followed."""
    root = os.path.realpath(location)
    # Hugging Face's cache: models--x--y/snapshots/<revision>/model.safetensors -> ../../blobs/<hash>
    above = Path(root).parent
    return (root, str(above.parent / "blobs")) if above.name == "snapshots" else (root,)


def _check_home(root: str, file: str, homes: tuple[str, ...]) -> None:
    path = f"{root}/{file}"
    if not homes or not Path(path).is_symlink():
        return
    target = os.path.realpath(path)
    if not any(target.startswith(home + "/") for home in homes):
        raise ShardOutside(
            f"a link out of the checkpoint's directory, to {shown(target)}",
            file=path,
            hint="if it is yours, say so: open_checkpoint(path, follow_links=True) or --follow-links",
        )


def _open_directory(root: str, homes: tuple[str, ...]) -> Checkpoint:
    try:
        # is_file follows links, so a dangling one in a model cache counts as the missing shard that it is.
        with os.scandir(root) as entries:
            present = frozenset(entry.name for entry in entries if entry.is_file())
    except OSError as error:
        raise _read_failed(root, error) from error
    index = None
    for document in (INDEX_FILE, CONFIG_FILE):
        _check_home(root, document, homes)
    if INDEX_FILE in present:
        file = f"{root}/{INDEX_FILE}"
        index = parse_index(_read_document(file, _MAX_INDEX_BYTES, IndexInvalid), file=file)
    files = select_shards(present, index, root=root)
    for file in files:
        _check_home(root, file, homes)
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
    digest = hashlib.blake2b(prefix, digest_size=16)
    digest.update(raw)  # not joined: a header may have a hundred megabytes
    return Shard(file=file, header=header, identity=identity, header_digest=digest.hexdigest())


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
        self._direct: dict[str, int] = {}
        self._direct_refused = False
        self._lock = Lock()
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
        self._direct.clear()
        self._closing.close()

    @property
    def fallbacks(self) -> frozenset[Fallback]:
        """Slower ways that were taken so far."""
        return frozenset({Fallback.DIRECT_REFUSED}) if self._direct_refused else frozenset()

    @property
    def resident(self) -> Mapping[str, object]:
        """Nothing: all bytes are read."""
        return MappingProxyType({})

    def nearness(self, ranges: Iterable[tuple[str, int, int]]) -> Nearness:
        """How near the bytes are: per shard its name and the first and last-plus-one byte that will be read."""
        return probe(self, ranges, read_mount_table())

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

    def read_past_cache(self, file: str, begin: int, nbytes: int, slot: memoryview) -> int:
        """Read into a page-aligned buffer with O_DIRECT, or else through the page cache; where in it the bytes begin.

        Args:
            file: name of the shard.
            begin: first byte.
            nbytes: how many.
            slot: at least two pages larger than nbytes.

        Raises:
            FileChanged: the file ended too early because it is not what it was.
            ShortRead: it ended too early though it looks the same.
            ReadFailed: the operating system reports an error.
        """
        before = begin % PAGE_BYTES
        span = -(-(before + nbytes) // PAGE_BYTES) * PAGE_BYTES
        done = self._fill_direct(file, begin - before, slot[:span]) - before
        if done < nbytes:
            # The file's last page, which O_DIRECT may not deliver, or a file system that refuses.
            done = max(0, done)
            self.read(file, begin + done, [slot[before + done : before + nbytes]])
        return before

    def _fill_direct(self, file: str, offset: int, buffer: memoryview) -> int:
        """Read whole pages past the cache; the bytes read, 0 where the file system refuses."""
        done = 0
        if self._direct_refused:
            return done
        try:
            descriptor = self._direct_descriptor(file)
            while done < buffer.nbytes and done % PAGE_BYTES == 0:
                count = os.preadv(descriptor, [buffer[done:]], offset + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            if error.errno not in _DIRECT_REFUSALS:
                raise _read_failed(self.path(file), error, offset + done) from error
            self._direct_refused = True
        return done

    def _direct_descriptor(self, file: str) -> int:
        with self._lock:
            if file not in self._direct:
                # Through /proc, so that it is the very file that is open already, whatever its name leads to now.
                path = f"/proc/self/fd/{self._descriptors[file]}"
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
                self._closing.callback(os.close, descriptor)
                self._direct[file] = descriptor
            return self._direct[file]

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


class Files:
    """The file system as a source."""

    def open(self, checkpoint: Checkpoint) -> ShardReader:
        """Open the shards of a checkpoint where it lies."""
        return ShardReader(checkpoint)


FILES = Files()
