"""What a copier is given: which bytes, from where, into what."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loader.control import Control
from loader.copiers.destinations import Destination
from loader.plan import Chunk
from loader.sources.port import Fallback, Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One load, planned.

    Attributes:
        reader: the open source.
        chunks: what to read, in order.
        destinations: what to fill, by tensor.
        threads: how many read at once.
        report: called on the caller's thread with every chunk that is done.
        control: pauses, slows and calls off.
        past_cache: whether reading past the page cache is worth it: the bytes are not in it.
        fallbacks: slower ways that the copier had to take; it adds to them.
    """

    reader: Reader
    chunks: Sequence[Chunk]
    destinations: Mapping[str, Destination]
    threads: int
    report: Callable[[Chunk], None]
    control: Control
    past_cache: bool = False
    fallbacks: set[Fallback] = field(default_factory=set)
