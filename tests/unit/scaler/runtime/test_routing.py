"""Routes follow the serving label, the resident's state and the seat's health."""

from dataclasses import replace

import pytest

from scaler.core.model import FleetShare, PolicySpec
from scaler.gateway.routes import PolicyLimits
from scaler.policy.scaling_policy import Queue
from scaler.runtime.routing import limits, routes
from warmpool.seats import FleetName, GpuWord, PolicyName, Resident, Seat, SeatName, Verdict
from warmpool.states import ResidentState as S

CHAT, FLEET = PolicyName("chat"), FleetName("spares")
GONE = (GpuWord(uuid="GPU-1", word="Bad", reason="lost", stops=True),)
POLICY = PolicySpec(name=CHAT, fleets=(FleetShare(fleet=FLEET, target_in_flight=7),), ttft_objective=0.7)


def seat(state: S = S.SERVING, **changes: object) -> Seat:
    base = Seat(
        name=SeatName("s-0"),
        uid="u-0",
        version="1",
        fleet=FLEET,
        residents=(Resident(policy=CHAT, state=state, since=0.0, address="http://engine"),),
        serving=frozenset({CHAT}),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def urls(one: Seat) -> list[tuple[str, int]]:
    table = routes([POLICY], {CHAT: ("chat", "alias")}, [one])
    assert table[CHAT].models == ("chat", "alias")
    return [(endpoint.url, endpoint.slots) for endpoint in table[CHAT].endpoints]


@pytest.mark.parametrize(
    ("one", "found"),
    [
        pytest.param(seat(), [("http://engine", 7)], id="in rotation"),
        pytest.param(seat(S.PROMOTING), [("http://engine", 7)], id="the label is newer than the report"),
        pytest.param(seat(serving=frozenset()), [], id="no label"),
        pytest.param(seat(S.FAILED), [], id="died"),
        pytest.param(seat(verdict=Verdict.BAD), [("http://engine", 7)], id="bad GPU, until others serve"),
        pytest.param(seat(verdict=Verdict.BAD, gpu_words=GONE), [], id="its GPU is gone"),
        pytest.param(seat(reachable=False), [], id="silent agent"),
        pytest.param(seat(terminating=True), [], id="terminating"),
        pytest.param(seat(fleet=FleetName("other")), [], id="another fleet"),
    ],
)
def test_who_gets_requests(one: Seat, found: list[tuple[str, int]]) -> None:
    assert urls(one) == found


def test_a_gateway_learns_what_the_policy_promises() -> None:
    assert routes([POLICY], {CHAT: ("chat",)}, [])[CHAT].ttft_seconds == 0.7


def test_a_gateway_learns_what_the_policy_says_of_its_queue() -> None:
    queue = Queue(max_requests=0, max_mib=2, max_cold_seconds=300)
    said = routes([POLICY], {CHAT: ("chat",)}, [], {CHAT: limits(queue)})[CHAT].limits
    assert said == PolicyLimits(max_requests=0, max_bytes=2 * 1024 * 1024, max_cold_seconds=300)
    assert routes([POLICY], {CHAT: ("chat",)}, [])[CHAT].limits == PolicyLimits()
