"""The rules that are compared: ours, a device plugin's, and a taint on any error."""

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Protocol

from warmpool.nodehealth.bench.script import Kind
from warmpool.nodehealth.breaker import BreakerLimits, BreakerState, admit
from warmpool.nodehealth.readings import Canary, Clocks, Contact, Ecc, Event, GpuReading, NodeReading, Rows
from warmpool.nodehealth.records import NodeRecord, Rules
from warmpool.nodehealth.rules import with_canary, with_event, with_reading
from warmpool.nodehealth.verdicts import judge
from warmpool.seats import Verdict

PLUGIN_IGNORES: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors that NVIDIA's device plugin passes over (k8s-device-plugin, `internal/rm/health.go`)."""


@dataclass(slots=True)
class Gpu:
    """What is so of a GPU, whoever knows.

    Attributes:
        fault: what is wrong with it.
        began: since when.
        hung_until: NVML doesn't answer for it.
        uncorrected: memory errors in its life.
        energy: what its counter says.
    """

    fault: Kind | None = None
    began: float = 0.0
    hung_until: float = 0.0
    uncorrected: int = 0
    energy: int = 1


@dataclass(slots=True)
class Node:
    """One node.

    Attributes:
        place: its number.
        gpus: its GPUs.
        old: its driver has no verdict of its own.
        boot: how often it was booted.
    """

    place: int
    gpus: list[Gpu]
    old: bool
    boot: int = 0

    def uuid(self, gpu: int) -> str:
        """Return a GPU's UUID."""
        return f"GPU-{self.place}-{gpu}"

    def reading(self, now: float) -> NodeReading:
        """Return what its GPUs say."""
        gpus = {self.uuid(place): self._gpu(place, now) for place in range(len(self.gpus))}
        return NodeReading(at=now, boot=f"boot-{self.boot}", gpus=MappingProxyType(gpus))

    def _gpu(self, place: int, now: float) -> GpuReading:
        gpu, uuid = self.gpus[place], self.uuid(place)
        if now < gpu.hung_until:
            return GpuReading(uuid=uuid, contact=Contact.SILENT, reason="a call has not returned")
        if gpu.fault is Kind.OFF_THE_BUS:
            return GpuReading(uuid=uuid, contact=Contact.LOST)
        well = GpuReading(
            uuid=uuid,
            recovery=None if self.old else _ACTIONS.get(gpu.fault, 0) if gpu.fault is not None else 0,
            ecc=Ecc(enabled=True, corrected=0, uncorrected_ever=gpu.uncorrected),
            rows=Rows(
                correctable=0,
                uncorrectable=gpu.uncorrected,
                pending=gpu.fault is Kind.CONTAINED,
                failure=gpu.fault is Kind.ROW_FAILURE,
            ),
            clocks=Clocks.HARDWARE_THERMAL if gpu.fault is Kind.HEAT else Clocks(0),
            millijoules=gpu.energy,
            shared=True,
        )
        return replace(well, reason="")


_ACTIONS: Final = MappingProxyType(
    {
        Kind.STOPPED: 1,
        Kind.SWITCHING: 1,
        Kind.UNCONTAINED: 1,
        Kind.SRAM: 1,
        Kind.SYSTEM_PROCESSOR: 1,
        Kind.CONTAINED: 4,
    }
)
"""What a driver with a verdict of its own asks for, by fault."""


class Rival(Protocol):
    """A rule.

    Attributes:
        name: what it is called.
    """

    name: str

    def error(self, node: Node, gpu: int, xid: int, text: str, now: float) -> None:
        """Be told of an error."""

    def read(self, node: Node, now: float) -> float | None:
        """Look at a node; return when to look again."""

    def booted(self, node: Node, now: float) -> None:
        """Be told that a node has been booted."""

    def restarted(self, nodes: list[Node], now: float) -> None:
        """Be told that agents and device plugins were started anew."""

    def withheld(self, node: Node) -> frozenset[int]:
        """Return the GPUs of a node that get no new work."""

    def excluded(self, node: Node) -> frozenset[int]:
        """Return the GPUs of a node for which somebody is to do something."""


class AnyXid:
    """A taint on the node for any error."""

    name = "taint on any Xid"

    def __init__(self) -> None:
        self._tainted: dict[int, set[int]] = {}

    def error(self, node: Node, gpu: int, xid: int, text: str, now: float) -> None:
        """See `Rival.error`."""
        del xid, text, now
        self._tainted.setdefault(node.place, set()).add(gpu)

    def read(self, node: Node, now: float) -> float | None:
        """See `Rival.read`: nothing changes by itself."""
        del node, now
        return None

    def booted(self, node: Node, now: float) -> None:
        """See `Rival.booted`."""
        del now
        self._tainted.pop(node.place, None)

    def restarted(self, nodes: list[Node], now: float) -> None:
        """See `Rival.restarted`; a taint stays."""

    def withheld(self, node: Node) -> frozenset[int]:
        """See `Rival.withheld`: the whole node."""
        return frozenset(range(len(node.gpus))) if node.place in self._tainted else frozenset()

    def excluded(self, node: Node) -> frozenset[int]:
        """See `Rival.excluded`."""
        return frozenset(self._tainted.get(node.place, ()))


class DevicePlugin:
    """A GPU is unhealthy from its first error that isn't passed over, until the plugin starts anew."""

    name = "device plugin"

    def __init__(self) -> None:
        self._unhealthy: dict[int, set[int]] = {}

    def error(self, node: Node, gpu: int, xid: int, text: str, now: float) -> None:
        """See `Rival.error`."""
        del text, now
        if xid not in PLUGIN_IGNORES:
            self._unhealthy.setdefault(node.place, set()).add(gpu)

    def read(self, node: Node, now: float) -> float | None:
        """See `Rival.read`: nothing changes by itself."""
        del node, now
        return None

    def booted(self, node: Node, now: float) -> None:
        """See `Rival.booted`."""
        del now
        self._unhealthy.pop(node.place, None)

    def restarted(self, nodes: list[Node], now: float) -> None:
        """See `Rival.restarted`: it forgets."""
        del nodes, now
        self._unhealthy.clear()

    def withheld(self, node: Node) -> frozenset[int]:
        """See `Rival.withheld`."""
        return frozenset(self._unhealthy.get(node.place, ()))

    def excluded(self, node: Node) -> frozenset[int]:
        """See `Rival.excluded`."""
        return self.withheld(node)


@dataclass(slots=True)
class Ours:
    """The rules of `warmpool.nodehealth`, with the breaker before exclusions.

    Attributes:
        rules: the rules.
        limits: the breaker's.
        proof_seconds: how long after a hold a resident passes its proof on the GPU; None: it never does.
        waited: times that an exclusion had to wait for the breaker.
    """

    nodes: int
    rules: Rules = field(default_factory=Rules)
    limits: BreakerLimits = field(default_factory=BreakerLimits)
    proof_seconds: float | None = None
    name: str = "Emberpool"
    waited: int = 0
    _records: dict[int, NodeRecord] = field(default_factory=dict)
    _bad: dict[int, frozenset[int]] = field(default_factory=dict)
    _withheld: dict[int, frozenset[int]] = field(default_factory=dict)
    _marked: set[int] = field(default_factory=set)
    _breaker: BreakerState = field(default_factory=BreakerState)

    def error(self, node: Node, gpu: int, xid: int, text: str, now: float) -> None:
        """See `Rival.error`."""
        record = self._record(node, now)
        event = Event(at=now, uuid=node.uuid(gpu), xid=xid, text=text)
        self._records[node.place] = with_event(record, event, self.rules)
        self._judge(node, now)

    def read(self, node: Node, now: float) -> float | None:
        """See `Rival.read`."""
        record = with_reading(self._record(node, now), node.reading(now), self.rules)
        self._records[node.place] = self._proven(record, node, now)
        self._judge(node, now)
        return self._next(node, now)

    def booted(self, node: Node, now: float) -> None:
        """See `Rival.booted`; the next reading shows it."""

    def restarted(self, nodes: list[Node], now: float) -> None:
        """See `Rival.restarted`; what is remembered is in a file."""

    def withheld(self, node: Node) -> frozenset[int]:
        """See `Rival.withheld`: those that are Suspect or Bad; the node's other GPUs go on."""
        return self._withheld.get(node.place, frozenset())

    def excluded(self, node: Node) -> frozenset[int]:
        """See `Rival.excluded`: those that are Bad, once the breaker lets their node's taint through."""
        return self._bad.get(node.place, frozenset()) if node.place in self._marked else frozenset()

    def _record(self, node: Node, now: float) -> NodeRecord:
        record = self._records.get(node.place)
        if record is None:
            well = Node(node.place, [Gpu() for _ in node.gpus], node.old)
            record = with_reading(NodeRecord(), well.reading(now - 15), self.rules)
        return record

    def _proven(self, record: NodeRecord, node: Node, now: float) -> NodeRecord:
        """Have residents pass their proofs on GPUs that are tried and sound."""
        if self.proof_seconds is None:
            return record
        for place, gpu in enumerate(node.gpus):
            trial = record.gpus[node.uuid(place)].trial
            if trial is not None and gpu.fault is None and now >= trial.since + self.proof_seconds:
                record = with_canary(
                    record, Canary(at=now, gpus=frozenset({node.uuid(place)}), passed=True), self.rules
                )
        return record

    def _judge(self, node: Node, now: float) -> None:
        found = judge(self._records[node.place], self.rules, now)
        by = {gpu.uuid: gpu.verdict for gpu in found.gpus}
        verdicts = [by.get(node.uuid(place), Verdict.OK) for place in range(len(node.gpus))]
        self._bad[node.place] = frozenset(i for i, each in enumerate(verdicts) if each is Verdict.BAD)
        self._withheld[node.place] = frozenset(i for i, each in enumerate(verdicts) if each is not Verdict.OK)
        if not self._bad[node.place]:
            self._marked.discard(node.place)
            return
        if node.place in self._marked:
            return
        admission, self._breaker = admit(self._breaker, [str(node.place)], self.nodes, self.limits, now)
        self.waited += admission.tripped
        if admission.admitted:
            self._marked.add(node.place)

    def _next(self, node: Node, now: float) -> float | None:
        """Return when something may change by itself; a real agent reads every 15 s, and nothing else comes of that."""
        record = self._records[node.place]
        times: list[float] = []
        for gpu in record.gpus.values():
            ends = [gpu.hold, gpu.trial]
            times += [each.until for each in ends if each is not None]
            if gpu.trial is not None and self.proof_seconds is not None:
                times.append(gpu.trial.since + self.proof_seconds)
            for latch in gpu.latches:
                times += [latch.until] if latch.until is not None else []
                if latch.asked is not None:
                    times += [latch.asked + self.rules.settle_seconds, latch.asked + self.rules.word_seconds]
                if latch.code == "Lost" and latch.verdict is Verdict.SUSPECT:
                    times.append(latch.since + self.rules.confirm_seconds)
        if self._bad[node.place] and node.place not in self._marked:
            times.append(now + 60)
        if any(gpu.fault is Kind.HEAT for gpu in node.gpus) and not self._withheld[node.place]:
            times.append(now + 30)
        later = [max(at, now) + 1 for at in times if at > now - 1]
        return min(later, default=None)
