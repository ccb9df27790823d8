"""Real arrivals, and what can be made of them: shifted, cut into parts, thinned.

A trace is a circle: what is shifted out at its end comes in at its beginning, so that every model that replays it has
the same requests, only at other times.
"""

import csv
import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from scaler.errors import UserError

CODING: Final = "coding"
"""Half an hour of a coding assistant: quiet stretches, and then tens of requests in one second."""
CHAT: Final = "chat"
"""Half an hour of a chat: steady."""
_HEADER: Final = ["milliseconds", "promptTokens", "generatedTokens"]


class Arrival(NamedTuple):
    """One request.

    Attributes:
        at: seconds since the trace began.
        prompt: tokens of its prompt.
        generated: tokens that it was answered with.
    """

    at: float
    prompt: int
    generated: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of time, over so many seconds.

    Attributes:
        name: what it was made from, and how: equal names are equal traces.
        arrivals: the requests.
        seconds: its length.
    """

    name: str
    arrivals: tuple[Arrival, ...]
    seconds: float

    def shifted(self, seconds: float) -> "Trace":
        """Return the trace so much later; what passes its end comes first."""
        moved = [a._replace(at=(a.at + seconds) % self.seconds) for a in self.arrivals]
        return Trace(f"{self.name}+{seconds:.1f}s", tuple(sorted(moved, key=_time)), self.seconds)

    def part(self, index: int, of: int) -> "Trace":
        """Return one of so many parts of equal length, counted from 0."""
        length = self.seconds / of
        begin = index * length
        here = [a._replace(at=a.at - begin) for a in self.arrivals if begin <= a.at < begin + length]
        return Trace(f"{self.name}[{index + 1}/{of}]", tuple(here), length)

    def thinned(self, keep: int, first: int) -> "Trace":
        """Return each `keep`th request, beginning with number `first`."""
        return Trace(f"{self.name}({first}::{keep})", self.arrivals[first::keep], self.seconds)

    def cut(self, seconds: float) -> "Trace":
        """Return what comes within the first `seconds`."""
        kept = tuple(a for a in self.arrivals if a.at < seconds)
        return Trace(f"{self.name}<{seconds:.1f}s", kept, min(seconds, self.seconds))

    def tokens(self, quantile: float) -> int:
        """Return the tokens, prompt and answer together, that such a share of the requests stays within."""
        sizes = sorted(a.prompt + a.generated for a in self.arrivals)
        return sizes[min(len(sizes) - 1, int(quantile * len(sizes)))] if sizes else 0


def _time(arrival: Arrival) -> float:
    return arrival.at


def read(name: str, directory: Traversable | None = None) -> Trace:
    """Read one of the traces that come with the package.

    Args:
        name: `CODING` or `CHAT`.
        directory: where the files lie, if not in the package.

    Raises:
        UserError: the file is not there, or is no such table.
    """
    directory = directory or files("scaler.runtime.bench.law").joinpath("arrivals")
    path = directory.joinpath(f"{name}.csv.gz")
    try:
        text = gzip.decompress(path.read_bytes()).decode()
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: the arrivals are missing",
            hint="they are part of the package: install it from the wheel or the sdist, not from a copy of the .py files",
        ) from error
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}", hint="the file is damaged; install the package again") from error
    rows = csv.reader(io.StringIO(text))
    if next(rows, None) != _HEADER:
        raise UserError(f"{path}:1:1: the columns are not {', '.join(_HEADER)}")
    arrivals = tuple(Arrival(int(at) / 1000.0, int(prompt), int(generated)) for at, prompt, generated in rows)
    return Trace(name, arrivals, arrivals[-1].at + 1.0)


def synthetic(
    name: str, rate: Callable[[float], float], seconds: float, prompt: int, generated: int
) -> Trace:
    """Return evenly spaced requests of one size whose rate changes with time: no chance in it.

    Args:
        name: what it is called.
        rate: requests per second at a moment.
        seconds: how long.
        prompt: tokens of each prompt.
        generated: tokens of each answer.
    """
    arrivals, at, due, step = [], 0.0, 0.0, 0.001
    while at < seconds:
        due += rate(at) * step
        while due >= 1.0:
            due -= 1.0
            arrivals.append(Arrival(at, prompt, generated))
        at += step
    return Trace(name, tuple(arrivals), seconds)
