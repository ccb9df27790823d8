"""One seat from pod, agent and node."""

from dataclasses import replace
from typing import Any

import pytest

from scaler.cluster.kube.joining import (
    STUCK_SECONDS,
    UNSCHEDULABLE_SECONDS,
    Heard,
    Known,
    agent_url,
    counted,
    heard,
    joined,
)
from scaler.cluster.kube.views import Node, Pod, Taint
from scaler.cluster.reports import Life, parse
from tests.unit.scaler.cluster.kube.pods import pod, report, resident, seat
from warmpool.errors import BadOrder
from warmpool.seats import GpuWord, SeatValue, Verdict

LIFE = Life(uid="uid-seat-0", pid=7, sequence=1, at=100.0)
TOLD = Heard(
    life=LIFE, residents=(resident(),), agent="http://10.0.0.9:9081", gpus=("GPU-1", "GPU-2"), ip="10.0.0.9"
)
UNADMITTED = seat(admitted=False)


@pytest.mark.parametrize(
    ("made", "told", "value"),
    [
        pytest.param(pod(), TOLD, SeatValue.SPARE, id="its agent tells of a paused resident"),
        pytest.param(pod(), None, SeatValue.HELD, id="was admitted once, and nobody answers"),
        pytest.param(pod(UNADMITTED), None, SeatValue.STARTING, id="runs, and its agent is on its way"),
        pytest.param(
            pod(UNADMITTED, phase="Pending", ip=""), None, SeatValue.STARTING, id="waits for a node"
        ),
        pytest.param(
            pod(UNADMITTED, phase="Pending", ip="", unschedulable_since=1000 - UNSCHEDULABLE_SECONDS),
            None,
            SeatValue.HELD,
            id="has waited for a node for too long",
        ),
        pytest.param(pod(UNADMITTED, phase="Pending"), TOLD, SeatValue.SPARE, id="its agent starts first"),
        pytest.param(pod(unreadable="half"), TOLD, SeatValue.HELD, id="its claim can't be read"),
        pytest.param(pod(ip="10.0.0.8"), TOLD, SeatValue.HELD, id="has got another address"),
        pytest.param(pod(phase="Failed"), TOLD, SeatValue.HELD, id="has ended"),
        pytest.param(pod(seat(terminating=True)), TOLD, SeatValue.DOOMED, id="is terminating"),
    ],
)
def test_what_a_seat_is_worth(made: Pod, told: Heard | None, value: SeatValue) -> None:
    assert joined(made, Known(heard=told, now=1000.0)).value is value


def test_an_agent_that_is_silent_makes_a_seat_that_can_serve_nobody() -> None:
    assert joined(pod(), Known(heard=TOLD, silent=True)).value is SeatValue.HELD


def node(**changes: Any) -> Node:
    return replace(Node(name="a", version="1", ready=True), **changes)


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        pytest.param({}, Verdict.OK, id="nothing is known"),
        pytest.param({"verdicts": {"GPU-2": Verdict.BAD}}, Verdict.BAD, id="one GPU is Bad"),
        pytest.param({"verdicts": {"GPU-9": Verdict.BAD}}, Verdict.OK, id="somebody else's is"),
        pytest.param(
            {"verdicts": {"GPU-1": Verdict.SUSPECT, "GPU-2": Verdict.BAD}}, Verdict.BAD, id="the worst counts"
        ),
        pytest.param({"node": node(cordoned=True)}, Verdict.OK, id="that its node leaves is another matter"),
    ],
)
def test_its_verdict_is_the_worst_of_its_gpus(known: dict[str, Any], verdict: Verdict) -> None:
    assert joined(pod(), Known(heard=TOLD, **known)).verdict is verdict


@pytest.mark.parametrize("told", [TOLD, None])
@pytest.mark.parametrize(
    ("on", "fenced"),
    [
        pytest.param(None, False, id="nothing is known of its node"),
        pytest.param(node(), False, id="anybody may come"),
        pytest.param(node(cordoned=True), True, id="cordoned"),
        pytest.param(
            node(taints=(Taint(key="emberpool.dev/gpu-unhealthy", effect="NoSchedule"),)),
            True,
            id="our taint",
        ),
        pytest.param(node(taints=(Taint(key="other/owner", effect="NoSchedule"),)), False, id="another's"),
    ],
)
def test_a_seat_is_fenced_where_the_scheduler_puts_no_new_pods(
    told: Heard | None,
    on: Node | None,
    fenced: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert joined(pod(), Known(heard=told, node=on)).fenced is fenced


def test_what_its_agent_was_told_of_a_gpu_counts_too() -> None:
    words = (GpuWord(uuid="GPU-1", word="Suspect", reason="Xid 119"),)
    seat = joined(pod(), Known(heard=replace(TOLD, gpu_words=words)))
    assert (seat.verdict, seat.gpu_words) == (Verdict.SUSPECT, words)


def test_where_a_fleet_observes_it_is_shown_and_not_acted_on() -> None:
    words = (GpuWord(uuid="GPU-1", word="Bad", reason="Xid 79"),)
    known = Known(heard=replace(TOLD, gpu_words=words), verdicts={"GPU-1": Verdict.BAD}, observed=True)
    seat = joined(pod(), known)
    assert (seat.verdict, seat.gpu_words, seat.health_observed) == (Verdict.OK, words, True)


@pytest.mark.parametrize("told", [TOLD, None])
@pytest.mark.parametrize(
    ("on", "why"),
    [
        pytest.param(None, "", id="nothing is known of its node"),
        pytest.param(node(), "", id="the node stays"),
        pytest.param(node(cordoned=True), "cordoned", id="the node is cordoned"),
        pytest.param(
            node(taints=(Taint(key="karpenter.sh/disrupted", effect="NoSchedule"),)),
            "karpenter.sh/disrupted",
            id="the node is about to go",
        ),
        pytest.param(
            node(taints=(Taint(key="emberpool.dev/gpu-unhealthy", effect="NoSchedule"),)),
            "",
            id="another GPU of the node is sick",
        ),
    ],
)
def test_why_its_node_leaves_is_said(told: Heard | None, on: Node | None, why: str) -> None:
    assert joined(pod(), Known(heard=told, node=on)).node_leaving == why


def test_until_when_it_is_there_is_the_pods_word() -> None:
    leaving = pod(seat(terminating=True, leaves_by=1030.0))
    assert joined(leaving, Known(heard=TOLD, now=1000.0)).leaves_by == 1030.0


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(pod(), True, id="runs"),
        pytest.param(pod(phase="Pending", ip=""), True, id="is on its way"),
        pytest.param(pod(phase="Failed"), False, id="evicted"),
        pytest.param(pod(phase="Succeeded"), False, id="done"),
        pytest.param(pod(seat(leaves_by=1000.0)), True, id="leaves in time"),
        pytest.param(pod(seat(leaves_by=1000.0 - STUCK_SECONDS)), False, id="should have left long ago"),
    ],
)
def test_which_pods_are_seats(made: Pod, expected: bool) -> None:  # noqa: FBT001 - a case's value
    assert counted(made, 1000.0) is expected


@pytest.mark.parametrize(
    ("made", "told", "url"),
    [
        pytest.param(pod(), "http://0.0.0.0:9999", "http://10.0.0.9:9999", id="its agent tells its port"),
        pytest.param(pod(), "", "http://10.0.0.9:9081", id="the usual port"),
        pytest.param(pod(agent_port=7), "http://[::]:no", "http://10.0.0.9:7", id="the template's port"),
        pytest.param(pod(ip="fd00::7"), "", "http://[fd00::7]:9081", id="IPv6"),
    ],
)
def test_where_its_agent_is_reached(made: Pod, told: str, url: str) -> None:
    assert heard(made, parse(report(agent=told)), LIFE).agent == url


def test_a_pod_without_an_address_has_no_agent() -> None:
    assert agent_url(pod(ip="")) == ""


def test_engines_are_reached_at_the_pods_address() -> None:
    (found,) = heard(pod(), parse(report()), LIFE).residents
    assert found.address == "http://10.0.0.9:8001"


def test_an_engine_that_only_its_own_pod_reaches_is_refused() -> None:
    body = report()
    body["residents"][0]["address"] = "http://127.0.0.1:8001"
    with pytest.raises(BadOrder, match="no gateway"):
        heard(pod(), parse(body), LIFE)
