"""Work that can wait borrows spare seats: it creates none, takes none, and gives them back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.explain import explain
from scaler.core.model import Decision, Pace, ReasonCode, Supply
from tests.unit.scaler.core.world import Run, fleet, load, policy, served, view

BATCH = policy("batch", preemptible=True, serving_min=0, serving_max=20)
CHAT = policy("chat", serving_min=1, serving_max=20)


def seats(chat: int, batch: int, spare: int, lent: int = 0) -> dict[str, object]:
    """A fleet on which both are resident everywhere; `batch` are owned seats, `lent` borrowed ones."""
    supply = {
        "chat": Supply(serving=chat, promotable=spare + lent, switchable=batch),
        "batch": Supply(serving=batch + lent, promotable=spare, switchable=chat),
    }
    return {"spares": view(supply, serving=chat + batch, spare=spare, lent=lent)}


def lent(decision: Decision) -> int:
    return decision.policies["batch"].lent.get("spares", 0)


def total(run: Run) -> int:
    return run.decision.fleets["spares"].total


@pytest.mark.parametrize(
    ("spare", "unlent", "demand", "borrowed"),
    [
        pytest.param(4, 1, 100, 3, id="all above the spares that people asked for"),
        pytest.param(4, 0, 100, 4, id="all"),
        pytest.param(4, 4, 100, 0, id="none"),
        pytest.param(4, 1, 16, 2, id="as many as it has work for"),
        pytest.param(4, 1, 0, 0, id="nothing to do"),
    ],
)
def test_spare_seats_are_lent_above_the_spares_that_people_asked_for(
    spare: int, unlent: int, demand: int, borrowed: int
) -> None:
    run = Run([CHAT, BATCH], [fleet(max_seats=9, spare_target=unlent)])
    run.step({"chat": load(1), "batch": load(0, demand)}, seats(1, 0, spare))
    assert lent(run.decision) == borrowed == served(run.decision, "batch")


def test_borrowing_creates_no_seat() -> None:
    run = Run([CHAT, BATCH], [fleet(max_seats=9, spare_target=2)])
    run.hold({"chat": load(1), "batch": load(0, 500)}, seats(1, 0, 2), 60.0)
    assert total(run) == 3
    assert run.decision.fleets["spares"].serving == 1


def test_what_it_owns_is_its_own_and_makes_seats() -> None:
    own = policy("batch", preemptible=True, serving_min=2, serving_max=20)
    run = Run([CHAT, own], [fleet(max_seats=9, spare_target=1)])
    run.step({"chat": load(1), "batch": load(0, 500)}, seats(1, 0, 1))
    assert total(run) == 4
    assert run.decision.fleets["spares"].serving == 3
    run.step({"chat": load(1), "batch": load(0, 500)}, seats(1, 2, 1), after=1.0)
    assert lent(run.decision) == 0
    assert served(run.decision, "batch") == 2


def test_whoever_needs_a_lent_seat_gets_it() -> None:
    run = Run([CHAT, BATCH], [fleet(max_seats=9, spare_target=0)])
    run.hold({"chat": load(1), "batch": load(24, 100)}, seats(1, 0, 0, lent=3), 15.0)
    assert lent(run.decision) == 3
    run.step({"chat": load(8, 14), "batch": load(24, 100)}, seats(1, 0, 0, lent=3), after=0.25)
    assert served(run.decision, "chat") == 3
    assert lent(run.decision) == 1


@pytest.mark.parametrize(
    ("at_once", "unlent", "spare", "left"),
    [
        pytest.param(True, 1, 0, 2, id="its requests end when the seat is wanted: it is as good as idle"),
        pytest.param(False, 1, 0, 1, id="they are waited for: it is given back in time"),
        pytest.param(True, 1, 2, 3, id="what is idle beyond that may be borrowed as before"),
        pytest.param(True, 3, 2, 2, id="and no idle one that people asked for"),
    ],
)
def test_what_a_borrower_keeps_of_the_spares_that_people_asked_for(
    *, at_once: bool, unlent: int, spare: int, left: int
) -> None:
    batch = policy("batch", preemptible=True, ended_at_once=at_once, serving_min=0, serving_max=20)
    run = Run([CHAT, batch], [fleet(max_seats=9, spare_target=unlent)])
    run.step({"chat": load(1), "batch": load(16, 500)}, seats(1, 0, spare, lent=2))
    assert lent(run.decision) == left


@pytest.mark.parametrize("at_once", [True, False])
def test_a_fleet_that_is_to_shrink_has_its_lent_seats_back_first_and_keeps_its_spares_idle(
    *, at_once: bool
) -> None:
    """The idle spare was deleted, since a lent seat costs more, and the lent one drained while nothing was spare."""
    batch = policy("batch", preemptible=True, ended_at_once=at_once, serving_min=0, serving_max=20)
    run = Run([CHAT, batch], [fleet(max_seats=9, spare_target=1, scale_down=Pace(window=10.0))])
    work = {"chat": load(1), "batch": load(8, 500)}
    run.hold(work, seats(1, 0, 1, lent=1), 12.0)
    assert (total(run), lent(run.decision)) == (3, 0)
    (reason,) = [r for r in run.decision.fleets["spares"].reasons if r.code is ReasonCode.SCALE_DOWN_DELAYED]
    assert "stay until 1 that are lent" in explain(reason)
    draining = {
        "chat": Supply(serving=1, promotable=1, switchable=1),
        "batch": Supply(draining=1, promotable=1),
    }
    run.hold(work, {"spares": view(draining, serving=1, draining=1, spare=1)}, 5.0)
    assert (total(run), lent(run.decision)) == (3, 0)
    run.step(work, seats(1, 0, 2), after=0.25)
    assert (total(run), lent(run.decision)) == (2, 0)


def test_idle_seats_beyond_the_spares_go_whatever_is_lent() -> None:
    run = Run([CHAT, BATCH], [fleet(max_seats=9, spare_target=1, scale_down=Pace(window=10.0))])
    run.hold({"chat": load(1), "batch": load(8)}, seats(1, 0, 3, lent=1), 12.0)
    assert total(run) == 3


def test_it_takes_no_seat_that_somebody_only_keeps() -> None:
    run = Run([CHAT, BATCH], [fleet(max_seats=9, spare_target=0)])
    run.hold({"chat": load(24), "batch": load(0)}, seats(3, 0, 0), 12.0)
    run.step({"chat": load(1), "batch": load(0, 500)}, seats(3, 0, 0), after=0.25)
    assert served(run.decision, "chat") == 3
    assert served(run.decision, "batch") == 0


def test_a_borrower_does_not_flap() -> None:
    run = Run([CHAT, BATCH], [fleet(max_seats=9, spare_target=0)])
    run.hold({"chat": load(1), "batch": load(16)}, seats(1, 0, 1, lent=2), 15.0)
    run.step({"chat": load(1), "batch": load(7)}, seats(1, 0, 1, lent=2), after=0.5)
    assert lent(run.decision) == 2


def test_borrowing_is_said() -> None:
    run = Run([CHAT, BATCH], [fleet(max_seats=9, spare_target=1)])
    run.step({"chat": load(1), "batch": load(0, 100)}, seats(1, 0, 3))
    reasons = {reason.code: reason.facts for reason in run.decision.policies["batch"].reasons}
    assert reasons[ReasonCode.LENT]["lent"] == 2
    assert ReasonCode.SPARES_EXHAUSTED not in reasons


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(0, 500), st.integers(0, 4), st.integers(0, 5), st.integers(0, 3))
def test_whatever_work_waits_the_others_and_the_fleet_fare_as_without_it(
    chat: int, batch: int, unlent: int, spare: int, borrowed: int
) -> None:
    """A borrower changes neither what others get nor how many seats there are."""
    outcomes = []
    for work in (0, batch):
        run = Run([CHAT, BATCH], [fleet(max_seats=9, spare_target=unlent)])
        for _ in range(3):
            run.step({"chat": load(chat), "batch": load(0, work)}, seats(1, 0, spare, borrowed), after=0.5)
        outcomes.append((served(run.decision, "chat"), total(run)))
        assert lent(run.decision) <= max(0, spare + borrowed - unlent)
    assert outcomes[0] == outcomes[1]
