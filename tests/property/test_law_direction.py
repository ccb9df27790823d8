"""Which way an answer may move: up with demand, never down on the unknown, and not to and fro."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.decide import decide
from scaler.core.memory import Memory
from scaler.core.model import (
    Burst,
    Decision,
    FleetShare,
    FleetSpec,
    FleetView,
    Load,
    Pace,
    PolicySpec,
    Quality,
    Reading,
    Snapshot,
    Supply,
)

WINDOW, DEMOTE = 10.0, 3.0
BURST = Burst(window=2.0, stable_window=WINDOW, demote_after=DEMOTE)
SPEC = PolicySpec(
    name="a",
    fleets=(FleetShare(fleet="spares", target_in_flight=8),),
    serving_min=1,
    ttft_objective=0.5,
    burst=BURST,
)
SHAPE = FleetSpec(name="spares", max_seats=12, spare_target=2, scale_down=Pace(window=5.0))

demands = st.integers(0, 60)
steps = st.sampled_from([0.0, 0.1, 0.25, 1.0, 1.7])


def fresh(value: float) -> Reading:
    return Reading(value=float(value), age=0.1, quality=Quality.FRESH)


def stale(value: float) -> Reading:
    return Reading(value=float(value), age=30.0, quality=Quality.STALE)


def gateway(in_flight: float, queued: float = 0.0) -> Load:
    return Load(queued=fresh(queued), in_flight=fresh(in_flight), completions=fresh(in_flight / 1.5))


def seats(serving: int, existing: int = 8) -> FleetView:
    serving = min(serving, existing)
    spare = existing - serving
    return FleetView(
        serving=serving,
        spare=spare,
        replicas=existing,
        supply={"a": Supply(serving=serving, promotable=spare)},
    )


class Loop:
    """One policy whose decisions are carried out at once."""

    def __init__(self, serving: int = 1) -> None:
        self.memory = Memory.initial(0.0)
        self.now = 0.0
        self.serving = serving
        self.decision: Decision | None = None

    def step(self, load: Load | None, after: float) -> Decision:
        self.now += after
        snapshot = Snapshot(loads={} if load is None else {"a": load}, fleets={"spares": seats(self.serving)})
        self.decision, self.memory = decide([SPEC], [SHAPE], snapshot, self.memory, self.now)
        self.serving = self.decision.policies["a"].serving["spares"]
        return self.decision

    def settle(self, demand: float) -> None:
        for _ in range(80):
            self.step(gateway(demand), 0.25)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(demands, demands, steps), min_size=1, max_size=30), st.integers(0, 20))
def test_more_demand_never_gives_less(history: Sequence[tuple[int, int, float]], more: int) -> None:
    """Same past, same supply; this moment's demand is higher."""
    loop = Loop()
    for in_flight, queued, step in history:
        loop.step(gateway(in_flight, queued), step)
    in_flight, queued, _ = history[-1]
    answers = []
    for extra in (0, more):
        for load in (gateway(in_flight + extra, queued), gateway(in_flight, queued + extra)):
            snapshot = Snapshot(loads={"a": load}, fleets={"spares": seats(loop.serving)})
            decision, _ = decide([SPEC], [SHAPE], snapshot, loop.memory, loop.now + 0.25)
            answers.append(decision.policies["a"])
    before, same, flight, queue = answers
    assert before == same
    for after in (flight, queue):
        assert after.needed >= before.needed - 1e-9
        assert after.wanted["spares"] >= before.wanted["spares"]
        assert after.serving["spares"] >= before.serving["spares"]


flows = st.one_of(st.just(0.0), st.floats(0, 40))
moments = st.tuples(
    st.one_of(st.just(0), demands),
    st.one_of(st.just(0), demands),
    flows,
    flows,
    st.sampled_from([0.0, 0.3, 5.0]),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(moments, steps), min_size=1, max_size=30),
    st.integers(1, 20),
    st.sampled_from([(1,), (3,), (8,), (2, 3), (1, 8)]),
    st.sampled_from([0.0, 20.0]),
)
def test_more_demand_never_gives_less_where_arrivals_are_known(
    history: Sequence[tuple[tuple[int, int, float, float, float], float]],
    more: int,
    existing: Sequence[int],
    start: float,
) -> None:
    """At each moment of a past in which all that gateways say goes up and down, on one fleet or two.

    Averages that a reading moved while it was judged by them gave less for more, once in 4,000 moments.
    """
    names = ("own", "spares")[: len(existing)]
    spec = replace(SPEC, fleets=tuple(FleetShare(fleet=name, target_in_flight=8) for name in names))
    shapes = [replace(SHAPE, name=name) for name in names]
    memory, now, serving = Memory.initial(0.0), 0.0, dict.fromkeys(names, 0)
    for (in_flight, queued, arrivals, completions, wait), step in history:
        now += step
        rest = {"arrivals": fresh(arrivals), "completions": fresh(completions), "oldest_wait": fresh(wait)}
        fleets = {
            name: replace(seats(serving[name], number), start_seconds=start)
            for name, number in zip(names, existing, strict=True)
        }
        answers = []
        for f, q in ((in_flight, queued), (in_flight + more, queued), (in_flight, queued + more)):
            load = Load(queued=fresh(q), in_flight=fresh(f), **rest)
            answers.append(decide([spec], shapes, Snapshot(loads={"a": load}, fleets=fleets), memory, now))
        (before, next_memory), *higher = answers
        one = before.policies["a"]
        for decision, _ in higher:
            after = decision.policies["a"]
            assert after.needed >= one.needed - 1e-9
            assert all(after.wanted[name] >= one.wanted[name] for name in names)
            assert sum(after.serving.values()) >= sum(one.serving.values())
        memory, serving = next_memory, dict(one.serving)


silence = st.one_of(
    st.none(),
    st.just(Load()),
    st.builds(lambda f, q: Load(queued=stale(q), in_flight=stale(f)), demands, demands),
    st.builds(lambda q: Load(queued=fresh(q)), demands),
)


@settings(max_examples=40, deadline=None)
@given(
    demands,
    st.lists(st.tuples(demands, steps), max_size=20),
    st.lists(st.tuples(silence, st.floats(0, 20)), min_size=1, max_size=15),
)
def test_nothing_shrinks_on_stale_or_missing(
    level: int, history: Sequence[tuple[int, float]], dark: Sequence[tuple[Load | None, float]]
) -> None:
    loop = Loop()
    loop.settle(level)
    for demand, step in history:
        loop.step(gateway(demand), step)
    last = loop.decision
    assert last is not None
    for load, step in dark:
        decision = loop.step(load, step)
        assert decision.policies["a"].serving["spares"] >= last.policies["a"].serving["spares"]
        assert decision.policies["a"].wanted["spares"] >= last.policies["a"].wanted["spares"]
        assert decision.fleets["spares"].serving >= last.fleets["spares"].serving
        last = decision


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(0.2, 3)), min_size=1, max_size=20))
def test_unknown_is_not_zero_and_a_fresh_zero_is_idle(ticks: Sequence[tuple[bool, float]]) -> None:
    unknown, idle = Loop(serving=4), Loop(serving=4)
    for missing, step in ticks:
        unknown.step(None if missing else Load(), step)
        idle.step(gateway(0), step)
    for _ in range(80):
        idle.step(gateway(0), 0.25)
    assert unknown.serving == 4
    assert unknown.decision is not None
    assert unknown.decision.policies["a"].demand is None
    assert idle.serving == 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 60), st.lists(st.tuples(demands, steps), min_size=1, max_size=40))
def test_a_restart_in_mid_burst_shrinks_nothing_for_a_stable_window(
    serving: int, ticks: Sequence[tuple[int, float]]
) -> None:
    loop = Loop(serving=serving % 9)
    began = loop.serving
    for demand, step in ticks:
        loop.step(gateway(demand), step)
        if loop.now < WINDOW:
            assert loop.serving >= began


@settings(max_examples=25, deadline=None)
@given(
    st.integers(3, 40),
    st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([0.25, 0.5, 1.0])), min_size=40, max_size=70),
)
def test_noise_does_not_flap_inside_a_window(level: int, noise: Sequence[tuple[int, float]]) -> None:
    """After any rise the answer stays up for at least the time that a smaller one has to last."""
    loop = Loop()
    loop.settle(level)
    rose = -1e9
    before = loop.serving
    for wobble, step in noise:
        loop.step(gateway(max(0, level + wobble)), step)
        if loop.serving > before:
            rose = loop.now
        if loop.serving < before:
            assert loop.now - rose >= DEMOTE
        before = loop.serving


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(demands, demands, steps), min_size=1, max_size=25))
def test_gateway_engines_or_both_give_the_same(ticks: Sequence[tuple[int, int, float]]) -> None:
    """The demand is the same, whoever reports it; and so are the answers where no queue is told apart."""
    loops = [Loop(), Loop(), Loop()]
    for in_flight, queued, step in ticks:
        total = in_flight + queued
        gateway_only = Load(queued=fresh(queued), in_flight=fresh(in_flight))
        engines_only = Load(engines=fresh(total))
        both = Load(queued=fresh(queued), in_flight=fresh(in_flight), engines=fresh(in_flight))
        decisions = [
            loop.step(load, step)
            for loop, load in zip(loops, (gateway_only, engines_only, both), strict=True)
        ]
        assert len({decision.policies["a"].demand for decision in decisions}) == 1
        assert decisions[0].policies == decisions[2].policies


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(demands, steps), min_size=1, max_size=30))
def test_the_wakeup_is_soon_enough(ticks: Sequence[tuple[int, float]]) -> None:
    """Looking again just before the wake-up, with nothing new, gives the same answer."""
    loop = Loop()
    for demand, step in ticks:
        loop.step(gateway(demand), step)
    load = gateway(ticks[-1][0])
    decision = loop.step(load, 0.1)
    snapshot = Snapshot(loads={"a": load}, fleets={"spares": seats(loop.serving)})
    settled, memory = decide([SPEC], [SHAPE], snapshot, loop.memory, loop.now)
    until = settled.next_wakeup
    later = loop.now + 3600.0 if until is None else loop.now + (until - loop.now) * 0.999
    again, _ = decide([SPEC], [SHAPE], snapshot, memory, later)
    assert again.policies["a"].mode is settled.policies["a"].mode
    assert again.policies["a"].wanted == settled.policies["a"].wanted
    assert again.policies["a"].serving == settled.policies["a"].serving
    assert again.fleets["spares"].total == settled.fleets["spares"].total
    assert decision.at <= again.at
