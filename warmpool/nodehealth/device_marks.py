"""From verdicts on GPUs to taints of single devices, where the cluster hands devices out one by one (DRA). PURE.

A node with one Bad GPU of eight need not lose the other seven: the scheduler is told of the one. A mark is an object of its own, ours by
its label; nobody else's is looked at. As with nodes a GPU of which nothing is known keeps what it has, recoveries aren't limited, and
new exclusions are, by a breaker that sees all GPUs.

A mark names a device, and devices get other names when their driver starts anew: a mark follows its GPU, and goes where the name has
become another GPU's.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from warmpool.nodehealth.breaker import Admission, BreakerLimits, BreakerState, admit, recovered
from warmpool.nodehealth.marks import code_of, ownership, sentence, since_of
from warmpool.nodehealth.verdicts import GpuVerdict, NodeVerdict
from warmpool.seats import Verdict

GPU_LABEL: Final = "emberpool.dev/gpu"
"""Label of our marks: the GPU's UUID."""
_MOST_VALUE: Final = 63  # of a taint's value
_NAME: Final = "emberpool-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What DRA calls a GPU.

    Attributes:
        driver: whose device it is.
        pool: the pool that it is in, of a node's own devices the node's.
        name: its name in the pool.
    """

    driver: str
    pool: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMark:
    """A taint of one device.

    Attributes:
        gpu: the GPU's UUID.
        device: what DRA calls it.
        value: the taint's value.
        annotation: says that it is ours, since when and why.
    """

    gpu: str
    device: Device
    value: str
    annotation: str = ""

    @property
    def name(self) -> str:
        """The object's name."""
        return f"{_NAME}{self.gpu.lower()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What is known of GPUs.

    Attributes:
        verdicts: what is said of nodes, by name.
        spared: nodes that keep their other GPUs when one is Bad; others have no marks.
        devices: what DRA calls GPUs, by UUID; those of a device plugin are missing.
        marks: our marks that are there, by UUID.
    """

    verdicts: Mapping[str, NodeVerdict]
    spared: Collection[str]
    devices: Mapping[str, Device]
    marks: Mapping[str, DeviceMark]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """What is to be written.

    Attributes:
        marks: to be set, or set anew where they are there otherwise.
        unmarks: to be taken away.
        admission: what the breaker says.
        nameless: Bad GPUs that DRA doesn't hand out; their seats are place-holders and nothing more.
    """

    marks: tuple[DeviceMark, ...]
    unmarks: tuple[DeviceMark, ...]
    admission: Admission
    nameless: tuple[str, ...]


class Standing(StrEnum):
    """How a GPU that is to be kept from new pods by itself stands."""

    EXCLUDED = "Excluded"
    """A mark keeps the scheduler from it."""
    WAITING = "Waiting"
    """The breaker holds it back."""
    NAMELESS = "Nameless"
    """DRA doesn't hand it out."""


def plan_device_marks(
    gpus: Gpus, state: BreakerState, limits: BreakerLimits, now: float
) -> tuple[DevicePlan, BreakerState]:
    """Say what is to be written.

    Args:
        gpus: what is known of them.
        state: what the breaker remembers.
        limits: what it allows, of GPUs in place of nodes.
        now: Unix seconds.
    """
    bad = bad_gpus(gpus.verdicts, gpus.spared)
    told = {gpu.uuid: gpu for node in gpus.verdicts.values() for gpu in node.gpus}
    known = {uuid for uuid, gpu in told.items() if gpu.known or gpu.reasons}
    named = {uuid: gpu for uuid, gpu in bad.items() if uuid in gpus.devices}
    wanted = sorted(
        (uuid for uuid in named if uuid not in gpus.marks), key=lambda uuid: (named[uuid].since, uuid)
    )
    state = recovered(state, gpus.devices.keys() | gpus.marks.keys() | told.keys())
    admission, state = admit(state, wanted, len(gpus.devices), limits, now)
    there = [uuid for uuid in named if uuid in gpus.marks]
    gone = {uuid for uuid in gpus.marks if (uuid in known and uuid not in bad) or _names_another(uuid, gpus)}
    marks = [_mark(named[uuid], gpus, now) for uuid in (*admission.admitted, *there)]
    marks += [
        replace(mark, device=gpus.devices[uuid])
        for uuid, mark in gpus.marks.items()
        if uuid in gpus.devices and uuid not in named and uuid not in gone
    ]
    plan = DevicePlan(
        marks=tuple(mark for mark in marks if not _stands(mark, gpus.marks)),
        unmarks=tuple(gpus.marks[uuid] for uuid in sorted(gone)),
        admission=admission,
        nameless=tuple(sorted(bad.keys() - gpus.devices.keys())),
    )
    return plan, state


def seeded(marks: Mapping[str, DeviceMark], now: float) -> BreakerState:
    """Return what a breaker remembers that has seen nothing but the marks that are there.

    Args:
        marks: our marks, by UUID.
        now: Unix seconds, for a mark that doesn't say since when it is there.
    """
    since = {uuid: since_of(mark.annotation) for uuid, mark in marks.items()}
    excluded = {uuid: now if at is None else at for uuid, at in since.items()}
    return BreakerState(excluded=MappingProxyType(excluded))


def _names_another(uuid: str, gpus: Gpus) -> bool:
    """Whether a mark keeps others from a GPU that it isn't meant for: DRA has given the name away, and its own GPU has none."""
    if uuid in gpus.devices:
        return False
    return gpus.marks[uuid].device in gpus.devices.values()


def bad_gpus(verdicts: Mapping[str, NodeVerdict], spared: Collection[str]) -> Mapping[str, GpuVerdict]:
    """Return the Bad GPUs of nodes that keep their other ones, by UUID."""
    return {
        gpu.uuid: gpu
        for name, node in verdicts.items()
        if name in spared
        for gpu in node.gpus
        if gpu.verdict is Verdict.BAD
    }


def _mark(gpu: GpuVerdict, gpus: Gpus, now: float) -> DeviceMark:
    value, before = code_of(gpu)[:_MOST_VALUE], gpus.marks.get(gpu.uuid)
    since = None if before is None else since_of(before.annotation)
    return DeviceMark(
        gpu=gpu.uuid,
        device=gpus.devices[gpu.uuid],
        value=value,
        annotation=ownership(value, now if since is None else since, sentence(gpu)),
    )


def _stands(mark: DeviceMark, there: Mapping[str, DeviceMark]) -> bool:
    found = there.get(mark.gpu)
    return found is not None and (found.device, found.value) == (mark.device, mark.value)
