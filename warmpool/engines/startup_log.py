"""What engines that tell nothing of their start write into their log: times of its steps, and what their compile cache gave.

Read from whole lines, whatever a logger puts in front of them. Each worker of a tensor-parallel engine writes lines of its own; they
load side by side, so the slowest counts. Seen in logs of vLLM from 0.6 on and of SGLang from 0.4 on. PURE.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from warmpool.timeline import CacheUse, Phase, WeightLoad

_NUMBER: Final = r"([0-9]+(?:\.[0-9]+)?)"
_GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """What a log tells of a start.

    Attributes:
        phases: seconds of phases, as far as they are logged.
        load: how the weights came; None if that isn't logged.
        compile_cache: what the compile cache gave; None if nothing was looked for there.
    """

    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    load: WeightLoad | None = None
    compile_cache: CacheUse | None = None


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that tells a time. `mark` is the part of it by which it is found at all."""

    what: str
    mark: str
    pattern: re.Pattern[str]


def _line(what: str, mark: str, rest: str) -> _Line:
    return _Line(what, mark, re.compile(re.escape(mark) + rest))


_LINES: Final = (
    _line("read", "Loading weights took ", rf"{_NUMBER} s"),
    _line("model", "Model loading took ", rf"{_NUMBER} Gi?B(?: memory)? and {_NUMBER} s"),
    _line("model", "Load weight end. ", rf"elapsed={_NUMBER} s(?:,.*?mem usage={_NUMBER} GB)?"),
    _line("dynamo", "Dynamo bytecode transform time: ", rf"{_NUMBER} s"),
    _line("miss", "Compiling a graph for ", rf".*? takes {_NUMBER} s"),
    _line("hit", "Directly load the compiled graph", rf".*? from the cache(?:, took {_NUMBER} s)?"),
    _line("compile", "torch.compile took ", rf"{_NUMBER} s in total"),
    _line("compile", "torch.compile takes ", rf"{_NUMBER} s in total"),
    _line("profiled", "torch.compile and initial profiling run took ", rf"{_NUMBER} s in total"),
    _line("profile", "Initial profiling/warmup run took ", rf"{_NUMBER} s"),
    _line("capture", "Graph capturing finished in ", rf"{_NUMBER} s"),
    _line("capture", "Capture cuda graph end. ", rf"Time elapsed: {_NUMBER} s"),
    _line("capture", "Capture target decode CUDA graph end. ", rf"elapsed={_NUMBER} s"),
    _line("distributed", "Init torch distributed ends. ", rf"elapsed={_NUMBER} s"),
    _line("init", "init engine ", rf".*?took {_NUMBER} s"),
)
MARKS: Final = tuple(dict.fromkeys(line.mark for line in _LINES))
"""Parts of lines that are worth keeping: whoever has the whole log needs to look for nothing else."""
LINE_CHARACTERS: Final = 1024
"""No line that counts is longer."""


def telling_lines(text: str) -> list[str]:
    """Return the lines of a log that tell of a start."""
    return [line[:LINE_CHARACTERS] for line in text.splitlines() if any(mark in line for mark in MARKS)]


def read_log(lines: Iterable[str]) -> Logged:
    """Read what a start's log tells. The same step is logged by every worker: the slowest counts."""
    seconds: dict[str, float] = {}
    nbytes = hits = misses = 0
    for text in lines:
        for line in _LINES:
            found = line.pattern.search(text)
            if found is None:
                continue
            *sizes, took = _numbers(line.what, found)
            if line.what == "model" and sizes:
                nbytes = max(nbytes, int(sizes[0] * _GIB))
            hits += line.what == "hit"
            misses += line.what == "miss"
            seconds[line.what] = max(seconds.get(line.what, 0.0), took)
            break
    return Logged(
        phases=MappingProxyType(_phases(seconds)),
        load=_load(seconds, nbytes),
        compile_cache=CacheUse(hits=hits, misses=misses) if hits or misses else None,
    )


def _numbers(what: str, found: re.Match[str]) -> list[float]:
    """Return the numbers of a line, the seconds last."""
    numbers = [float(each) for each in found.groups() if each is not None]
    if what == "model" and found.group(0).startswith("Load weight end"):
        numbers.reverse()
    return numbers or [0.0]


def _phases(seconds: Mapping[str, float]) -> dict[str, float]:
    """Put what was logged into phases. What the engine's own initialisation took beyond what it names is compiling, and the like."""
    weights = seconds.get("model", seconds.get("read", 0.0))
    capture = seconds.get("capture", 0.0)
    compiled = max(
        seconds.get("compile", 0.0) + seconds.get("profile", 0.0),
        seconds.get("profiled", 0.0),
        seconds.get("dynamo", 0.0) + max(seconds.get("miss", 0.0), seconds.get("hit", 0.0)),
        seconds.get("init", 0.0) - capture,
    )
    parts = {
        Phase.CONTEXT: seconds.get("distributed", 0.0),
        Phase.WEIGHTS: weights,
        Phase.COMPILE: compiled,
        Phase.CAPTURE: capture,
    }
    return {str(phase): each for phase, each in parts.items() if each > 0.0}


def _load(seconds: Mapping[str, float], nbytes: int) -> WeightLoad | None:
    took = seconds.get("read", seconds.get("model"))
    return None if took is None else WeightLoad(nbytes=nbytes, seconds=took)
