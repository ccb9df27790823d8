"""One load: from a checked checkpoint to filled tensors, with an account of where the time went."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from loader.admission import Limits, Needs, admit, shortages
from loader.checkpoint import Checkpoint, TensorEntry
from loader.control import Control
from loader.depth import Depth
from loader.garbage import uncollected
from loader.manifest import Manifest, check_headers
from loader.plan import PAGE_BYTES, Chunk, plan_reads
from loader.sources.files import FILES
from loader.sources.limits import read_limits
from loader.sources.port import Fallback, Nearness, Reader, Source, Tier

if TYPE_CHECKING:
    import torch

    from loader.copiers.choice import Copier
    from loader.copiers.destinations import Filling
    from loader.copiers.job import Readers


_FAR = frozenset({Tier.DISK, Tier.NETWORK, Tier.FILE})
"""Where reads wait more than they compute, so that more of them at once may bring more."""
_DEEPEST = 4
"""Times the threads that suit near bytes."""
_NOTHING: Mapping[str, object] = MappingProxyType({})
_LARGE = 2**30
"""Bytes of a load for which it pays to begin with page-locking before it is planned."""


class Step(StrEnum):
    """The steps of a load, in order."""

    OPEN = "Open"
    """Preparing the device (and importing what that takes, where it wasn't imported before), opening the files, comparing them with their headers, probing the tier."""
    PLAN = "Plan"
    """Planning the reads, and seeing that the machine can carry them."""
    ALLOCATE = "Allocate"
    """Checking the tensors to load into, or allocating those that are filled first."""
    COPY = "Copy"
    """Allocating the other tensors, reading, copying and converting, which overlap; registering page-locked memory at a process's first
    CUDA load."""
    FINISH = "Finish"
    """Checking that no file changed meanwhile, and putting the tensors in order."""
    PROVE = "Prove"
    """Computing the digests of what has landed, and comparing them with the manifest; nothing without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a load is.

    Attributes:
        done_bytes: read and, on the CPU, in place; on CUDA the last copies may still be on their way.
        total_bytes: what the load reads in all.
    """

    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a load is carried out.

    Attributes:
        threads: how many read at once; by default what suits the device, and more where the store brings more for it.
        progress: called on the loading thread after every chunk; an exception it raises ends the load.
        control: to pause, slow or call off the load meanwhile.
        source: where the bytes come from.
        read_bytes: the most that each reads at once, a multiple of 4096; by default what suits device and source.
        gds: whether to read into CUDA memory with GPUDirect Storage where that works. What doesn't is read as without, and the
            result's fallbacks tell.
    """

    threads: int | None = None
    progress: Callable[[Progress], None] | None = None
    control: Control = field(default_factory=Control)
    source: Source = FILES
    read_bytes: int | None = None
    gds: bool = False

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, not {self.threads}")
        if self.read_bytes is not None and (self.read_bytes % PAGE_BYTES or self.read_bytes < 2 * PAGE_BYTES):
            raise ValueError(f"read_bytes must be a multiple of 4096 from 8192 up, not {self.read_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a load did.

    Attributes:
        tensors: by name; the very ones passed as `into`, where they were.
        tier: where the bytes were when the load began.
        cached_share: share of sampled payload bytes that were in memory then; None where the system doesn't tell.
        fallbacks: slower ways that were taken.
        nbytes: payload bytes of the tensors.
        staging_bytes: buffers used besides the tensors, host and device together.
        proven: names of the tensors whose digests are those of the manifest; empty without one.
        seconds: wall time of the whole load.
        seconds_by_step: the same by step; together a little less than `seconds`.
    """

    tensors: "Mapping[str, torch.Tensor]"
    tier: Tier
    cached_share: float | None
    fallbacks: frozenset[Fallback]
    nbytes: int
    staging_bytes: int
    proven: frozenset[str]
    seconds: float
    seconds_by_step: Mapping[Step, float]

    @property
    def unproven(self) -> frozenset[str]:
        """Names of the tensors that no digest vouches for: parts and converted ones, or all without a manifest."""
        return frozenset(self.tensors) - self.proven


@dataclass(slots=True)
class _Stopwatch:
    started: float = field(default_factory=time.perf_counter)
    seconds: dict[Step, float] = field(default_factory=lambda: dict.fromkeys(Step, 0.0))

    @contextmanager
    def step(self, step: Step) -> Iterator[None]:
        """Add the block's time to a step's."""
        begun = time.perf_counter()
        yield
        self.seconds[step] += time.perf_counter() - begun

    def total(self) -> float:
        return time.perf_counter() - self.started


def load(
    checkpoint: Checkpoint,
    *,
    device: "str | int | torch.device" = "cpu",
    into: "Mapping[str, torch.Tensor] | None" = None,
    convert: bool = False,
    manifest: Manifest | None = None,
    run: Run | None = None,
) -> LoadResult:
    """Fill tensors with a checkpoint's bytes, each byte moved once.

    Args:
        checkpoint: from `open_checkpoint`; `only`, `matching` and `take_parts` take a part of one.
        device: where to allocate the tensors; an int is a CUDA device. Not used with `into`.
        into: the tensors to fill, by name: exactly the checkpoint's names, contiguous, all on one device. They may be
            parameters that require gradients. After an error their content is undefined.
        convert: whether a destination may have another floating-point dtype than the file; its values are then
            rounded, chunk by chunk.
        manifest: what headers and tensors must be; checked where the bytes land.
        run: threads, progress, control and source.

    Raises:
        DestinationMismatch: `into` doesn't fit the checkpoint.
        DtypeUnsupported: torch has no dtype for one of the tensors.
        DeviceUnavailable: the device can't be used here.
        LoadRefused: the machine hasn't the memory; nothing was read.
        DigestMismatch: headers or tensors are not those of the manifest.
        LoadError: reading or copying failed, a file changed since the checkpoint was opened, or it was called off.
    """
    wanted = _Load(checkpoint, run or Run(), device, into)
    return wanted.carry_out(convert=convert, manifest=manifest)


def footprint(
    checkpoint: Checkpoint,
    *,
    device: "str | int | torch.device" = "cpu",
    into: "Mapping[str, torch.Tensor] | None" = None,
    threads: int | None = None,
) -> Needs:
    """The memory that `load` with the same arguments would take, without taking it.

    Raises:
        DestinationMismatch: `into` doesn't fit the checkpoint; `convert` is taken as true.
        DeviceUnavailable: the device can't be used here.
    """
    wanted = _Load(checkpoint, Run(threads=threads), device, into)
    converted: frozenset[str] = frozenset()
    if into is not None:
        from loader.copiers import destinations  # noqa: PLC0415 - the rest of the package works without torch

        converted = destinations.converted(destinations.match(checkpoint, into, convert=True))
    readers = wanted.readers()
    return wanted.needs(wanted.chunks(readers, converted), converted, readers)


@dataclass(frozen=True, slots=True)
class _Work:
    """What a load copies, and how."""

    chunks: tuple[Chunk, ...]
    filling: "Filling"
    readers: "Readers"
    past_cache: bool


class _Load:
    """A load that has been asked for."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        run: Run,
        device: "str | int | torch.device",
        into: "Mapping[str, torch.Tensor] | None",
    ) -> None:
        self._watch = _Stopwatch()
        self._checkpoint = checkpoint
        self._total_bytes = checkpoint.total_bytes
        self._run = run
        self._into = into
        with self._watch.step(Step.OPEN):
            from loader.copiers import choice, destinations  # noqa: PLC0415 - the rest works without torch

            self._copier: Copier = choice.choose(destinations.target_device(device, into), use_gds=run.gds)

    def carry_out(self, *, convert: bool, manifest: Manifest | None) -> LoadResult:
        from loader.copiers import destinations  # noqa: PLC0415 - the rest works without torch

        checkpoint, watch = self._checkpoint, self._watch
        with ExitStack() as closing, ExitStack() as preparing:
            preparing.enter_context(uncollected())
            with watch.step(Step.OPEN):
                if manifest is not None:
                    check_headers(checkpoint, manifest)
                reader = closing.enter_context(self._run.source.open(checkpoint))
                nearness = reader.nearness(_payload_ranges(checkpoint))
            with watch.step(Step.ALLOCATE):
                filling = self._filling(convert=convert)
                converted = destinations.converted(filling.destinations)
            with watch.step(Step.PLAN):
                readers, chunks = self._planned(reader, nearness, converted)
            closing.enter_context(destinations.memory_errors(checkpoint.root))
            with watch.step(Step.ALLOCATE):
                closing.enter_context(filling)
                for chunk in chunks[:1]:  # copiers want to see one destination at least
                    filling.prepare(chunk)
            preparing.close()
            with watch.step(Step.COPY):
                work = _Work(chunks, filling, readers, past_cache=nearness.tier is Tier.DISK)
                staging_bytes, fallbacks = self._copy(reader, work)
            with watch.step(Step.FINISH):
                reader.verify()
                tensors = filling.complete()
        with watch.step(Step.PROVE):
            proven: frozenset[str] = frozenset()
            if manifest is not None:
                from loader.digest import prove  # noqa: PLC0415 - as above

                proven = prove(checkpoint, tensors, manifest, converted=converted)
        return LoadResult(
            tensors=tensors,
            tier=nearness.tier,
            cached_share=nearness.cached_share,
            fallbacks=fallbacks,
            nbytes=self._total_bytes,
            staging_bytes=staging_bytes,
            proven=proven,
            seconds=watch.total(),
            seconds_by_step=MappingProxyType(watch.seconds),
        )

    def _filling(self, *, convert: bool) -> "Filling":
        from loader.copiers import destinations  # noqa: PLC0415 - the rest works without torch

        if self._into is not None:
            return destinations.Given(self._checkpoint, self._into, convert=convert)
        return destinations.Allocation(self._checkpoint, self._copier.device)

    def _planned(
        self, reader: Reader, nearness: Nearness, converted: frozenset[str]
    ) -> "tuple[Readers, tuple[Chunk, ...]]":
        """How to read, and what, once it is known that the machine can carry it."""
        limits = read_limits(device_bytes=self._copier.free_bytes())
        readers = self.readers(nearness)
        self._get_ready(reader, readers, limits, converted)
        chunks = self.chunks(readers, converted, reader.resident)
        needs = self.needs(chunks, converted, readers)
        if shortages(needs, limits):
            readers = replace(readers, depth=None)
            needs = self.needs(chunks, converted, readers)
        admit(needs, limits, file=self._checkpoint.root)
        return readers, chunks

    def _get_ready(
        self, reader: Reader, readers: "Readers", limits: Limits, converted: frozenset[str]
    ) -> None:
        """Refuse what can't fit, for a plan for that would be long, and begin with what a large load needs."""
        needs = self.needs((), frozenset(), readers)
        is_large = self._total_bytes >= _LARGE and not reader.resident
        if is_large and not self._sees_all(converted) and _has_plain_files(reader, self._checkpoint):
            needs = replace(needs, pinned=needs.pinned + self._copier.ready_bytes(readers))
        admit(needs, limits, file=self._checkpoint.root)
        if needs.pinned:
            self._copier.get_ready(readers)

    def chunks(
        self, readers: "Readers", converted: frozenset[str], resident: Mapping[str, object] = _NOTHING
    ) -> tuple[Chunk, ...]:
        """What a thread takes at once: as much as it reads at once, where it must see all of it to make something of it."""
        entries: Iterable[TensorEntry] = self._checkpoint.tensors.values()
        if resident:
            entries = [entry for entry in entries if entry.name not in resident]
        most = readers.read_bytes
        if not self._sees_all(converted):
            copier = self._copier
            # A load that is held to a rate asks for its turn more often: else neighbours would feel it in bursts.
            is_small = readers.depth is not None or self._run.control.limited
            most = max(most, copier.chunk_bytes if is_small else copier.near_chunk_bytes)
        return plan_reads(entries, chunk_bytes=most)

    def _sees_all(self, converted: frozenset[str]) -> bool:
        """Whether a thread must see all of what it takes at once to make something of it."""
        return bool(converted) or any(map(attrgetter("runs"), self._checkpoint.tensors.values()))

    def needs(
        self, chunks: tuple[Chunk, ...], converted: frozenset[str], readers: "Readers | None" = None
    ) -> Needs:
        tensors = self._total_bytes if self._into is None else 0
        return self._copier.needs(chunks, converted, readers or self.readers(), tensors)

    def readers(self, nearness: Nearness | None = None) -> "Readers":
        """How many threads read, and how much at once; where the bytes are far, and nobody has said, as that wants."""
        from loader.copiers.job import Readers  # noqa: PLC0415 - the rest works without torch

        far = nearness is not None and nearness.tier in _FAR
        copier, run = self._copier, self._run
        threads = run.threads or copier.threads
        deepens = far and run.threads is None
        return Readers(
            threads=threads,
            read_bytes=run.read_bytes or copier.chunk_bytes,
            depth=Depth(first=threads, most=_DEEPEST * threads) if deepens else None,
            near=not far,
        )

    def _copy(self, reader: Reader, work: "_Work") -> tuple[int, frozenset[Fallback]]:
        from loader.copiers import resident  # noqa: PLC0415 - the rest works without torch
        from loader.copiers.job import Job  # noqa: PLC0415 - as above

        job = Job(
            reader=reader,
            chunks=work.chunks,
            destinations=work.filling.destinations,
            readers=work.readers,
            report=reporter(self._run.progress, self._total_bytes),
            control=self._run.control,
            past_cache=work.past_cache,
            prepare=work.filling.prepare,
        )
        held = cast("Mapping[str, torch.Tensor]", reader.resident)
        near = [entry for name, entry in self._checkpoint.tensors.items() if name in held]
        if near:
            held_job = replace(job, chunks=resident.plan(near))
            held_job.prepare_all()
            resident.copy(held_job, held)
        staging_bytes = self._copier.copy(job)
        return staging_bytes, reader.fallbacks | job.fallbacks


def _has_plain_files(reader: Reader, checkpoint: Checkpoint) -> bool:
    return all(reader.descriptor(file) is not None for file in checkpoint.shards)


def _payload_ranges(checkpoint: Checkpoint) -> list[tuple[str, int, int]]:
    """Per shard its name and the range of bytes that spans the wanted tensors."""
    ranges: dict[str, tuple[int, int]] = {}
    for file, group in groupby(checkpoint.tensors.values(), key=attrgetter("file")):
        entries = list(group)
        begin, end = min(map(attrgetter("begin"), entries)), max(map(attrgetter("end"), entries))
        before = ranges.get(file, (begin, end))
        ranges[file] = min(begin, before[0]), max(end, before[1])
    return [(file, begin, end) for file, (begin, end) in ranges.items()]


def reporter(progress: Callable[[Progress], None] | None, total_bytes: int) -> Callable[[Chunk], None]:
    """What is called with every chunk that is done, and tells how far that is."""
    done_bytes = 0

    def report(chunk: Chunk) -> None:
        nonlocal done_bytes
        done_bytes += chunk.nbytes
        if progress is not None:
            progress(Progress(done_bytes=done_bytes, total_bytes=total_bytes))

    return report
