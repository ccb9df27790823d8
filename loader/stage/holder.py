"""Copies of checkpoints in device memory that belong to the daemon, for engines to attach to.

An engine that attaches maps the very memory: nothing is copied, and nothing has to be loaded again when the engine dies. A copy is
digested where it landed before anybody may attach, and can be again at any time. It is there until it is released, which
nobody can while engines are attached; it counts against its device's budget. When the daemon dies, what is attached stays with the
engines that have it and goes with the last of them.
"""

import itertools
import os
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from threading import Condition

import torch

from loader.admission import Limits, Needs, admit
from loader.checkpoint import Checkpoint
from loader.copiers.destinations import memory_errors
from loader.cuda.port import Device
from loader.cuda.shared import SharedMemory, create_exported, shared_size
from loader.digest import digest_tensors
from loader.errors import FileChanged, HeldInUse, LoadError, NotHeld
from loader.manifest import compare, describe
from loader.sources.files import open_checkpoint, read_manifest
from loader.stage.device import Devices, DeviceTarget, check_moves
from loader.stage.layout import Move, moves_from_block, place_shards, place_tensors, whole_moves
from loader.stage.ledger import Ledger
from loader.stage.pool import Pool, Staged, is_of

_OWN = 0
"""The holder's own lease: what is held goes when it is released, and not when room is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A copy in device memory.

    Attributes:
        checkpoint: as it was when it was copied.
        device: where it is.
        bases: where each shard's tensors begin.
        memory: the copy, mapped read-only; it is unmapped with the last that has it.
        descriptor: what stands for it elsewhere; open for as long as it is held.
        digests: of every tensor, as they must be.
        proven: whether they are those of a manifest, and not those of the file that was read.
        copy_seconds: time that copying took.
        digest_seconds: time that the digest took where it landed.
    """

    checkpoint: Checkpoint
    device: Device
    bases: Mapping[str, int]
    memory: SharedMemory
    descriptor: int
    digests: Mapping[str, str]
    proven: bool
    copy_seconds: float
    digest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is at the other end of a connection, by the kernel's word.

    Attributes:
        connection: its number.
        process: as this process's namespace counts; 0 where it isn't seen from here.
        user: id of the user.
    """

    connection: int
    process: int
    user: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStatus:
    """What is known of a copy.

    Attributes:
        path: the checkpoint.
        device: the device's id.
        state: `Holding` while it is made, then `Held`.
        nbytes: device memory that it takes.
        proven: whether it is what the checkpoint's manifest says.
        copy_seconds: time that copying took; 0 while it is made.
        digest_seconds: time that the digest took where it landed; likewise.
        attached: who has it mapped.
    """

    path: str
    device: str
    state: str
    nbytes: int
    proven: bool
    copy_seconds: float
    digest_seconds: float
    attached: tuple[Peer, ...]


class Holder:
    """Copies in device memory. Any thread may call it.

    Attributes:
        pool: where checkpoints are read into first.
        devices: where they may be held.

    Args:
        pool: where checkpoints are read into first.
        devices: where they may be held.
        budget_bytes: the most that is held on each device.
    """

    def __init__(self, pool: Pool, devices: Devices, budget_bytes: int) -> None:
        self.pool = pool
        self.devices = devices
        self._changed = Condition()
        self._ledgers = {each.device.uuid: Ledger(budget_bytes) for each in devices.opened}
        self._held: dict[tuple[str, str], Held] = {}
        self._coming: dict[tuple[str, str], int] = {}
        self._peers: dict[int, Peer] = {}
        self._leases = itertools.count(-1, -1)  # of the pool's memory, apart from those of connections
        self._closed = False

    def hold(self, path: str, device_name: str) -> HeldStatus:
        """Hold a checkpoint, copying it first where it isn't held or has changed since.

        Args:
            path: its directory or file.
            device_name: the device's id or number.

        Raises:
            CheckpointError: it is not usable, not below the directories that are served, or not what its manifest says.
            HeldInUse: its files have changed, and engines are attached to the copy of what they were.
            StageFull: a budget has no room for it.
            LoadRefused: the device has no room for it.
            LoadError: it can't be read or copied.
        """
        device = self.devices.find(device_name)
        key = (self.pool.allowed(path), device.uuid)
        checkpoint = open_checkpoint(key[0])
        bases, size = place_shards(checkpoint.shards)
        nbytes = shared_size(device, size)
        with self._changed:
            while key in self._coming:
                self._changed.wait()
            held = self._held.get(key)
            if held is None or held.checkpoint.identities != checkpoint.identities:
                self._begin(key, nbytes)
            else:
                return self._status(key, held)
        try:
            held = self._copy(checkpoint, device, bases, nbytes)
        except BaseException:
            with self._changed:
                self._ledgers[device.uuid].remove(key[0])
                del self._coming[key]
                self._changed.notify_all()
            raise
        with self._changed:
            del self._coming[key]
            self._held[key] = held
            self._changed.notify_all()
            return self._status(key, held)

    def attach(self, path: str, device_name: str, peer: Peer) -> Held:
        """Note that a process is about to map a copy, which stays until `detach`.

        Raises:
            NotHeld: there is no copy.
        """
        key = self._key(path, device_name)
        with self._changed:
            held = self._get(key)
            self._peers[peer.connection] = peer
            self._ledgers[key[1]].lease(key[0], peer.connection, time.monotonic())
            return held

    def detach(self, connection: int) -> None:
        """A process is gone, or has unmapped what it had."""
        with self._changed:
            for ledger in self._ledgers.values():
                ledger.release_all(connection)
            self._peers.pop(connection, None)

    def release(self, path: str, device_name: str) -> int:
        """Give a copy's memory back to the device; how much that was, in bytes.

        Raises:
            NotHeld: there is no copy.
            HeldInUse: engines are attached to it.
        """
        key = self._key(path, device_name)
        with self._changed:
            held = self._get(key)
            self._check_unused(key)
            self._forget(key)
            return held.memory.nbytes

    def copy(self, path: str, device_name: str, moves: list[Move], target: DeviceTarget) -> int:
        """Copy ranges of shards out of a copy into a client's memory on a device that a direct link leads to; the bytes copied.

        Raises:
            NotHeld: there is no copy.
            DestinationMismatch: a range doesn't fit.
            DeviceUnavailable: no link leads there, or the driver refuses.
        """
        with self._changed:
            held = self._get(self._key(path, device_name))
        shards = held.checkpoint.shards
        check_moves({file: shard.identity.size_bytes for file, shard in shards.items()}, moves, target.nbytes)
        with self.devices.mapped(target) as (device, address):
            if device is not held.device:
                device.reach(held.memory.address, held.memory.nbytes)
            pieces = [
                (address + offset, held.memory.address + begin, nbytes)
                for begin, nbytes, offset in moves_from_block(shards, held.bases, moves)
            ]
            device.copy_between(pieces)
        return sum(nbytes for _, _, nbytes in pieces)

    def verify(self, path: str, device_name: str) -> float:
        """Digest a copy once more; the time that it took, in seconds.

        Raises:
            NotHeld: there is no copy.
            DigestMismatch: it isn't any more what was copied.
        """
        with self._changed:
            held = self._get(self._key(path, device_name))
        begun = time.monotonic()
        found = _digests(held.checkpoint, held.device, held.memory, held.bases)
        compare(found, held.checkpoint, describe(held.checkpoint, held.digests))
        return time.monotonic() - begun

    def statuses(self) -> list[HeldStatus]:
        """All copies that are held or on their way."""
        with self._changed:
            there = [self._status(key, held) for key, held in self._held.items()]
            coming = [
                HeldStatus(
                    path=path,
                    device=device,
                    state="Holding",
                    nbytes=nbytes,
                    proven=False,
                    copy_seconds=0,
                    digest_seconds=0,
                    attached=(),
                )
                for (path, device), nbytes in self._coming.items()
            ]
        return sorted(there + coming, key=lambda status: (status.path, status.device))

    def held_bytes(self, uuid: str) -> tuple[int, int]:
        """What is held on a device, with what is on its way, and the most that may be; in bytes."""
        with self._changed:
            ledger = self._ledgers[uuid]
            return ledger.held_bytes, ledger.budget_bytes

    def close(self) -> None:
        """Let go of everything; engines that are attached keep what they have mapped."""
        with self._changed:
            self._closed = True
            while self._coming:
                self._changed.wait()
            for key in list(self._held):
                self._forget(key)

    def _key(self, path: str, device_name: str) -> tuple[str, str]:
        uuid = self.devices.find(device_name).uuid
        # What is held under its own name was allowed then, and looking at the path again takes a tenth of attaching.
        return (path if (path, uuid) in self._held else self.pool.allowed(path)), uuid

    def _get(self, key: tuple[str, str]) -> Held:
        held = self._held.get(key)
        if held is None:
            raise NotHeld(
                f"not held on device {key[1]}",
                file=key[0],
                hint="hold it first: `python -m loader stage hold PATH --device DEVICE`",
            )
        return held

    def _begin(self, key: tuple[str, str], nbytes: int) -> None:
        if self._closed:
            raise LoadError("the stage daemon is ending", file=key[0])
        path, uuid = key
        if key in self._held:  # of files that have changed
            self._check_unused(key)
            self._forget(key)
        ledger = self._ledgers[uuid]
        ledger.reserve(path, nbytes, time.monotonic())
        ledger.lease(path, _OWN, time.monotonic())
        self._coming[key] = nbytes

    def _check_unused(self, key: tuple[str, str]) -> None:
        attached = self._attached(key)
        if attached:
            processes = ", ".join(str(peer.process) for peer in attached)
            raise HeldInUse(
                f"{len(attached)} are attached to the copy on device {key[1]}: process {processes}",
                file=key[0],
                hint="end them first, or have them let go of their tensors",
            )

    def _attached(self, key: tuple[str, str]) -> tuple[Peer, ...]:
        holders = sorted(self._ledgers[key[1]].holders(key[0]) - {_OWN})
        return tuple(self._peers[holder] for holder in holders)

    def _forget(self, key: tuple[str, str]) -> None:
        self._ledgers[key[1]].remove(key[0])
        os.close(self._held.pop(key).descriptor)

    def _status(self, key: tuple[str, str], held: Held) -> HeldStatus:
        return HeldStatus(
            path=key[0],
            device=key[1],
            state="Held",
            nbytes=held.memory.nbytes,
            proven=held.proven,
            copy_seconds=held.copy_seconds,
            digest_seconds=held.digest_seconds,
            attached=self._attached(key),
        )

    def _copy(self, checkpoint: Checkpoint, device: Device, bases: Mapping[str, int], nbytes: int) -> Held:
        device.enter()
        admit(Needs(device=nbytes), Limits(device=device.free_bytes()), file=checkpoint.path)
        lease = next(self._leases)
        try:
            with closing(self.pool.take(checkpoint.path, lease)) as staged:
                if not is_of(staged, checkpoint):
                    raise FileChanged("changed while it was read", file=checkpoint.path, hint="hold it again")
                return self._fill(staged, checkpoint, device, bases, nbytes)
        finally:
            self.pool.release(lease)

    def _fill(
        self,
        staged: Staged,
        checkpoint: Checkpoint,
        device: Device,
        bases: Mapping[str, int],
        nbytes: int,
    ) -> Held:
        manifest = read_manifest(checkpoint) if staged.proven else None
        expected = manifest or describe(checkpoint, _digests_of(staged, checkpoint))
        device.enter()
        handle, descriptor = create_exported(device, nbytes)
        try:
            memory = SharedMemory(device, handle, nbytes)
            begun = time.monotonic()
            self.devices.fill(device, staged, whole_moves(checkpoint.shards, bases), memory.address)
            device.protect(memory.address, nbytes)
            copied = time.monotonic()
            compare(_digests(checkpoint, device, memory, bases), checkpoint, expected)
            digested = time.monotonic()
        except BaseException:
            os.close(descriptor)
            raise
        return Held(
            checkpoint=checkpoint,
            device=device,
            bases=bases,
            memory=memory,
            descriptor=descriptor,
            digests=expected.tensors,
            proven=manifest is not None,
            copy_seconds=copied - begun,
            digest_seconds=digested - copied,
        )


def _digests_of(staged: Staged, checkpoint: Checkpoint) -> dict[str, str]:
    """What a checkpoint's tensors are in host memory."""
    data = {shard.file: shard.data for shard in staged.shards}
    return digest_tensors(
        {name: data[entry.file][entry.begin : entry.end] for name, entry in checkpoint.tensors.items()}
    )


def _digests(
    checkpoint: Checkpoint, device: Device, memory: SharedMemory, bases: Mapping[str, int]
) -> dict[str, str]:
    """What they are in device memory."""
    device.enter()
    block: torch.Tensor = device.tensor(memory)
    placed = place_tensors(checkpoint, bases)
    tensors = {
        name: block[placed[name] : placed[name] + entry.nbytes] for name, entry in checkpoint.tensors.items()
    }
    try:
        with memory_errors(checkpoint.path):
            return digest_tensors(tensors)
    finally:
        device.trim()
