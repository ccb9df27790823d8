import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.gateway.trailers import Tail

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-a, X-B\r\n\r\n"
BODY = b"3\r\nabc\r\n5;x=y\r\n0\r\n\r\n\r\n0\r\n"
WHOLE = HEAD + BODY + b"X-A: 1\r\nx-c: 2\r\nx-b:\t3 4 \r\n\r\n"


def fed(data: bytes) -> tuple[Tail, bool]:
    tail = Tail()
    return tail, tail.feed(data)


@given(st.lists(st.integers(0, len(WHOLE)), max_size=6).map(sorted))
def test_announced_fields_are_found_however_they_come(cuts: list[int]) -> None:
    tail, more = Tail(), True
    for begin, end in zip([0, *cuts], [*cuts, len(WHOLE)], strict=True):
        assert more or begin == end or begin == len(WHOLE)
        more = tail.feed(WHOLE[begin:end]) if more else False
    assert not more
    assert tail.announced == (b"x-a", b"X-B")
    assert tail.fields == ((b"X-A", b"1"), (b"x-b", b"3 4"))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", id="no chunks"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", id="none announced"),
        pytest.param(HEAD.replace(b"x-a, X-B", b"Content-Length, ,a b"), id="none that may be"),
        pytest.param(HEAD.replace(b"200", b"304"), id="no body"),
        pytest.param(HEAD.replace(b"HTTP/1.1", b"HTTP/1.0"), id="another version"),
        pytest.param(b"SSH-2.0 hello\r\n\r\n", id="no HTTP"),
        pytest.param(b"x" * 70_000, id="no head"),
    ],
)
def test_nothing_is_looked_at_where_nothing_can_come(data: bytes) -> None:
    tail, more = fed(data)
    assert (more, tail.announced, tail.fields) == (False, (), ())


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b"zz\r\n", id="no size"),
        pytest.param(b"1" * 5000, id="an endless size"),
        pytest.param(b"0\r\n" + b"x-a: 1\r\n" * 3000, id="endless trailers"),
        pytest.param(b"0\r\n\r\n", id="none come"),
        pytest.param(
            b"0\r\nx-a 1\r\n x-b: 2\r\nx-a: \x00\r\ncontent-length: 3\r\n\r\n", id="none that is sound"
        ),
    ],
)
def test_what_is_no_trailer_is_left(rest: bytes) -> None:
    tail, more = fed(HEAD + rest)
    assert (more, tail.fields) == (False, ())


def test_an_answer_in_advance_is_not_the_answer() -> None:
    tail, more = fed(b"HTTP/1.1 103 Early Hints\r\nTrailer: x-z\r\n\r\n" + WHOLE)
    assert (more, len(tail.fields)) == (False, 2)


def test_what_says_how_a_message_is_read_is_never_passed_behind_it() -> None:
    tail, _ = fed(
        HEAD.replace(b"X-B", b"Transfer-Encoding") + b"0\r\ntransfer-encoding: chunked\r\nx-a: 1\r\n\r\n"
    )
    assert tail.fields == ((b"x-a", b"1"),)
