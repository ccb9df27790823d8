"""The steps of a cold start, what each may take, and whether it did. PURE."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from warmpool.timeline import Phase


class Step(StrEnum):
    """The steps, in their order. `total` is all but `device`, which is measured by itself, in a process of its own."""

    DEVICE = "device"
    """The driver is ready for a new process: slow where nobody keeps it initialised."""
    PROCESS = "process"
    """The engine's process runs and answers; with a zygote it has been forked."""
    IMPORT = "import"
    """Its libraries are imported; nothing is left to do with a zygote."""
    CONTEXT = "context"
    """It has a context on its device."""
    WEIGHTS = "weights"
    """Its weights are where they are computed with."""
    KERNELS = "kernels"
    """Kernels are compiled and loaded, graphs captured."""
    FIRST_REQUEST = "first-request"
    """The first token of the first request."""
    TOTAL = "total"
    """From the order to start the process to that first token."""


_OF_PHASES: Final[Mapping[Phase, Step]] = MappingProxyType(
    {
        Phase.PROCESS: Step.PROCESS,
        Phase.IMPORT: Step.IMPORT,
        Phase.CONTEXT: Step.CONTEXT,
        Phase.WEIGHTS: Step.WEIGHTS,
        Phase.COMPILE: Step.KERNELS,
        Phase.CAPTURE: Step.KERNELS,
        Phase.OTHER: Step.PROCESS,
    }
)


def steps_of(phases: Mapping[Phase, float]) -> dict[Step, float]:
    """Put an engine's phases into steps; phases that it doesn't have took nothing."""
    found = dict.fromkeys((Step.PROCESS, Step.IMPORT, Step.CONTEXT, Step.WEIGHTS, Step.KERNELS), 0.0)
    for phase, seconds in phases.items():
        found[_OF_PHASES[phase]] += seconds
    return found


_GPU_SECONDS: Final[Mapping[Step, float]] = MappingProxyType(
    {
        Step.DEVICE: 0.5,
        Step.PROCESS: 0.4,
        Step.IMPORT: 0.1,
        Step.CONTEXT: 0.4,
        Step.WEIGHTS: 0.2,
        Step.KERNELS: 0.8,
        Step.FIRST_REQUEST: 0.2,
        Step.TOTAL: 2.1,
    }
)
"""Targets on a GPU, without the time that the weights' bytes take."""
_BYTES_PER_SECOND: Final = 40e9
"""How fast staged weights are to come. 16 GB of them make the total 2.5 s, which is this project's target for that size."""


def targets_for(*, gpu: bool, weights_bytes: int) -> dict[Step, float]:
    """Return what each step may take, in seconds. On a CPU there are no targets of our own: who wants some names them.

    Args:
        gpu: the engine computes on one.
        weights_bytes: size of its weights.
    """
    if not gpu:
        return {}
    moving = weights_bytes / _BYTES_PER_SECOND
    return {
        step: seconds + (moving if step in {Step.WEIGHTS, Step.TOTAL} else 0.0)
        for step, seconds in _GPU_SECONDS.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One step.

    Attributes:
        step: which.
        seconds: what it took; None if it couldn't be measured.
        target: what it may take; None if there is no target.
        note: what is to be known of it; may be empty.
    """

    step: Step
    seconds: float | None
    target: float | None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether it took no more than it may; None if nothing can be said. What has a target and no measurement isn't met."""
        if self.target is None:
            return None
        return self.seconds is not None and self.seconds <= self.target


def judge(
    measured: Mapping[Step, float], targets: Mapping[Step, float], notes: Mapping[Step, str]
) -> tuple[Judged, ...]:
    """Hold what was measured against its targets, in the order of steps."""
    return tuple(
        Judged(step=step, seconds=measured.get(step), target=targets.get(step), note=notes.get(step, ""))
        for step in Step
    )


def passed(judged: tuple[Judged, ...]) -> bool:
    """Whether no step missed its target."""
    return not any(each.met is False for each in judged)


def parse_target(text: str) -> tuple[Step, float]:
    """Read `STEP=SECONDS`.

    Raises:
        ValueError: it is something else; the message says what is wanted.
    """
    name, equals, value = text.partition("=")
    known = ", ".join(Step)
    if not equals or name not in set(Step):
        raise ValueError(f"{text!r}: STEP=SECONDS is wanted, with one of {known}")
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds < math.inf:
        raise ValueError(f"{text!r}: {value!r} is no number of seconds")
    return Step(name), seconds
