"""Counting seats into supply: every seat once, labels believed over late reports."""

from dataclasses import replace

import pytest

from scaler.core.model import FleetShare, FleetSpec, FleetView, Kind, Load, PolicySpec, Supply
from scaler.runtime.observer import Views, observe
from warmpool.seats import Claim, FleetName, Operation, PolicyName, Resident, Seat, SeatName, Verdict
from warmpool.states import Depth
from warmpool.states import ResidentState as S

CHAT, CODE, FLEET = PolicyName("chat"), PolicyName("code"), FleetName("spares")
POLICIES = [
    PolicySpec(name=name, fleets=(FleetShare(fleet=FLEET, target_in_flight=8),)) for name in (CHAT, CODE)
]


def seat(chat: S, code: S = S.PAUSED, **changes: object) -> Seat:
    base = Seat(
        name=SeatName("s"),
        uid="u",
        version="1",
        fleet=FLEET,
        residents=(Resident(policy=CHAT, state=chat, since=0), Resident(policy=CODE, state=code, since=0)),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def claim(operation: Operation, policy: PolicyName = CHAT) -> Claim:
    return Claim(id="c", policy=policy, operation=operation, holder="h", epoch=1, since=0, deadline=10)


def view(*seats: Seat) -> FleetView:
    snapshot = observe(
        POLICIES, [FleetSpec(name=FLEET, max_seats=9)], {FLEET: seats}, lambda _: 3, lambda _: Load()
    )
    return snapshot.fleets[FLEET]


SERVING = frozenset({CHAT})


@pytest.mark.parametrize(
    ("one", "chat", "code"),
    [
        pytest.param(seat(S.PAUSED), Supply(promotable=1), Supply(promotable=1), id="spare for both"),
        pytest.param(seat(S.SERVING, serving=SERVING), Supply(serving=1), Supply(switchable=1), id="serving"),
        pytest.param(
            seat(S.PROMOTING, serving=SERVING),
            Supply(serving=1),
            Supply(switchable=1),
            id="label before the report",
        ),
        pytest.param(seat(S.FAILED, serving=SERVING), Supply(), Supply(switchable=1), id="died in rotation"),
        pytest.param(
            seat(S.SERVING, serving=SERVING, reachable=False),
            Supply(),
            Supply(),
            id="serving, but unreachable",
        ),
        pytest.param(
            seat(S.PAUSED, claim=claim(Operation.PROMOTE)),
            Supply(promoting=1),
            Supply(),
            id="claimed for promotion",
        ),
        pytest.param(
            seat(S.DRAINING, claim=claim(Operation.DEMOTE)),
            Supply(draining=1),
            Supply(switchable=1),
            id="draining can be recalled",
        ),
        pytest.param(
            seat(S.PAUSED, S.DRAINING, claim=claim(Operation.SWITCH)),
            Supply(promoting=1),
            Supply(),
            id="switching",
        ),
        pytest.param(
            seat(S.PAUSED, S.LOADING), Supply(promotable=1), Supply(startable=1), id="one of two is warm"
        ),
        pytest.param(
            seat(S.SERVING, S.LOADING, serving=SERVING, lent=True),
            Supply(serving=1),
            Supply(startable=1),
            id="starting behind lent work",
        ),
        pytest.param(
            seat(S.SERVING, S.FAILED, serving=SERVING), Supply(serving=1), Supply(blocked=1), id="blocked"
        ),
        pytest.param(
            seat(S.DRAINING, S.STARTING, claim=claim(Operation.DEMOTE)),
            Supply(draining=1),
            Supply(blocked=1),
            id="blocked by who drains",
        ),
        pytest.param(
            seat(S.PROMOTING, S.WARMING, claim=claim(Operation.PROMOTE)),
            Supply(promoting=1),
            Supply(blocked=1),
            id="blocked by who is promoted",
        ),
        pytest.param(seat(S.FAILED, S.LOADING), Supply(), Supply(), id="a seat that starts"),
        pytest.param(
            seat(S.SERVING, S.FAILED, serving=SERVING, verdict=Verdict.BAD),
            Supply(),
            Supply(),
            id="nothing starts on a bad GPU",
        ),
        pytest.param(
            seat(S.PAUSED, S.PROVING, claim=claim(Operation.PROVE, CODE)),
            Supply(promotable=1),
            Supply(),
            id="a proof by our order is no start",
        ),
        pytest.param(seat(S.PAUSED, verdict=Verdict.SUSPECT), Supply(), Supply(), id="suspect GPU"),
        pytest.param(seat(S.PARKED), Supply(promotable=1, parked=1), Supply(promotable=1), id="parked"),
        pytest.param(
            seat(S.PAUSED, S.PARKED, serving=SERVING, lent=True),
            Supply(serving=1),
            Supply(promotable=1, parked=1),
            id="parked behind lent work",
        ),
        pytest.param(
            seat(S.SERVING, S.PARKED, serving=SERVING),
            Supply(serving=1),
            Supply(switchable=1),
            id="parked behind",
        ),
        pytest.param(seat(S.UNPARKING), Supply(), Supply(promotable=1), id="unparking"),
        pytest.param(
            seat(S.UNPARKING, claim=claim(Operation.UNPARK)),
            Supply(promotable=1, parked=1),
            Supply(promotable=1),
            id="unparking by our order",
        ),
        pytest.param(
            seat(S.UNPARKING, claim=claim(Operation.PROMOTE)),
            Supply(promoting=1),
            Supply(),
            id="promoted from host memory",
        ),
        pytest.param(
            seat(S.UNPARKING, serving=SERVING), Supply(serving=1), Supply(switchable=1), id="an old report"
        ),
    ],
)
def test_supply_of_one_seat(one: Seat, chat: Supply, code: Supply) -> None:
    assert view(one).supply == {CHAT: chat, CODE: code}


@pytest.mark.parametrize(
    ("state", "serving", "expected"),
    [
        pytest.param(S.PAUSED, frozenset(), Supply(cramped=1), id="on a free seat"),
        pytest.param(S.SERVING, SERVING, Supply(), id="behind another"),
    ],
)
def test_whoever_waits_for_memory_has_no_use_for_a_seat(
    state: S, serving: frozenset[PolicyName], expected: Supply
) -> None:
    waiting = Resident(policy=CODE, state=S.STARTING, since=0, waiting="no room")
    one = seat(state, residents=(Resident(policy=CHAT, state=state, since=0), waiting), serving=serving)
    assert view(one).supply[CODE] == expected


def test_seats_are_told_apart_by_who_is_up_on_them() -> None:
    waiting = Resident(policy=CODE, state=S.STARTING, since=0, waiting="no room")
    found = view(
        seat(S.PAUSED),
        seat(S.SERVING, serving=SERVING),
        seat(S.PARKING, claim=claim(Operation.PARK)),
        seat(S.DRAINING, S.FAILED, claim=claim(Operation.DEMOTE)),
        seat(S.PAUSED, residents=(Resident(policy=CHAT, state=S.PAUSED, since=0), waiting)),
        seat(S.STARTING, S.STARTING),
        seat(S.PAUSED, terminating=True),
    )
    assert found.kinds == (
        Kind(up=(CHAT,), starts=(), seats=1),
        Kind(up=(CHAT,), starts=(CODE,), seats=1),
        Kind(up=(CHAT, CODE), starts=(), seats=3),
    )


def test_seats_that_are_all_alike_are_not_told_apart() -> None:
    assert view(seat(S.PAUSED), seat(S.SERVING, serving=SERVING), seat(S.LOADING, S.STARTING)).kinds == ()
    assert view().kinds == ()


def test_wake_times_are_the_medians_of_what_residents_took() -> None:
    def woke(**seconds: float) -> Seat:
        times = {Depth(depth): value for depth, value in seconds.items()}
        return seat(S.PAUSED, residents=(Resident(policy=CHAT, state=S.PAUSED, since=0, wake_seconds=times),))

    seats = [
        woke(KvReleased=0.1, Paused=0.01),
        woke(KvReleased=0.2, Parked=2.0),
        woke(Paused=0.4, Parked=4.0),
    ]
    supply = view(*seats).supply
    assert (supply[CHAT].paused_wake, supply[CHAT].parked_wake) == (0.2, 3.0)
    assert (supply[CODE].paused_wake, supply[CODE].parked_wake) == (0.0, 0.0)


def test_every_seat_counts_once() -> None:
    found = view(
        seat(S.SERVING, serving=SERVING),
        seat(S.PAUSED, claim=claim(Operation.PROMOTE)),
        seat(S.DRAINING),
        seat(S.PAUSED),
        seat(S.SERVING, serving=SERVING, lent=True),
        seat(S.LOADING, S.STARTING),
        seat(S.PAUSED, verdict=Verdict.BAD),
        seat(S.PAUSED, terminating=True),
    )
    assert (
        found.serving,
        found.draining,
        found.spare,
        found.lent,
        found.starting,
        found.held,
        found.doomed,
    ) == (
        2,
        1,
        1,
        1,
        1,
        1,
        1,
    )
    assert found.seats == 7
    assert found.replicas == 3


def test_a_seat_that_serves_nobody_in_force_takes_its_replica_as_a_held_one() -> None:
    found = view(seat(S.SERVING, serving=frozenset({PolicyName("gone")})), seat(S.SERVING, serving=SERVING))
    assert (found.serving, found.held, found.seats) == (1, 1, 2)


def test_a_fleet_that_is_reported_anew_with_the_same_counts_is_the_same_view() -> None:
    views = Views()
    first = views.of(FLEET, (seat(S.PAUSED),), 1, (CHAT, CODE))
    assert views.of(FLEET, (seat(S.PAUSED, version="2"),), 1, (CHAT, CODE)) is first
    assert views.of(FLEET, (seat(S.PARKED, version="3"),), 1, (CHAT, CODE)) == replace(
        first, supply={CHAT: Supply(promotable=1, parked=1), CODE: Supply(promotable=1)}
    )


def test_seats_of_unknown_fleets_are_ignored() -> None:
    other = FleetName("other")
    stock = {other: (seat(S.PAUSED, fleet=other),)}
    snapshot = observe(POLICIES, [FleetSpec(name=FLEET, max_seats=9)], stock, lambda _: 3, lambda _: Load())
    assert snapshot.fleets.keys() == {FLEET}
    assert snapshot.fleets[FLEET].seats == 0


def test_a_fleet_is_counted_again_when_its_seats_its_size_or_its_policies_change() -> None:
    views, seats = Views(), (seat(S.PAUSED),)
    first = views.of(FLEET, seats, 3, [CHAT])
    assert views.of(FLEET, seats, 3, [CHAT]) is first
    assert views.of(FLEET, seats, 4, [CHAT]) == replace(first, replicas=4)
    assert views.of(FLEET, seats, 4, [CHAT, CODE]).supply.keys() == {CHAT, CODE}
    assert views.of(FLEET, (*seats, seat(S.PAUSED)), 4, [CHAT]).spare == 2


# ------------------------------------------------------------------ starts that don't end


@pytest.mark.parametrize(
    ("usual", "age", "starting"),
    [
        pytest.param(0.0, 3599.0, 1, id="none-was-seen-yet"),
        pytest.param(0.0, 3600.0, 0, id="none-was-seen-in-an-hour"),
        pytest.param(60.0, 599.0, 1, id="ten-minutes-at-least"),
        pytest.param(60.0, 600.0, 0, id="ten-minutes"),
        pytest.param(500.0, 1499.0, 1, id="slow-ones-have-longer"),
        pytest.param(500.0, 1500.0, 0, id="three-times-what-others-took"),
    ],
)
def test_a_start_that_gets_no_further_is_supply_for_so_long_and_no_longer(
    usual: float, age: float, starting: int
) -> None:
    views = Views(lambda _: usual)
    late = (replace(seat(S.LOADING, S.STARTING), created_at=1000.0),)
    views.wall = 1000.0
    assert views.of(FLEET, late, 1, [CHAT]).starting == 1
    views.wall = 1000.0 + age
    found = views.of(FLEET, late, 1, [CHAT])
    assert (found.starting, found.held) == (starting, 1 - starting)


def test_a_start_that_gets_further_has_its_time_anew() -> None:
    views, first = Views(lambda _: 60.0), replace(seat(S.LOADING, S.STARTING), created_at=1000.0)
    further = Resident(policy=CHAT, state=S.WARMING, since=1500.0)
    views.wall = 2000.0
    assert views.of(FLEET, (replace(first, residents=(further,)),), 1, [CHAT]).starting == 1


def test_an_engine_that_restarts_after_days_is_starting() -> None:
    views, days = Views(lambda _: 60.0), 86_400.0 * 5
    restarting = Resident(policy=CHAT, state=S.LOADING, since=days)
    views.wall = days + 30.0
    old = replace(seat(S.PAUSED), created_at=1.0, residents=(restarting,))
    assert views.of(FLEET, (old,), 1, [CHAT]).starting == 1
