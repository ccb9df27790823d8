import gzip
from collections import Counter
from pathlib import Path

import pytest

from scaler.errors import UserError
from scaler.runtime.bench.law.arrivals import CHAT, CODING, Arrival, Trace, read, synthetic

TRACE = Trace("t", tuple(Arrival(float(at), 10 * at, at) for at in range(10)), 10.0)


@pytest.mark.parametrize(("name", "requests", "seconds"), [(CODING, 5353, 1706.8), (CHAT, 9739, 1751.8)])
def test_the_real_arrivals_come_with_the_package(name: str, requests: int, seconds: float) -> None:
    trace = read(name)
    times = [arrival.at for arrival in trace.arrivals]
    assert len(times) == requests
    assert trace.seconds == pytest.approx(seconds, abs=0.1)
    assert times == sorted(times)
    assert 0.0 <= times[0] <= times[-1] < trace.seconds


def test_the_coding_service_is_the_bursty_one() -> None:
    most = {name: max(Counter(int(a.at) for a in read(name).arrivals).values()) for name in (CODING, CHAT)}
    assert most == {CODING: 67, CHAT: 15}


def test_missing_files_are_said_so_with_a_mend(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"coding\.csv\.gz: the arrivals are missing") as error:
        read(CODING, tmp_path)
    assert "install" in error.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", r"coding\.csv\.gz: Not a gzipped file"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), r"coding\.csv\.gz:1:1: the columns are not milliseconds"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "coding.csv.gz").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(CODING, tmp_path)


def test_shifting_moves_every_request_round_the_circle() -> None:
    moved = TRACE.shifted(3.5)
    assert [a.at for a in moved.arrivals] == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5]
    assert [a.generated for a in moved.arrivals] == [7, 8, 9, 0, 1, 2, 3, 4, 5, 6]


def test_parts_are_disjoint_and_begin_at_zero() -> None:
    halves = [TRACE.part(index, 2) for index in range(2)]
    assert [[a.generated for a in half.arrivals] for half in halves] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert [half.arrivals[0].at for half in halves] == [0.0, 0.0]
    assert [half.seconds for half in halves] == [5.0, 5.0]


def test_thinning_deals_the_requests_out() -> None:
    thinned = [TRACE.thinned(3, first) for first in range(3)]
    assert [[a.generated for a in t.arrivals] for t in thinned] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def test_a_cut_ends_sooner() -> None:
    cut = TRACE.cut(4.5)
    assert [a.generated for a in cut.arrivals] == [0, 1, 2, 3, 4]
    assert cut.seconds == 4.5


def test_what_is_made_differently_has_another_name() -> None:
    names = {
        TRACE.name,
        TRACE.shifted(1.0).name,
        TRACE.part(0, 2).name,
        TRACE.part(1, 2).name,
        TRACE.thinned(2, 0).name,
        TRACE.thinned(2, 1).name,
        TRACE.cut(5.0).name,
    }
    assert len(names) == 7


def test_tokens_are_prompt_and_answer_together() -> None:
    assert TRACE.tokens(0.0) == 0
    assert TRACE.tokens(1.0) == 99
    assert Trace("empty", (), 1.0).tokens(0.99) == 0


def test_made_up_requests_follow_their_rate() -> None:
    trace = synthetic("step", lambda at: 2.0 if at < 10.0 else 8.0, 20.0, 100, 5)
    first = [a for a in trace.arrivals if a.at < 10.0]
    assert len(first) == pytest.approx(20, abs=1)
    assert len(trace.arrivals) == pytest.approx(100, abs=1)
    assert {(a.prompt, a.generated) for a in trace.arrivals} == {(100, 5)}
