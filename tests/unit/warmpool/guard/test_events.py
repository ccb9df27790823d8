"""Streams of events as they pass: nothing lost, nothing changed, and never left in the middle of an event."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.guard_middleware import LONGEST_EVENT_BYTES, Events

LINE_ENDS = (b"\n", b"\r\n", b"\r")


def passed(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    events = Events()
    return [passing for piece in pieces if (passing := events.feed(piece))], events.rest()


@pytest.mark.parametrize(
    ("pieces", "expected", "rest"),
    [
        ([b"data: 1\n\n"], [b"data: 1\n\n"], b""),
        ([b"data: 1\n\ndata: ", b"2", b"\n\n", b"data: 3"], [b"data: 1\n\n", b"data: 2\n\n"], b"data: 3"),
        ([b"data: 1\r\n\r", b"\ndata: 2\r\n\r\n"], [b"data: 1\r\n\r\ndata: 2\r\n\r\n"], b""),
        ([b"data: 1\r\rdata: 2\r"], [b"data: 1\r\r"], b"data: 2\r"),
        ([b"data: 1\n", b"\n"], [b"data: 1\n\n"], b""),
        ([b"data: 1\n\r\ndata: 2"], [b"data: 1\n\r\n"], b"data: 2"),
        ([b": ping\n\n", b"", b"data: 1\n\n"], [b": ping\n\n", b"data: 1\n\n"], b""),
        ([b"data: a\ndata: b", b"\nid: 1\n\n"], [b"data: a\ndata: b\nid: 1\n\n"], b""),
    ],
)
def test_whole_events_pass_and_the_rest_waits(
    pieces: list[bytes], expected: list[bytes], rest: bytes
) -> None:
    assert passed(pieces) == (expected, rest)


def test_a_whole_event_passes_without_being_copied() -> None:
    piece = b"data: 1\n\n"
    assert Events().feed(piece) is piece


def test_an_event_without_end_passes_in_pieces_and_none_can_be_put_after_it() -> None:
    events = Events()
    block = b"x" * (LONGEST_EVENT_BYTES // 2)
    held = [events.feed(block) for _ in range(2)]
    assert (held, events.between) == ([b"", b""], True)
    assert len(events.feed(block)) == 3 * len(block)
    assert not events.between
    assert events.feed(b"more") == b"more"
    assert not events.between
    assert events.feed(b" of it\n\n") == b" of it\n\n"
    assert events.between


@given(
    st.lists(st.tuples(st.binary(max_size=8), st.sampled_from(LINE_ENDS)), max_size=30),
    st.lists(st.integers(0, 400), max_size=20),
)
def test_however_it_is_cut_all_of_it_passes_in_order(
    lines: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    text = b"".join(body + end for body, end in lines)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    whole, rest = passed(pieces)
    assert b"".join(whole) + rest == text
    for piece in whole:
        assert piece.endswith((b"\n\n", b"\n\r\n", b"\r\r"))
    assert not any(mark in rest for mark in (b"\n\n", b"\n\r\n", b"\r\r"))
