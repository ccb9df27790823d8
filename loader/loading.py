"""One load: from a checked checkpoint to filled tensors, with an account of where the time went."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from loader.checkpoint import Checkpoint
from loader.plan import Chunk, plan_reads
from loader.sources.files import ShardReader
from loader.sources.tier import Tier, probe, read_mount_table

if TYPE_CHECKING:
    import torch


class Step(StrEnum):
    """The steps of a load, in order."""

    OPEN = "Open"
    """Opening the files, comparing them with their headers, probing the tier."""
    PLAN = "Plan"
    ALLOCATE = "Allocate"
    """Allocating the tensors, or checking the ones to load into."""
    COPY = "Copy"
    """Reading, copying and converting, which overlap; registering page-locked memory at a process's first CUDA load."""
    FINISH = "Finish"
    """Checking that no file changed meanwhile."""


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
class LoadResult:
    """What a load did.

    Attributes:
        tensors: by name; the very ones passed as `into`, where they were.
        tier: where the bytes were when the load began.
        cached_share: share of sampled payload bytes that were in memory then; None where the system doesn't tell.
        nbytes: payload bytes read.
        staging_bytes: buffers used besides the tensors, host and device together.
        seconds: wall time of the whole load.
        seconds_by_step: the same by step; together a little less than `seconds`.
    """

    tensors: "Mapping[str, torch.Tensor]"
    tier: Tier
    cached_share: float | None
    nbytes: int
    staging_bytes: int
    seconds: float
    seconds_by_step: Mapping[Step, float]


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
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    convert: bool = False,
) -> LoadResult:
    """Fill tensors with a checkpoint's bytes, each byte moved once.

    Args:
        checkpoint: from `open_checkpoint`; `Checkpoint.only` takes a part of one.
        device: where to allocate the tensors; an int is a CUDA device. Not used with `into`.
        into: the tensors to fill, by name: exactly the checkpoint's names, contiguous, all on one device. They may be
            parameters that require gradients. After an error their content is undefined.
        threads: how many read at once; by default what suits the device.
        progress: called on this thread after every chunk; an exception it raises ends the load.
        convert: whether a destination may have another floating-point dtype than the file; its values are then
            rounded, chunk by chunk.

    Raises:
        DestinationMismatch: `into` doesn't fit the checkpoint.
        DtypeUnsupported: torch has no dtype for one of the tensors.
        DeviceUnavailable: the device can't be used here.
        LoadError: reading or copying failed, or a file changed since the checkpoint was opened.
        ValueError: threads is less than 1.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    from loader.copiers import choice, destinations  # noqa: PLC0415 - the rest of the package works without torch

    watch = _Stopwatch()
    copier = choice.choose(destinations.target_device(device, into))
    with ExitStack() as closing:
        with watch.step(Step.OPEN):
            reader = closing.enter_context(ShardReader(checkpoint))
            nearness = probe(reader, _payload_ranges(checkpoint), read_mount_table())
        with watch.step(Step.PLAN):
            chunks = plan_reads(checkpoint.tensors.values(), chunk_bytes=copier.chunk_bytes)
        with watch.step(Step.ALLOCATE):
            tensors = into if into is not None else destinations.allocate(checkpoint, copier.device)
            filled = destinations.match(checkpoint, tensors, convert=convert)
        with watch.step(Step.COPY):
            report = _reporter(progress, checkpoint.total_bytes)
            staging_bytes = copier.copy(
                reader, chunks, filled, threads=threads or copier.threads, report=report
            )
        with watch.step(Step.FINISH):
            reader.verify()
    return LoadResult(
        tensors=tensors,
        tier=nearness.tier,
        cached_share=nearness.cached_share,
        nbytes=checkpoint.total_bytes,
        staging_bytes=staging_bytes,
        seconds=watch.total(),
        seconds_by_step=MappingProxyType(watch.seconds),
    )


def _payload_ranges(checkpoint: Checkpoint) -> list[tuple[str, int, int]]:
    """Per shard its name and the range of bytes that spans the wanted tensors."""
    ranges: dict[str, tuple[int, int]] = {}
    for entry in checkpoint.tensors.values():
        begin, end = ranges.get(entry.file, (entry.begin, entry.end))
        ranges[entry.file] = (min(begin, entry.begin), max(end, entry.end))
    return [(file, begin, end) for file, (begin, end) in ranges.items()]


def _reporter(progress: Callable[[Progress], None] | None, total_bytes: int) -> Callable[[Chunk], None]:
    done_bytes = 0

    def report(chunk: Chunk) -> None:
        nonlocal done_bytes
        done_bytes += chunk.nbytes
        if progress is not None:
            progress(Progress(done_bytes=done_bytes, total_bytes=total_bytes))

    return report
