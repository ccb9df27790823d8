import time
from collections.abc import Iterator

import pytest

from tests.integration.cli.fake_controller import FakeController, serving
from warmpool.seats import Claim, Operation, Resident, Seat
from warmpool.states import Depth, ResidentState
from warmpool.tiers import Budget
from warmpool.wire import seat_to_json

MIB = 2**20


def seats(now: float) -> list[Seat]:
    """Two seats: one serves and one is being switched to another model."""
    chat = Resident(
        policy="chat",
        state=ResidentState.SERVING,
        since=now - 12.5,
        address="http://127.0.0.1:40001",
        proven_at=now - 184.5,
        in_flight=3,
        pid=1234,
        memory_bytes=700 * MIB,
        phases={"spawn": 0.42, "load": 1.25, "warmup": 0.083},
    )
    code = Resident(
        policy="code",
        state=ResidentState.PAUSED,
        since=now - 300.5,
        kv_released=True,
        restarts=2,
        parked_bytes=15 * 1024 * MIB,
        wake_seconds={Depth.PARKED: 2.31, Depth.KV_RELEASED: 0.164},
    )
    failed = Resident(
        policy="code",
        state=ResidentState.FAILED,
        since=now - 7.5,
        restarts=1,
        failure="the engine left with code 1",
    )
    claim = Claim(
        id="c1",
        policy="chat",
        operation=Operation.SWITCH,
        holder="ctl-1",
        epoch=4,
        since=now - 0.5,
        deadline=now - 100.5,
        leaving="code",
        displace=("code", "tail"),
    )
    memory = Budget(
        device_bytes=141 * 1024 * MIB,
        paused_bytes=48 * 1024 * MIB,
        largest_compute_bytes=40 * 1024 * MIB,
        reserve_bytes=2888 * MIB,
        host_bytes=64 * 1024 * MIB,
        parked_bytes=15 * 1024 * MIB,
        verified=True,
        stage_bytes=1024 * MIB,
    )
    return [
        Seat(
            name="shared-0",
            uid="u0",
            version="5",
            fleet="shared",
            residents=(chat, code),
            serving=frozenset({"chat"}),
            admitted=True,
            ready=True,
            created_at=now - 184.5,
            agent="http://127.0.0.1:40000",
            memory=memory,
        ),
        Seat(
            name="shared-1",
            uid="u1",
            version="9",
            fleet="shared",
            gpus=("GPU-1",),
            residents=(failed,),
            claim=claim,
            reachable=False,
            created_at=now - 12.5,
        ),
    ]


def fleets(now: float) -> list[dict[str, object]]:
    return [
        {
            "name": "shared",
            "mode": "Enforce",
            "maxSeats": 4,
            "replicas": 3,
            "total": 3,
            "spareTarget": 2,
            "seats": {"Serving": 1, "Promoting": 1, "Spare": 1},
            "policies": ["chat", "code"],
            "reasons": [{"code": "Replenishing", "facts": {}, "sentence": "1 seat to be started."}],
            "createdAt": now - 184.5,
        },
        {
            "name": "own",
            "mode": "Observe",
            "maxSeats": 1,
            "total": 0,
            "replicas": 0,
            "spareTarget": 0,
            "seats": {},
        },
    ]


def policies() -> list[dict[str, object]]:
    return [
        {
            "name": "chat",
            "models": ["chat", "chat-v2"],
            "mode": "Burst",
            "demand": 24.0,
            "needed": 30.5,
            "capacity": 16.0,
            "wanted": {"own": 1, "shared": 3},
            "serving": {"own": 1, "shared": 1},
            "queued": 3.0,
            "inFlight": 21.0,
            "oldestWaitSeconds": 0.123,
            "signals": "Fresh",
            "reasons": [
                {"code": "Concurrency", "facts": {}, "sentence": "Demand reached 24 requests."},
                {"code": "Bridged", "facts": {}, "sentence": "1 resident on shared bridges the gap."},
            ],
        },
        {
            "name": "code",
            "models": ["code"],
            "mode": "Hold",
            "demand": None,
            "needed": 8.0,
            "capacity": 8.0,
            "wanted": {"shared": 0},
            "serving": {"shared": 0},
            "queued": None,
            "inFlight": None,
            "oldestWaitSeconds": None,
            "signals": "Missing",
            "reasons": [],
        },
    ]


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with serving(FakeController()) as fake:
        now = time.time()
        fake.say("/v1/seats", {"items": [seat_to_json(seat) for seat in seats(now)]})
        fake.say("/v1/fleets", {"items": fleets(now)})
        fake.say("/v1/policies", {"items": policies()})
        yield fake
