"""Into CUDA tensors: threads of `preadv` into page-locked slots, and one stream that copies on from there.

The slots are registered with the driver once per process, because registering costs several times more than copying. Each is
registered by the thread that uses it first, once its first read has filled it: the others read on meanwhile, and no load waits
for memory that it doesn't need yet. Device memory is never staged but for tensors that are converted, one chunk per thread.

Bytes that are in memory already are read by teams of threads, each a small piece of what is then copied at once, so that all slots
together stay in the processor's cache: what is copied on from there doesn't go through memory twice more. That takes the C part
(`loader.copiers.windows`); in Python small pieces cost more than they save. Far bytes are read in large pieces, which disks and
networks want.
"""

import mmap
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Event, Lock, Thread
from typing import cast

import torch

from loader.copiers import numa
from loader.copiers.crew import CopyChunk
from loader.copiers.destinations import Addresses, aligned, converted, converted_bytes, memory_of
from loader.copiers.job import Job, Readers
from loader.copiers.windows import (
    BLOCK_BYTES,
    TEAM_READERS,
    TEAM_SLOTS,
    WINDOW_BYTES,
    Room,
    Stretch,
    Team,
    cuda_driver,
    lock_refused,
    open_windows,
    touch,
)
from loader.cuda import library
from loader.cuda.copying import AddressCopies, CopyStream, driver_errors
from loader.errors import DeviceUnavailable, OutOfMemory
from loader.plan import MAX_GAP_BYTES, PAGE_BYTES, Chunk, Piece
from loader.sources.port import Fallback

CHUNK_BYTES = 16 * 2**20
"""What a thread takes at once in Python, and the most that it reads at once. Also from memory, for threads wait for each other at every
read: of reads of 1, 2, 4, 8 and 16 MiB the largest were the fastest on one H200 (9, 17, 30, 32 and 34 GB/s)."""
NEAR_CHUNK_BYTES = 16 * BLOCK_BYTES if open_windows() is not None else CHUNK_BYTES
"""What is taken at once from memory: in the C part much, for the interpreter is waited for between two of them."""
_EDGE_BYTES = 2 * PAGE_BYTES
"""A read past the page cache begins and ends on pages, which may be some bytes more at either side."""
SLOT_BYTES = CHUNK_BYTES + _EDGE_BYTES
"""The largest slot, which is one that Python reads into."""
DEFAULT_THREADS = 16
SLOTS_PER_THREAD = 2
"""One is read into while the other is copied from. Where a read takes long, waiting for the copy doesn't matter, and one will do."""
_HOST_REGISTER_PORTABLE = (
    1  # cudaHostRegisterPortable: page-locked for every device's context, not the current one's
)


@dataclass(slots=True, kw_only=True)
class Slot:
    """One buffer for a read, on a page boundary.

    Attributes:
        data: as a tensor of bytes on the CPU.
        memory: the same bytes, writable.
        address: where they begin.
        locked: whether it is page-locked already.
    """

    data: torch.Tensor
    memory: memoryview
    address: int
    locked: bool = False
    _getting_ready: Thread | None = None

    def get_ready(self, context: library.DeviceContext, may_begin: Event) -> None:
        """Have its memory be there and page-locked soon, by a thread of its own. Where that fails it is done when it is used, and told."""

        def work() -> None:
            may_begin.wait()
            with suppress(library.CallFailed):
                context.enter()
                touch(self.address, self.data.numel())
                context.lock_pages(self.address, self.data.numel())
                self.locked = True

        self._getting_ready = Thread(target=work, name="loader-slot")
        self._getting_ready.start()

    def settle(self) -> None:
        """Wait until nobody gets it ready any more; before it is used."""
        if self._getting_ready is not None:
            self._getting_ready.join()

    def lock_pages(self) -> None:
        """Page-lock it where it isn't yet; for the thread that has it.

        Raises:
            LoadError: the driver refuses.
        """
        if not self.locked:
            _lock_pages(self.data)
            self.locked = True


class PinnedPool:
    """Slots of this process, by size and NUMA node; they grow to the most that loads used at once and stay, page-locked once used."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: dict[tuple[int, int | None], list[Slot]] = {}
        self._elsewhere: set[int] = set()

    @contextmanager
    def lend(self, count: int, each: int, node: int | None) -> Iterator[Sequence[Slot]]:
        """Slots for one load; nothing may be copying from them when they are given back.

        Args:
            count: how many.
            each: bytes of one, a multiple of a page.
            node: the NUMA node that they should be on; None for any.

        Raises:
            OutOfMemory: there is no room for more of them.
        """
        with self._lock:
            free = self._free.setdefault((each, node), [])
            missing = count - len(free)
            if missing > 0:
                free.extend(self._map(missing, each, node))
            slots = [free.pop() for _ in range(count)]
        try:
            for slot in slots:
                slot.settle()
            yield slots
        finally:
            with self._lock:
                free.extend(slots)

    def get_ready(self, count: int, each: int, node: int | None, context: library.DeviceContext) -> None:
        """Begin to have this many slots be there and page-locked, for a load that is about to ask for them.

        Args:
            count: how many.
            each: bytes of one, a multiple of a page.
            node: the NUMA node that they should be on; None for any.
            context: of the device.

        Raises:
            OutOfMemory: there is no room for them.
        """
        with self._lock:
            free = self._free.setdefault((each, node), [])
            missing = count - len(free)
            made = self._map(missing, each, node) if missing > 0 else []
            may_begin = (
                Event()
            )  # once all are there: a thread's start waits for the kernel's lock that page-locking holds
            for slot in made:
                slot.get_ready(context, may_begin)
            may_begin.set()
            free.extend(made)

    def is_elsewhere(self, node: int | None) -> bool:
        """Whether the kernel refused to put slots on this node."""
        with self._lock:
            return node in self._elsewhere

    def _map(self, count: int, each: int, node: int | None) -> list[Slot]:
        """Address space for this many slots, in one piece; memory comes as it is touched."""
        nbytes = count * each
        # Not torch's pinned allocator: it rounds to powers of two, and can lock almost twice what is asked for.
        try:
            mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, MemoryError) as error:
            raise OutOfMemory(f"{nbytes} bytes of host memory can't be mapped: {error}") from error
        # Few large pages are made, locked and found again faster than many small ones, in a virtual machine above all.
        with suppress(OSError, AttributeError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        block = torch.frombuffer(mapping, dtype=torch.uint8)
        if node is not None and not numa.prefer_node(block.data_ptr(), nbytes, node):
            self._elsewhere.add(node)
        slices = (block[start : start + each] for start in range(0, nbytes, each))
        return [Slot(data=data, memory=memory_of(data), address=data.data_ptr()) for data in slices]

    def missing_bytes(self, count: int, each: int, node: int | None) -> int:
        """How much would have to be registered to lend this many slots of so many bytes."""
        with self._lock:
            held = len(self._free.get((each, node), ()))
        return max(0, count - held) * each


POOL = PinnedPool()


def prepare(device: torch.device) -> torch.device:
    """The device with its index, once it is known to work.

    Raises:
        DeviceUnavailable: there is no such CUDA device here.
    """
    if not torch.cuda.is_available():
        raise DeviceUnavailable(
            "CUDA is not available in this process",
            hint="check `nvidia-smi` and that torch is a CUDA build, or load with device='cpu'",
        )
    index = cast("int | None", device.index)
    if index is None:
        index = torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        raise DeviceUnavailable(
            f"there is no CUDA device {index}; this process sees {torch.cuda.device_count()}",
            hint="check CUDA_VISIBLE_DEVICES",
        )
    return torch.device("cuda", index)


def needs(
    chunks: Sequence[Chunk], device: torch.device, readers: Readers, converted_names: frozenset[str]
) -> int:
    """Bytes that a copy would page-lock beyond what this process holds already.

    Args:
        chunks: what is taken at once.
        device: to fill.
        readers: how many read at once, and how much.
        converted_names: tensors that are converted.
    """
    node = numa.node_of(device)
    plain = [chunk for chunk in chunks if _is_plain(chunk, converted_names)] if _in_teams(readers) else []
    others = len(chunks) - len(plain)
    team_slots = TEAM_SLOTS * _teams(readers.threads, len(plain)) if plain else 0
    slots = _slots_each(readers) * min(readers.most, others)
    return POOL.missing_bytes(team_slots, _block_bytes(readers), node) + POOL.missing_bytes(
        slots, readers.read_bytes + _EDGE_BYTES, node
    )


def ready_bytes(device: torch.device, readers: Readers) -> int:
    """Bytes that `get_ready` page-locks."""
    return POOL.missing_bytes(_ready_slots(readers), _block_bytes(readers), numa.node_of(device))


def get_ready(device: torch.device, readers: Readers) -> None:
    """Begin with what a large load of bytes as they lie in their files will need, while it is planned.

    Raises:
        DeviceUnavailable: the driver can't be used.
        OutOfMemory: there is no room for slots.
    """
    with driver_errors(OSError):
        context = library.DeviceContext(library.open_library(), device.index)
    POOL.get_ready(_ready_slots(readers), _block_bytes(readers), numa.node_of(device), context)


def _ready_slots(readers: Readers) -> int:
    return TEAM_SLOTS * _teams(readers.threads, readers.threads) if _in_teams(readers) else 0


def _window_bytes(readers: Readers) -> int:
    """What a thread of a team reads at once."""
    return min(WINDOW_BYTES, readers.read_bytes)


def _block_bytes(readers: Readers) -> int:
    """What a team's slot holds."""
    return TEAM_READERS * _window_bytes(readers)


def _slots_each(readers: Readers) -> int:
    return 1 if readers.depth else SLOTS_PER_THREAD


def _in_teams(readers: Readers) -> bool:
    """Whether the C part may read."""
    return readers.near and open_windows() is not None


def _is_plain(chunk: Chunk, converted_names: frozenset[str]) -> bool:
    """Whether all bytes of a chunk go to the device as they lie in the file."""
    if chunk.gap_bytes:
        return False
    return not converted_names or converted_names.isdisjoint(piece.tensor for piece in chunk.pieces)


def _teams(threads: int, chunks: int) -> int:
    """How many teams so many threads make up, with something to do for each; two at least, for one reads while another is told what is next."""
    return min(max(threads // TEAM_READERS, 2), threads, chunks)


def copy(job: Job) -> int:
    """Fill the destinations; the bytes of buffers that this took besides them, on host and device together.

    All copies are complete when this returns; no stream of the caller's needs to wait.

    Raises:
        LoadError: reading or registering memory failed; some destinations are filled, some partly.
    """
    if not job.chunks:
        return 0
    device = next(iter(job.destinations.values())).tensor.device
    node = numa.node_of(device)
    plain, others = _parted(job)
    taken = 0
    with torch.cuda.device(device):
        if plain:
            taken += _copy_in_teams(replace(job, chunks=plain), device, node)
        if others:
            taken += _copy_in_python(replace(job, chunks=others), device, node)
    if POOL.is_elsewhere(node):
        job.fallbacks.add(Fallback.NUMA_UNBOUND)
    return taken


def _parted(job: Job) -> tuple[list[Chunk], list[Chunk]]:
    """What the C part can do, and what is left to Python."""
    if not _in_teams(job.readers):
        return [], list(job.chunks)
    plain: list[Chunk] = []
    others: list[Chunk] = []
    names = converted(job.destinations)
    for chunk in job.chunks:
        as_it_lies = _is_plain(chunk, names) and job.reader.descriptor(chunk.file) is not None
        (plain if as_it_lies else others).append(chunk)
    return plain, others


def _copy_in_python(job: Job, device: torch.device, node: int | None) -> int:
    """Fill the destinations; the bytes of slots and of device memory for what is converted."""
    each, nbytes = _slots_each(job.readers), job.readers.read_bytes + _EDGE_BYTES
    job.prepare_all()
    with POOL.lend(each * job.most_workers, nbytes, node) as slots:
        pinned = _PinnedCopy(job, slots, device, node)
        pinned.carry_out()
    return job.most_workers * (each * nbytes + pinned.staging_bytes)


def _copy_in_teams(job: Job, device: torch.device, node: int | None) -> int:
    """Fill the destinations through the C part; the bytes of slots.

    Raises:
        LoadError: reading, registering memory or copying failed.
    """
    teams = _teams(job.readers.threads, len(job.chunks))
    with driver_errors(OSError):
        context = library.DeviceContext(library.open_library(), device.index)
        context.enter()
    # An OSError in here is the caller's own, of a progress bar whose pipe is closed, say.
    with (
        POOL.lend(TEAM_SLOTS * teams, _block_bytes(job.readers), node) as slots,
        driver_errors(),
        CopyStream(context) as stream,
    ):
        # The allocator may hand out memory that work queued on the caller's stream still uses: copies wait for it.
        used = torch.cuda.current_stream(device).record_event()
        stream.wait_for(used.cuda_event)
        work = replace(job, readers=replace(job.readers, threads=teams))
        _TeamCopy(work, slots, context, stream, node).carry_out(job.readers.threads // teams)
    return TEAM_SLOTS * teams * _block_bytes(job.readers)


class _TeamCopy:
    """A load whose inner loop is in C: one thread of Python for each team, which hands it one chunk after the other.

    What teams need is made before they start: each would wait for the driver's locks.
    """

    def __init__(
        self,
        job: Job,
        slots: Sequence[Slot],
        context: library.DeviceContext,
        stream: CopyStream,
        node: int | None,
    ) -> None:
        self._job = job
        self._stream = stream
        self._node = node
        self._window_bytes = _window_bytes(job.readers)
        self._addresses = Addresses(job.destinations)
        self._driver = cuda_driver(context.number, stream.number)
        rooms = [(slot, Room(slot.address, slot.data.numel(), stream.event(), slot.locked)) for slot in slots]
        self._shares = [rooms[first : first + TEAM_SLOTS] for first in range(0, len(rooms), TEAM_SLOTS)]
        self._teams: deque[Team] = deque()

    def carry_out(self, readers: int) -> None:
        """Copy everything; nothing is copied any more when this returns or raises.

        Args:
            readers: threads of each team.
        """
        with ExitStack() as leaving:
            # Before any of them reads: a thread's start waits for the kernel's lock of this process's memory, which page-locking holds.
            with ThreadPoolExecutor(1, "loader-teams") as maker:
                maker.submit(self._make_teams, readers, leaving).result()
            teams = list(self._teams)
            try:
                self._job.share_out(self._worker, prepared=self._wait_for_memory)
            finally:
                self._stream.synchronize()
                for share, team in zip(self._shares, teams, strict=True):
                    for (slot, _), is_locked in zip(share, team.locked, strict=True):
                        slot.locked = is_locked

    def _make_teams(self, readers: int, leaving: ExitStack) -> None:
        """For a thread of its own, whose cores and priority they take over."""
        self._job.control.settle_thread()
        if self._node is not None:
            numa.stay_on(self._node)
        for share in self._shares:
            team = Team(self._driver, [room for _, room in share], readers, self._window_bytes)
            self._teams.append(leaving.enter_context(team))

    def _wait_for_memory(self) -> None:
        """Have copies wait for work on the caller's stream that may still use memory that the allocator has handed out again."""
        used = torch.cuda.current_stream().record_event()
        self._stream.wait_for(used.cuda_event)

    @contextmanager
    def _worker(self) -> Iterator[CopyChunk]:
        team = self._teams.popleft()
        try:
            yield partial(self._copy_chunk, team)
        finally:
            self._teams.append(team)  # for a thread that comes later

    def _copy_chunk(self, team: Team, chunk: Chunk) -> None:
        reader = self._job.reader
        descriptor = reader.descriptor(chunk.file)
        assert descriptor is not None, chunk.file
        copies = [
            (target, chunk.begin + position, nbytes)
            for target, position, nbytes in runs(chunk.pieces, self._addresses)
        ]

        def read_again(begin: int) -> None:
            nbytes = min(self._window_bytes, chunk.end - begin)
            reader.read(chunk.file, begin, [memoryview(bytearray(nbytes))])

        team.bring(Stretch(descriptor, chunk.begin, chunk.nbytes, copies), read_again)


class _PinnedCopy:
    """A load whose reads and copies are done in Python."""

    def __init__(self, job: Job, slots: Sequence[Slot], device: torch.device, node: int | None) -> None:
        self._job = job
        self._destinations = job.destinations
        self._slots = deque(slots)
        self._each = len(slots) // job.most_workers
        self._read_bytes = job.readers.read_bytes
        self._device = device
        self._node = node
        self._converted = converted(job.destinations)
        self.staging_bytes = max(converted_bytes(chunk, self._converted) for chunk in job.chunks)
        # One for all threads: what is copied goes over one link in any case.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copies = AddressCopies(device.index)
        self._addresses = {
            name: destination.tensor.data_ptr() for name, destination in job.destinations.items()
        }
        # The allocator may hand out memory that work queued on the caller's stream still uses: copies wait for it.
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def carry_out(self) -> None:
        """Copy everything."""
        self._job.share_out(self.worker)

    @contextmanager
    def worker(self) -> Iterator[CopyChunk]:
        """A thread that reads and queues copies in Python."""
        if self._node is not None:
            numa.stay_on(self._node)
        self._copies.enter()
        stream = self._stream
        turns = deque((self._slots.popleft(), _event()) for _ in range(self._each))
        with torch.cuda.stream(stream):
            staging = torch.empty(self.staging_bytes, dtype=torch.uint8, device=self._device)

            @contextmanager
            def free_slot() -> Iterator[Slot]:
                slot, copied = turns[0]
                turns.rotate(-1)
                # Asking lets go of the interpreter no more than it must.
                if not copied.query():  # type: ignore[no-untyped-call]
                    copied.synchronize()
                yield slot
                copied.record(stream)

            def copy_chunk(chunk: Chunk) -> None:
                if chunk.end - chunk.begin <= self._read_bytes:
                    with free_slot() as slot:
                        self._copy_at_once(chunk, slot, stream.cuda_stream, staging)
                    return
                windows = cut(runs(chunk.pieces, self._addresses), self._read_bytes)
                for begin in range(0, chunk.nbytes, self._read_bytes):
                    nbytes = min(self._read_bytes, chunk.nbytes - begin)
                    with free_slot() as slot:
                        address = self._fill(chunk.file, chunk.begin + begin, nbytes, slot)
                        for target, position, length in next(windows):
                            self._copies.queue(target, address + position, length, stream.cuda_stream)

            try:
                yield copy_chunk
            finally:
                # Also after an error: slots and destinations must not be touched once they are given back.
                stream.synchronize()
                self._slots.extend(slot for slot, _ in turns)

    def _copy_at_once(self, chunk: Chunk, slot: Slot, stream: int, staging: torch.Tensor) -> None:
        """Read a chunk that fits in a slot, and queue its copies."""
        if any(piece.gap for piece in chunk.pieces):
            dropped = memoryview(bytearray(MAX_GAP_BYTES))
            self._job.reader.read(chunk.file, chunk.begin, chunk.packed(slot.memory, dropped))
            slot.lock_pages()
            address = slot.address
        else:
            address = self._fill(chunk.file, chunk.begin, chunk.nbytes, slot)
        if self._converted and any(piece.tensor in self._converted for piece in chunk.pieces):
            self._convert(chunk, slot.data[address - slot.address :], staging)
            return
        for target, position, nbytes in runs(chunk.pieces, self._addresses):
            self._copies.queue(target, address + position, nbytes, stream)

    def _fill(self, file: str, begin: int, nbytes: int, slot: Slot) -> int:
        """Read bytes that follow each other into a slot; their address there."""
        offset = 0
        if self._job.past_cache:
            offset = self._job.reader.read_past_cache(file, begin, nbytes, slot.memory)
        else:
            self._job.reader.read(file, begin, [slot.memory[:nbytes]])
        slot.lock_pages()
        return slot.address + offset

    def _convert(self, chunk: Chunk, data: torch.Tensor, staging: torch.Tensor) -> None:
        """Queue the copies of a chunk with pieces that are converted, on the current stream."""
        position = used = 0
        for piece in chunk.pieces:
            source = data[position : position + piece.nbytes]
            position += piece.nbytes
            destination = self._destinations[piece.tensor]
            if not destination.converts:
                target = destination.data[piece.offset : piece.offset + piece.nbytes]
                target.copy_(source, non_blocking=True)
                continue
            staged = staging[used : used + piece.nbytes]
            used += aligned(piece.nbytes)
            staged.copy_(source, non_blocking=True)
            destination.convert(staged, piece.offset)


def cut(copies: Iterable[tuple[int, int, int]], window_bytes: int) -> Iterator[list[tuple[int, int, int]]]:
    """What is copied from window after window of a chunk, where each window's bytes lie at the beginning of a slot.

    Args:
        copies: of the whole chunk, as `runs` tells.
        window_bytes: size of each window but the last.
    """
    window: list[tuple[int, int, int]] = []
    end = window_bytes
    for target, position, nbytes in copies:
        done = 0
        while done < nbytes:
            if position + done == end:
                yield window
                window, end = [], end + window_bytes
            length = min(nbytes - done, end - position - done)
            window.append((target + done, position + done - end + window_bytes, length))
            done += length
    yield window


def runs(pieces: Sequence[Piece], addresses: Mapping[str, int]) -> Iterator[tuple[int, int, int]]:
    """What is copied at once: where to, from where in the slot, and how many bytes.

    Pieces lie one behind the other in a slot. Those that do so in the device's memory too are copied together: parts of one tensor,
    and tensors that somebody has allocated as one.

    Args:
        pieces: in their order.
        addresses: of the tensors' memory.
    """
    position = begin = target = nbytes = 0
    for piece in pieces:
        address = addresses[piece.tensor] + piece.offset
        if address != target + nbytes:
            if nbytes:
                yield target, begin, nbytes
            target, begin, nbytes = address, position, 0
        nbytes += piece.nbytes
        position += piece.nbytes
    if nbytes:
        yield target, begin, nbytes


def _event() -> torch.cuda.Event:
    """An event that is waited for without spinning: other threads need the cores."""
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


def _lock_pages(block: torch.Tensor) -> None:
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(cudart.cudaHostRegister(block.data_ptr(), block.numel(), _HOST_REGISTER_PORTABLE))
    if status:
        raise lock_refused(block.numel(), status)
