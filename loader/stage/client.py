"""The stage daemon's client: lease checkpoints that are in its memory, map them, load from them, or have them copied."""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from loader.checkpoint import Checkpoint, FileIdentity
from loader.copiers.destinations import torch_layout
from loader.copiers.mapped import map_shards
from loader.cuda.driver import Driver
from loader.cuda.shared import allocate_shared
from loader.digest import prove
from loader.errors import FileChanged, LoadError, StageUnreachable
from loader.manifest import Manifest, check_headers
from loader.sources.files import ShardReader
from loader.sources.port import Nearness, Tier
from loader.stage import wire
from loader.stage.wire import DEFAULT_SOCKET, Move

_ALIGNMENT = 256
MAX_MOVES = 4096
"""Ranges of one copy request; more are sent in several."""


class StageClient:
    """A connection to the stage daemon, and the lease on all that was taken through it until it is closed.

    For one thread at a time. A context manager.

    Raises:
        StageUnreachable: there is no daemon at the socket, or it refuses this user.
    """

    def __init__(self, path: Path = DEFAULT_SOCKET) -> None:
        self._path = path
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connection.connect(str(path))
        except OSError as error:
            self._connection.close()
            raise StageUnreachable(
                f"no stage daemon answers: {error.strerror or error}",
                file=str(path),
                hint="start one: `python -m loader stage --socket PATH`",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up the lease. Memory that is mapped stays."""
        self._connection.close()

    def take(self, path: str) -> dict[str, tuple[int, FileIdentity]]:
        """Descriptors of a checkpoint's shards in memory, by file, each with the file that it was read from.

        The checkpoint is staged first where it isn't; that takes as long as reading it. The descriptors are the caller's
        to close.

        Raises:
            LoaderError: the daemon can't stage it.
            StageUnreachable: the daemon is gone.
        """
        answer = self._ask({"op": "take", "path": path})
        with ExitStack() as undo:
            shards: dict[str, tuple[int, FileIdentity]] = {}
            for _ in range(_whole_number(answer, "files")):
                about, descriptor = wire.receive(self._connection)
                if descriptor is None:
                    raise StageUnreachable("the daemon sent no descriptor", file=str(self._path))
                undo.callback(os.close, descriptor)
                identity = FileIdentity(
                    size_bytes=_whole_number(about, "size"),
                    mtime_ns=_whole_number(about, "mtimeNs"),
                    device=_whole_number(about, "device"),
                    inode=_whole_number(about, "inode"),
                )
                shards[str(about.get("file"))] = (descriptor, identity)
            undo.pop_all()
        return shards

    def copy(self, path: str, moves: list[Move], target: int, on: tuple[str, int] | None = None) -> int:
        """Have ranges copied into memory of this process; the bytes copied.

        Args:
            path: the checkpoint.
            moves: which ranges, and where they go.
            target: a memory file or shared memory, large enough and writable, or a descriptor of device memory.
            on: of device memory its device's UUID and its size.

        Raises:
            DestinationMismatch: a range doesn't fit.
            LoaderError: the daemon can't stage the checkpoint.
            StageUnreachable: the daemon is gone.
        """
        copied = 0
        where: dict[str, object] = {"device": on[0], "size": on[1]} if on else {}
        for start in range(0, len(moves), MAX_MOVES):
            part = [list(move) for move in moves[start : start + MAX_MOVES]]
            request = {"op": "copy", "path": path, "moves": part} | where
            copied += _whole_number(self._ask(request, target), "bytes")
        return copied

    def statuses(self) -> list[dict[str, object]]:
        """All checkpoints that the daemon holds or is reading, with the fields of `loader.stage.pool.Status`."""
        found = []
        answer = self._ask({"op": "list"})
        while answer.get("more"):
            found.append({key: value for key, value in answer.items() if key not in {"ok", "more"}})
            answer = self._answer()
        return found

    def drop(self, path: str) -> bool:
        """Have a checkpoint dropped that nobody leases; whether it was."""
        return self._ask({"op": "drop", "path": path}).get("dropped") is True

    def _ask(self, request: dict[str, object], descriptor: int | None = None) -> dict[str, object]:
        wire.send(self._connection, request, descriptor)
        return self._answer()

    def _answer(self) -> dict[str, object]:
        answer, descriptor = wire.receive(self._connection)
        if descriptor is not None:
            os.close(descriptor)
        if answer.get("ok") is not True:
            raise wire.raised(answer)
        return answer


class StageSource:
    """The stage daemon as a source of loads.

    Args:
        client: an open connection, which keeps what is loaded from being dropped meanwhile.
    """

    def __init__(self, client: StageClient) -> None:
        self._client = client

    @contextmanager
    def open(self, checkpoint: Checkpoint) -> Iterator[ShardReader]:
        """Open the shards in the daemon's memory.

        Raises:
            FileChanged: what is in memory is another version than this checkpoint.
            LoaderError: the daemon can't stage it.
        """
        with taken(self._client, checkpoint) as descriptors:
            yield _StagedReader(checkpoint, descriptors)


def attach(client: StageClient, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """CPU tensors that are the daemon's own memory: nothing is read or copied, however large they are.

    Writing to one changes neither the daemon's memory nor other clients'. They stay valid when the connection is closed or
    the daemon dies; the connection keeps others from being dropped for them.

    Raises:
        FileChanged: what is in memory is another version than this checkpoint.
        DtypeUnsupported: torch has no dtype for one of the tensors.
        LoaderError: the daemon can't stage it.
    """
    with taken(client, checkpoint) as descriptors:
        return map_shards(checkpoint, descriptors)


def load_to_device(
    client: StageClient, checkpoint: Checkpoint, device: torch.device, *, manifest: Manifest | None = None
) -> dict[str, torch.Tensor]:
    """CUDA tensors that the daemon fills: it copies from memory that is page-locked already into memory that is made here.

    All of them are views of one block, each beginning on 256 bytes; the block goes with the last of them.

    Args:
        client: an open connection to a daemon that was started with --cuda.
        checkpoint: with whatever parts.
        device: with its index.
        manifest: what headers and whole tensors must be; checked on the device.

    Raises:
        DeviceUnavailable: here or at the daemon the device can't be used.
        OutOfMemory: the device has no room for the tensors.
        DigestMismatch: headers or tensors are not those of the manifest.
        LoaderError: the daemon can't stage the checkpoint.
    """
    if manifest is not None:
        check_headers(checkpoint, manifest)
    layouts = {name: torch_layout(entry) for name, entry in checkpoint.tensors.items()}
    with taken(client, checkpoint):
        pass  # the very version that was opened, leased from here on
    offsets, size = _place(checkpoint)
    driver = Driver(device.index)
    exported = allocate_shared(driver, max(1, size), device)
    try:
        moves = [
            (entry.file, begin, end - begin, offsets[name] + offset)
            for name, entry in checkpoint.tensors.items()
            for begin, end, offset in entry.spans()
        ]
        client.copy(checkpoint.path, moves, exported.descriptor, (driver.uuid, exported.nbytes))
    finally:
        os.close(exported.descriptor)
    tensors = {}
    for name, (dtype, shape) in layouts.items():
        data = exported.data[offsets[name] : offsets[name] + checkpoint.tensors[name].nbytes]
        tensors[name] = data.view(dtype).reshape(shape)
    if manifest is not None:
        prove(checkpoint, tensors, manifest)
    return tensors


def _place(checkpoint: Checkpoint) -> tuple[dict[str, int], int]:
    """Where each tensor begins in one block, and the block's size."""
    offsets = {}
    size = 0
    for name, entry in checkpoint.tensors.items():
        offsets[name] = size
        size += -(-entry.nbytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, size


@contextmanager
def taken(client: StageClient, checkpoint: Checkpoint) -> Iterator[dict[str, int]]:
    """Descriptors of this very version of a checkpoint, by shard, until the end of the block."""
    with ExitStack() as closing:
        shards = client.take(checkpoint.path)
        for descriptor, _ in shards.values():
            closing.callback(os.close, descriptor)
        for file, shard in checkpoint.shards.items():
            if file not in shards or shards[file][1] != shard.identity:
                raise FileChanged(
                    "is another version in the stage daemon's memory",
                    file=f"{checkpoint.root}/{file}",
                    hint="open the checkpoint again, then load it",
                )
        yield {file: shards[file][0] for file in checkpoint.shards}


class _StagedReader(ShardReader):
    """Reads shards from sealed memory files, which can't change."""

    def __init__(self, checkpoint: Checkpoint, descriptors: Mapping[str, int]) -> None:
        super().__init__(checkpoint)
        self._descriptors = dict(descriptors)

    def nearness(self, ranges: Iterable[tuple[str, int, int]]) -> Nearness:
        """As near as host memory is."""
        del ranges
        return Nearness(tier=Tier.STAGED, cached_share=1.0)

    def verify(self) -> None:
        """Nothing to do: the memory is sealed, and its version was compared when it was taken."""


def _whole_number(document: Mapping[str, object], key: str) -> int:
    value = document.get(key)
    if type(value) is not int:
        raise LoadError(f"the stage daemon's answer has no number {key}", hint="use the same version of both")
    return value
