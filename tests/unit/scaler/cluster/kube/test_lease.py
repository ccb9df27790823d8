"""When a lease may be taken and when it is given up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.cluster.kube.lease import (
    Candidate,
    Held,
    Record,
    Sighting,
    Timing,
    bid,
    free_in,
    released,
    seen,
    still_ours,
)

TIMING = Timing()
THEIRS = Record(holder="a", epoch=4, duration=6, version="7")


def test_a_lease_is_free_when_it_has_not_changed_for_its_own_duration() -> None:
    sighting = seen(None, THEIRS, 100.0)
    assert free_in(sighting, "b", 100.0) == 6
    assert free_in(seen(sighting, THEIRS, 105.0), "b", 105.0) == 1
    assert free_in(sighting, "b", 106.0) == 0
    renewed = seen(sighting, Record(holder="a", epoch=4, duration=6, version="8"), 105.0)
    assert free_in(renewed, "b", 106.0) == 5


def test_a_lease_that_was_released_is_free_at_once() -> None:
    assert free_in(Sighting(record=released(THEIRS), since=100.0), "b", 100.0) == 0


def test_a_lease_of_ones_own_is_free_for_oneself() -> None:
    assert free_in(Sighting(record=THEIRS, since=100.0), "a", 100.0) == 0


@given(
    known=st.none() | st.integers(0, 100), floor=st.integers(0, 100), holder=st.sampled_from(["", "a", "b"])
)
def test_each_term_has_a_higher_number_than_any_before(known: int | None, floor: int, holder: str) -> None:
    sighting = None
    if known is not None:
        sighting = Sighting(record=Record(holder=holder, epoch=known, duration=6, version="7"), since=0)
    wanted = bid(sighting, Candidate(identity="b"), TIMING, floor=floor)
    assert wanted.epoch > max(known or 0, floor)
    assert wanted.version == ("" if known is None else "7")


@given(st.floats(0, 100), st.floats(0, 100))
def test_what_a_term_covers_is_over_before_another_can_begin(renewed: float, passed: float) -> None:
    held = Held(record=THEIRS, renewed=renewed)
    earliest = renewed + THEIRS.duration  # a candidate sees the renewal after it was sent, never before
    if held.covers(TIMING, renewed + passed, TIMING.request):
        assert renewed + passed + TIMING.request < earliest
    assert held.covers(TIMING, held.renew_by(TIMING), TIMING.request)


@pytest.mark.parametrize(
    ("lease", "renew", "retry", "longest"),
    [(6, 4, 1, 2), (6, 3, 3, 1), (6, 3, 0, 1), (6, 7, 1, 0.5), (3, 2.1, 0.5, 0.5)],
)
def test_times_that_would_let_two_terms_overlap_are_refused(
    lease: float, renew: float, retry: float, longest: float
) -> None:
    with pytest.raises(ValueError, match="must be less than lease"):
        Timing(lease=lease, renew=renew, retry=retry, request=longest)


def test_a_lease_that_was_only_annotated_is_still_ours() -> None:
    held = Held(record=THEIRS, renewed=0)
    assert still_ours(held, Record(holder="a", epoch=4, duration=6, version="9"))
    assert not still_ours(held, Record(holder="b", epoch=5, duration=6, version="9"))
    assert not still_ours(held, Record(holder="a", epoch=5, duration=6, version="9"))
