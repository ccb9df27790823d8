"""From verdicts on GPUs to taints of single devices, where the cluster hands devices out one by one (DRA). PURE.

A node with one Bad GPU of eight need not lose the other seven: the scheduler is told of the one. A mark is an object of its own, ours by
its label; nobody else's is looked at. As with nodes a GPU of which nothing is known keeps what it has, recoveries aren't limited, and
new exclusions are, by a breaker that sees all GPUs.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from warmpool.nodehealth.breaker import Admission, BreakerLimits, BreakerState, admit, recovered
from warmpool.nodehealth.marks import code_of, ownership, sentence
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
    known = {gpu.uuid for node in gpus.verdicts.values() for gpu in node.gpus if gpu.known or gpu.reasons}
    named = {uuid: gpu for uuid, gpu in bad.items() if uuid in gpus.devices}
    wanted = sorted(
        (uuid for uuid in named if uuid not in gpus.marks), key=lambda uuid: (named[uuid].since, uuid)
    )
    state = recovered(state, gpus.devices.keys())
    admission, state = admit(state, wanted, len(gpus.devices), limits, now)
    there = [uuid for uuid in named if uuid in gpus.marks]
    marks = [_mark(named[uuid], gpus.devices[uuid], now) for uuid in (*admission.admitted, *there)]
    plan = DevicePlan(
        marks=tuple(mark for mark in marks if not _stands(mark, gpus.marks)),
        unmarks=tuple(mark for uuid, mark in sorted(gpus.marks.items()) if uuid in known and uuid not in bad),
        admission=admission,
        nameless=tuple(sorted(bad.keys() - gpus.devices.keys())),
    )
    return plan, state


def bad_gpus(verdicts: Mapping[str, NodeVerdict], spared: Collection[str]) -> Mapping[str, GpuVerdict]:
    """Return the Bad GPUs of nodes that keep their other ones, by UUID."""
    return {
        gpu.uuid: gpu
        for name, node in verdicts.items()
        if name in spared
        for gpu in node.gpus
        if gpu.verdict is Verdict.BAD
    }


def _mark(gpu: GpuVerdict, device: Device, now: float) -> DeviceMark:
    value = code_of(gpu)[:_MOST_VALUE]
    return DeviceMark(
        gpu=gpu.uuid, device=device, value=value, annotation=ownership(value, now, sentence(gpu))
    )


def _stands(mark: DeviceMark, there: Mapping[str, DeviceMark]) -> bool:
    found = there.get(mark.gpu)
    return found is not None and (found.device, found.value) == (mark.device, mark.value)
