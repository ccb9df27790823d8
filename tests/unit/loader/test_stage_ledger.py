import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import StageFull
from loader.stage.ledger import Ledger


def test_the_longest_unused_goes_first() -> None:
    ledger = Ledger(10)
    for now, key in enumerate("abc"):
        ledger.reserve(key, 3, now)
    ledger.lease("a", 1, now=5)
    ledger.release_all(1)
    assert ledger.reserve("d", 5, now=6) == ["b", "c"]
    assert ("a" in ledger, "b" in ledger, ledger.held_bytes) == (True, False, 8)


def test_what_is_leased_stays() -> None:
    ledger = Ledger(10)
    ledger.reserve("a", 6, 0)
    ledger.lease("a", 1, 0)
    with pytest.raises(StageFull, match="6 are in use"):
        ledger.reserve("b", 6, 1)
    ledger.release_all(1)
    assert ledger.reserve("b", 6, 1) == ["a"]


def test_a_holder_s_leases_of_a_checkpoint_go_with_it_however_many_there_are() -> None:
    ledger = Ledger(10)
    ledger.reserve("a", 1, 0)
    for holder in (1, 1, 2):
        ledger.lease("a", holder, 0)
    assert ledger.leases("a") == 2
    ledger.release_all(1)
    assert ledger.leases("a") == 1
    ledger.release_all(2)
    assert ledger.leases("a") == 0


def test_what_is_larger_than_the_budget_drops_nothing() -> None:
    ledger = Ledger(10)
    ledger.reserve("a", 6, 0)
    with pytest.raises(StageFull):
        ledger.reserve("b", 11, 1)
    assert "a" in ledger


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "lease", "gone", "remove"]),
        st.sampled_from("abcde"),
        st.integers(1, 9),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_budget_holds_and_leases_are_kept(steps: list[tuple[str, str, int]]) -> None:
    ledger = Ledger(12)
    leased: set[str] = set()
    for now, (step, key, number) in enumerate(steps):
        match step:
            case "reserve" if key not in ledger:
                try:
                    victims = ledger.reserve(key, number, now)
                except StageFull:
                    assert key not in ledger
                else:
                    assert not set(victims) & leased
            case "lease" if key in ledger:
                ledger.lease(key, 1, now)
                leased.add(key)
            case "gone":
                ledger.release_all(1)
                leased.clear()
            case "remove" if key not in leased:
                ledger.remove(key)
            case _:
                pass
        assert ledger.held_bytes <= 12
        assert all(key in ledger and ledger.leases(key) == 1 for key in leased)
