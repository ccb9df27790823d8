"""The stage daemon's client: lease checkpoints that are in its memory, map them, load from them, or have them copied.

What lies in host memory is leased through a connection (`StageClient`). A copy that the daemon holds in device memory is attached to
through a connection of its own (`attach_held`), which lives as long as the mapping.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from loader.checkpoint import Checkpoint
from loader.copiers.destinations import torch_layout
from loader.copiers.mapped import map_shards
from loader.cuda.driver import Driver
from loader.cuda.port import Device
from loader.cuda.shared import SharedMemory, allocate_shared
from loader.digest import prove
from loader.errors import FileChanged, LoadError
from loader.manifest import Manifest, check_headers
from loader.sources.files import ShardReader
from loader.sources.port import Nearness, Tier
from loader.stage.connection import StageClient, whole_number
from loader.stage.layout import LAYOUT, contiguous_strides, pack, place_tensors
from loader.stage.wire import DEFAULT_SOCKET

__all__ = [
    "HeldCopy",
    "StageClient",
    "StageSource",
    "attach",
    "attach_held",
    "lease_held",
    "load_to_device",
    "taken",
]


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


class HeldCopy:
    """A copy in device memory that the daemon holds, mapped read-only in this process.

    It is unmapped, and the daemon told so, with the last of this object and its tensors.

    Args:
        checkpoint: what it must be a copy of.
        device: where it is.
        client: a connection to the daemon, which becomes this object's own; what was leased through it stays so until the end.

    Raises:
        StageUnreachable: the daemon is gone.
        NotHeld: it holds no copy on this device.
        FileChanged: what it holds is another version than this checkpoint.
        LoadError: it and this process mean different layouts.
    """

    def __init__(self, checkpoint: Checkpoint, device: Device, client: StageClient) -> None:
        try:
            answer, descriptor = client.attach(checkpoint.path, device.uuid)
            try:
                self._bases = _bases(answer, checkpoint)
                device.enter()
                nbytes = whole_number(answer, "size")
                handle = device.take(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            client.close()
            raise
        self._memory = SharedMemory(device, handle, nbytes, writable=False, unmapped=client.close)
        self._checkpoint = checkpoint
        self._device = device

    @property
    def nbytes(self) -> int:
        """Device memory that it is."""
        return self._memory.nbytes

    def tensors(self) -> dict[str, torch.Tensor]:
        """The checkpoint's tensors, which are views of it: whole ones are contiguous, parts of rows needn't be.

        Raises:
            DtypeUnsupported: torch has no dtype for one of them.
        """
        block = self._device.tensor(self._memory)
        elements: dict[torch.dtype, torch.Tensor] = {}
        placed = place_tensors(self._checkpoint, self._bases)
        found = {}
        for name, entry in self._checkpoint.tensors.items():
            dtype, shape = torch_layout(entry)
            if dtype not in elements:
                elements[dtype] = block.view(dtype)
            first, size = placed[name] // dtype.itemsize, dtype.itemsize
            if entry.runs is None or not entry.nbytes:
                view = torch.as_strided(elements[dtype], shape, contiguous_strides(shape), first)
            else:
                runs, strides = (entry.runs.count, entry.runs.nbytes // size), (entry.runs.pitch // size, 1)
                view = torch.as_strided(elements[dtype], runs, strides, first).view(shape)
            found[name] = view
        return found


def attach_held(
    checkpoint: Checkpoint, device: torch.device, socket_path: Path = DEFAULT_SOCKET
) -> dict[str, torch.Tensor]:
    """CUDA tensors that are the daemon's own copy in device memory: nothing is read or copied, however large they are.

    They can't be written to. They stay valid when the daemon dies; as long as one of them is there the daemon keeps the copy.

    Args:
        checkpoint: with whatever tensors and parts.
        device: with its index.
        socket_path: the daemon's.

    Raises:
        DeviceUnavailable: the device can't be used here.
        DtypeUnsupported: torch has no dtype for one of the tensors.
        StageUnreachable: there is no daemon at the socket, or it refuses this user.
        LoadError: what `HeldCopy` raises.
    """
    return HeldCopy(checkpoint, Driver(device.index), StageClient(socket_path)).tensors()


def _bases(answer: Mapping[str, object], checkpoint: Checkpoint) -> dict[str, int]:
    """Where each shard begins in a copy of this very version of a checkpoint."""
    if answer.get("layout") != LAYOUT:
        raise LoadError(
            f"the stage daemon's copy has layout {answer.get('layout')!r}, and {LAYOUT!r} is known here",
            hint="use the same version of both",
        )
    rows = answer.get("shards")
    held = {row[0]: row for row in rows if isinstance(row, list) and row} if isinstance(rows, list) else {}
    for file, shard in checkpoint.shards.items():
        about = shard.identity
        match held.get(file):
            case [_, size, mtime, device, inode, int()] if (size, mtime, device, inode) == (
                about.size_bytes,
                about.mtime_ns,
                about.device,
                about.inode,
            ):
                continue
            case _:
                raise FileChanged(
                    "is another version in the stage daemon's device memory",
                    file=f"{checkpoint.root}/{file}",
                    hint="have it held again: release it, then hold it",
                )
    return {file: held[file][-1] for file in checkpoint.shards}


def lease_held(client: StageClient, checkpoint: Checkpoint, device: str) -> None:
    """Have the daemon keep a copy that it holds on a device for as long as the connection is open; nothing is mapped.

    Raises:
        NotHeld: it holds none there.
        FileChanged: what it holds is another version than this checkpoint.
        LoaderError: the daemon is gone, or means another layout.
    """
    answer, descriptor = client.attach(checkpoint.path, device)
    os.close(descriptor)
    _bases(answer, checkpoint)


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
    begins, size = pack(entry.nbytes for entry in checkpoint.tensors.values())
    offsets = dict(zip(checkpoint.tensors, begins, strict=True))
    driver = Driver(device.index)
    exported = allocate_shared(driver, size)
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
