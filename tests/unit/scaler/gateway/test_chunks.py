import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.gateway.chunks import MOST_HELD, Chunks, begun

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\nX-A: 1\r\n\r\n"

pieces = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
extensions = st.sampled_from([b"", b";a=b", b" ;x", b'; name="v"'])


def framed(parts: list[bytes], extension: bytes = b"") -> bytes:
    return b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts)


@given(parts=pieces, extension=extensions, cuts=st.lists(st.integers(0, 500), max_size=8).map(sorted))
def test_what_chunks_carry_is_the_same_however_they_come_and_their_end_is_left_as_it_is(
    parts: list[bytes], extension: bytes, cuts: list[int]
) -> None:
    data, chunks, carried = framed(parts, extension) + END, Chunks(), b""
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        if chunks.over:
            chunks.over += data[begin:end]  # whoever goes on gets the rest
        elif begin < end:
            carried += chunks.feed(data[begin:end])
    assert carried == b"".join(parts)
    assert chunks.given == len(carried)
    assert chunks.over == END


@given(parts=pieces, cut=st.integers(0, 400))
def test_it_is_between_two_chunks_where_nothing_of_one_is_held(parts: list[bytes], cut: int) -> None:
    data, chunks = framed(parts), Chunks()
    carried = chunks.feed(data[:cut])
    whole = framed(parts[: len([n for n in range(1, len(parts) + 1) if len(framed(parts[:n])) <= cut])])
    assert chunks.between == (len(whole) == min(cut, len(data)))
    assert b"".join(parts).startswith(carried + chunks.partial())


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b"0\r\n", id="the beginning of the end"),
        pytest.param(b"000;x\r\n\r\n", id="the end in other words"),
        pytest.param(b"-1\r\nab\r\n", id="a size that is none"),
        pytest.param(b"0x2\r\nab\r\n", id="another one"),
        pytest.param(b"fffffffff\r\nab", id="a size beyond reason"),
        pytest.param(b"2\r\nabX\r\n", id="a chunk that is longer than it says"),
        pytest.param(b"\r\n", id="no size"),
        pytest.param(b"5000\r\n" + b"x" * MOST_HELD, id="a large one that isn't whole"),
        pytest.param(b"1" * (MOST_HELD + 1), id="a size without an end"),
    ],
)
def test_what_is_not_for_it_is_handed_over_as_it_came_from_a_boundary_on(rest: bytes) -> None:
    chunks = Chunks()
    assert chunks.feed(b"3\r\nabc\r\n" + rest) == b"abc"
    assert chunks.over == rest


def test_a_large_chunk_that_came_whole_is_one_like_any_other() -> None:
    chunks, large = Chunks(), b"x" * 100_000
    assert chunks.feed(framed([large])) == large
    assert chunks.between


@pytest.mark.parametrize(
    ("raw", "given"),
    [
        pytest.param(HEAD, 0, id="a head"),
        pytest.param(HEAD + framed([b"ab", b"c"]), 3, id="with chunks"),
        pytest.param(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HEAD, 0, id="behind another one"),
        pytest.param(
            HEAD.replace(b"Transfer-Encoding: chunked", b"transfer-encoding:\tChunked "), 0, id="odd"
        ),
        pytest.param(HEAD[:-2], None, id="half a head"),
        pytest.param(b"", None, id="nothing"),
        pytest.param(HEAD.replace(b"chunked", b"gzip, chunked"), None, id="other codings"),
        pytest.param(HEAD.replace(b"1.1", b"1.0"), None, id="another version"),
        pytest.param(HEAD.replace(b"Transfer-Encoding: chunked", b"Content-Length: 3"), None, id="no chunks"),
        pytest.param(b"x\r\n\r\n", None, id="no HTTP"),
    ],
)
def test_an_answer_is_followed_from_its_head_on(raw: bytes, given: int | None) -> None:
    chunks = begun(raw)
    assert (chunks.given if chunks is not None else None) == given
