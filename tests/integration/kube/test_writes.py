"""Claims, settlements, sizes, marks and events on a server, and what becomes of them when it misbehaves."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

import pytest

from scaler.cluster.kube.client import Request
from scaler.cluster.kube.errors import Throttled, Withheld
from scaler.cluster.kube.events import QUEUE, Recorder, Subject, promoted, promotion_failed
from scaler.cluster.kube.lanes import Budget, Lane, Lanes, lanes
from scaler.cluster.kube.nodes import GPU_CONDITION, GPU_TAINT, NodeWriter
from scaler.cluster.kube.resources import DEPLOYMENT, EVENT, NODE, POD
from scaler.cluster.kube.scale import Sizer, Target
from scaler.cluster.kube.seats import SeatWriter
from scaler.cluster.kube.views import pod_from_json
from scaler.cluster.kube.writing import Writing
from scaler.errors import Conflict, NotFound, Unreachable
from tests.fakes.kube_api import Call, Cut, KubeApi
from tests.fakes.kube_api.api import Target as Object
from tests.fakes.kube_api.faults import Answer
from tests.fakes.kube_api.kinds import BY_PATH
from tests.integration.kube.conftest import CHAT, CODE, Cluster, with_residents
from warmpool.claim import Errand, Term, new_claim
from warmpool.seats import Claim, Operation, PolicyName, Seat, SeatValue
from warmpool.states import ResidentState

NUMBERS = count(1)
DEPLOYMENTS = BY_PATH["apps", "v1", "deployments"]
COST = "controller.kubernetes.io/pod-deletion-cost"


def claim_of(
    operation: Operation = Operation.PROMOTE, policy: PolicyName = CHAT, **leaving: PolicyName
) -> Claim:
    errand = Errand(operation=operation, policy=policy, leaving=leaving.get("leaving"))
    return new_claim(errand, Term(holder="test", epoch=1), number=next(NUMBERS), now=time.time(), seconds=60)


def writer(cluster: Cluster, *, dry_run: bool = False, through: Lanes | None = None) -> SeatWriter:
    return SeatWriter(Writing(cluster.client, dry_run=dry_run), cluster.namespace, through)


def patches(call: Call) -> bool:
    return call.verb == "patch" and call.resource == "pods"


async def labels(cluster: Cluster, name: str = "seat-0") -> dict[str, str]:
    found: dict[str, str] = (await cluster.get(POD, name))["metadata"]["labels"]
    return found


async def annotations(cluster: Cluster, name: str = "seat-0") -> dict[str, str]:
    found: dict[str, str] = (await cluster.get(POD, name))["metadata"].get("annotations") or {}
    return found


async def promoted_seat(cluster: Cluster, policy: PolicyName = CHAT) -> Seat:
    seats, order = writer(cluster), claim_of(policy=policy)
    claimed = await seats.claim(await cluster.seat(), order)
    return await seats.settle(claimed, order, serving=policy)


# ---------------------------------------------------------------- claims


async def test_a_promotion_claims_then_serves(cluster: Cluster) -> None:
    seats, order = writer(cluster), claim_of()
    claimed = await seats.claim(await cluster.seat(), order)
    assert claimed.claim == order
    assert (await labels(cluster))["emberpool.dev/seat"] == "Promoting"
    assert (await annotations(cluster))[COST] == "100"
    serving = await seats.settle(claimed, order, serving=CHAT)
    assert (serving.serving, serving.claim) == ({CHAT}, None)
    assert (await labels(cluster))["serving.emberpool.dev/chat"] == "true"
    assert (await annotations(cluster))["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


async def test_a_demotion_takes_the_label_in_the_claims_own_write(cluster: Cluster) -> None:
    serving = with_residents(await promoted_seat(cluster), chat=ResidentState.SERVING)
    order = claim_of(Operation.DEMOTE)
    claimed = await writer(cluster).claim(serving, order)
    assert claimed.serving == frozenset()
    assert "serving.emberpool.dev/chat" not in await labels(cluster)
    settled = await writer(cluster).settle(with_residents(claimed), order, serving=None)
    assert settled.claim is None
    assert (await labels(cluster))["emberpool.dev/seat"] == "Spare"
    assert set(await annotations(cluster)) == {COST}


async def test_a_switch_changes_who_serves(cluster: Cluster) -> None:
    serving = with_residents(await promoted_seat(cluster), chat=ResidentState.SERVING)
    order = claim_of(Operation.SWITCH, CODE, leaving=CHAT)
    claimed = await writer(cluster).claim(serving, order)
    switched = await writer(cluster).settle(claimed, order, serving=CODE)
    assert switched.serving == {CODE}


async def test_of_many_claims_at_once_one_wins(cluster: Cluster) -> None:
    seat, seats = await cluster.seat(), writer(cluster)
    outcomes = await asyncio.gather(
        *(seats.claim(seat, claim_of(policy=policy)) for policy in (CHAT, CODE) * 5), return_exceptions=True
    )
    assert sum(isinstance(outcome, Seat) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 9


async def test_a_status_that_was_written_meanwhile_stands_in_no_claims_way(cluster: Cluster) -> None:
    seat = await cluster.seat()
    await cluster.patch(POD, "seat-0", {"status": {"message": "written by a kubelet"}}, "status")
    assert (await writer(cluster).claim(seat, claim_of())).claim is not None


async def test_a_seat_that_was_taken_out_of_rotation_meanwhile_is_not_claimed(cluster: Cluster) -> None:
    serving = await promoted_seat(cluster)
    await cluster.patch(POD, "seat-0", {"metadata": {"labels": {"serving.emberpool.dev/chat": None}}})
    with pytest.raises(Conflict):
        await writer(cluster).claim(serving, claim_of(Operation.DEMOTE))


async def test_another_pod_of_the_same_name_is_another_seat(cluster: Cluster) -> None:
    seat = await cluster.seat()
    await cluster.delete(POD, "seat-0")
    with pytest.raises(NotFound):
        await writer(cluster).claim(seat, claim_of())
    await cluster.seat()
    with pytest.raises((NotFound, Conflict)):
        await writer(cluster).claim(seat, claim_of())
    with pytest.raises(NotFound):
        await writer(cluster).admit(seat)
    assert "emberpool.dev/claim" not in await annotations(cluster)


async def test_a_settlement_is_idempotent_and_refused_under_another_claim(cluster: Cluster) -> None:
    seats, order = writer(cluster), claim_of()
    claimed = await seats.claim(await cluster.seat(), order)
    settled = await seats.settle(claimed, order, serving=CHAT)
    assert (await seats.settle(settled, order, serving=CHAT)).version == settled.version
    with pytest.raises(Conflict):
        await seats.settle(settled, order, serving=CODE)


async def test_an_earlier_view_of_the_seat_settles_too(cluster: Cluster) -> None:
    seats, order = writer(cluster), claim_of()
    claimed = await seats.claim(await cluster.seat(), order)
    await cluster.patch(POD, "seat-0", {"metadata": {"labels": {"x": "y"}}})
    assert (await seats.settle(claimed, order, serving=CHAT)).serving == {CHAT}


async def test_the_readiness_gate_leaves_other_conditions_alone(cluster: Cluster) -> None:
    seat = await cluster.seat()
    await cluster.patch(
        POD, "seat-0", {"status": {"conditions": [{"type": "Other", "status": "True"}]}}, "status"
    )
    assert (await writer(cluster).admit(seat)).admitted
    conditions = (await cluster.get(POD, "seat-0"))["status"]["conditions"]
    assert {"Other", "emberpool.dev/admitted"} <= {each["type"] for each in conditions}


async def test_the_value_is_mirrored_with_its_deletion_cost(cluster: Cluster) -> None:
    await writer(cluster).mark(await cluster.seat(), SeatValue.HELD)
    assert ((await labels(cluster))["emberpool.dev/seat"], (await annotations(cluster))[COST]) == (
        "Held",
        "-50",
    )


async def test_only_the_seat_that_was_meant_is_deleted(cluster: Cluster) -> None:
    seat = await cluster.seat()
    await cluster.delete(POD, "seat-0")
    again = await cluster.seat()
    await writer(cluster).delete(seat)
    assert (await cluster.get(POD, "seat-0"))["metadata"]["uid"] == again.uid
    await writer(cluster).delete(again)
    await writer(cluster).delete(again)
    with pytest.raises(NotFound):
        await cluster.get(POD, "seat-0")


async def test_a_seat_that_was_deleted_is_known_to_be_ending_before_the_watch_tells(cluster: Cluster) -> None:
    seat, learnt = await cluster.seat(), []
    deleting = SeatWriter(Writing(cluster.client), cluster.namespace, learn=learnt.append)
    await deleting.delete(seat)
    (body,) = learnt
    assert (body["metadata"]["uid"], pod_from_json(body).seat.terminating) == (seat.uid, True)
    await deleting.delete(replace(seat, uid="another"))
    assert len(learnt) == 1


async def test_a_dry_run_is_checked_and_changes_nothing(cluster: Cluster) -> None:
    seat = await cluster.seat()
    before = await cluster.get(POD, "seat-0")
    dry = writer(cluster, dry_run=True)
    assert (await dry.claim(seat, claim_of())).claim is not None
    await dry.mark(seat, SeatValue.HELD)
    await dry.admit(seat)
    await dry.delete(seat)
    assert await cluster.get(POD, "seat-0") == before


# ---------------------------------------------------------------- lost and refused answers


async def test_a_claim_whose_answer_is_lost_is_found_on_the_pod(api: KubeApi, cluster: Cluster) -> None:
    seat, order = await cluster.seat(), claim_of()
    api.faults.cut(Cut.AFTER, patches, times=1)
    assert (await writer(cluster).claim(seat, order)).claim == order


async def test_a_settlement_whose_answer_is_lost_is_found_on_the_pod(api: KubeApi, cluster: Cluster) -> None:
    seats, order = writer(cluster), claim_of()
    claimed = await seats.claim(await cluster.seat(), order)
    api.faults.cut(Cut.AFTER, patches, times=1)
    assert (await seats.settle(claimed, order, serving=CHAT)).serving == {CHAT}


@pytest.mark.parametrize("answer", [Answer(status=500), Answer(status=502, html=True)], ids=["500", "502"])
async def test_a_claim_that_did_not_arrive_is_unreachable(
    api: KubeApi, cluster: Cluster, answer: Answer
) -> None:
    seat = await cluster.seat()
    api.faults.answer(answer, patches)
    with pytest.raises(Unreachable):
        await writer(cluster).claim(seat, claim_of())
    assert "emberpool.dev/claim" not in await annotations(cluster)


async def test_a_server_that_asks_to_wait_is_obeyed(api: KubeApi, cluster: Cluster) -> None:
    seat = await cluster.seat()
    api.faults.answer(Answer(status=429, retry_after="0.3"), patches, times=1)
    began = time.monotonic()
    await writer(cluster).claim(seat, claim_of())
    assert time.monotonic() - began >= 0.3


async def test_who_is_asked_to_wait_beyond_the_deadline_is_told_so_at_once(
    api: KubeApi, cluster: Cluster
) -> None:
    seat = await cluster.seat()
    api.faults.answer(Answer(status=429, retry_after="60"), patches)
    with pytest.raises(Throttled):
        await writer(cluster).claim(seat, claim_of())


async def test_housekeeping_that_has_to_wait_delays_no_promotion(api: KubeApi, cluster: Cluster) -> None:
    seat = await cluster.seat()
    other = pod_from_json(await cluster.pod("seat-1")).seat
    slow = Budget(per_second=0.01, burst=1, at_once=1)
    through = replace(lanes(), housekeeping=Lane(slow), events=Lane(slow))
    seats = writer(cluster, through=through)
    api.faults.delay(30, lambda call: call.verb == "patch" and call.name == "seat-1")
    async with asyncio.TaskGroup() as tasks:
        marks = [tasks.create_task(seats.mark(other, SeatValue.HELD)) for _ in range(3)]
        await asyncio.sleep(0)
        async with asyncio.timeout(2):
            order = claim_of()
            await seats.settle(await seats.claim(seat, order), order, serving=CHAT)
        assert not any(mark.done() for mark in marks)
        for mark in marks:
            mark.cancel()


class Closed(Lane):
    """A lane of somebody who may not write any more."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        raise Withheld("closed")
        yield


async def test_what_is_withheld_is_not_tried_again(api: KubeApi, cluster: Cluster) -> None:
    seat, closed = await cluster.seat(), Closed(Budget(per_second=1, burst=1, at_once=1))
    before = len(api.calls)
    with pytest.raises(Withheld):
        await writer(cluster, through=Lanes(closed, closed, closed, closed)).claim(seat, claim_of())
    with pytest.raises(Withheld):
        await Sizer(Writing(cluster.client), closed).resize(await workload(cluster), 3)
    assert [call.verb for call in api.calls[before:]] == ["create", "get"]


# ---------------------------------------------------------------- sizes


async def workload(cluster: Cluster) -> Target:
    return Target(kind=DEPLOYMENT, namespace=cluster.namespace, name=await cluster.workload())


def sizer(cluster: Cluster, *, dry_run: bool = False) -> Sizer:
    return Sizer(Writing(cluster.client, dry_run=dry_run), lanes().promotions)


async def size(cluster: Cluster) -> int:
    found: int = (await cluster.get(DEPLOYMENT, "spares"))["spec"]["replicas"]
    return found


async def test_a_workload_is_sized(cluster: Cluster) -> None:
    target = await workload(cluster)
    assert (await sizer(cluster).resize(target, 2)).before == 0
    assert await size(cluster) == 2


async def test_a_size_that_somebody_else_wrote_is_told_and_set_right(cluster: Cluster) -> None:
    target, sizes = await workload(cluster), sizer(cluster)
    await sizes.resize(target, 1)
    await cluster.patch(DEPLOYMENT, "spares", {"spec": {"replicas": 2}})
    assert (await sizes.resize(target, 1)).drifted == 1
    assert await size(cluster) == 1
    assert (await sizes.resize(target, 1)).drifted is None


async def test_a_size_that_changes_between_reading_and_writing_is_read_again(
    api: KubeApi, cluster: Cluster
) -> None:
    target, sizes = await workload(cluster), sizer(cluster)
    overtaken, key = count(), (cluster.namespace, target.name)

    def overtake(call: Call) -> bool:
        if call.subresource == "scale" and call.verb == "update" and next(overtaken) == 0:
            found = api.store.get(DEPLOYMENTS, key)
            assert found is not None
            api.store.put(DEPLOYMENTS, key, {**found.body, "status": {"replicas": 1}})
        return False

    api.faults.cut(Cut.BEFORE, overtake)
    await sizes.resize(target, 3)
    assert await size(cluster) == 3
    assert next(overtaken) == 2


async def test_a_dry_size_changes_nothing(cluster: Cluster) -> None:
    target = await workload(cluster)
    await sizer(cluster, dry_run=True).resize(target, 2)
    assert await size(cluster) == 0


async def test_a_workload_that_is_not_there_is_not_found(cluster: Cluster) -> None:
    with pytest.raises(NotFound):
        await sizer(cluster).resize(Target(kind=DEPLOYMENT, namespace=cluster.namespace, name="none"), 1)


# ---------------------------------------------------------------- nodes

VALUE, OWNER = "EccUncorrectable", json.dumps({"taint": "EccUncorrectable"})


def nodes_of(cluster: Cluster) -> NodeWriter:
    return NodeWriter(Writing(cluster.client), lanes().housekeeping)


async def taints(cluster: Cluster, node: str) -> set[str]:
    return {each["key"] for each in (await cluster.get(NODE, node))["spec"].get("taints") or []}


async def test_a_taint_comes_and_goes_and_others_stay(cluster: Cluster, node: str) -> None:
    nodes = nodes_of(cluster)
    await nodes.mark(node, VALUE, OWNER)
    await nodes.mark(node, VALUE, OWNER)
    assert {GPU_TAINT, "other/owner"} <= await taints(cluster, node)
    await nodes.unmark(node)
    assert GPU_TAINT not in await taints(cluster, node)
    assert "other/owner" in await taints(cluster, node)


async def test_a_node_without_taints_is_tainted(api: KubeApi, cluster: Cluster, node: str) -> None:
    await cluster.patch(NODE, node, {"spec": {"taints": None}})
    await nodes_of(cluster).mark(node, VALUE, OWNER)
    assert await taints(cluster, node) == {GPU_TAINT}


async def test_taints_that_others_write_at_the_same_time_are_not_lost(
    api: KubeApi, cluster: Cluster, node: str
) -> None:
    theirs = [{"key": key, "effect": "NoSchedule"} for key in ("other/owner", "team/1")]
    once = iter([None])

    def written_meanwhile(call: Call) -> bool:
        if call.verb == "patch" and call.resource == "nodes" and next(once, 0) is None:
            target = Object(kind=BY_PATH["", "v1", "nodes"], namespace="", name=node)
            api.patch(target, "application/merge-patch+json", {"spec": {"taints": theirs}}, {})
        return False

    api.faults.delay(0.0, written_meanwhile)
    await nodes_of(cluster).mark(node, VALUE, OWNER)
    assert await taints(cluster, node) == {"other/owner", "team/1", GPU_TAINT}


async def test_a_condition_leaves_others_alone(cluster: Cluster, node: str) -> None:
    await cluster.patch(
        NODE, node, {"status": {"conditions": [{"type": "Other", "status": "True"}]}}, "status"
    )
    await nodes_of(cluster).condition(
        node, GPU_CONDITION, status=False, reason="EccUncorrectable", message="m"
    )
    conditions = {
        each["type"]: each["status"] for each in (await cluster.get(NODE, node))["status"]["conditions"]
    }
    assert (conditions["Other"], conditions[GPU_CONDITION]) == ("True", "False")


# ---------------------------------------------------------------- events


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


async def told(
    cluster: Cluster, tell: Callable[[Recorder, Subject], None], clock: Clock | None = None
) -> Recorder:
    subject = Subject.of(POD, cluster.namespace, "seat-0", "uid-0")
    recorder = Recorder(Writing(cluster.client), lanes().events, "controller-0", clock or Clock())
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(recorder.run())
        tell(recorder, subject)
        async with asyncio.timeout(10):
            await recorder.drain()
        writing.cancel()
    return recorder


async def events(cluster: Cluster) -> list[dict[str, object]]:
    request = Request(path=EVENT.collection(cluster.namespace))
    found: list[dict[str, object]] = (await cluster.admin.call(request, seconds=10))["items"]
    return [each for each in found if each.get("reportingController") == "emberpool.dev/controller"]


async def test_an_event_is_told(cluster: Cluster) -> None:
    recorder = await told(cluster, lambda recorder, pod: recorder.tell(promoted(pod, CHAT, 0.0421)))
    (event,) = await events(cluster)
    assert (event["reason"], event["note"], event["type"]) == (
        "Promoted",
        "chat serves after 42 ms",
        "Normal",
    )
    assert recorder.dropped == 0


async def test_a_repetition_is_counted_on_the_event_that_is_there(cluster: Cluster) -> None:
    clock = Clock()

    def tell(recorder: Recorder, pod: Subject) -> None:
        for _ in range(10):
            recorder.tell(promotion_failed(pod, CHAT, "the canary failed"))
            clock.now += 10

    await told(cluster, tell, clock)
    (event,) = await events(cluster)
    series = event["series"]
    assert isinstance(series, dict)
    assert series["count"] == 10


async def test_the_count_of_a_repetition_is_written_now_and_then(api: KubeApi, cluster: Cluster) -> None:
    clock = Clock()

    def tell(recorder: Recorder, pod: Subject) -> None:
        for _ in range(600):
            recorder.tell(promotion_failed(pod, CHAT, "the canary failed"))
            clock.now += 0.5

    await told(cluster, tell, clock)
    assert sum(call.resource == "events" and call.verb in {"create", "patch"} for call in api.calls) <= 11


async def test_events_that_nobody_takes_are_dropped_and_counted(api: KubeApi, cluster: Cluster) -> None:
    api.faults.answer(Answer(status=500), lambda call: call.resource == "events")
    recorder = await told(cluster, lambda recorder, pod: recorder.tell(promoted(pod, CHAT, 0.1)))
    assert recorder.dropped == 1
    subject = Subject.of(POD, cluster.namespace, "seat-0")
    for number in range(QUEUE + 10):
        recorder.tell(promotion_failed(subject, CHAT, f"attempt {number}"))
    assert recorder.dropped == 11
