"""Nothing is written and nothing is ordered but by who leads, for as long as the lease covers it."""

import asyncio
from dataclasses import dataclass

import pytest

from scaler.cluster.agents import Done
from scaler.cluster.kube.election import Leadership
from scaler.cluster.kube.errors import Withheld
from scaler.cluster.kube.lanes import PROMOTIONS
from scaler.errors import LeadershipLost
from scaler.runtime.led import LedAgents, LedLane
from warmpool.claim import Errand, Term, new_claim
from warmpool.seats import FleetName, Operation, PolicyName, Seat, SeatName

CHAT = PolicyName("chat")
SEAT = Seat(name=SeatName("a"), uid="a", version="1", fleet=FleetName("spares"))
TERM = Term(holder="me", epoch=3)
VERBS = ("resume", "drain", "pause", "prove", "park", "unpark")


@dataclass
class Lease:
    """What is left of a lease, in seconds."""

    left: float = 6.0

    def leadership(self) -> Leadership:
        return Leadership(TERM, lambda seconds: seconds < self.left)


class Agents:
    """Notes orders."""

    def __init__(self) -> None:
        self.orders: list[str] = []

    def __getattr__(self, verb: str) -> object:
        async def carry_out(*_: object, deadline: float) -> Done:
            assert deadline == 5.0
            self.orders.append(verb)
            return Done()

        return carry_out


@pytest.mark.parametrize(
    ("left", "open_"), [(6.0, True), (2.1, True), (2.0, False), (0.0, False), (-9.0, False)]
)
async def test_a_lane_is_open_while_the_lease_covers_a_write(left: float, *, open_: bool) -> None:
    lane = LedLane(PROMOTIONS, Lease(left).leadership)
    if open_:
        async with lane.turn():
            return
    with pytest.raises(Withheld):
        async with lane.turn():
            pytest.fail("it was let through")


async def test_a_lane_is_closed_to_who_stands_by() -> None:
    with pytest.raises(Withheld):
        async with LedLane(PROMOTIONS, lambda: None).turn():
            pytest.fail("it was let through")


async def test_a_write_that_has_waited_asks_after_its_wait() -> None:
    lease = Lease()
    lane = LedLane(PROMOTIONS, lease.leadership)
    lane.pause(0.05)

    async def end() -> None:
        lease.left = 0.0  # while the server lets us wait

    ending = asyncio.get_running_loop().create_task(end())
    with pytest.raises(Withheld):
        async with lane.turn():
            pytest.fail("it was let through")
    assert ending.done()


@pytest.mark.parametrize("verb", VERBS)
async def test_orders_go_out_within_the_term_alone(verb: str) -> None:
    lease, agents = Lease(), Agents()
    led = LedAgents(agents, lease.leadership())  # type: ignore[arg-type]
    claim = new_claim(Errand(operation=Operation.PROMOTE, policy=CHAT), TERM, number=1, now=0.0, seconds=1.0)
    await getattr(led, verb)(SEAT, claim, CHAT, deadline=5.0)
    lease.left = 0.0
    with pytest.raises(LeadershipLost, match="term 3 is over"):
        await getattr(led, verb)(SEAT, claim, CHAT, deadline=5.0)
    assert agents.orders == [verb]
