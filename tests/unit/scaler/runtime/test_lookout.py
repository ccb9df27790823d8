"""Which islands a tick looks at: what the wake-up is about, what has changed, what is due."""

from collections.abc import Iterable, Mapping, Sequence

import pytest

from scaler.core.islands import islands
from scaler.runtime.lookout import LONGEST_SECONDS, Lookout, Watched
from scaler.runtime.mailbox import Wake
from tests.unit.scaler.core.world import fleet, policy
from warmpool.seats import FleetName, PolicyName, Seat, SeatName

STOCK = {
    FleetName(name): (Seat(name=SeatName(name), uid="1", version="1", fleet=FleetName(name)),)
    for name in "xyz"
}


def lookout(names: str = "abc", *, together: bool = False) -> Lookout:
    fleets = dict(zip("abc", "xyz", strict=True))
    found = islands(
        [policy(name, fleets=[(fleets[name], 8)]) for name in names], [fleet(fleets[name]) for name in names]
    )
    return Lookout(found, together=together)


def look(
    at: Lookout, now: float, wake: Wake | None = None, stock: Mapping[FleetName, Sequence[Seat]] = STOCK
) -> str:
    """Look at what is picked, as the loop does, and return the names of the policies."""
    picked = at.pick(wake or Wake(causes={"deadline": 1}), stock, lambda _: 1, now)
    for each in picked:
        names = [f.name for f in each.island.fleets]
        at.saw({name: stock.get(name, ()) for name in names}, dict.fromkeys(names, 1))
        each.looked(now, None)
    return said(picked)


def said(picked: Iterable[Watched]) -> str:
    return "".join(spec.name for each in picked for spec in each.island.policies)


def test_the_first_look_is_at_everything() -> None:
    assert look(lookout(), 5.0) == "abc"


@pytest.mark.parametrize(
    ("wake", "expected"),
    [
        pytest.param(Wake(causes={"sample": 1}, policies=frozenset({PolicyName("b")})), "b", id="a-sample"),
        pytest.param(Wake(causes={"sample": 1}, policies=frozenset({PolicyName("?")})), "", id="of-nobody"),
        pytest.param(
            Wake(causes={"action ended": 1}, fleets=frozenset({FleetName("z")})), "c", id="an-action"
        ),
        pytest.param(Wake(causes={"policies": 1}, everything=True), "abc", id="other-policies"),
        pytest.param(Wake(causes={"cluster": 1}), "", id="a-change-elsewhere"),
    ],
)
def test_a_look_is_at_what_the_wakeup_is_about(wake: Wake, expected: str) -> None:
    at = lookout()
    look(at, 5.0)
    assert look(at, 5.1, wake) == expected


def test_what_changed_in_the_cluster_is_found_by_looking() -> None:
    at = lookout()
    look(at, 5.0)
    changed = {**STOCK, FleetName("y"): tuple(STOCK[FleetName("y")])[:0]}
    assert look(at, 5.1, Wake(causes={"cluster": 1}), changed) == "b"
    assert look(at, 5.2, Wake(causes={"cluster": 1}), changed) == ""


def test_a_fleet_that_the_cluster_has_no_seats_of_is_no_change() -> None:
    at, without = lookout(), {name: seats for name, seats in STOCK.items() if name != "y"}
    look(at, 5.0, stock=without)
    assert look(at, 5.1, Wake(causes={"cluster": 1}), without) == ""
    assert look(at, 5.2, Wake(causes={"cluster": 1})) == "b"


def test_another_size_of_a_workload_is_a_change() -> None:
    at = lookout()
    look(at, 5.0)
    sizes = {FleetName("x"): 1, FleetName("y"): 1, FleetName("z"): 2}
    assert said(at.pick(Wake(causes={"cluster": 1}), STOCK, sizes.__getitem__, 5.1)) == "c"


def test_whatever_happens_each_island_is_looked_at_once_a_second() -> None:
    at = lookout()
    look(at, 5.0)
    look(at, 5.4, Wake(causes={"sample": 1}, policies=frozenset({PolicyName("b")})))
    assert at.due_at == 5.0 + LONGEST_SECONDS
    assert look(at, 6.0) == "ac"
    assert look(at, 6.4) == "b"


def test_an_answer_that_changes_with_time_is_looked_at_then() -> None:
    at = lookout("a")
    (one,) = at.pick(Wake(causes={"start": 1}), STOCK, lambda _: 1, 5.0)
    one.looked(5.0, 5.25)
    assert at.due_at == 5.25


def test_of_what_is_merely_due_a_tick_takes_a_stretch_the_longest_due_first() -> None:
    count = 120
    found = islands(
        [policy(f"p{n}", fleets=[(f"f{n}", 8)]) for n in range(count)], [fleet(f"f{n}") for n in range(count)]
    )
    at = Lookout(found, together=False)
    everything = at.pick(Wake(causes={"start": 1}), {}, lambda _: 0, 0.0)
    assert len(everything) == count
    for number, each in enumerate(everything):
        each.looked(number / count / 2, None)
    seen: list[str] = []
    while due := at.pick(Wake(causes={"deadline": 1}), {}, lambda _: 0, 2.0):
        assert len(due) <= 50
        seen += [spec.name for each in due for spec in each.island.policies]
        for each in due:
            each.looked(2.0, None)
    assert seen == [f"p{n}" for n in range(count)]


def test_what_a_budget_couples_is_looked_at_together_when_anything_is_due() -> None:
    at = lookout(together=True)
    look(at, 5.0)
    assert look(at, 5.4, Wake(causes={"sample": 1}, policies=frozenset({PolicyName("b")}))) == "b"
    assert look(at, 6.0) == "abc"


def test_a_part_is_known_as_such() -> None:
    at = lookout()
    everything = at.pick(Wake(causes={"start": 1}), STOCK, lambda _: 1, 0.0)
    assert not at.partial(everything)
    assert at.partial(everything[:2])
