"""One load: from a checked checkpoint to filled tensors, with an account of where the time went."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from loader.admission import Needs, admit
from loader.checkpoint import Checkpoint
from loader.control import Control
from loader.manifest import Manifest, check_headers
from loader.plan import Chunk, plan_reads
from loader.sources.files import FILES
from loader.sources.limits import read_limits
from loader.sources.port import Fallback, Nearness, Reader, Source, Tier

if TYPE_CHECKING:
    import torch

    from loader.copiers.choice import Copier
    from loader.copiers.destinations import Destination


class Step(StrEnum):
    """The steps of a load, in order."""

    OPEN = "Open"
    """Opening the files, comparing them with their headers, probing the tier."""
    PLAN = "Plan"
    """Planning the reads, and seeing that the machine can carry them."""
    ALLOCATE = "Allocate"
    """Allocating the tensors, or checking the ones to load into."""
    COPY = "Copy"
    """Reading, copying and converting, which overlap; registering page-locked memory at a process's first CUDA load."""
    FINISH = "Finish"
    """Checking that no file changed meanwhile."""
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
        threads: how many read at once; by default what suits the device.
        progress: called on the loading thread after every chunk; an exception it raises ends the load.
        control: to pause, slow or call off the load meanwhile.
        source: where the bytes come from.
    """

    threads: int | None = None
    progress: Callable[[Progress], None] | None = None
    control: Control = field(default_factory=Control)
    source: Source = FILES

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, not {self.threads}")


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
    seconds: dict[Step, float] = field(default_factory=dict)

    @contextmanager
    def step(self, step: Step) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds[step] = time.perf_counter() - begun

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
    return wanted.needs(wanted.chunks(), converted)


class _Load:
    """A load that has been asked for."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        run: Run,
        device: "str | int | torch.device",
        into: "Mapping[str, torch.Tensor] | None",
    ) -> None:
        from loader.copiers import choice, destinations  # noqa: PLC0415 - the rest works without torch

        self._checkpoint = checkpoint
        self._run = run
        self._into = into
        self._copier: Copier = choice.choose(destinations.target_device(device, into))
        self._threads = run.threads or self._copier.threads

    def carry_out(self, *, convert: bool, manifest: Manifest | None) -> LoadResult:
        from loader.copiers import destinations  # noqa: PLC0415 - the rest works without torch

        checkpoint, into, watch = self._checkpoint, self._into, _Stopwatch()
        if manifest is not None:
            check_headers(checkpoint, manifest)
        with ExitStack() as closing:
            with watch.step(Step.OPEN):
                reader = closing.enter_context(self._run.source.open(checkpoint))
                nearness = reader.nearness(_payload_ranges(checkpoint))
            filled = destinations.match(checkpoint, into, convert=convert) if into is not None else {}
            with watch.step(Step.PLAN):
                limits = read_limits(device_bytes=self._copier.free_bytes())
                converted = destinations.converted(filled)
                # The tensors first: a plan for what can't fit would be long.
                admit(self.needs((), frozenset()), limits, file=checkpoint.root)
                chunks = self.chunks()
                admit(self.needs(chunks, converted), limits, file=checkpoint.root)
            with watch.step(Step.ALLOCATE):
                tensors = into if into is not None else destinations.allocate(checkpoint, self._copier.device)
                if into is None:
                    filled = destinations.match(checkpoint, tensors, convert=False)
            with watch.step(Step.COPY), destinations.memory_errors(checkpoint.root):
                staging_bytes, fallbacks = self._copy(reader, nearness, chunks, filled)
            with watch.step(Step.FINISH):
                reader.verify()
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
            nbytes=checkpoint.total_bytes,
            staging_bytes=staging_bytes,
            proven=proven,
            seconds=watch.total(),
            seconds_by_step=MappingProxyType(watch.seconds),
        )

    def chunks(self) -> tuple[Chunk, ...]:
        return plan_reads(self._checkpoint.tensors.values(), chunk_bytes=self._copier.chunk_bytes)

    def needs(self, chunks: tuple[Chunk, ...], converted: frozenset[str]) -> Needs:
        tensors = self._checkpoint.total_bytes if self._into is None else 0
        return self._copier.needs(chunks, converted, self._threads, tensors)

    def _copy(
        self,
        reader: Reader,
        nearness: Nearness,
        chunks: tuple[Chunk, ...],
        filled: "Mapping[str, Destination]",
    ) -> tuple[int, frozenset[Fallback]]:
        from loader.copiers.job import Job  # noqa: PLC0415 - the rest works without torch

        job = Job(
            reader=reader,
            chunks=chunks,
            destinations=filled,
            threads=self._threads,
            report=reporter(self._run.progress, self._checkpoint.total_bytes),
            control=self._run.control,
            past_cache=nearness.tier is Tier.DISK,
        )
        staging_bytes = self._copier.copy(job)
        return staging_bytes, reader.fallbacks | job.fallbacks


def _payload_ranges(checkpoint: Checkpoint) -> list[tuple[str, int, int]]:
    """Per shard its name and the range of bytes that spans the wanted tensors."""
    ranges: dict[str, tuple[int, int]] = {}
    for entry in checkpoint.tensors.values():
        begin, end = ranges.get(entry.file, (entry.begin, entry.end))
        ranges[entry.file] = (min(begin, entry.begin), max(end, entry.end))
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
