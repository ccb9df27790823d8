"""A node's history, told step by step, and what is said of it then."""

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from warmpool.nodehealth.readings import (
    Canary,
    Ecc,
    Event,
    Fabric,
    FabricState,
    GpuReading,
    Links,
    NodeReading,
    Pcie,
    Rows,
    Source,
    Told,
)
from warmpool.nodehealth.records import NodeRecord, Rules
from warmpool.nodehealth.rules import with_canary, with_event, with_reading
from warmpool.nodehealth.verdicts import GpuVerdict, NodeVerdict, judge
from warmpool.seats import Verdict

A, B = "GPU-a", "GPU-b"
T0 = 1_800_000_000.0
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
RULES = Rules()


def healthy(uuid: str, **changes: Any) -> GpuReading:
    """What an H200 with driver 580 says when nothing is wrong with it."""
    return replace(
        GpuReading(
            uuid=uuid,
            recovery=0,
            ecc=Ecc(enabled=True, corrected=0, uncorrected=0, corrected_ever=3, uncorrected_ever=2),
            rows=Rows(correctable=0, uncorrectable=0, pending=False, failure=False),
            pcie=Pcie(width=16, most_width=16, generation=5, most_generation=5),
            links=Links(active=18, inactive=0, failed_recoveries=0),
            fabric=Fabric(state=FabricState.COMPLETED),
            millijoules=1000,
            shared=True,
        ),
        **changes,
    )


@dataclass
class History:
    """A node with two GPUs; without `judges`, its driver is one that has no verdict of its own."""

    rules: Rules = RULES
    judges: bool = True
    now: float = T0
    boot: str = "boot-1"
    record: NodeRecord = field(default_factory=NodeRecord)
    gpus: dict[str, GpuReading] = field(default_factory=lambda: {A: healthy(A), B: healthy(B)})

    def __post_init__(self) -> None:
        self.read()

    def read(self, uuid: str = "", **changes: Any) -> "History":
        """Read all GPUs; `changes` are what is other than before with one of them."""
        if uuid:
            self.gpus[uuid] = replace(self.gpus[uuid], **changes)
        told = {
            each: reading if self.judges else replace(reading, recovery=None)
            for each, reading in self.gpus.items()
        }
        reading = NodeReading(at=self.now, boot=self.boot, gpus=MappingProxyType(told))
        self.record = with_reading(self.record, reading, self.rules)
        return self

    def pass_(self, seconds: float, *, every: float = 15.0) -> "History":
        """Let time pass, with readings."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + every)
            self.read()
        return self

    def silent(self, seconds: float) -> "History":
        """Let time pass without any."""
        self.now += seconds
        return self

    def xid(self, xid: int, text: str = "", *, uuid: str = A, source: Source = Source.NVML) -> "History":
        event = Event(at=self.now, uuid=uuid, xid=xid, text=text, source=source)
        self.record = with_event(self.record, event, self.rules)
        return self

    def told(self, told: Told, uuid: str = A) -> "History":
        self.record = with_event(self.record, Event(at=self.now, uuid=uuid, told=told), self.rules)
        return self

    def canary(self, *, passed: bool, uuid: str = A, proof: str = "") -> "History":
        told = Canary(at=self.now, gpus=frozenset({uuid}), passed=passed, proof=proof)
        self.record = with_canary(self.record, told, self.rules)
        return self

    def reset(self, uuid: str = A) -> "History":
        """Reset a GPU: what it counts since its driver was loaded begins anew."""
        ecc = replace(self.gpus[uuid].ecc, corrected=0, uncorrected=0)
        return self.silent(30).read(uuid, millijoules=5, ecc=ecc)

    def reboot(self) -> "History":
        self.boot += "+"
        return self.silent(300).read()

    def judged(self) -> NodeVerdict:
        return judge(self.record, self.rules, self.now)

    def of(self, uuid: str = A) -> GpuVerdict:
        found = self.judged().gpu(uuid)
        assert found is not None
        return found

    def verdict(self, uuid: str = A) -> Verdict:
        return self.of(uuid).verdict

    def codes(self, uuid: str = A) -> list[str]:
        return [reason.code for reason in self.of(uuid).reasons]
