"""Nodes are told ahead which models they will need: by whose agent, what, and when again."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from scaler.core.islands import Island
from scaler.runtime.controller import Tick
from scaler.runtime.stage_orders import AGAIN_SECONDS, StageOrders, checkpoints, coming, tellers
from tests.unit.scaler.core.world import SPARES, fleet, policy
from tests.unit.scaler.runtime.test_start_orders import decided
from warmpool.agent.seat import ORDERED_SECONDS
from warmpool.claim import Term
from warmpool.errors import EngineLost
from warmpool.plan import Plan
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState as S

TERM = Term(holder="c", epoch=4)
OTHERS = FleetName("others")


def there(name: str, node: str = "n1", *, policies: str = "ab", stages: bool = True) -> Seat:
    """A seat whose agent is heard."""
    residents = tuple(
        Resident(
            policy=PolicyName(each), state=S.PAUSED, since=0.0, checkpoint=f"/m/{each}" if stages else ""
        )
        for each in policies
    )
    return replace(born(name, node), residents=residents, agent="http://x", reachable=True)


def born(name: str, node: str = "n1") -> Seat:
    """A seat that a node has been given, and whose agent hasn't been heard."""
    return Seat(name=SeatName(name), uid=f"uid-{name}", version="1", fleet=SPARES, node=node)


@pytest.mark.parametrize(
    ("seat", "expected"),
    [
        pytest.param(born("s"), True, id="on-its-way"),
        pytest.param(born("s", ""), False, id="no-node-has-taken-it"),
        pytest.param(replace(born("s"), terminating=True), True, id="its-successor-may-come-here"),
        pytest.param(there("s"), False, id="its-agent-knows-by-itself"),
        pytest.param(replace(there("s"), ailing="bad starts"), True, id="being-replaced"),
        pytest.param(replace(there("s"), ailing="x", fenced=True), False, id="its-gpu-takes-nobody"),
        pytest.param(
            replace(there("s"), terminating=True, node_leaving="cordoned"), False, id="its-node-leaves"
        ),
    ],
)
def test_a_seat_is_expected_where_its_pod_is_or_where_one_is_being_replaced(
    seat: Seat, *, expected: bool
) -> None:
    assert coming({SPARES: [seat]}) == ({"n1": [SPARES]} if expected else {})


def test_what_is_on_its_way_comes_before_what_may_come() -> None:
    going, new = replace(there("g"), terminating=True), replace(born("b"), fleet=OTHERS)
    assert coming({SPARES: [going], OTHERS: [new]}) == {"n1": [OTHERS, SPARES]}


def test_only_agents_that_ask_a_stage_daemon_and_can_be_reached_are_told() -> None:
    seats = [
        there("c"),
        there("b"),
        there("a", stages=False),
        replace(there("0"), reachable=False),
        replace(there("1"), terminating=True),
        there("d", "n2"),
    ]
    assert {node: seat.name for node, seat in tellers({SPARES: seats}).items()} == {"n1": "b", "n2": "d"}
    assert checkpoints({SPARES: [there("a", stages=False), there("b", policies="b")]}) == {"b": "/m/b"}


# -------------------------------------------------------------------- telling


@dataclass
class Agents:
    """Takes what is told."""

    told: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    fails: bool = False

    async def order_staging(
        self, seat: Seat, checkpoints: Sequence[str], *, epoch: int, deadline: float
    ) -> None:
        assert (epoch, deadline > 0) == (TERM.epoch, True)
        self.told.append((seat.name, tuple(checkpoints)))
        if self.fails:
            raise EngineLost("nobody answers")


def tick(*seats: Seat, queued: Mapping[str, float] | None = None, observe: bool = False) -> Tick:
    policies = tuple(policy(name, serving_min=0) for name in "ab")
    return Tick(
        number=1,
        at=0.0,
        causes={},
        looked=Island(policies=policies, fleets=(fleet(observe=observe),)),
        snapshot=None,  # type: ignore[arg-type]  # nobody looks at it here
        decision=decided(policies, {}, queued or {}),
        plan=Plan(),
        stock={SPARES: list(seats)},
    )


@asynccontextmanager
async def telling(agents: Agents) -> AsyncIterator[StageOrders]:
    orders = StageOrders(agents)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(orders.run(TERM))
        await asyncio.sleep(0)
        yield orders
        task.cancel()


async def after(orders: StageOrders, seconds: float, *seats: Seat, **more: Mapping[str, float]) -> None:
    orders.published(tick(*seats, **more))  # type: ignore[arg-type]  # what a tick takes
    await asyncio.sleep(seconds)


@pytest.mark.looptime
async def test_a_node_is_told_once_and_again_when_it_may_have_forgotten_and_when_nothing_is_needed() -> None:
    agents = Agents()
    async with telling(agents) as orders:
        await after(orders, 3.0, there("a"))
        assert agents.told == []
        await after(orders, 3.0, there("a"), born("b"))
        assert agents.told == [("a", ("/m/a", "/m/b"))]
        await after(orders, AGAIN_SECONDS, there("a"), born("b"))
        assert len(agents.told) == 1
        await after(orders, 3.0, there("a"), born("b"))
        assert len(agents.told) == 2
        await after(orders, 3.0, there("a"), there("b"))
        await after(orders, 2 * AGAIN_SECONDS, there("a"), there("b"))
        assert agents.told[2:] == [("a", ())]


@pytest.mark.looptime
async def test_what_is_wanted_most_is_needed_first_and_another_agent_is_told_anew() -> None:
    agents = Agents()
    async with telling(agents) as orders:
        await after(orders, 3.0, there("a"), there("c"), born("b"), queued={"b": 20.0})
        await after(orders, 3.0, there("c"), born("b"), queued={"b": 20.0})
        assert agents.told == [("a", ("/m/b", "/m/a")), ("c", ("/m/b", "/m/a"))]


@pytest.mark.looptime
async def test_one_that_does_not_take_it_is_told_again_soon() -> None:
    agents = Agents(fails=True)
    async with telling(agents) as orders:
        for _ in range(5):
            await after(orders, 3.0, there("a"), born("b"))
        assert len(agents.told) == 2


@pytest.mark.looptime
async def test_one_that_does_not_take_that_nothing_is_needed_is_told_again_until_it_does() -> None:
    agents = Agents()
    async with telling(agents) as orders:
        await after(orders, 3.0, there("a"), born("b"))
        agents.told.clear()
        agents.fails = True
        for _ in range(5):
            await after(orders, 3.0, there("a"), there("b"))
        assert agents.told == [("a", ())] * 2
        agents.fails = False
        for _ in range(10):
            await after(orders, 3.0, there("a"), there("b"))
        assert agents.told == [("a", ())] * 3


def test_agents_are_told_again_before_what_they_were_told_lapses() -> None:
    missed = 2 * (AGAIN_SECONDS + 10.0)
    assert missed < ORDERED_SECONDS


@pytest.mark.looptime
async def test_fleets_that_are_only_observed_and_nodes_without_a_stage_daemon_are_left_alone() -> None:
    agents = Agents()
    async with telling(agents) as orders:
        orders.published(tick(there("a"), born("b"), observe=True))
        await asyncio.sleep(3.0)
        await after(orders, 3.0, there("a", stages=False), born("b"))
        assert agents.told == []
