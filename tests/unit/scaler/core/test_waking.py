"""When residents on their way will be ready, by what promotions from their depth have taken."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.memory import Coming
from scaler.core.model import Decision, FleetView, Mode, ReasonCode, Supply
from scaler.core.placement import Place, place_of, pool_of
from scaler.core.waking import awaited, promise
from tests.unit.scaler.core.world import SPARES, Run, fleet, load, policy, served, view

SOON, LATE = 0.2, 4.0


def place(target: int = 8, **supply: int) -> Place:
    pool = pool_of(SPARES, fleet(max_seats=99), view(serving=30, spare=30))
    return place_of(pool, target, Supply(paused_wake=SOON, parked_wake=LATE, **supply))


@pytest.mark.parametrize(
    ("supply", "given_", "coming"),
    [
        pytest.param({"serving": 2, "promotable": 5}, 2, (), id="nothing new"),
        pytest.param({"serving": 2, "promotable": 5}, 1, (), id="one fewer"),
        pytest.param({"promotable": 5}, 2, (Coming(10.2, 16.0),), id="paused ones"),
        pytest.param({"promotable": 5, "parked": 4}, 1, (Coming(10.2, 8.0),), id="paused ones come first"),
        pytest.param(
            {"promotable": 5, "parked": 4},
            3,
            (Coming(10.2, 8.0), Coming(14.0, 16.0)),
            id="parked ones after them",
        ),
        pytest.param({"draining": 2, "promotable": 1}, 2, (), id="a recall takes no time"),
        pytest.param(
            {"promotable": 1, "parked": 1, "switchable": 2},
            2,
            (Coming(10.2, 8.0), Coming(14.0, 8.0)),
            id="a switch takes what a paused one does, and its drain",
        ),
        pytest.param(
            {"promotable": 1, "parked": 7},
            1,
            (Coming(14.0, 8.0),),
            id="more parked than there are is all of them",
        ),
    ],
)
def test_what_is_given_is_promised_for_when_its_depth_takes(
    supply: dict[str, int], given_: int, coming: tuple[Coming, ...]
) -> None:
    assert promise((), [place(**supply)], [given_], 10.0) == coming


def test_where_no_promotion_has_been_seen_nothing_is_waited_for() -> None:
    unknown = place_of(pool_of(SPARES, fleet(), view(spare=3)), 8, Supply(promotable=3, parked=1))
    assert promise((), [unknown], [3], 10.0) == ()


EARLIER = (Coming(10.2, 16.0), Coming(14.0, 8.0))


@pytest.mark.parametrize(
    ("promoting", "left"),
    [
        pytest.param(3, EARLIER, id="all"),
        pytest.param(5, EARLIER, id="others besides"),
        pytest.param(2, (Coming(10.2, 8.0), Coming(14.0, 8.0)), id="the soonest has come"),
        pytest.param(1, (Coming(14.0, 8.0),), id="the latest is left"),
        pytest.param(0, (), id="all have come"),
    ],
)
def test_what_is_ready_soonest_comes_first(promoting: int, left: tuple[Coming, ...]) -> None:
    assert awaited(EARLIER, [place(serving=3, promoting=promoting)]) == left


def test_what_is_promised_anew_takes_its_place_by_time() -> None:
    assert promise((Coming(14.0, 8.0),), [place(promoting=1, promotable=1)], [2], 11.0) == (
        Coming(11.2, 8.0),
        Coming(14.0, 8.0),
    )


# ------------------------------------------------------------------ in a decision


def seats(promoting: int = 0, **supply: int) -> Mapping[str, FleetView]:
    serving = 1 + promoting
    one = Supply(serving=1, promoting=promoting, paused_wake=SOON, parked_wake=LATE, **supply)
    return {"spares": view({"a": one}, serving=serving, spare=supply.get("promotable", 0))}


def after_a_promotion(parked: int) -> Decision:
    """One of three is promoted for two requests that wait; a request takes a second."""
    run = Run([policy(burst=policy().burst)], [fleet(max_seats=4, spare_target=0)])
    run.hold({"a": load(4, completions=4)}, seats(promotable=3, parked=parked), 15.0)
    run.step(
        {"a": load(8, 2, oldest_wait=0.0, completions=8)}, seats(promotable=3, parked=parked), after=0.25
    )
    assert served(run.decision) == 2
    return run.step(
        {"a": load(8, 2, oldest_wait=0.1, completions=8)},
        seats(1, promotable=2, parked=max(0, parked - 1)),
        after=0.1,
    )


def test_a_paused_resident_on_its_way_is_no_risk() -> None:
    assert after_a_promotion(parked=0).policies["a"].mode is Mode.STABLE


def test_a_parked_resident_on_its_way_is_one_and_it_is_said() -> None:
    decided = after_a_promotion(parked=3).policies["a"]
    assert decided.mode is Mode.BURST
    (risk,) = [reason for reason in decided.reasons if reason.code is ReasonCode.DEADLINE_AT_RISK]
    assert risk.facts["predictedWaitSeconds"] == pytest.approx(LATE - 0.1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.integers(0, 8), st.floats(0, 9)
        ),
        min_size=1,
        max_size=20,
    )
)
def test_what_is_awaited_is_never_more_than_what_is_being_promoted(
    ticks: list[tuple[int, int, int, int, float]],
) -> None:
    coming: tuple[Coming, ...] = ()
    now = 0.0
    for promoting, promotable, parked, given_, step in ticks:
        now += step
        here = place(serving=3, promoting=promoting, promotable=promotable, parked=parked)
        coming = awaited(coming, [here])
        assert sum(one.capacity for one in coming) <= promoting * 8
        assert list(coming) == sorted(coming)
        coming = promise(coming, [here], [given_], now)
        assert all(one.at <= now + LATE for one in coming)
