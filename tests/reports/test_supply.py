"""Supply as others got it wrong: what is on its way, what is going, what somebody else changed, and what may exist."""

import asyncio
import math
from dataclasses import replace

import pytest

from scaler.core.model import Pace
from scaler.policy.lint import Code
from scaler.signals.engine_page import read_page
from scaler.signals.engine_sum import EngineSum
from scaler.signals.engine_targets import EngineTarget, in_rotation
from tests.fakes.memory_cluster import Timing
from tests.reports.site import Line, Site
from tests.sim.world import world
from tests.unit.scaler.core.world import fleet, load, policy
from tests.unit.scaler.policy.lint import sets
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

A, SPARES = PolicyName("a"), FleetName("spares")

# ------------------------------------------------------------------ on its way


def test_seats_that_are_starting_are_not_ordered_again_at_every_look() -> None:
    """The desired count was added to what was pending already, in each interval anew."""
    site = Site(policies=[policy()], fleets=[fleet(max_seats=100)], up={"spares": 2}, start=300.0)
    site.hold({"a": load(4)}, 15.0)
    ordered = []
    for _ in range(280):
        site.step({"a": load(40)})
        ordered.append(len(site.place().seats))
    assert max(ordered) == ordered[-1] == 6, "40 in flight take 5 seats, and one is spare"


@pytest.mark.parametrize("up", [pytest.param(0, id="from nothing"), pytest.param(1, id="one serves")])
def test_what_only_waits_for_seats_to_start_orders_no_more_of_them(up: int) -> None:
    """Engines took minutes to start, requests piled up meanwhile, and each look ordered engines for the whole pile."""
    line = Line(arrivals=10.0, seconds=1.5)
    one = policy(serving_min=up, ttft_objective=1.0)
    site = Site(policies=[one], fleets=[fleet(max_seats=200, spare_target=0)], up={"spares": up}, start=120.0)
    site.hold({"a": load(0)}, 15.0)
    most = 0
    for _ in range(1200):
        site.step({"a": line.flow(site.serving(), 0.5)}, 0.5)
        most = max(most, site.total())
    assert line.queued == pytest.approx(0.0, abs=1.0)
    assert line.steady == 2
    assert most <= 2 * line.steady


def test_residents_that_are_being_promoted_are_supply() -> None:
    """Replicas that weren't Ready yet were missing from the base, so that others were ordered in their place."""
    six = [fleet(max_seats=12, spare_target=5)]
    site = Site(policies=[policy()], fleets=six, up={"spares": 6}, promotion=30.0)
    site.hold({"a": load(4)}, 60.0)
    for _ in range(29):
        decided = site.step({"a": load(24)}).policies[A]
        assert (site.serving(), decided.serving[SPARES], site.total()) == (1, 3, 8)
    assert site.decision.policies[A].capacity == 24
    site.hold({"a": load(24)}, 2.0)
    assert site.serving() == 3


def test_a_start_that_outlasts_every_window_is_not_given_up_while_somebody_waits() -> None:
    """Pods that still loaded weights when a window ran out were deleted, and so were those that came after them."""
    site = Site(policies=[policy()], fleets=[fleet()], start=3600.0)
    site.step({"a": load(0, 3)})
    first = list(site.place().seats)
    assert first
    site.hold({"a": load(0, 3)}, 3590.0)
    assert site.place().seats == first
    site.hold({"a": load(0, 3)}, 15.0)
    assert site.serving() == 1


@pytest.mark.looptime
async def test_the_seat_that_starts_slowly_is_the_one_that_serves_in_the_end() -> None:
    """The same with the real planner and actuator, which must not take a long start for a broken seat."""
    async with world([policy("chat")], [fleet(spare_target=0)], timing=Timing(start=900.0)) as on:
        await asyncio.sleep(1.0)
        (first,) = on.cluster.seats()
        request = on.traffic.arrive(PolicyName("chat"), 1.0)
        await asyncio.sleep(890.0)
        assert [seat.uid for seat in on.cluster.seats()][:1] == [first.uid]
        await on.until(lambda: request.finished is not None, 60.0)
        assert request.seat == first.name


# ------------------------------------------------------------------ what never comes


def test_a_seat_that_never_starts_stops_nobody_else() -> None:
    """One pod that no node had room for froze every decision for an hour: it had to become Ready first."""
    site = Site(
        policies=[policy("a", fleets=[("own", 8)]), policy("b", fleets=[("spares", 8)])],
        fleets=[fleet("own", max_seats=9), fleet("spares", max_seats=9, spare_target=2)],
        up={"spares": 3},
        start=math.inf,
    )
    site.hold({"a": load(0, 5), "b": load(4)}, 30.0)
    assert (site.serving("a"), site.serving("b")) == (0, 1)
    site.step({"a": load(0, 5), "b": load(20)})
    assert site.serving("b") == 3, "what is warm serves at once"
    assert site.total() == 5, "and the spares are ordered anew"
    site.policies = [policy("a", fleets=[("own", 8)], serving_min=8), site.policies[1]]
    site.step({"a": load(0, 5), "b": load(20)})
    assert site.total("own") == 8, "nor is it waited for before more are ordered"


@pytest.mark.looptime
async def test_starts_that_hang_are_supply_for_so_long_and_no_longer() -> None:
    """Pods that would never be Ready counted as capacity on its way, and what was needed was never ordered elsewhere."""
    timing = Timing(start=5.0)
    async with world([policy("chat")], [fleet(max_seats=9, spare_target=0)], timing=timing) as on:
        await on.until(lambda: on.serving("chat") == 1)
        timing.start = 1e9  # whatever starts now ends up on a node on which nothing comes up
        for _ in range(24):
            on.traffic.arrive(PolicyName("chat"), 7200.0)
        await on.until(lambda: len(on.cluster.seats()) >= 2)
        timing.start = 5.0
        await asyncio.sleep(1800.0)
        assert on.serving("chat") == 3


def test_starts_that_falling_demand_needs_no_more_are_cancelled() -> None:
    """Whoever had gone up waited for pods that nobody needed any more before it went down."""
    site = Site(policies=[policy()], fleets=[fleet(max_seats=9)], up={"spares": 2}, start=math.inf)
    site.hold({"a": load(4)}, 15.0)
    site.hold({"a": load(60)}, 15.0)
    assert len(site.place().seats) == 8
    site.hold({"a": load(2)}, 50.0)
    assert len(site.place().seats) == 2


# ------------------------------------------------------------------ what is going


@pytest.mark.looptime
async def test_a_seat_that_is_being_deleted_is_no_base_to_count_from() -> None:
    """Terminating pods still answered scrapes: they counted as capacity, and the answer went to and fro."""
    async with world([policy("chat")], [fleet(spare_target=2)]) as on:
        await on.until(lambda: on.serving("chat") == 1 and len(on.cluster.seats()) == 3)
        await asyncio.sleep(60.0)
        going = next(seat for seat in on.cluster.seats() if seat.serving)
        told = len(on.events("resize"))
        on.cluster.objects.add(replace(going, terminating=True))  # it keeps its label until others serve
        await on.until(lambda: any(seat.serving and not seat.terminating for seat in on.cluster.seats()), 1.0)
        await on.until(lambda: on.serving("chat") == 1)
        assert on.controller.last is not None
        seen = on.controller.last.snapshot.fleets[SPARES]
        assert (seen.doomed, seen.serving, seen.spare) == (1, 1, 1)
        assert (on.serving("chat"), len(on.events("resize"))) == (1, told)


def test_a_new_pod_under_an_old_name_is_another_engine() -> None:
    """Readings were joined to pods by name, so that a new pod inherited what the one before it had last said."""

    def engine(uid: str) -> EngineTarget:
        resident = Resident(policy=A, state=ResidentState.SERVING, since=0.0, address="http://10.0.0.1:8001")
        seat = Seat(name=SeatName("one"), uid=uid, version="1", fleet=SPARES, residents=(resident,))
        return in_rotation([replace(seat, serving=frozenset({A}))])[A][0]

    said = EngineSum(objective=1.0)
    said.follow([engine("old")], 0.0)
    said.answered(
        engine("old"), read_page(b"vllm:num_requests_running 9\nvllm:num_requests_waiting 0\n"), 1.0
    )
    assert said.taken(1.0, 1.0) is not None
    said.follow([engine("new")], 2.0)
    assert said.taken(2.0, 1.0) is None


# ------------------------------------------------------------------ what somebody else changed


@pytest.mark.looptime
@pytest.mark.parametrize("by_hand", [1, 3])
async def test_another_size_set_by_hand_is_seen_and_put_right(by_hand: int) -> None:
    """After a manual edit the planner counted on from its own last number, which was true no more."""
    async with world([policy("chat")], [fleet(max_seats=5)]) as on:
        await on.until(lambda: on.serving("chat") == 1 and len(on.cluster.seats()) == 2)
        await asyncio.sleep(60.0)
        told = len(on.events("resize"))
        await on.cluster.resize(SPARES, by_hand)
        await on.until(lambda: on.cluster.replicas(SPARES) == 2, 2.0)
        await asyncio.sleep(120.0)
        assert (len(on.cluster.seats()), on.serving("chat")) == (2, 1)
        assert len(on.events("resize")) == told + 1, "it is recorded, and not fought over"


# ------------------------------------------------------------------ what may exist


@pytest.mark.parametrize("budget", ["gpu_budget", "seat_budget"])
def test_a_budget_is_kept_while_seats_move_from_one_fleet_to_another(budget: str) -> None:
    """Growth was booked before what had to shrink for it was gone: over budget, and then neither could move."""
    down = Pace(window=5.0)
    site = Site(
        policies=[policy(name, fleets=[(name, 8)]) for name in ("a", "b")],
        fleets=[fleet(name, max_seats=5, spare_target=0, scale_down=down) for name in ("a", "b")],
        up={"a": 4, "b": 1},
        start=20.0,
        goes=30.0,
        limits={budget: 5},
    )
    site.hold({"a": load(32), "b": load(4)}, 30.0)
    most = 0
    for _ in range(180):
        site.step({"a": load(4), "b": load(32)})
        most = max(most, sum(place.existing for place in site.places.values()))
    assert most == 5
    assert (site.serving("a"), site.serving("b")) == (1, 4)


def test_gpus_that_a_claim_gives_are_not_guessed() -> None:
    """The GPUs of a pod were counted from its limits, and with resource claims there are none: one was assumed."""
    claimed = sets.deployment(spec__resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": "four"}])
    documents = [sets.fleet(seat={"gpus": 4}), sets.policy(), claimed]
    assert len(sets.findings(Code.GPUS_UNKNOWN, *documents)) == 1
    assert not sets.findings(Code.GPUS_DIFFER, *documents)
