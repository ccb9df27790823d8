"""The law in a loop with a toy world, in virtual time: two models share one spare seat and burst one after the other."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from scaler.core.model import Decision, Mode
from tests.unit.scaler.core.world import SPARES, Request, Seat, World, fleet, policy

QUIET, BUSY = 2.0 / 1.5, 10.0 / 1.5  # requests per second: 2 and 10 in flight, of 1.5 s each
A_BEGINS, A_ENDS, B_BEGINS, B_ENDS, END = 20.0, 40.0, 70.0, 90.0, 120.0


def drill(seed: int, until: float = END) -> World:
    world = World(
        policies=[policy("a"), policy("b")],
        fleet_spec=fleet(),
        rates={
            "a": [(0.0, QUIET), (A_BEGINS, BUSY), (A_ENDS, QUIET)],
            "b": [(0.0, QUIET), (B_BEGINS, BUSY), (B_ENDS, QUIET)],
        },
        seats=[Seat("a"), Seat("b"), Seat()],
        seed=seed,
    )
    world.run(until)
    return world


@pytest.fixture(scope="module", params=[1, 2, 3])
def world(request: pytest.FixtureRequest) -> World:
    return drill(request.param)


def given(decision: Decision, name: str) -> int:
    return decision.policies[name].serving[SPARES]


def changes(world: World, name: str, since: float, until: float) -> list[int]:
    values = [given(decision, name) for at, _, decision in world.history if since <= at < until]
    return [values[0], *(after for before, after in pairwise(values) if after != before)]


def waits(requests: Sequence[Request], name: str) -> list[float]:
    return [r.started - r.arrived for r in requests if r.policy == name and r.started is not None]


def test_the_burst_of_each_gets_the_same_spare_seat(world: World) -> None:
    assert max(changes(world, "a", A_BEGINS, A_ENDS)) == 2
    assert max(changes(world, "b", B_BEGINS, B_ENDS)) == 2


def test_the_second_seat_is_asked_for_before_anybody_has_waited_for_the_objective(world: World) -> None:
    for name, begins, ends in (("a", A_BEGINS, A_ENDS), ("b", B_BEGINS, B_ENDS)):
        asked = next(at for at, _, d in world.history if at >= begins and given(d, name) == 2)
        late = [r for r in world.done if r.policy == name and begins <= r.arrived <= asked]
        assert all(asked - r.arrived < 0.5 for r in late if r.started is None or r.started > asked)
        assert asked < ends


def test_nobody_waits_much_longer_than_the_objective(world: World) -> None:
    for name in ("a", "b"):
        waited = sorted(waits(world.done, name))
        assert waited[int(0.99 * len(waited))] <= 0.5


def test_a_burst_moves_the_seat_once_and_gives_it_back_once(world: World) -> None:
    for name, begins, ends in (("a", A_BEGINS, A_ENDS), ("b", B_BEGINS, B_ENDS)):
        assert changes(world, name, begins, ends + 30.0) in ([1, 2, 1], [2, 1])


def test_the_seat_is_back_after_the_stable_window_and_demote_after(world: World) -> None:
    for name, ends in (("a", A_ENDS), ("b", B_ENDS)):
        back = next(at for at, _, d in world.history if at > ends and given(d, name) == 1)
        assert 3.0 <= back - ends <= 10.0 + 3.0 + 8.0  # windows, and the time the last requests take


def test_no_seat_is_promised_twice_and_nobody_falls_below_the_floor(world: World) -> None:
    for _, _, decision in world.history:
        assert given(decision, "a") + given(decision, "b") <= 3
        assert min(given(decision, "a"), given(decision, "b")) >= 1


def test_the_fleet_stays_as_it_is(world: World) -> None:
    assert {decision.fleets[SPARES].total for _, _, decision in world.history} == {3}


def test_all_is_calm_in_the_end(world: World) -> None:
    last = world.history[-1][2]
    assert all(one.mode is Mode.STABLE for one in last.policies.values())


def test_the_same_seed_gives_the_same_run() -> None:
    assert drill(7, until=A_ENDS).history == drill(7, until=A_ENDS).history
