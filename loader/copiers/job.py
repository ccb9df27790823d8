"""What a copier is given: which bytes, from where, into what."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loader.control import Control
from loader.copiers import crew
from loader.copiers.crew import OpenWorker
from loader.copiers.destinations import Destination
from loader.depth import Depth
from loader.plan import Chunk
from loader.sources.port import Fallback, Reader


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
        destinations: what to fill, by tensor.
        readers: how many read at once, and how much.
        report: called on the caller's thread with every chunk that is done.
        control: pauses, slows and calls off.
        past_cache: whether reading past the page cache is worth it: the bytes are not in it.
        fallbacks: slower ways that the copier had to take; it adds to them.
    """

    reader: Reader
    chunks: Sequence[Chunk]
    destinations: Mapping[str, Destination]
    readers: Readers
    report: Callable[[Chunk], None]
    control: Control
    past_cache: bool = False
    fallbacks: set[Fallback] = field(default_factory=set)

    @property
    def most_workers(self) -> int:
        """Threads that read at once at the most."""
        return min(self.readers.most, len(self.chunks))

    def share_out(self, open_worker: OpenWorker) -> None:
        """Copy all chunks on the job's threads; as `crew.run`, which says what it raises.

        Args:
            open_worker: called on each thread.
        """
        crew.run(
            self.chunks,
            threads=self.readers.threads,
            open_worker=open_worker,
            report=self.report,
            control=self.control,
            depth=self.readers.depth,
        )


Copy = Callable[[Job], int]
"""Fills a job's destinations; the bytes of buffers that this took besides them."""
