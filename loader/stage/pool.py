"""The host memory of the stage daemon: checkpoints that are read once, checked, and given out read-only."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from threading import Condition

import torch

from loader.admission import Needs, admit
from loader.checkpoint import Checkpoint
from loader.control import Control
from loader.copiers import crew, host
from loader.digest import prove
from loader.errors import CheckpointNotFound, LoaderError
from loader.manifest import check_headers
from loader.plan import Chunk, Piece
from loader.sources.files import FILES, open_checkpoint, read_manifest
from loader.sources.limits import read_limits
from loader.stage.ledger import Ledger
from loader.stage.memory import ShardMemory, StagedShard
from loader.stage.pages import Pages, Way, padded, read_supply

_CHUNK_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A checkpoint in memory.

    Attributes:
        path: where it was read from.
        shards: its shards.
        nbytes: memory that it takes.
        proven: whether every tensor was compared with a manifest.
    """

    path: str
    shards: tuple[StagedShard, ...]
    nbytes: int
    proven: bool

    @property
    def pages(self) -> Pages:
        """What its memory comes in: the smallest that a shard has, and every reason."""
        worst = min((shard.pages for shard in self.shards), key=lambda pages: pages.nbytes)
        refused = {way: why for shard in self.shards for way, why in shard.pages.refused.items()}
        return replace(worst, refused=refused)

    def copy(self) -> "Staged":
        """The same memory with descriptors of its own, which stay open whatever happens to these."""
        shards = tuple(replace(shard, descriptor=os.dup(shard.descriptor)) for shard in self.shards)
        return replace(self, shards=shards)

    def close(self) -> None:
        """Let go of the memory; clients that were given it keep it until they close it."""
        for shard in self.shards:
            os.close(shard.descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is known of a checkpoint.

    Attributes:
        path: where it lies.
        state: `Staging` or `Staged`.
        done_bytes: how much of it is in memory.
        total_bytes: how much it is.
        leases: clients that use it, or wait until it has been read.
        proven: whether every tensor was compared with a manifest.
        page_bytes: size of its pages; 0 while it is read.
        page_way: how they were had; None while it is read.
        pages_refused: why better ways gave none.
    """

    path: str
    state: str
    done_bytes: int
    total_bytes: int
    leases: int
    proven: bool
    page_bytes: int = 0
    page_way: Way | None = None
    pages_refused: Mapping[Way, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Staging:
    """What is being read, and who waits for it: they lease it in the moment in which it is there, so that it can't go before they come."""

    total_bytes: int
    done_bytes: int = 0
    waiting: set[int] = field(default_factory=set)


class Pool:
    """Checkpoints in memory. Any thread may call it.

    Args:
        budget_bytes: the most memory that it takes.
        roots: directories below which checkpoints may lie; resolved.
        lock: whether to lock the memory, so that it is never paged out.
        ready: called with the memory of each shard once it is read and sealed.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        budget_bytes: int,
        roots: tuple[str, ...],
        *,
        lock: bool = False,
        ready: Callable[[torch.Tensor], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = Ledger(budget_bytes)
        self._roots = tuple(os.path.realpath(root) for root in roots)
        self._lock_pages = lock
        self._ready = ready
        self._clock = clock
        self._changed = Condition()
        self._staged: dict[str, Staged] = {}
        self._staging: dict[str, _Staging] = {}
        self._control = Control()

    def allowed(self, path: str) -> str:
        """The key of a checkpoint: its path without links.

        Raises:
            CheckpointNotFound: it is not below a directory that is served.
        """
        key = os.path.realpath(path)
        if not any(key == root or key.startswith(f"{root.rstrip('/')}/") for root in self._roots):
            raise CheckpointNotFound(
                "not below a directory that this daemon serves",
                file=key,
                hint="start it with --root DIR for that directory",
            )
        return key

    def take(self, path: str, holder: int) -> Staged:
        """Lease a checkpoint, bringing it into memory first where it isn't there or has changed since.

        What is returned is the caller's to close.

        Args:
            path: its directory or file.
            holder: who leases it.

        Raises:
            CheckpointError: it is not usable, or not below the directories that are served.
            StageFull: the budget has no room for it.
            LoadError: it can't be read, or the machine has no memory for it.
        """
        key = self.allowed(path)
        checkpoint = open_checkpoint(key)
        with self._changed:
            while (staging := self._staging.get(key)) is not None:
                staging.waiting.add(holder)
                self._changed.wait()
            staged = self._staged.get(key)
            if staged is not None and is_of(staged, checkpoint):
                self._ledger.lease(key, holder, self._clock())
                return staged.copy()
            self._begin(key, checkpoint, holder)
        try:
            staged = self._read(key, checkpoint)
        except BaseException:
            with self._changed:
                self._ledger.remove(key)
                del self._staging[key]
                self._changed.notify_all()
            raise
        with self._changed:
            self._staged[key] = staged
            for each in (holder, *self._staging.pop(key).waiting):
                self._ledger.lease(key, each, self._clock())
            self._changed.notify_all()
            return staged.copy()

    def release(self, holder: int) -> None:
        """A holder needs nothing any more."""
        with self._changed:
            self._ledger.release_all(holder)
            for staging in self._staging.values():
                staging.waiting.discard(holder)

    def drop(self, path: str) -> bool:
        """Let go of a checkpoint that nobody leases; whether there was such a one."""
        key = os.path.realpath(path)
        with self._changed:
            if key not in self._staged or self._ledger.leases(key):
                return False
            self._forget(key)
            return True

    def statuses(self) -> list[Status]:
        """All checkpoints that are in memory or on their way."""
        with self._changed:
            coming = [
                Status(
                    path=key,
                    state="Staging",
                    done_bytes=staging.done_bytes,
                    total_bytes=staging.total_bytes,
                    leases=self._ledger.leases(key) + len(staging.waiting),
                    proven=False,
                )
                for key, staging in self._staging.items()
            ]
            there = [
                Status(
                    path=key,
                    state="Staged",
                    done_bytes=staged.nbytes,
                    total_bytes=staged.nbytes,
                    leases=self._ledger.leases(key),
                    proven=staged.proven,
                    page_bytes=pages.nbytes,
                    page_way=pages.way,
                    pages_refused=pages.refused,
                )
                for key, staged, pages in ((key, each, each.pages) for key, each in self._staged.items())
            ]
        return sorted(coming + there, key=lambda status: status.path)

    def close(self) -> None:
        """Call off what is on its way, and let go of everything."""
        self._control.cancel()
        with self._changed:
            while self._staging:
                self._changed.wait()
            for key in list(self._staged):
                self._forget(key)

    def _begin(self, key: str, checkpoint: Checkpoint, holder: int) -> None:
        """Make room, which is leased from now on: what is being read must not go for another's sake."""
        if key in self._staged:  # of files that have changed
            self._forget(key)
        nbytes = _total_bytes(checkpoint)
        for victim in self._ledger.reserve(key, nbytes, self._clock()):
            self._staged.pop(victim).close()
        self._ledger.lease(key, holder, self._clock())
        try:
            needs = Needs(shared=_unreserved(checkpoint), locked=nbytes if self._lock_pages else 0)
            admit(needs, read_limits(), file=key)
        except LoaderError:
            self._ledger.remove(key)
            raise
        self._staging[key] = _Staging(nbytes)

    def _forget(self, key: str) -> None:
        self._ledger.remove(key)
        self._staged.pop(key).close()

    def _read(self, key: str, checkpoint: Checkpoint) -> Staged:
        staging = self._staging[key]

        def report(chunk: Chunk) -> None:
            staging.done_bytes += chunk.nbytes

        manifest = read_manifest(checkpoint)
        if manifest is not None:
            check_headers(checkpoint, manifest)
        with ExitStack() as undo:
            memory: dict[str, ShardMemory] = {}
            for file, shard in checkpoint.shards.items():
                memory[file] = ShardMemory(file, shard.identity.size_bytes, read_supply())
                undo.callback(memory[file].close)
            _fill(checkpoint, memory, report, self._control)
            if manifest is not None:
                tensors = {
                    name: memory[entry.file].data[entry.begin : entry.end]
                    for name, entry in checkpoint.tensors.items()
                }
                prove(checkpoint, tensors, manifest)
            shards = tuple(
                each.seal(checkpoint.shards[file].identity, lock=self._lock_pages)
                for file, each in memory.items()
            )
            for sealed in shards:
                self._ready(sealed.data)
            undo.pop_all()
        return Staged(path=key, shards=shards, nbytes=staging.total_bytes, proven=manifest is not None)


def _fill(
    checkpoint: Checkpoint, memory: dict[str, ShardMemory], report: Callable[[Chunk], None], control: Control
) -> None:
    with FILES.open(checkpoint) as reader:

        def read(chunk: Chunk) -> None:
            reader.read(chunk.file, chunk.begin, [memory[chunk.file].memory[chunk.begin : chunk.end]])

        crew.run(
            _chunks(checkpoint),
            threads=host.default_threads(),
            open_worker=lambda: nullcontext(read),
            report=report,
            control=control,
        )
        reader.verify()


def _chunks(checkpoint: Checkpoint) -> list[Chunk]:
    """Whole files, header and all, in pieces."""
    chunks = []
    for file, shard in checkpoint.shards.items():
        size = shard.identity.size_bytes
        for begin in range(0, size, _CHUNK_BYTES):
            piece = Piece(tensor="", offset=begin, nbytes=min(_CHUNK_BYTES, size - begin))
            chunks.append(Chunk(file=file, begin=begin, nbytes=piece.nbytes, pieces=(piece,)))
    return chunks


def is_of(staged: Staged, checkpoint: Checkpoint) -> bool:
    """Whether what is in memory is what lies in the files now."""
    return {shard.file: shard.identity for shard in staged.shards} == checkpoint.identities


def _unreserved(checkpoint: Checkpoint) -> int:
    """What it takes of memory that others may take too: nothing where enough pages are reserved for such."""
    reserved = sum(padded(shard.identity.size_bytes) for shard in checkpoint.shards.values())
    return 0 if read_supply().reserved >= reserved else _total_bytes(checkpoint)


def _total_bytes(checkpoint: Checkpoint) -> int:
    return sum(shard.identity.size_bytes for shard in checkpoint.shards.values())
