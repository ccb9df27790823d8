"""A year of a cluster's GPUs: what breaks, which programs crash, and which storms come. Drawn from a seed.

Rates of faults are those of 16,384 H100s over 54 days (Llama Team, "The Llama 3 Herd of Models", table 5): 148 faulty GPUs, 72 of HBM,
19 of SRAM, 17 of the GPU's system processor, 6 of heat, 6 silent, that is one fault in nine GPU-years. Which errors a fault comes with,
how often programs crash, and when storms come, is not published in such a form and is assumed here; the storms are those of public
reports: a job's end that errs on 77 nodes, links that complain without being broken, a driver that calls healthy GPUs hung.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

DAY: Final = 86_400.0
_GPU_YEARS: Final = 16_384 * 54 / 365
"""What the faults of the study were counted over."""


class Kind(StrEnum):
    """Faults."""

    OFF_THE_BUS = "off the bus"
    STOPPED = "stopped"
    SWITCHING = "context switches time out"
    UNCONTAINED = "uncontained memory error"
    CONTAINED = "contained memory error"
    ROW_FAILURE = "row can't be replaced"
    SRAM = "on-chip memory error"
    SYSTEM_PROCESSOR = "system processor hangs"
    HEAT = "heat"
    SILENT = "silent corruption"


_COUNTED: Final[tuple[tuple[Kind, float], ...]] = (
    (Kind.OFF_THE_BUS, 148 * 0.4),
    (Kind.STOPPED, 148 * 0.3),
    (Kind.SWITCHING, 148 * 0.15),
    (Kind.UNCONTAINED, 148 * 0.15),
    (Kind.CONTAINED, 72 * 0.85),
    (Kind.ROW_FAILURE, 72 * 0.15),
    (Kind.SRAM, 19),
    (Kind.SYSTEM_PROCESSOR, 17),
    (Kind.HEAT, 6),
    (Kind.SILENT, 6),
)
SOFT: Final = frozenset({Kind.CONTAINED, Kind.HEAT})
"""Faults with which a GPU goes on, if slower: what it should get is no more work, not exclusion."""
MUTE: Final = frozenset({Kind.SILENT})
"""Faults of which nothing tells."""
HARDWARE: Final = frozenset({Kind.ROW_FAILURE, Kind.HEAT})
"""Faults that no reset mends."""
_CRASHES_PER_GPU_YEAR: Final = 10.0
_JOB_SIZES: Final = (1, 1, 2, 4, 8, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the cluster is, and for how long.

    Attributes:
        nodes: nodes of it.
        gpus: of each.
        days: simulated time.
        old_percent: nodes whose driver has no verdict of its own.
    """

    nodes: int = 100
    gpus: int = 8
    days: int = 365
    old_percent: int = 25

    @property
    def seconds(self) -> float:
        """Simulated time."""
        return self.days * DAY


@dataclass(frozen=True, slots=True)
class Fault:
    """A GPU breaks."""

    at: float
    node: int
    gpu: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Errors:
    """Healthy GPUs err: one code after the other on each of some GPUs of a node.

    Attributes:
        at: when.
        node, gpus: where.
        xids: the codes with the driver's words.
    """

    at: float
    node: int
    gpus: tuple[int, ...]
    xids: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Hang:
    """NVML doesn't answer for a healthy GPU."""

    at: float
    node: int
    gpu: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Restart:
    """Agents and device plugins of all nodes start anew, as with an upgrade."""

    at: float


Happening = Fault | Errors | Hang | Restart


def script(size: Size, seed: int) -> list[Happening]:
    """Return what happens, in order."""
    draw = random.Random(seed)
    found: list[Happening] = [
        *_faults(size, draw),
        *_crashes(size, draw),
        *_storms(size, draw),
        *_hangs(size, draw),
    ]
    found += [Restart(30 * DAY * month + draw.uniform(0, DAY)) for month in range(1, size.days // 30 + 1)]
    return sorted((each for each in found if each.at < size.seconds), key=lambda each: each.at)


def _times(rate: float, seconds: float, draw: random.Random) -> Iterator[float]:
    """Draw times of a Poisson process, `rate` per second."""
    at = draw.expovariate(rate)
    while at < seconds:
        yield at
        at += draw.expovariate(rate)


def _faults(size: Size, draw: random.Random) -> Iterator[Fault]:
    for kind, count in _COUNTED:
        rate = count / _GPU_YEARS * size.nodes * size.gpus / (365 * DAY)
        for at in _times(rate, size.seconds, draw):
            yield Fault(at, draw.randrange(size.nodes), draw.randrange(size.gpus), kind)


_ENDS: Final = (
    ((31, "MMU Fault"), (43, ""), (45, "")),
    ((13, "Graphics Exception"), (45, "")),
    ((31, "MMU Fault"), (45, "")),
    ((43, ""), (45, "")),
    ((94, "Contained ECC error"), (45, "")),
    ((32, "Invalid pushbuffer"), (45, "")),
    ((69, "Class Error"), (45, "")),
)
_END_WEIGHTS: Final = (30, 25, 25, 15, 1, 2, 2)


def _crashes(size: Size, draw: random.Random) -> Iterator[Errors]:
    mean = sum(_JOB_SIZES) / len(_JOB_SIZES)
    rate = _CRASHES_PER_GPU_YEAR * size.nodes * size.gpus / mean / (365 * DAY)
    for at in _times(rate, size.seconds, draw):
        jobs = min(size.gpus, draw.choice(_JOB_SIZES))
        gpus = tuple(draw.sample(range(size.gpus), jobs))
        yield Errors(at, draw.randrange(size.nodes), gpus, draw.choices(_ENDS, _END_WEIGHTS)[0])


_LINK: Final = "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)"


def _storms(size: Size, draw: random.Random) -> Iterator[Errors]:
    every = tuple(range(size.gpus))

    def on(at: float, nodes: int, minutes: float, xids: tuple[tuple[int, str], ...]) -> Iterator[Errors]:
        for node in draw.sample(range(size.nodes), min(nodes, size.nodes)):
            yield Errors(at + draw.uniform(0, minutes * 60), node, every, xids)

    for _ in range(4):  # one job's end, on 77 nodes
        yield from on(draw.uniform(0, size.seconds), 77, 1, ((31, "MMU Fault"), (43, ""), (45, "")))
    start = draw.uniform(0, size.seconds)
    for _ in range(84):  # ends of jobs, with an error on each GPU each time: 672 in three hours
        yield from on(start + draw.uniform(0, 3 * 3600), 1, 1, ((45, ""),))
    for _ in range(3):  # links that complain
        yield from on(draw.uniform(0, size.seconds), 12, 30, ((145, _LINK), (149, _LINK)))
    # a driver that calls healthy GPUs hung
    yield from on(
        draw.uniform(0, size.seconds), 60, 20, ((119, "Timeout after 6s of waiting for RPC response"),)
    )
    yield from on(draw.uniform(0, size.seconds), 40, 5, ((109, "CTX SWITCH TIMEOUT"),))


def _hangs(size: Size, draw: random.Random) -> Iterator[Hang]:
    for at in _times(24 / (365 * DAY), size.seconds, draw):
        seconds = draw.uniform(600, 6 * 3600)
        yield Hang(at, draw.randrange(size.nodes), draw.randrange(size.gpus), seconds)
