"""Carrying out actions over the in-memory cluster, in virtual time: what succeeds, what fails, what overtakes what."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from scaler.errors import Unreachable
from scaler.runtime.actuator import Actuator, Deadlines, Ports
from scaler.runtime.events import EventLog, Trigger
from tests.fakes.loop_clock import LoopClock
from tests.fakes.memory_cluster import MemoryAgents, MemoryCluster
from warmpool.claim import Errand, Term, new_claim
from warmpool.errors import AgentBusy, EngineLost, GpuUnfit, NoRoom
from warmpool.plan import Action, Demote, Park, Promote, Recall, Release, Replace, Resize, Switch, Unpark
from warmpool.seats import (
    Claim,
    FleetName,
    Operation,
    PolicyName,
    Resident,
    Seat,
    SeatName,
    SeatValue,
    seat_value,
)
from warmpool.states import Depth
from warmpool.states import ResidentState as S

pytestmark = pytest.mark.looptime

FLEET, CHAT, CODE = FleetName("spares"), PolicyName("chat"), PolicyName("code")
WHY = {"why": "test"}


class UncertainCluster(MemoryCluster):
    """Loses answers, or what was to be answered, as it is told; says at how many seats it let somebody look.

    Attributes:
        unheard: claims that are written and not answered.
        lost: settlements that never arrive.
        looked: seats that were looked at, by all who didn't name one.
        slow: seconds that a claim takes.
    """

    unheard = lost = looked = 0
    slow = 0.0

    def seats(self) -> Sequence[Seat]:
        found = super().seats()
        self.looked += len(found)
        return found

    async def claim(self, seat: Seat, claim: Claim) -> Seat:
        await asyncio.sleep(self.slow)
        written = await super().claim(seat, claim)
        if self.unheard:
            self.unheard -= 1
            raise Unreachable("no answer")
        return written

    async def settle(self, name: SeatName, claim: Claim, *, serving: PolicyName | None) -> Seat:
        if self.lost:
            self.lost -= 1
            raise Unreachable("no answer")
        return await super().settle(name, claim, serving=serving)


@dataclass
class Stage:
    cluster: UncertainCluster
    agents: MemoryAgents
    actuator: Actuator
    records: list[Mapping[str, object]]

    def seat(self) -> Seat:
        return self.cluster.seats()[0]

    def start(self, action: Action) -> None:
        self.actuator.start([action], {CHAT: Trigger(sample=1.0, decision=2.0)})

    async def done(self, action: Action) -> Seat:
        self.start(action)
        await asyncio.sleep(5)
        return self.seat()

    def kinds(self, kind: str) -> list[Mapping[str, object]]:
        return [record for record in self.records if record["kind"] == kind]


@asynccontextmanager
async def stage(seats: int = 1) -> AsyncIterator[Stage]:
    clock = LoopClock()
    cluster = UncertainCluster({FLEET: [CHAT, CODE]}, clock.wall)
    agents = MemoryAgents(cluster.engines)
    records: list[Mapping[str, object]] = []
    actuator = Actuator(
        Ports(cluster=cluster, agents=agents, clock=clock, events=EventLog(records.append, clock)),
        Term(holder="test", epoch=1),
        lambda _: None,
        Deadlines(drain=10.0),
    )
    async with asyncio.TaskGroup() as tasks:
        parts = [tasks.create_task(cluster.run()), tasks.create_task(actuator.run())]
        await cluster.resize(FLEET, seats)
        await asyncio.sleep(30)
        try:
            yield Stage(cluster, agents, actuator, records)
        finally:
            for part in parts:
                part.cancel()


async def test_a_promotion_passes_every_stage_and_ends_in_rotation() -> None:
    async with stage() as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        assert (seat.serving, seat.claim, seat_value(seat)) == (frozenset({CHAT}), None, SeatValue.SERVING)
        (record,) = on.kinds("promotion")
        assert record["outcome"] == "Promoted"
        assert record["sample"] == 1.0
        assert record["claimed"] <= record["resumed"] <= record["canary"] <= record["rotation"]  # type: ignore[operator]


async def test_a_failed_promotion_gives_the_seat_back_and_lets_it_rest() -> None:
    async with stage() as on:
        on.cluster.engines.refuse = lambda *_: EngineLost("no")
        on.start(Promote(seat=on.seat(), policy=CHAT, **WHY))
        await asyncio.sleep(0.1)
        assert (on.seat().serving, on.seat().claim) == (frozenset(), None)
        assert on.actuator.candidates(on.cluster.seats()) == []
        await asyncio.sleep(5)
        assert on.actuator.candidates(on.cluster.seats()) == [on.seat()]
        assert on.kinds("promotion")[0]["error"] == "no"


async def test_a_seat_that_fails_again_and_again_is_replaced() -> None:
    async with stage() as on:
        on.cluster.engines.refuse = lambda *_: EngineLost("no")
        uid = on.seat().uid
        for _ in range(3):
            on.start(Promote(seat=on.seat(), policy=CHAT, **WHY))
            await asyncio.sleep(20)
        assert uid not in {seat.uid for seat in on.cluster.seats()}
        assert len(on.kinds("replace")) == 1


@pytest.mark.parametrize("refusal", [NoRoom("3 MiB are free"), GpuUnfit("GPU-a is Suspect: Xid 79")])
async def test_a_seat_that_can_take_nobody_now_rests_and_is_not_replaced(refusal: Exception) -> None:
    async with stage() as on:
        on.cluster.engines.refuse = lambda *_: refusal
        for _ in range(5):
            on.start(Promote(seat=on.seat(), policy=CHAT, **WHY))
            await asyncio.sleep(0.1)
            assert on.actuator.candidates(on.cluster.seats()) == []
            await asyncio.sleep(2)
            assert on.actuator.candidates(on.cluster.seats()) == [on.seat()]
        assert on.kinds("replace") == []


async def test_a_demotion_drains_before_it_pauses() -> None:
    async with stage() as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        on.cluster.engines.in_flight[seat.name, CHAT] = 2
        on.start(Demote(seat=seat, policy=CHAT, **WHY))
        await asyncio.sleep(1)
        assert seat_value(on.seat()) is SeatValue.DRAINING
        on.cluster.engines.in_flight[seat.name, CHAT] = 0
        await asyncio.sleep(1)
        assert seat_value(on.seat()) is SeatValue.SPARE
        assert on.kinds("demotion")[0]["outcome"] == "Demoted"


@pytest.mark.parametrize(
    ("grace", "within"),
    [
        pytest.param(None, (9.9, 10.1), id="as-long-as-any"),
        pytest.param(60.0, (9.9, 10.1), id="the-grace-is-longer"),
        pytest.param(6.0, (3.9, 4.1), id="a-margin-less-than-the-grace"),
        pytest.param(1.0, (0.0, 0.1), id="the-grace-is-nearly-over"),
    ],
)
async def test_a_terminating_seat_is_drained_for_no_longer_than_its_grace(
    grace: float | None, within: tuple[float, float]
) -> None:
    async with stage() as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        on.cluster.engines.in_flight[seat.name, CHAT] = 2
        leaves_by = None if grace is None else LoopClock().wall() + grace
        on.cluster.objects.add(replace(on.seat(), terminating=True, leaves_by=leaves_by))
        on.start(Demote(seat=on.seat(), policy=CHAT, **WHY))
        began = asyncio.get_running_loop().time()
        while not on.kinds("demotion"):
            await asyncio.sleep(0.01)
        least, most = within
        assert least <= asyncio.get_running_loop().time() - began <= most


async def test_a_recall_overtakes_the_demotion_and_keeps_the_requests() -> None:
    async with stage() as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        on.cluster.engines.in_flight[seat.name, CHAT] = 2
        on.start(Demote(seat=seat, policy=CHAT, **WHY))
        await asyncio.sleep(1)
        recalled = await on.done(Recall(seat=on.seat(), policy=CHAT, **WHY))
        assert seat_value(recalled) is SeatValue.SERVING
        assert on.cluster.engines.in_flight[seat.name, CHAT] == 2
        assert [record["outcome"] for record in on.kinds("demotion")] == ["Recalled"]


async def test_a_switch_goes_on_with_a_demotion_and_ends_what_it_waits_for() -> None:
    async with stage() as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        on.cluster.engines.in_flight[seat.name, CHAT] = 2
        on.start(Demote(seat=seat, policy=CHAT, **WHY))
        await asyncio.sleep(1)
        on.start(Switch(seat=on.seat(), leaving=CHAT, policy=CODE, at_once=True, **WHY))
        await asyncio.sleep(0.5)
        assert (on.seat().serving, on.seat().claim) == (frozenset({CODE}), None)
        assert [record["outcome"] for record in on.kinds("demotion")] == ["Demoted"]
        assert [record["outcome"] for record in on.kinds("promotion")] == ["Promoted", "Promoted"]


async def test_a_switch_away_from_another_waits_for_a_demotion() -> None:
    async with stage() as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        on.cluster.engines.in_flight[seat.name, CHAT] = 2
        on.start(Demote(seat=seat, policy=CHAT, **WHY))
        await asyncio.sleep(1)
        on.start(Switch(seat=on.seat(), leaving=CODE, policy=CHAT, **WHY))
        await asyncio.sleep(0.5)
        assert seat_value(on.seat()) is SeatValue.DRAINING


async def test_a_switch_drains_one_and_promotes_the_other_on_the_same_seat() -> None:
    async with stage() as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        switched = await on.done(Switch(seat=seat, leaving=CHAT, policy=CODE, **WHY))
        assert switched.serving == frozenset({CODE})
        assert {r.policy: r.state for r in switched.residents} == {CHAT: S.PAUSED, CODE: S.SERVING}


async def test_a_parking_and_an_unparking_end_settled() -> None:
    async with stage() as on:
        parked = await on.done(Park(seat=on.seat(), policy=CHAT, **WHY))
        assert (parked.claim, {r.policy: r.state for r in parked.residents}) == (
            None,
            {CHAT: S.PARKED, CODE: S.PAUSED},
        )
        on.start(Unpark(seat=parked, policy=CHAT, displace=(CODE,), **WHY))
        await asyncio.sleep(0.1)
        claim = on.seat().claim
        assert claim is not None
        assert (claim.operation, claim.displace) == (Operation.UNPARK, (CODE,))
        await asyncio.sleep(1)
        assert [(record["operation"], record["outcome"]) for record in on.kinds("move")] == [
            ("Park", "Moved"),
            ("Unpark", "Moved"),
        ]
        assert on.seat().residents[0].state is S.PAUSED


async def test_what_cannot_be_moved_is_left_alone_for_longer_and_longer() -> None:
    async with stage() as on:
        seat = await on.done(Park(seat=on.seat(), policy=CHAT, **WHY))
        on.cluster.engines.refuse = lambda verb, *_: AgentBusy("no room") if verb == "unpark" else None
        waited = []
        for _ in range(3):
            on.start(Unpark(seat=on.seat(), policy=CHAT, **WHY))
            await asyncio.sleep(0.1)
            assert on.actuator.left_alone == {(seat.name, CHAT)}
            before = asyncio.get_running_loop().time()
            while on.actuator.left_alone:
                await asyncio.sleep(0.5)
            waited.append(round(asyncio.get_running_loop().time() - before))
        assert waited == [5, 10, 20]
        assert [record["outcome"] for record in on.kinds("move")] == ["Moved", "Failed", "Failed", "Failed"]
        assert on.actuator.candidates(on.cluster.seats()) == [on.seat()]


async def test_a_promotion_from_host_memory_has_time_for_unparking() -> None:
    async with stage() as on:
        on.cluster.engines.timing.unpark = 30.0
        parked = await on.done(Park(seat=on.seat(), policy=CHAT, **WHY))
        on.start(Promote(seat=parked, policy=CHAT, displace=(CODE,), **WHY))
        await asyncio.sleep(31)
        assert on.seat().serving == frozenset({CHAT})


async def test_a_promotion_follows_an_unparking_of_the_same_resident() -> None:
    async with stage() as on:
        parked = await on.done(Park(seat=on.seat(), policy=CHAT, **WHY))
        on.start(Unpark(seat=parked, policy=CHAT, **WHY))
        await asyncio.sleep(0.2)
        on.start(Promote(seat=on.seat(), policy=CHAT, **WHY))
        await asyncio.sleep(0.5)
        assert on.seat().serving == frozenset({CHAT})
        assert [record["outcome"] for record in on.kinds("move")] == ["Moved", "Moved"]
        assert (on.seat().claim, on.actuator.left_alone) == (None, set())


async def test_no_other_promotion_overtakes_an_unparking() -> None:
    async with stage() as on:
        parked = await on.done(Park(seat=on.seat(), policy=CHAT, **WHY))
        on.start(Unpark(seat=parked, policy=CHAT, **WHY))
        await asyncio.sleep(0.2)
        on.start(Promote(seat=on.seat(), policy=CODE, **WHY))
        await asyncio.sleep(1)
        assert on.seat().serving == frozenset()
        assert {r.policy: r.state for r in on.seat().residents} == {CHAT: S.PAUSED, CODE: S.PAUSED}


@pytest.mark.parametrize(
    ("state", "seen", "seconds"),
    [
        pytest.param(S.PAUSED, 2.0, 0.0, id="not-parked"),
        pytest.param(S.PARKED, None, 120.0, id="never-seen-to-wake"),
        pytest.param(S.PARKED, 0.5, 10.0, id="quick"),
        pytest.param(S.PARKED, 5.0, 20.0, id="some-of-the-times-that-it-took"),
        pytest.param(S.UNPARKING, 60.0, 120.0, id="no-more-than-is-allowed"),
    ],
)
def test_a_wake_gets_what_wakes_have_taken(state: S, seen: float | None, seconds: float) -> None:
    known = {} if seen is None else {Depth.PARKED: seen}
    resident = Resident(policy=CHAT, state=state, since=0.0, wake_seconds=known)
    assert Deadlines().unparking(resident) == seconds


async def test_two_orders_for_one_seat_run_one() -> None:
    async with stage() as on:
        seat = on.seat()
        on.start(Promote(seat=seat, policy=CHAT, **WHY))
        on.start(Promote(seat=seat, policy=CODE, **WHY))
        await asyncio.sleep(1)
        assert on.seat().serving == frozenset({CHAT})
        assert {policy for _, _, policy in on.agents.orders} == {CHAT}


async def test_a_dead_resident_is_taken_out_of_rotation_without_a_drain() -> None:
    async with stage() as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        on.cluster.kill_engine(seat.name, CHAT)
        released = await on.done(Release(seat=on.seat(), policy=CHAT, **WHY))
        assert released.serving == frozenset()
        assert ("drain", seat.name, CHAT) not in on.agents.orders


async def test_replacing_and_resizing_reach_the_cluster() -> None:
    async with stage() as on:
        before = on.seat().uid
        await on.done(Replace(seat=on.seat(), reason="given up", **WHY))
        assert on.seat().uid != before
        await on.done(Resize(fleet=FLEET, total=3, **WHY))
        assert len(on.cluster.seats()) == 3


async def test_a_seat_that_plans_still_name_after_it_was_deleted_is_deleted_once() -> None:
    async with stage() as on:
        replacing = Replace(seat=on.seat(), reason="given up", **WHY)
        await on.done(replacing)
        uid = on.seat().uid
        await on.done(replacing)
        assert on.seat().uid == uid
        assert len(on.kinds("replace")) == 1


async def test_a_seat_that_is_still_there_ten_minutes_after_it_was_deleted_is_deleted_again() -> None:
    async with stage() as on:
        replacing = Replace(seat=on.seat(), reason="given up", **WHY)
        await on.done(replacing)
        await asyncio.sleep(600)
        await on.done(replacing)
        assert len(on.kinds("replace")) == 2


async def test_cancelling_in_mid_promotion_leaves_no_claim_behind() -> None:
    async with stage() as on:
        on.start(Promote(seat=on.seat(), policy=CHAT, **WHY))
        await asyncio.sleep(0.01)
        assert on.seat().claim is not None
    assert on.cluster.objects.all()[0].claim is None


async def test_the_first_content_of_a_promoted_resident_is_recorded_once() -> None:
    async with stage() as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        for at in (5.0, 6.0):
            on.actuator.first_content(CHAT, seat.name, 4.0, 3.0, at)
        (record,) = on.kinds("firstToken")
        assert (record["first"], record["waited"]) == (5.0, True)


async def test_a_claim_of_an_earlier_term_is_resolved() -> None:
    async with stage() as on:
        old = new_claim(
            Errand(operation=Operation.PROMOTE, policy=CHAT),
            Term(holder="dead", epoch=0),
            number=1,
            now=LoopClock().wall(),
            seconds=60,
        )
        await on.cluster.claim(on.seat(), old)
        on.actuator.adopt(on.cluster.seats())
        await asyncio.sleep(1)
        assert (on.seat().claim, on.seat().serving) == (None, frozenset())


async def test_a_settlement_that_is_lost_is_made_up_for_at_once() -> None:
    async with stage() as on:
        on.cluster.lost = 1
        on.start(Promote(seat=on.seat(), policy=CHAT, **WHY))
        await asyncio.sleep(0.5)
        claim = on.seat().claim
        assert claim is not None
        on.actuator.adopt(on.cluster.seats())
        await asyncio.sleep(0.01)
        assert (on.seat().claim, on.seat().serving) == (None, frozenset({CHAT}))
        assert LoopClock().wall() < claim.deadline - 5


async def test_a_claim_that_nobody_knows_of_is_taken_back_at_once() -> None:
    async with stage() as on:
        on.cluster.unheard = 1
        on.start(Promote(seat=on.seat(), policy=CHAT, **WHY))
        await asyncio.sleep(0.5)
        assert on.seat().claim is not None
        on.actuator.adopt(on.cluster.seats())
        await asyncio.sleep(0.01)
        assert (on.seat().claim, on.seat().serving, on.agents.orders) == (None, frozenset(), [])


async def test_a_claim_that_cannot_be_ended_is_tried_again_after_a_while() -> None:
    async with stage() as on:
        on.cluster.unheard, on.cluster.lost = 1, 3
        on.start(Promote(seat=on.seat(), policy=CHAT, **WHY))
        await asyncio.sleep(0.5)
        for _ in range(50):
            on.actuator.adopt(on.cluster.seats())
            await asyncio.sleep(0.01)
        assert on.cluster.lost == 0
        assert on.seat().claim is not None
        await asyncio.sleep(0.5)
        on.actuator.adopt(on.cluster.seats())
        await asyncio.sleep(0.01)
        assert on.seat().claim is None


async def test_what_is_under_way_is_not_ended_when_who_would_overtake_it_fails() -> None:
    async with stage() as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        on.cluster.engines.in_flight[seat.name, CHAT] = 1
        on.start(Demote(seat=on.seat(), policy=CHAT, **WHY))
        await asyncio.sleep(0.1)
        on.start(Recall(seat=seat, policy=CHAT, **WHY))  # of what was read before the demotion
        await asyncio.sleep(0.1)
        on.actuator.adopt(on.cluster.seats())
        await asyncio.sleep(0.1)
        claim = on.seat().claim
        assert claim is not None
        assert claim.operation is Operation.DEMOTE


async def test_no_seat_is_replaced_because_the_cluster_cannot_be_told() -> None:
    async with stage() as on:
        uid = on.seat().uid
        for _ in range(4):
            on.cluster.lost = 1
            await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
            on.actuator.adopt(on.cluster.seats())
            await asyncio.sleep(1)
            await on.done(Demote(seat=on.seat(), policy=CHAT, **WHY))
        assert on.seat().uid == uid
        assert len(on.kinds("promotion")) == 4


async def test_a_seat_counts_as_taken_while_its_claim_is_on_its_way() -> None:
    async with stage(seats=2) as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        on.cluster.slow = 1.0

        def planned() -> Seat:
            return on.actuator.candidates_of(on.cluster.stock())[FLEET][0]

        on.start(Demote(seat=seat, policy=CHAT, **WHY))
        await asyncio.sleep(0.5)
        assert on.seat() == seat  # nobody else knows yet
        assert planned().serving == frozenset()
        assert planned().claim is not None
        await asyncio.sleep(2)
        assert planned() is on.seat()
        assert on.seat().serving == frozenset()


async def test_a_seat_whose_claim_failed_is_as_it_was() -> None:
    async with stage() as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        on.cluster.slow = 0.1
        on.start(Demote(seat=replace(seat, version="old"), policy=CHAT, **WHY))
        await asyncio.sleep(0.2)
        assert on.actuator.candidates_of(on.cluster.stock())[FLEET] == (seat,)


async def test_an_operation_that_fails_looks_at_no_seat_but_its_own() -> None:
    async with stage(seats=50) as on:
        seat = await on.done(Promote(seat=on.seat(), policy=CHAT, **WHY))
        on.cluster.engines.in_flight[seat.name, CHAT] = 1
        other = on.cluster.seats()[1]
        on.cluster.engines.refuse = lambda verb, *_: AgentBusy("no time") if verb == "park" else None
        on.start(Demote(seat=seat, policy=CHAT, **WHY))
        await asyncio.sleep(0.1)
        seat, on.cluster.looked = on.seat(), 0
        on.start(Recall(seat=seat, policy=CHAT, **WHY))
        on.start(Park(seat=other, policy=CHAT, **WHY))
        await asyncio.sleep(1)
        assert [record["outcome"] for record in on.kinds("demotion")] == ["Recalled"]
        assert [record["outcome"] for record in on.kinds("move")] == ["Failed"]
        assert on.cluster.looked == 0


async def test_an_action_before_the_actuator_runs_blocks_nothing() -> None:
    clock = LoopClock()
    cluster = MemoryCluster({FLEET: [CHAT]}, clock.wall)
    agents = MemoryAgents(cluster.engines)
    ports = Ports(cluster=cluster, agents=agents, clock=clock, events=EventLog(lambda _: None, clock))
    actuator = Actuator(ports, Term(holder="test", epoch=1), lambda _: None)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(cluster.run())]
        await cluster.resize(FLEET, 1)
        await asyncio.sleep(30)
        (seat,) = cluster.seats()
        promote = Promote(seat=seat, policy=CHAT, **WHY)
        actuator.start([promote], {})  # a first tick may come before the actuator's own task has begun
        running.append(tasks.create_task(actuator.run()))
        await asyncio.sleep(1)
        actuator.start([promote], {})
        await asyncio.sleep(1)
        assert cluster.seats()[0].serving == {CHAT}
        for task in running:
            task.cancel()
