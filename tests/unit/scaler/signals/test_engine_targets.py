import pytest

from scaler.signals.engine_targets import EngineTarget, in_rotation
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName, Verdict
from warmpool.states import ResidentState

CHAT, CODE = PolicyName("chat"), PolicyName("code")


def resident(policy: PolicyName, state: ResidentState = ResidentState.SERVING) -> Resident:
    return Resident(policy=policy, state=state, since=0.0, address=f"http://10.0.0.1/{policy}")


def seat(*residents: Resident, serving: PolicyName = CHAT, **facts: object) -> Seat:
    made = Seat(
        name=SeatName("seat-1"),
        uid="uid-1",
        version="1",
        fleet=FleetName("fleet"),
        residents=residents,
        serving=frozenset({serving}),
    )
    for name, value in facts.items():
        object.__setattr__(made, name, value)
    return made


def test_the_resident_with_the_serving_label_is_asked_and_its_paused_neighbour_is_not() -> None:
    shared = seat(resident(CHAT), resident(CODE, ResidentState.PAUSED))
    assert in_rotation([shared]) == {CHAT: (EngineTarget("uid-1", "http://10.0.0.1/chat", "seat-1"),)}


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"reachable": False}, id="its agent is silent"),
        pytest.param({"verdict": Verdict.BAD}, id="its GPU is bad"),
        pytest.param({"terminating": True}, id="it is about to go"),
    ],
)
def test_an_engine_counts_while_it_has_the_label_whatever_is_wrong_with_its_seat(
    facts: dict[str, object],
) -> None:
    assert len(in_rotation([seat(resident(CHAT), **facts)])[CHAT]) == 1


@pytest.mark.parametrize("state", ResidentState)
def test_only_an_engine_that_can_hold_requests_is_asked(state: ResidentState) -> None:
    can = {
        "Serving",
        "Draining",
        "Promoting",
        "Paused",
        "Proving",
        "Quarantined",
    }  # by a report that lags the label
    assert (CHAT in in_rotation([seat(resident(CHAT, state))])) == (state in can)


def test_a_resident_whose_address_is_not_known_yet_is_not_left_out() -> None:
    unknown = Resident(policy=CHAT, state=ResidentState.SERVING, since=0.0)
    assert in_rotation([seat(unknown)])[CHAT][0].url == ""


def test_seats_that_serve_nobody_are_not_asked() -> None:
    assert in_rotation([seat(resident(CHAT), serving=CODE)]) == {}
