"""When `emberpool local` ends with the reason: nobody of a policy ever came up, and nobody will."""

import pytest

from scaler.runtime.local import _hopeless
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

CHAT = PolicyName("chat")
REFUSED = "engine process 7 exited with status 69; log: pre-flight: RowPending: GPU-a: a row waits"


def seats(failure: str, restarts: int, state: ResidentState = ResidentState.FAILED) -> list[Seat]:
    refused = failure == REFUSED and state is ResidentState.FAILED
    resident = Resident(
        policy=CHAT, state=state, since=1.0, restarts=restarts, failure=failure, refused=refused
    )
    name = SeatName("seat-0")
    return [Seat(name=name, uid="1", version="1", fleet=FleetName("local"), residents=(resident,))]


@pytest.mark.parametrize(
    ("failure", "restarts", "ends"),
    [
        ("given up after 5 failures in 300 s: it died", 4, True),
        ("it died", 4, False),
        (REFUSED, 1, False),
        (REFUSED, 2, True),
        ("it died; log: pre-flight: Passed: GPU-a: all", 9, False),
    ],
    ids=["given up", "it is tried again", "refused twice", "refused thrice", "it died after a pre-flight"],
)
def test_it_ends_once_nobody_will_come_up(failure: str, restarts: int, *, ends: bool) -> None:
    found = _hopeless(seats(failure, restarts), set())
    assert found == (f"chat can't be started on seat seat-0: {failure}" if ends else None)


def test_it_goes_on_where_somebody_of_the_policy_has_come_up_or_is_coming() -> None:
    assert _hopeless(seats(REFUSED, 9), {CHAT}) is None
    assert _hopeless(seats(REFUSED, 9, ResidentState.STARTING), set()) is None
