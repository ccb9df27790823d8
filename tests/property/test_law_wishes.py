"""A fleet that somebody else sizes, in closed loop: whoever follows us, however late, is never mistaken for a wish."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scaler.core.decide import decide
from scaler.core.memory import Memory
from scaler.core.model import (
    Burst,
    ChangeLimit,
    Decision,
    FleetShare,
    FleetSpec,
    FleetView,
    Load,
    Pace,
    PolicySpec,
    Quality,
    Reading,
    ReasonCode,
    Snapshot,
    Supply,
)
from scaler.core.wishes import HPA_SYNC_SECONDS
from scaler.runtime.bench.law.hpa import DEFAULT_UP, Hpa, HpaMemory, average_value, sync
from warmpool.seats import FleetName

TARGET, MOST, WINDOW = 8, 40, 60.0
LATEST = 300.0 + 15.0
"""How old a total may be that the HPA still acts on, by its defaults."""
FLEET = FleetName("spares")
SPEC = PolicySpec(
    name="a",
    fleets=(FleetShare(fleet=FLEET, target_in_flight=TARGET),),
    serving_min=1,
    burst=Burst(window=2.0, stable_window=10.0, demote_after=3.0),
)
FOLLOWED = FleetSpec(
    name=FLEET, max_seats=MOST, spare_target=2, scale_down=Pace(window=WINDOW), resized=False
)
OURS = replace(FOLLOWED, resized=True)


def fresh(value: float) -> Reading:
    return Reading(value=value, age=0.1, quality=Quality.FRESH)


def seats(replicas: int, serving: int) -> FleetView:
    """As many seats as the workload is asked for, those that shall serve among them."""
    serving = min(serving, replicas)
    spare = replicas - serving
    supply = {"a": Supply(serving=serving, promotable=spare)}
    return FleetView(serving=serving, spare=spare, replicas=replicas, supply=supply)


class Loop:
    """The law over a workload whose size follows from what was published."""

    def __init__(self, spec: FleetSpec, replicas: int) -> None:
        self.spec = spec
        self.memory = Memory.initial(0.0)
        self.now = 0.0
        self.replicas = replicas
        self.serving = 1
        self.published: list[tuple[float, int]] = []
        """Totals, with when each was replaced; the last one holds."""

    def step(self, demand: int, after: float) -> Decision:
        self.now += after
        load = Load(queued=fresh(0), in_flight=fresh(demand), completions=fresh(demand / 1.5))
        snapshot = Snapshot(loads={"a": load}, fleets={FLEET: seats(self.replicas, self.serving)})
        decision, self.memory = decide([SPEC], [self.spec], snapshot, self.memory, self.now)
        self.serving = decision.policies["a"].serving[FLEET]
        self.published.append((self.now, decision.fleets[FLEET].total))
        return decision

    @property
    def total(self) -> int:
        return self.published[-1][1]

    def reachable(self, seconds: float) -> tuple[int, int]:
        """Return the lowest and the highest total that was published within so many seconds."""
        totals = [self.total]
        for (since, total), (until, _) in zip(self.published, self.published[1:], strict=False):
            assert since <= until
            if until > self.now - seconds:
                totals.append(total)
        return min(totals), max(totals)


steps = st.lists(
    st.tuples(
        st.integers(0, 200),
        st.sampled_from([0.1, 1.0, 14.0, 40.0, 100.0, 290.0]),
        st.floats(0.0, 1.0),
    ),
    min_size=2,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(1, 30))
@example([(0, 0.1, 0.0), (0, 100.0, 0.0), (0, 40.0, 1.0), (0, 290.0, 0.0)], 4)
def test_whoever_follows_us_within_the_hpas_window_is_no_wish(
    history: Sequence[tuple[int, float, float]], found: int
) -> None:
    """Replicas anywhere between the totals of the last 315 s: the answers are those for a workload that we size."""
    loop, ours = Loop(FOLLOWED, found), Memory.initial(0.0)
    for demand, after, where in history:
        load = Load(queued=fresh(0), in_flight=fresh(demand), completions=fresh(demand / 1.5))
        snapshot = Snapshot(loads={"a": load}, fleets={FLEET: seats(loop.replicas, loop.serving)})
        decision = loop.step(demand, after)
        same, ours = decide([SPEC], [OURS], snapshot, ours, loop.now)
        assert decision.fleets[FLEET].total == same.fleets[FLEET].total
        assert ReasonCode.WISHED not in {reason.code for reason in decision.fleets[FLEET].reasons}
        lowest, highest = loop.reachable(LATEST)
        loop.replicas = round(lowest + where * (highest - lowest))


# ------------------------------------------------------------------ the HPA itself


def under(rule: Hpa, loop: Loop, demands: Callable[[float], int], seconds: float) -> list[Decision]:
    """Let an HPA of that rule follow the published total, and look at every sync and when the law wants to."""
    memory, decisions = HpaMemory(), []
    next_sync, end = loop.now, loop.now + seconds
    while loop.now < end:
        decision = loop.step(demands(loop.now), 1.0 if loop.now < next_sync else 0.05)
        decisions.append(decision)
        if loop.now >= next_sync:
            next_sync += HPA_SYNC_SECONDS
            total = float(decision.fleets[FLEET].total)
            proposal = average_value(rule, loop.replicas, total, 1.0)
            loop.replicas, memory = sync(rule, loop.replicas, [proposal], memory, loop.now)
    return decisions


@st.composite
def hpas(draw: st.DrawFn) -> Hpa:
    """Any HPA, its window and rates slower than the defaults among them."""
    limit = ChangeLimit(value=draw(st.integers(1, 100)), percent=draw(st.booleans()), period=60.0)
    down = Pace(
        limits=(limit,),
        tolerance=draw(st.sampled_from([0.0, 0.1])),
        window=draw(st.sampled_from([0.0, 60.0, 300.0, 900.0])),
    )
    up = replace(DEFAULT_UP, tolerance=down.tolerance)
    return Hpa(min_replicas=draw(st.integers(1, 15)), max_replicas=MOST, up=up, down=down)


@settings(max_examples=12, deadline=None)
@given(hpas(), st.integers(1, 25), st.integers(0, 120), st.integers(0, 120))
@pytest.mark.long
def test_an_hpa_of_any_rule_and_minimum_neither_runs_away_nor_keeps_us_up(
    rule: Hpa, found: int, before: int, after: int
) -> None:
    """A step of demand under it: what we publish is what we would publish for ourselves, from some time on."""
    loop = Loop(FOLLOWED, max(found, rule.min_replicas))
    decisions = under(rule, loop, lambda now: before if now < 400.0 else after, 1600.0)
    wanted = min(MOST, max(1, -(-after // TARGET)) + 2)
    highest = max(loop.replicas, found, rule.min_replicas, -(-max(before, after) // TARGET) + 2)
    assert decisions[-1].fleets[FLEET].total == wanted
    assert all(each.fleets[FLEET].total <= highest for each in decisions)


@settings(max_examples=12, deadline=None)
@given(hpas(), st.integers(0, 60), st.integers(1, 40), st.floats(0.0, 15.0))
@pytest.mark.long
def test_a_persons_wish_holds_for_the_window_and_lapses_under_an_hpa_of_any_rule(
    rule: Hpa, demand: int, wish: int, when: float
) -> None:
    loop = Loop(FOLLOWED, max(3, rule.min_replicas))
    under(rule, loop, lambda _: demand, 500.0)
    own, before = loop.total, loop.replicas
    loop.step(demand, when)
    loop.replicas = max(before, wish)
    began = loop.now
    decisions = under(rule, loop, lambda _: demand, 1500.0)
    risen = wish > max(before, own)
    for each in decisions:
        total = each.fleets[FLEET].total
        assert total <= max(own, wish if risen else 0)
        if risen and each.at < began + WINDOW:
            assert total == max(own, wish)
    assert loop.total == own
