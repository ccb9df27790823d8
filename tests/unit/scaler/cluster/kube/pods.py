"""Pods, seats and reports for tests of what is made of them."""

from dataclasses import replace
from typing import Any

from scaler.cluster.kube.views import Pod
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState as S

FLEET, CHAT, CODE = FleetName("spares"), PolicyName("chat"), PolicyName("code")


def resident(policy: PolicyName = CHAT, state: S = S.PAUSED, **changes: Any) -> Resident:
    return replace(Resident(policy=policy, state=state, since=0.0, proven_at=1.0), **changes)


def seat(name: str = "seat-0", **changes: Any) -> Seat:
    made = Seat(name=SeatName(name), uid=f"uid-{name}", version="1", fleet=FLEET, node="a", template="t")
    return replace(made, **{"admitted": True, "ready": True, "residents": (resident(),), **changes})


def pod(of: Seat | None = None, **changes: Any) -> Pod:
    """A pod that runs, as it is read: without what its agent tells."""
    read = replace(of or seat(), residents=(), gpus=(), agent="")
    return replace(Pod(seat=read, ip="10.0.0.9", phase="Running", owner="ReplicaSet"), **changes)


def report(of: Seat | None = None, **changes: Any) -> dict[str, Any]:
    told = of or seat()
    return {
        "seat": told.name,
        "fleet": told.fleet,
        "uid": told.uid,
        "agent": "http://0.0.0.0:9081",
        "pid": 7,
        "epoch": 3,
        "seq": 1,
        "at": 100.0,
        "gpus": ["GPU-1"],
        "residents": [
            {
                "policy": "chat",
                "state": "Paused",
                "since": 1.0,
                "address": "http://0.0.0.0:8001",
                "provenAt": 1.0,
            }
        ],
        **changes,
    }
