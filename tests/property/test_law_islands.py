"""What happens on one island changes no answer on another: deciding by parts and deciding at once are the same."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.decide import decide
from scaler.core.islands import islands
from scaler.core.memory import Memory
from scaler.core.model import (
    AutoSpare,
    Burst,
    FleetShare,
    FleetSpec,
    FleetView,
    Load,
    PolicySpec,
    Quality,
    Reading,
    Snapshot,
    Supply,
)
from warmpool.seats import FleetName, PolicyName

FLEETS = tuple(FleetName(name) for name in ("own-a", "own-b", "own-c", "spares", "more"))
NAMES = tuple(PolicyName(name) for name in ("a", "b", "c", "d"))


@st.composite
def estates(draw: st.DrawFn) -> tuple[list[PolicySpec], list[FleetSpec]]:
    policies = [
        PolicySpec(
            name=name,
            fleets=tuple(
                FleetShare(fleet=fleet, target_in_flight=8)
                for fleet in draw(st.lists(st.sampled_from(FLEETS), min_size=1, max_size=3, unique=True))
            ),
            priority=draw(st.sampled_from((0, 10))),
            preemptible=draw(st.booleans()),
            serving_min=draw(st.integers(0, 2)),
            burst=Burst(window=2.0, stable_window=10.0, demote_after=3.0),
        )
        for name in NAMES[: draw(st.integers(1, 4))]
    ]
    fleets = [
        FleetSpec(
            name=name,
            max_seats=draw(st.integers(1, 6)),
            spare_target=draw(st.integers(0, 2)),
            auto_spare=draw(st.sampled_from((None, AutoSpare(most=4)))),
        )
        for name in FLEETS
    ]
    return policies, fleets


def reading(value: float) -> Reading:
    return Reading(value=value, age=0.1, quality=Quality.FRESH)


@st.composite
def snapshots(draw: st.DrawFn, policies: Sequence[PolicySpec]) -> Snapshot:
    loads = {
        policy.name: draw(
            st.one_of(
                st.just(Load()),
                st.builds(
                    lambda queued, held: Load(queued=reading(queued), in_flight=reading(held)),
                    st.integers(0, 40),
                    st.integers(0, 60),
                ),
            )
        )
        for policy in policies
    }
    fleets = {}
    for fleet in FLEETS:
        spare, serving = draw(st.integers(0, 3)), draw(st.integers(0, 2))
        first = next((p.name for p in policies if any(s.fleet == fleet for s in p.fleets)), None)
        supply = {
            policy.name: Supply(
                serving=serving if policy.name == first else 0,
                promotable=spare,
                switchable=0 if policy.name == first else serving,
            )
            for policy in policies
            if any(share.fleet == fleet for share in policy.fleets)
        }
        fleets[fleet] = FleetView(serving=serving, spare=spare, replicas=serving + spare, supply=supply)
    return Snapshot(loads=loads, fleets=fleets)


@settings(max_examples=25)
@given(st.data())
def test_deciding_island_by_island_is_deciding_at_once(data: st.DataObject) -> None:
    policies, fleets = data.draw(estates())
    whole = parts = Memory.initial(0.0)
    for number in range(1, 5):
        snapshot, now = data.draw(snapshots(policies)), number * 1.5
        decision, whole = decide(policies, fleets, snapshot, whole, now)
        found = [decide(i.policies, i.fleets, snapshot, parts, now) for i in islands(policies, fleets)]
        parts = parts.joined(*(after for _, after in found))
        assert {k: v for d, _ in found for k, v in d.policies.items()} == dict(decision.policies)
        assert {k: v for d, _ in found for k, v in d.fleets.items()} == dict(decision.fleets)
        assert (
            min((d.next_wakeup for d, _ in found if d.next_wakeup is not None), default=None)
            == decision.next_wakeup
        )
        assert parts == whole


@settings(max_examples=25)
@given(st.data())
def test_what_is_left_out_of_a_look_keeps_its_past_and_its_seats(data: st.DataObject) -> None:
    """The others may be looked at as often as they like: one island's answers are the same."""
    policies, fleets = data.draw(estates())
    found = islands(policies, fleets)
    alone = beside = Memory.initial(0.0)
    for number in range(1, 5):
        snapshot, now = data.draw(snapshots(policies)), number * 1.5
        one = found[0]
        decision, after = decide(one.policies, one.fleets, snapshot, alone, now)
        alone = alone.joined(after)
        for other in found[1:]:
            _, after = decide(other.policies, other.fleets, data.draw(snapshots(policies)), beside, now - 0.5)
            beside = beside.joined(after)
        again, after = decide(one.policies, one.fleets, snapshot, beside, now)
        beside = beside.joined(after)
        assert again == decision


@settings(max_examples=25)
@given(st.data(), st.integers(0, 12))
def test_under_a_budget_no_total_rises_while_others_are_left_out(data: st.DataObject, budget: int) -> None:
    policies, fleets = data.draw(estates())
    memory, totals = Memory.initial(0.0), {}
    for number in range(1, 5):
        snapshot = data.draw(snapshots(policies))
        partial = Snapshot(loads=snapshot.loads, fleets=snapshot.fleets, seat_budget=budget, partial=True)
        decision, memory = decide(policies, fleets, partial, memory, number * 1.5)
        for name, decided in decision.fleets.items():
            found = max(snapshot.fleets[name].seats, snapshot.fleets[name].replicas)
            assert decided.total <= totals.get(name, found)
            totals[name] = decided.total
