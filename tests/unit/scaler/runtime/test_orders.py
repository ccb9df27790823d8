"""Orders of people in the real loop, in virtual time: what is carried out, what it leaves behind, and when that ends."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from scaler.core.model import FleetSpec, OneWay, Pace, ReasonCode
from scaler.runtime.order_rules import OrderRefused, parse
from scaler.store.standing_orders import Drain, Freeze, OfFleet
from tests.fakes.loop_clock import EPOCH
from tests.sim.world import World, world
from tests.unit.scaler.core.world import fleet, policy
from warmpool.seats import FleetName, PolicyName, Seat, SeatName

pytestmark = pytest.mark.looptime

CHAT, CODE, FLEET, OWN = PolicyName("chat"), PolicyName("code"), FleetName("spares"), FleetName("own")
WINDOW = 10.0  # of the policies that `policy` makes; what nobody needs is demoted after 3 s


def give(on: World, operation: str, **facts: Any) -> str:
    body = {"id": f"{operation}-{facts}", "operation": operation, "by": "anna", "reason": "launch", **facts}
    return on.controller.order(parse(body))


def serving(on: World, policy: PolicyName) -> set[SeatName]:
    return {seat.name for seat in on.cluster.seats() if policy in seat.serving}


def seat_of(on: World, name: SeatName) -> Seat:
    return next(seat for seat in on.cluster.seats() if seat.name == name)


def spare(on: World) -> SeatName:
    return max(seat.name for seat in on.cluster.seats() if not seat.serving)


def outcomes(on: World) -> list[tuple[object, object]]:
    return [(each["operation"], each["outcome"]) for each in on.records if each["kind"] == "order"]


def spares(seats: int = 3, **changed: Any) -> FleetSpec:
    return fleet(max_seats=seats, spare_target=seats, **changed)


def both(chat: int = 1, code: int = 0) -> list[Any]:
    return [policy(CHAT, serving_min=chat), policy(CODE, serving_min=code)]


async def warm(on: World, chat: int = 1, seats: int = 3) -> None:
    await on.until(
        lambda: (
            len(serving(on, CHAT)) == chat
            and len(on.cluster.seats()) == seats
            and all(
                seat.serving or (seat.promotable(CODE) and seat.promotable(CHAT))
                for seat in on.cluster.seats()
            )
        )
    )
    await asyncio.sleep(90.0)  # bursts of the start are over


async def test_who_is_promoted_by_order_is_kept_for_the_stable_window_and_then_the_law_decides() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        chosen = spare(on)
        assert give(on, "Promote", seat=chosen, policy="chat").startswith(
            f"promotes chat on {chosen} and keeps it"
        )
        await on.until(lambda: chosen in serving(on, CHAT), 5.0)
        assert len(serving(on, CHAT)) == 2
        await asyncio.sleep(WINDOW - 2.0)
        assert len(serving(on, CHAT)) == 2
        assert chosen in serving(on, CHAT)
        last = on.controller.last
        assert last is not None
        assert ReasonCode.ORDERED in {each.code for each in last.decision.policies[CHAT].reasons}
        await on.until(lambda: len(serving(on, CHAT)) == 1, 3 * WINDOW)
        assert outcomes(on) == [("Promote", "Accepted"), ("Promote", "Done")]


async def test_a_model_that_nobody_asks_for_serves_by_order_where_it_was_ordered_and_not_on_its_first_fleet() -> (
    None
):
    shared = policy(CODE, serving_min=0, fleets=[(OWN, 32), (FLEET, 32)])
    own = fleet(OWN, max_seats=1, spare_target=1)
    async with world([shared], [own, spares(1)]) as on:
        await on.until(lambda: sum(seat.promotable(CODE) for seat in on.cluster.seats()) == 2)
        await asyncio.sleep(90.0)
        (chosen,) = {seat.name for seat in on.cluster.seats() if seat.fleet == FLEET}
        give(on, "Promote", seat=chosen, policy="code")
        await on.until(lambda: serving(on, CODE) == {chosen}, 5.0)
        await asyncio.sleep(WINDOW - 2.0)
        assert serving(on, CODE) == {chosen}
        await on.until(lambda: not serving(on, CODE), 3 * WINDOW)


async def test_a_switch_sends_away_who_is_not_needed_and_keeps_who_came() -> None:
    async with world(both(chat=1), [spares()]) as on:
        await warm(on)
        chosen = spare(on)
        give(on, "Promote", seat=chosen, policy="chat", id="1")
        await on.until(lambda: chosen in serving(on, CHAT), 5.0)
        await asyncio.sleep(1.0)
        give(on, "Switch", seat=chosen, policy="code", leaving="chat")
        await on.until(lambda: chosen in serving(on, CODE), 20.0)
        await asyncio.sleep(WINDOW - 2.0)
        assert seat_of(on, chosen).serving == {CODE}
        await on.until(lambda: not serving(on, CODE), 3 * WINDOW)


async def test_a_demotion_ends_what_an_order_had_kept_and_is_refused_at_the_floor() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        chosen = spare(on)
        give(on, "Promote", seat=chosen, policy="chat")
        await on.until(lambda: chosen in serving(on, CHAT), 5.0)
        await asyncio.sleep(1.0)
        give(on, "Demote", seat=chosen, policy="chat")
        await on.until(lambda: chosen not in serving(on, CHAT), 5.0)
        await asyncio.sleep(5.0)
        (only,) = serving(on, CHAT)
        with pytest.raises(OrderRefused, match="its floor is 1") as refused:
            give(on, "Demote", seat=only, policy="chat")
        assert refused.value.code == "BelowFloor"
        await asyncio.sleep(5.0)
        assert serving(on, CHAT) == {only}
        assert outcomes(on)[2:] == [("Demote", "Accepted"), ("Demote", "Done"), ("Demote", "Refused")]


async def test_a_drained_seat_is_handed_over_promotion_first_and_takes_none_until_one_is_ordered() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        (old,) = serving(on, CHAT)
        least = []
        on.cluster.subscribe(lambda: least.append(len(serving(on, CHAT))))
        give(on, "Drain", seat=old)
        await on.until(lambda: old not in serving(on, CHAT), 60.0)
        assert min(least) >= 1
        await asyncio.sleep(120.0)
        assert old not in serving(on, CHAT)
        for _ in range(200):
            on.traffic.arrive(CHAT, 20.0)
        await asyncio.sleep(15.0)
        assert not seat_of(on, old).serving
        give(on, "Promote", seat=old, policy="chat")
        await on.until(lambda: old in serving(on, CHAT), 5.0)
        assert not on.controller.orders.drained


async def test_a_drain_is_over_when_the_pod_is_another() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        chosen = spare(on)
        give(on, "Drain", seat=chosen)
        assert set(on.controller.orders.drained) == {chosen}
        await on.cluster.delete(seat_of(on, chosen), reason="a person deleted it")
        await on.until(lambda: not on.controller.orders.drained, 60.0)
        assert on.controller.orders.standing == {FLEET: OfFleet(drains={})}


async def test_a_frozen_fleet_keeps_its_size_until_its_end_and_residents_are_promoted_meanwhile() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        give(on, "Freeze", fleet=FLEET, until=rfc(300.0))
        on.controller.adopt(replace(on.controller.table, fleets=[spares(2, scale_down=Pace(window=0.0))]))
        await asyncio.sleep(200.0)
        assert on.cluster.replicas(FLEET) == 3
        chosen = spare(on)
        give(on, "Promote", seat=chosen, policy="chat")
        await on.until(lambda: chosen in serving(on, CHAT), 5.0)
        await on.until(lambda: on.cluster.replicas(FLEET) == 2, 150.0)
        assert not on.controller.orders.freezes


async def test_a_thaw_ends_a_freeze_at_once_and_only_one_that_was_ordered() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        with pytest.raises(OrderRefused, match="nobody has ordered a freeze"):
            give(on, "Thaw", fleet=FLEET)
        give(on, "Freeze", fleet=FLEET, until=rfc(300.0))
        assert FLEET in on.controller.orders.freezes
        give(on, "Thaw", fleet=FLEET, id="2")
        await asyncio.sleep(1.0)
        last = on.controller.last
        assert last is not None
        assert not last.snapshot.frozen


async def test_a_dry_run_says_the_same_and_does_nothing() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        chosen = spare(on)
        before = len(on.records)
        dry = give(on, "Promote", seat=chosen, policy="chat", dryRun=True, id="1")
        give(on, "Freeze", fleet=FLEET, until=rfc(300.0), dryRun=True)
        await asyncio.sleep(5.0)
        assert (len(serving(on, CHAT)), on.controller.orders.freezes) == (1, {})
        assert not [each for each in on.records[before:] if each["kind"] in {"order", "promotion"}]
        assert give(on, "Promote", seat=chosen, policy="chat", id="1") == dry


async def test_an_order_is_carried_out_once_however_often_it_is_sent() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        chosen = spare(on)
        first = give(on, "Promote", seat=chosen, policy="chat", id="1")
        assert give(on, "Promote", seat=chosen, policy="chat", id="1") == first
        await on.until(lambda: chosen in serving(on, CHAT), 5.0)
        assert give(on, "Promote", seat=chosen, policy="chat", id="1") == first
        await asyncio.sleep(1.0)
        assert outcomes(on) == [("Promote", "Accepted"), ("Promote", "Done")]
        with pytest.raises(OrderRefused, match="another order had the id"):
            give(on, "Demote", seat=chosen, policy="chat", id="1")


async def test_a_seat_that_takes_another_pod_before_the_tick_is_left_alone() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        chosen = spare(on)
        give(on, "Promote", seat=chosen, policy="chat", uid=seat_of(on, chosen).uid)
        await on.cluster.delete(seat_of(on, chosen), reason="a person deleted it")
        await asyncio.sleep(5.0)
        assert len(serving(on, CHAT)) == 1
        assert outcomes(on) == [("Promote", "Accepted"), ("Promote", "Lapsed")]


async def test_the_ledger_names_who_ordered_what() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        chosen = spare(on)
        before = len(on.ledger)
        give(on, "Promote", seat=chosen, policy="chat")
        await on.until(lambda: chosen in serving(on, CHAT), 5.0)
        give(on, "Freeze", fleet=FLEET, until=rfc(300.0))
        await asyncio.sleep(3.0)
        said = [why for line in on.ledger[before:] for why in line.get("actions", ())]  # type: ignore[attr-defined]
        assert "Promote ordered by anna: launch" in said
        assert "fleet/spares: Freeze ordered by anna: launch" in said


async def test_a_promotion_that_ends_a_drain_is_kept_at_once() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        chosen, urged = spare(on), list[FleetName]()
        on.controller.orders.urge = urged.append
        give(on, "Drain", seat=chosen)
        await asyncio.sleep(1.0)
        assert urged == []  # whoever ordered it waits until it is kept
        give(on, "Promote", seat=chosen, policy="chat")
        await on.until(lambda: chosen in serving(on, CHAT), 5.0)
        assert urged == [FLEET]


async def test_what_stands_is_taken_up_by_who_leads_next_unless_something_newer_was_ordered() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        chosen = spare(on)
        told = {"reason": "x", "by": "anna", "since": EPOCH}
        freeze = Freeze(until=EPOCH + asyncio.get_running_loop().time() + 100.0, **told)
        drain = Drain(uid=seat_of(on, chosen).uid, **told)
        on.controller.orders.learn({FLEET: OfFleet(freeze=freeze, drains={chosen: drain})})
        await asyncio.sleep(1.0)
        last = on.controller.last
        assert last is not None
        assert set(last.snapshot.frozen) == {FLEET}
        assert {seat.name for seat in last.seats if seat.drained} == {chosen}
        give(on, "Thaw", fleet=FLEET)
        on.controller.orders.learn({FLEET: OfFleet(freeze=freeze, drains={})})
        assert not on.controller.orders.freezes


async def test_of_two_freezes_the_one_that_ends_later_holds() -> None:
    stopped: dict[FleetName, OneWay | None] = {}
    async with world(both(), [spares()], pinned=lambda: stopped) as on:
        await warm(on)
        stopped[FLEET] = None  # somebody has stopped who writes the fleet's size

        def ends_in() -> float:
            last = on.controller.last
            assert last is not None
            return last.snapshot.frozen[FLEET] - asyncio.get_running_loop().time()

        give(on, "Freeze", fleet=FLEET, until=rfc(10.0))
        await asyncio.sleep(1.0)
        assert 50.0 < ends_in() <= 120.0
        give(on, "Freeze", fleet=FLEET, until=rfc(301.0))
        await asyncio.sleep(1.0)
        assert ends_in() == pytest.approx(300.0, abs=1.5)


async def test_who_does_not_lead_takes_no_orders_and_carries_out_none_that_wait() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        give(on, "Promote", seat=spare(on), policy="chat")
        on.controller.stand_by()
        await asyncio.sleep(5.0)
        assert len(serving(on, CHAT)) == 1
        assert outcomes(on) == [("Promote", "Accepted"), ("Promote", "Lapsed")]
        with pytest.raises(OrderRefused, match="doesn't lead") as refused:
            give(on, "Promote", seat=spare(on), policy="chat", id="2")
        assert refused.value.status == 503


async def test_what_is_kept_goes_where_another_lacks_its_floor() -> None:
    policies = [policy(CHAT, serving_min=0), policy(CODE, serving_min=0)]
    async with world(policies, [spares(2)]) as on:
        await on.until(lambda: sum(seat.promotable(CODE) for seat in on.cluster.seats()) == 2)
        await asyncio.sleep(90.0)
        for number, seat in enumerate(on.cluster.seats()):
            give(on, "Promote", seat=seat.name, policy="chat", id=str(number))
        await on.until(lambda: len(serving(on, CHAT)) == 2, 5.0)
        needy = [policy(CHAT, serving_min=0), policy(CODE, serving_min=1)]
        on.controller.adopt(replace(on.controller.table, policies=needy))
        await on.until(lambda: len(serving(on, CODE)) == 1, WINDOW - 2.0)
        assert len(serving(on, CHAT)) == 1


async def test_of_more_than_a_thousand_ids_the_oldest_are_forgotten() -> None:
    async with world(both(), [spares()]) as on:
        await warm(on)
        until = rfc(3000.0)
        for number in range(1001):
            give(on, "Freeze", fleet=FLEET, until=until, id=str(number))
        with pytest.raises(OrderRefused, match=r"another order had the id 1$"):
            give(on, "Thaw", fleet=FLEET, id="1")
        assert give(on, "Thaw", fleet=FLEET, id="0") == "ends the freeze of spares"


def rfc(seconds: float) -> str:
    at = EPOCH + asyncio.get_running_loop().time() + seconds
    return datetime.fromtimestamp(at, UTC).isoformat()
