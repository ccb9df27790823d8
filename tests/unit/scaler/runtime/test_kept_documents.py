"""What is kept of a fleet stays within its bound, and what is newest stays."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.rises import Day, Rises
from scaler.runtime.kept_documents import MOST_BYTES, OfFleet, Unreadable, from_text, to_text
from scaler.store.histories import History
from warmpool.expectations import Answer, Ownership, Recording
from warmpool.seats import FleetName, PolicyName

SPARES, CHAT, CODE = FleetName("spares"), PolicyName("chat"), PolicyName("code")


def recording(number: int, tokens: int) -> Recording:
    answers = (Answer(prompt=f"p{number}", tokens=tuple(range(tokens))),)
    return Recording(ownership=Ownership(), answers=answers, witnesses=frozenset({"a", "b"}))


def history(days: int, bins: int) -> History:
    made = tuple(
        Day(number=number, bins=tuple(range(bins)), counts=tuple(range(bins))) for number in range(days)
    )
    return History(rises=Rises(since=0.0, days=made), starts=(40.0, 50.0))


@settings(max_examples=40, deadline=None)
@given(
    days=st.integers(0, 60),
    bins=st.integers(1, 200),
    chat=st.lists(st.integers(1, 9000), max_size=8),
    code=st.lists(st.integers(1, 9000), max_size=8),
)
def test_it_is_within_its_bound_and_the_newest_stays(
    days: int, bins: int, chat: list[int], code: list[int]
) -> None:
    recordings = {
        policy: tuple(recording(number, tokens) for number, tokens in enumerate(each))
        for policy, each in ((CHAT, chat), (CODE, code))
    }
    whole = OfFleet(fleet=SPARES, history=history(days, bins), recordings=recordings)
    text = to_text(whole, 100.0, 1000.0)
    assert len(text.encode()) <= MOST_BYTES
    found = from_text(text, 100.0, 1000.0)
    assert found.histories[SPARES].starts == (40.0, 50.0)
    kept = found.histories[SPARES].rises.days
    assert kept == whole.history.rises.days[days - len(kept) :] if whole.history else ()
    for policy, each in found.recordings.items():
        assert each == recordings[policy][len(recordings[policy]) - len(each) :]


def test_what_fits_is_kept_whole() -> None:
    whole = OfFleet(fleet=SPARES, history=history(5, 10), recordings={CHAT: (recording(1, 3),)})
    found = from_text(to_text(whole, 100.0, 1000.0), 100.0, 1000.0)
    assert (found.histories, found.recordings) == ({SPARES: whole.history}, whole.recordings)


def test_what_could_never_fit_is_left_out() -> None:
    whole = OfFleet(fleet=SPARES, recordings={CHAT: (recording(1, 40_000),)})
    assert not any(from_text(to_text(whole, 1.0, 1.0), 1.0, 1.0).recordings.values())


def test_what_is_worth_keeping() -> None:
    nothing = OfFleet(fleet=SPARES, history=History(), recordings={CHAT: ()})
    assert not nothing.worth_keeping
    assert replace(nothing, history=History(starts=(1.0,))).worth_keeping
    assert replace(nothing, recordings={CHAT: (recording(1, 1),)}).worth_keeping


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"histories": {"format": 9}}', '{"histories": 1, "recordings": 2}']
)
def test_what_is_something_else_is_said_to_be(text: str) -> None:
    with pytest.raises(Unreadable):
        from_text(text, 1.0, 1.0)
