"""A controller's part of a ledger, for tests: decides, and keeps the lines as they would be read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scaler.core.decide import decide
from scaler.core.islands import Island
from scaler.core.ledger import Entry, Ledger
from scaler.core.memory import Memory
from scaler.core.model import FleetSpec, PolicySpec, Snapshot


@dataclass(frozen=True)
class Rules:
    policies: Sequence[PolicySpec]
    fleets: Sequence[FleetSpec]
    hash: str = "abc"


class Writer:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.ledger = Ledger()
        self.lines: list[dict[str, Any]] = []
        self.snapshots: list[Snapshot] = []
        self.now = 100.0
        self.memory = Memory.initial(self.now)

    def tick(self, snapshot: Snapshot, after: float = 0.1) -> dict[str, Any]:
        self.now += after
        before = self.memory
        decision, self.memory = decide(self.rules.policies, self.rules.fleets, snapshot, before, self.now)
        entry = Entry(
            number=len(self.lines) + 1,
            at=1_700_000_000.0 + self.now,
            causes={"sample": 1},
            rules=self.rules,
            on=Island(tuple(self.rules.policies), tuple(self.rules.fleets)),
            before=before,
            snapshot=snapshot,
            decision=decision,
            actions=["something"],
        )
        self.lines.append(json.loads(json.dumps(self.ledger.line(entry), allow_nan=False)))
        self.snapshots.append(snapshot)
        return self.lines[-1]
