"""When a row of kills is as it should be."""

from typing import Any

import pytest

from scaler.drill.bench.kill_rows import Client, Memory, Row, Victim, table
from scaler.drill.records import Outcome
from warmpool.states import ResidentState

CALM = Memory(mebibytes=50_000, engines=3, orphans=0)


def client(
    who: str = "whom it served", outcome: Outcome = Outcome.OK, *, understood: bool = True, right: bool = True
) -> Client:
    return Client(
        who=who,
        outcome=outcome,
        understood=understood,
        right=right,
        tokens=20,
        seconds=1.0,
        longest_gap=0.05,
        detail="" if outcome is Outcome.OK else "cut",
    )


TOLD = client(outcome=Outcome.INTERRUPTED)


def row(victim: Victim = Victim.ENGINE, **others: Any) -> Row:
    given: dict[str, Any] = {
        "state": ResidentState.SERVING,
        "back_seconds": 9.0,
        "clients": [TOLD],
        "neighbours": [client("the neighbour")],
        "before": CALM,
        "after": CALM,
    }
    return Row(victim=victim, **{**given, **others}).judged()


@pytest.mark.parametrize(
    "good",
    [
        pytest.param(row(), id="who-was-served-by-a-dead-engine-was-told"),
        pytest.param(row(Victim.LAUNCHER, sharer=TOLD), id="a-launcher-takes-all-of-its-seat-along"),
        pytest.param(row(Victim.AGENT, clients=[client()]), id="streams-outlive-the-agent"),
        pytest.param(
            row(Victim.AGENT, state=ResidentState.DRAINING), id="a-drain-has-a-deadline-whoever-dies"
        ),
        pytest.param(row(after=Memory(mebibytes=50_200, engines=3, orphans=0)), id="a-few-MiB"),
    ],
)
def test_a_row_passes(good: Row) -> None:
    assert good.failures == []


@pytest.mark.parametrize(
    ("bad", "failure"),
    [
        pytest.param(row(trouble="no calm seat"), "no calm seat", id="not-carried-out"),
        pytest.param(row(back_seconds=None), "the resident didn't come back", id="gone"),
        pytest.param(row(back_seconds=None, given_up="5 failures"), "given up: 5 failures", id="given-up"),
        pytest.param(row(neighbours=[]), "no neighbour's stream ran at the kill", id="nobody-looked"),
        pytest.param(
            row(neighbours=[client("the neighbour", Outcome.INTERRUPTED)]),
            "the neighbour: InterruptedStream: cut",
            id="neighbour-broken",
        ),
        pytest.param(
            row(neighbours=[client("the neighbour", right=False)]),
            "the neighbour: a wrong token",
            id="neighbour-wrong",
        ),
        pytest.param(
            row(sharer=client("the sharer", Outcome.INTERRUPTED)),
            "the sharer: InterruptedStream: cut",
            id="an-engine-takes-another-along",
        ),
        pytest.param(
            row(Victim.AGENT), "whom it served: InterruptedStream: cut", id="an-agent-takes-a-stream-along"
        ),
        pytest.param(
            row(clients=[client(outcome=Outcome.TIMEOUT, understood=False)]),
            "whom it served was lost: Timeout: cut",
            id="lost",
        ),
        pytest.param(row(clients=[client(right=False)]), "whom it served: a wrong token", id="wrong-token"),
        pytest.param(
            row(after=Memory(mebibytes=66_000, engines=3, orphans=0)),
            "device memory went from 50000 to 66000 MiB",
            id="memory-is-held",
        ),
        pytest.param(
            row(after=Memory(mebibytes=None, engines=2, orphans=0)),
            "2 engine processes instead of 3",
            id="an-engine-is-missing",
        ),
        pytest.param(
            row(after=Memory(mebibytes=None, engines=3, orphans=1)),
            "1 processes of the dead live on",
            id="orphan",
        ),
    ],
)
def test_a_row_fails_and_says_why(bad: Row, failure: str) -> None:
    assert bad.failures == [failure]


def test_the_table_says_under_a_row_what_is_wrong_with_it() -> None:
    head, good, bad, why = table([row(), row(back_seconds=None)])
    assert head.startswith("killed")
    assert (good.split()[-1], bad.split()[-1]) == ("pass", "FAIL")
    assert why.strip() == "the resident didn't come back"
