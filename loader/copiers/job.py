"""What a copier is given: which bytes, from where, into what."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loader.control import Control
from loader.copiers import crew
from loader.copiers.crew import OpenWorker
from loader.copiers.destinations import Destination
from loader.depth import Depth
from loader.plan import Chunk
from loader.sources.port import Fallback, Reader


def _is_there(_: Chunk) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """How a load reads.

    Attributes:
        threads: how many read at once, to begin with.
        read_bytes: the most that each reads at once, a multiple of a page.
        depth: changes the number of threads meanwhile; None leaves it.
        near: whether the bytes are in memory, so that reading them computes more than it waits.
    """

    threads: int
    read_bytes: int
    depth: Depth | None = None
    near: bool = True

    @property
    def most(self) -> int:
        """How many threads it may come to."""
        return self.depth.most if self.depth else self.threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One load, planned.

    Attributes:
        reader: the open source.
        chunks: what to read, in order.
        destinations: what to fill, by tensor; those of a chunk are there once it was prepared.
        readers: how many read at once, and how much.
        report: called on the caller's thread with every chunk that is done.
        control: pauses, slows and calls off.
        past_cache: whether reading past the page cache is worth it: the bytes are not in it.
        fallbacks: slower ways that the copier had to take; it adds to them.
        prepare: makes the destinations of a chunk where they aren't there yet, for the caller's thread; whether memory was taken. All are
            there already by default.
    """

    reader: Reader
    chunks: Sequence[Chunk]
    destinations: Mapping[str, Destination]
    readers: Readers
    report: Callable[[Chunk], None]
    control: Control
    past_cache: bool = False
    fallbacks: set[Fallback] = field(default_factory=set)
    prepare: Callable[[Chunk], bool] = _is_there

    @property
    def most_workers(self) -> int:
        """Threads that read at once at the most."""
        return min(self.readers.most, len(self.chunks))

    def prepare_all(self) -> None:
        """Make all destinations at once, for a copier that wants them before it begins."""
        for chunk in self.chunks:
            self.prepare(chunk)

    def share_out(self, open_worker: OpenWorker, *, prepared: Callable[[], None] = lambda: None) -> None:
        """Copy all chunks on the job's threads; as `crew.run`, which says what it raises.

        Args:
            open_worker: called on each thread.
            prepared: called on the caller's thread whenever memory was taken for destinations, before anything is copied to them.
        """
        crew.run(
            _Prepared(self, prepared),
            threads=self.readers.threads,
            open_worker=open_worker,
            report=self.report,
            control=self.control,
            depth=self.readers.depth,
        )


class _Prepared:
    """The chunks of a job, each prepared when it is taken."""

    def __init__(self, job: Job, prepared: Callable[[], None]) -> None:
        self._job = job
        self._prepared = prepared

    def __len__(self) -> int:
        return len(self._job.chunks)

    def __iter__(self) -> Iterator[Chunk]:
        for chunk in self._job.chunks:
            if self._job.prepare(chunk):
                self._prepared()
            yield chunk


Copy = Callable[[Job], int]
"""Fills a job's destinations; the bytes of buffers that this took besides them."""
