"""Seats for a bench: fleets of one seat each, policies that rest until they are asked, and what starts them on this machine. PURE.

A policy of its own seat rests with no resident in rotation, so each request to it needs a promotion; its windows are the
shortest that a policy may have, so that it rests again within seconds.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warmpool.states import Depth

_MIB = 1 << 20
_TARGET_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which seats there are, and who lives on them.

    Attributes:
        depth: how deep residents sleep.
        seats: seats, each a fleet of its own.
        residents: residents of each seat.
        device: `cpu` or `cuda`; on a GPU all seats share one.
        sequences: sequences of each engine.
        length: tokens of a sequence.
        parked_bytes: host memory of a seat for weights that are parked.
    """

    depth: Depth
    seats: int
    residents: int
    device: str
    sequences: int
    length: int
    parked_bytes: int = 0

    @property
    def models(self) -> list[str]:
        """The policies, which are the models' names too."""
        return [f"model-{seat}-{number}" for seat in range(self.seats) for number in range(self.residents)]

    def documents(self) -> str:
        """Render fleets and policies as a policy file."""
        fleets = [self._fleet(seat) for seat in range(self.seats)]
        policies = [_policy(model, f"pool-{model.split('-')[1]}") for model in self.models]
        return "\n---\n".join(json.dumps(each, indent=1) for each in [*fleets, *policies]) + "\n"

    def options(self, checkpoint: Path, policies: Path, state: Path) -> list[str]:
        """Render the options of `emberpool local`: each model serves the same checkpoint.

        Args:
            checkpoint: its directory.
            policies: the policy file.
            state: the state directory.
        """
        options = ["--policy", str(policies), "--state-dir", str(state), "--device", self.device]
        options += ["--gateway-port", "0", "--controller-port", "0"]
        options += ["--max-num-seqs", str(self.sequences), "--max-model-len", str(self.length)]
        if self.device == "cuda":
            options += ["--seats-per-gpu", str(self.seats)]
        for model in self.models:
            options += ["--checkpoint", f"{model}={checkpoint}"]
        return options

    def _fleet(self, seat: int) -> Mapping[str, Any]:
        kept = self.depth is Depth.PAUSED
        spare: dict[str, Any] = {"mode": "Fixed", "min": 1}
        if self.parked_bytes:
            spare["parked"] = {"hostMemoryMiB": -(-self.parked_bytes // _MIB)}
        spec = {
            "maxSeats": 1,
            "seat": {
                "gpus": 1 if self.device == "cuda" else 0,
                "kvWhenPaused": "Keep" if kept else "Release",
            },
            "spare": spare,
        }
        return document("Fleet", f"pool-{seat}", spec)


def _policy(name: str, fleet: str) -> Mapping[str, Any]:
    spec = {
        "fleets": [{"name": fleet, "targetInFlight": _TARGET_IN_FLIGHT}],
        "serving": {"min": 0, "max": 1, "queueDrainSeconds": 1},
        "burst": {"windowSeconds": 1, "stableWindowSeconds": 1, "demoteAfterSeconds": 0},
    }
    return document("ScalingPolicy", name, spec)


def document(kind: str, name: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return one of the product's documents."""
    return {"apiVersion": "emberpool.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
