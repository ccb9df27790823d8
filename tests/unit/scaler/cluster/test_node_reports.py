"""What node agents say: the newest of each counts, for a while; what makes no sense is refused."""

from typing import Any

import pytest

from scaler.cluster.node_reports import REPORT_MAX_AGE_SECONDS, NodeReports
from warmpool.errors import BadOrder
from warmpool.nodehealth.copies import MOST_BYTES
from warmpool.nodehealth.verdicts import GpuVerdict, NodeVerdict, Reason
from warmpool.nodehealth.wire import HealthAnswer, health_to_json, node_verdict_from_json
from warmpool.seats import Verdict

REASON = Reason(
    code="Xid79", verdict=Verdict.BAD, since=100.0, until=None, count=1, text="fallen off", clears="a boot"
)


def verdict(word: Verdict = Verdict.BAD, *, known: bool = True, reason: str = "") -> NodeVerdict:
    gpu = GpuVerdict(
        uuid="GPU-a",
        verdict=word,
        known=known,
        since=100.0,
        until=None,
        age_seconds=0.5,
        reasons=() if word is Verdict.OK else (REASON,),
        notes=("warm",),
    )
    return NodeVerdict(at=200.0, boot="b", verdict=word, gpus=(gpu,), expected=1, listed=1, reason=reason)


def report(said: NodeVerdict, seq: int = 1, **changes: Any) -> dict[str, Any]:
    answer = HealthAnswer(node=said, gpus=["GPU-a"], epoch=1, reason="", sources={})
    body = {"node": "n", "pid": 7, "seq": seq, "at": 200.0, "health": health_to_json(answer)}
    return {**body, **changes}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(verdict(), id="bad"),
        pytest.param(verdict(Verdict.OK), id="ok"),
        pytest.param(verdict(Verdict.OK, known=False), id="unknown"),
    ],
)
def test_what_a_node_agent_says_is_read_back(said: NodeVerdict) -> None:
    assert node_verdict_from_json(report(said)["health"], 200.0) == said


def test_only_what_is_new_is_news() -> None:
    reports = NodeReports(Clock())
    news = [reports.take(report(verdict(), seq)) for seq in (1, 2)]
    assert [*news, reports.take(report(verdict(Verdict.OK), 3))] == [True, False, True]


def test_an_older_report_of_the_same_process_is_ignored() -> None:
    reports = NodeReports(Clock())
    reports.take(report(verdict(), 5))
    assert not reports.take(report(verdict(Verdict.OK), 4))
    assert reports.gpus == {"GPU-a": Verdict.BAD}
    assert reports.take(report(verdict(Verdict.OK), 1, pid=8))
    assert reports.gpus == {}


def test_an_agent_that_began_anew_under_the_same_pid_is_heard() -> None:
    """In a container a process has the same pid after each restart, and counts from 1 again."""
    reports = NodeReports(Clock())
    reports.take(report(verdict(), 5))
    assert reports.take({**report(verdict(Verdict.OK), 1), "at": 300.0})
    assert reports.gpus == {}


def test_an_agent_that_began_anew_after_its_clock_was_set_back_is_heard_soon() -> None:
    clock = Clock()
    reports = NodeReports(clock)
    reports.take(report(verdict(), 5000))
    again = {**report(verdict(Verdict.OK), 1), "at": 100.0}
    assert not reports.take(again)
    clock.now = REPORT_MAX_AGE_SECONDS + 0.1
    assert reports.take(again)
    assert list(reports.verdicts) == ["n"]


def test_what_was_said_too_long_ago_is_unknown() -> None:
    clock = Clock()
    reports = NodeReports(clock)
    reports.take(report(verdict()))
    clock.now = REPORT_MAX_AGE_SECONDS + 0.1
    assert (reports.verdicts, reports.gpus) == ({}, {})


def test_what_is_to_be_kept_is_that_of_the_newest_report_and_of_who_knows_something() -> None:
    reports = NodeReports(Clock())
    assert reports.take(report(verdict(), kept="{}"))
    assert reports.take(report(verdict(), 2, kept="[]"))
    assert reports.copies == {"n": "[]"}
    reports.take(report(verdict(), 3))
    assert reports.copies == {"n": ""}
    reports.take(report(verdict(reason="NVML can't be opened"), 4))
    assert reports.copies == {}


def test_a_node_that_knows_nothing_says_nothing() -> None:
    reports = NodeReports(Clock())
    reports.take(report(verdict(reason="NVML can't be opened")))
    assert reports.verdicts == {}


@pytest.mark.parametrize(
    "change",
    [
        {"node": ""},
        {"node": "x" * 254},
        {"seq": "many"},
        {"health": []},
        {"health": {}},
        {"at": None},
        {"kept": "x" * (2 * MOST_BYTES + 1)},
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadOrder):
        NodeReports(Clock()).take(report(verdict(), **change))
