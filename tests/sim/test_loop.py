"""The whole controller in virtual time: bursts, switches, floors, silence, and engines that die."""

import asyncio
from datetime import UTC, datetime

import pytest

from scaler.core.model import Burst, FleetShare, FleetSpec, Pace, PolicySpec
from scaler.errors import Conflict
from scaler.policy.base import API_VERSION, Metadata
from scaler.policy.calendar import Calendar
from scaler.policy.fleet import Fleet, Frozen
from scaler.policy.fleet import FleetSpec as PolicyFleetSpec
from scaler.policy.schedules import SeatFloor
from tests.fakes.loop_clock import LoopClock
from tests.fakes.memory_cluster import Timing
from tests.sim.world import World, world
from warmpool.errors import EngineLost, GpuUnfit
from warmpool.seats import Claim, FleetName, PolicyName, Seat, SeatName, SeatValue, seat_value

pytestmark = pytest.mark.looptime

FLEET, CHAT, CODE = FleetName("spares"), PolicyName("chat"), PolicyName("code")
SERVICE = 1.6


def policy(name: PolicyName, **changes: object) -> PolicySpec:
    facts: dict[str, object] = {
        "fleets": (FleetShare(fleet=FLEET, target_in_flight=8),),
        "serving_min": 1,
        "ttft_objective": 0.5,
        "burst": Burst(window=2.0, stable_window=10.0, demote_after=3.0),
        **changes,
    }
    return PolicySpec(name=name, **facts)  # type: ignore[arg-type]


def fleet(**changes: object) -> FleetSpec:
    facts: dict[str, object] = {"max_seats": 3, "spare_target": 1, "scale_down": Pace(window=10.0), **changes}
    return FleetSpec(name=FLEET, **facts)  # type: ignore[arg-type]


async def warm(on: World) -> None:
    """Wait until every floor serves and one seat is spare, and the restart's caution has passed."""
    await on.until(lambda: on.serving("chat") == 1 and on.serving("code") == 1)
    async with asyncio.TaskGroup() as tasks:
        for name in ("chat", "code"):
            tasks.create_task(on.constant(name, 2.5, SERVICE, 20))


def late(on: World, policy: str, since: float, objective: float = 0.5) -> list[float]:
    now = asyncio.get_running_loop().time()
    return [
        request.waited if request.started is not None else now - request.arrived
        for request in on.traffic.requests
        if request.policy == policy
        and request.arrived >= since
        and (request.started is None or request.waited > objective)
    ]


async def test_a_fresh_start_reaches_floors_and_spares_by_itself() -> None:
    async with world([policy(CHAT), policy(CODE)], [fleet()]) as on:
        await on.until(lambda: on.serving("chat") == 1 and on.serving("code") == 1, 60)
        assert len(on.cluster.seats()) == 3
        assert [seat_value(seat) for seat in on.cluster.seats()].count(SeatValue.SPARE) == 1


async def test_the_same_spare_serves_first_one_burst_and_then_the_other() -> None:
    async with world([policy(CHAT), policy(CODE)], [fleet()]) as on:
        await warm(on)
        began = asyncio.get_running_loop().time()
        for bursting, other in (("chat", "code"), ("code", "chat")):
            spares = {seat.name for seat in on.cluster.seats() if seat_value(seat) is SeatValue.SPARE}
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(on.constant(bursting, 7.5, SERVICE, 15))
                tasks.create_task(on.constant(other, 2.5, SERVICE, 15))
            assert on.serving(bursting) == 2
            assert {seat.name for seat in on.cluster.seats() if bursting in seat.serving} & spares
            async with asyncio.TaskGroup() as tasks:
                for name in ("chat", "code"):
                    tasks.create_task(on.constant(name, 2.5, SERVICE, 25))
            assert on.serving(bursting) == 1
        assert late(on, "chat", began) == []
        assert late(on, "code", began) == []


async def test_a_promotion_takes_what_already_waits() -> None:
    async with world([policy(CHAT)], [fleet()]) as on:
        await warm_one(on)
        for _ in range(14):
            on.traffic.arrive(CHAT, SERVICE)
        await asyncio.sleep(0.5)
        burst = on.traffic.requests[-14:]
        seats = {request.seat for request in burst}
        assert None not in seats
        assert len(seats) == 2


async def warm_one(on: World) -> None:
    await on.until(lambda: on.serving("chat") == 1)
    await on.constant("chat", 1.0, SERVICE, 30)


async def test_constant_demand_moves_nothing() -> None:
    async with world([policy(CHAT), policy(CODE)], [fleet()]) as on:
        await warm(on)
        before = len(on.events("promotion")), len(on.events("demotion")), len(on.events("resize"))
        async with asyncio.TaskGroup() as tasks:
            for name in ("chat", "code"):
                tasks.create_task(on.constant(name, 2.5, SERVICE, 240))
        assert (len(on.events("promotion")), len(on.events("demotion")), len(on.events("resize"))) == before


async def test_a_dead_engine_is_replaced_from_the_spares_and_restarted() -> None:
    async with world([policy(CHAT), policy(CODE)], [fleet()]) as on:
        await warm(on)
        victim = next(seat for seat in on.cluster.seats() if "chat" in seat.serving)
        on.cluster.kill_engine(victim.name, CHAT)
        await on.until(lambda: on.serving("chat") == 1 and victim.name not in _serving(on, "chat"), 2)
        await on.until(
            lambda: (
                seat_value(next(s for s in on.cluster.seats() if s.name == victim.name)) is SeatValue.SPARE
            ),
            60,
        )


def _serving(on: World, policy: str) -> set[str]:
    return {seat.name for seat in on.cluster.seats() if policy in seat.serving}


async def test_signals_that_fall_silent_change_nothing() -> None:
    async with world([policy(CHAT), policy(CODE)], [fleet()]) as on:
        await warm(on)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(on.constant("chat", 7.5, SERVICE, 10))
        assert on.serving("chat") == 2
        on.traffic.silent.add(CHAT)
        await asyncio.sleep(300)
        assert on.serving("chat") == 2
        assert len(on.cluster.seats()) == 3


async def test_a_failing_candidate_costs_one_more_step_not_the_burst() -> None:
    async with world([policy(CHAT)], [fleet(max_seats=4, spare_target=2)]) as on:
        await warm_one(on)
        spares = [seat.name for seat in on.cluster.seats() if seat_value(seat) is SeatValue.SPARE]
        assert len(spares) >= 2
        bad: list[str] = []

        def refuse(verb: str, seat: str, _: str) -> Exception | None:
            if verb == "resume" and (not bad or seat in bad):
                bad[:] = [seat]
                return EngineLost("broken")
            return None

        on.cluster.engines.refuse = refuse
        for _ in range(12):
            on.traffic.arrive(CHAT, SERVICE)
        await asyncio.sleep(0.5)
        assert on.serving("chat") == 2
        assert [record["outcome"] for record in on.events("promotion")][-2:] == ["Failed", "Promoted"]


async def test_a_higher_priority_takes_a_surplus_seat_by_a_switch() -> None:
    policies = [policy(CHAT), policy(CODE, priority=10)]
    async with world(policies, [fleet(spare_target=0)], timing=Timing(start=2.0)) as on:
        await on.until(lambda: on.serving("chat") == 1 and on.serving("code") == 1)
        await on.cluster.resize(FLEET, 3)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(on.constant("chat", 7.5, SERVICE, 30))
            tasks.create_task(on.constant("code", 2.5, SERVICE, 30))
        assert on.serving("chat") == 2
        await on.constant("code", 9.0, SERVICE, 10)
        assert on.serving("code") == 2
        assert on.serving("chat") == 1
        assert not any(request.lost for request in on.traffic.requests)


async def test_every_tick_that_changed_something_is_in_the_ledger() -> None:
    async with world([policy(CHAT)], [fleet()]) as on:
        await warm_one(on)
        assert on.ledger
        numbers = [record["number"] for record in on.ledger]
        assert numbers == sorted(set(numbers))  # type: ignore[type-var]
        assert all(record["policyHash"] == "sim" for record in on.ledger)


async def test_a_frozen_fleet_is_not_resized_and_thaws_by_itself() -> None:
    until = datetime.fromtimestamp(LoopClock().wall() + 60.0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    frozen = Fleet(
        api_version=API_VERSION,
        kind="Fleet",
        metadata=Metadata(name=FLEET),
        spec=PolicyFleetSpec(max_seats=3, frozen=Frozen(until=until, reason="maintenance")),
    )
    async with world([policy(CHAT)], [fleet()], calendar=Calendar([frozen])) as on:
        await asyncio.sleep(50)
        assert on.cluster.seats() == ()
        await on.until(lambda: on.serving("chat") == 1 and len(on.cluster.seats()) == 2, 60)


async def test_a_fleet_that_somebody_else_resizes_is_published_and_not_written() -> None:
    async with world([policy(CHAT)], [fleet(resized=False)]) as on:
        await asyncio.sleep(30)
        assert on.controller.last is not None
        assert on.controller.last.decision.fleets[FLEET].total == 2
        assert len(on.cluster.seats()) == 0


def three_seats() -> Calendar:
    """A fleet that has three seats whatever is asked for."""
    always = SeatFloor(name="always", start="0 0 1 1 *", end="59 23 31 12 *", min_seats=3)
    kept = Fleet(
        api_version=API_VERSION,
        kind="Fleet",
        metadata=Metadata(name=FLEET),
        spec=PolicyFleetSpec(max_seats=3, schedules=(always,)),
    )
    return Calendar([kept])


async def test_batch_work_borrows_spare_seats_and_gives_them_back_for_a_burst() -> None:
    batch = policy(CODE, preemptible=True, ended_at_once=True, serving_min=0)
    async with world([policy(CHAT), batch], [fleet(spare_target=0)], calendar=three_seats()) as on:
        await on.until(lambda: on.serving("chat") == 1 and len(on.cluster.seats()) == 3, 60)
        await on.constant("chat", 2.5, SERVICE, 20)
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(on.constant("code", 12.0, 4.0, 40))
            await on.constant("chat", 2.5, SERVICE, 15)
            assert on.serving("code") == 2, "both spare seats are lent"
            last = on.controller.last
            assert last is not None
            assert last.snapshot.fleets[FLEET].lent == 2
            assert last.decision.fleets[FLEET].serving == 1
            began = asyncio.get_running_loop().time()
            await on.constant("chat", 11.0, SERVICE, 10)
            assert on.serving("chat") == 3
            assert late(on, "chat", began) == []
            work.cancel()
        assert len(on.cluster.seats()) == 3


async def test_a_gpu_that_errs_in_mid_promotion_costs_no_burst_its_seat() -> None:
    async with world([policy(CHAT)], [fleet(max_seats=4, spare_target=2)]) as on:
        await warm_one(on)
        erring: list[str] = []

        def refuse(verb: str, seat: str, _policy: str) -> Exception | None:
            if verb == "resume" and not erring:
                erring.append(seat)
            return GpuUnfit("GPU-a is Suspect: Xid 119") if verb == "resume" and seat in erring else None

        on.cluster.engines.refuse = refuse
        began = asyncio.get_running_loop().time()
        for _ in range(14):
            on.traffic.arrive(CHAT, SERVICE)
        await on.until(lambda: on.serving("chat") == 2, 5)
        assert asyncio.get_running_loop().time() - began < 1.0
        assert erring
        assert not any(seat.serving for seat in on.cluster.seats() if seat.name in erring)
        assert on.events("replace") == []


async def test_what_is_refused_again_and_again_is_not_tried_without_end() -> None:
    """A cluster that withholds each claim at once, as for a fleet whose paused residents a Service could reach."""
    async with world([policy(CHAT), policy(CODE)], [fleet(max_seats=6, spare_target=3)]) as on:
        await warm(on)
        claim, tried = on.cluster.claim, list[SeatName]()

        async def refuse(seat: Seat, _: Claim) -> Seat:
            tried.append(seat.name)
            raise Conflict("withheld")

        on.cluster.claim = refuse  # type: ignore[method-assign]
        for _ in range(24):
            on.traffic.arrive(CHAT, 60.0)
        looks = on.controller.looks
        await asyncio.sleep(10)
        assert len(set(tried)) > 1  # one after the other, and not the same one again
        assert on.controller.looks - looks < 300
        assert len(tried) < 300
        on.cluster.claim = claim  # type: ignore[method-assign]
        await on.until(lambda: on.serving("chat") > 1, 2.0)
