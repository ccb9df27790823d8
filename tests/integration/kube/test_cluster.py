"""The adapter on a server with a workload's controller, a node and agents: what it reads, writes, and keeps from being written."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from scaler.cluster.kube.cluster import KubeCluster, Place
from scaler.cluster.kube.conditions import ConditionType
from scaler.cluster.kube.election import Leadership
from scaler.cluster.kube.errors import Withheld
from scaler.cluster.kube.events import Subject, said
from scaler.cluster.kube.fleet_watch import DRIFT_SECONDS
from scaler.cluster.kube.resources import POD as POD_KIND
from scaler.errors import Conflict, NotFound
from tests.contract.kube_rig import (
    DEPLOYMENTS,
    LEADER,
    NAMESPACE_NAME,
    Stage,
    fleet_of,
    running,
    stage,
    until,
)
from tests.fakes.kube_api import Cut, User
from tests.fakes.kube_api.api import Target as Object
from tests.fakes.kube_api.kinds import BY_PATH, NODE, POD
from tests.integration.kube.conftest import documented_role, resource_of
from warmpool.claim import Errand, Term, new_claim, resolve_orphan
from warmpool.errors import StaleEpoch
from warmpool.seats import Claim, FleetName, Operation, PolicyName, Seat, SeatName, SeatValue, Verdict
from warmpool.states import ResidentState as S

FLEET, CHAT, CODE = FleetName("spares"), PolicyName("chat"), PolicyName("code")
SERVICES = BY_PATH["", "v1", "services"]
POOLS = BY_PATH["inference.networking.k8s.io", "v1", "inferencepools"]
COST = "controller.kubernetes.io/pod-deletion-cost"
SECONDS = 30.0


@pytest.fixture
async def set_up(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path, FLEET, [CHAT, CODE]) as made:
        yield made


def claim_of(
    operation: Operation, policy: PolicyName = CHAT, *, epoch: int = 1, number: int = 1, seconds: float = 60.0
) -> Claim:
    errand = Errand(operation=operation, policy=policy)
    return new_claim(
        errand, Term(holder="test", epoch=epoch), number=number, now=time.time(), seconds=seconds
    )


def warm(count: int) -> Callable[[Sequence[Seat]], bool]:
    def are_warm(seats: Sequence[Seat]) -> bool:
        states = [r.state for seat in seats for r in seat.residents]
        return len(seats) == count and len(states) == 2 * count and set(states) == {S.PAUSED}

    return are_warm


async def grown(cluster: KubeCluster, count: int) -> Sequence[Seat]:
    await cluster.resize(FLEET, count)
    await until(cluster, warm(count))
    return await until(cluster, lambda seats: all(seat.ready for seat in seats))


async def promoted(made: Stage, cluster: KubeCluster, seat: Seat, policy: PolicyName = CHAT) -> Seat:
    order = claim_of(Operation.PROMOTE, policy)
    claimed = await cluster.claim(seat, order)
    await made.orders.resume(claimed, order, policy, deadline=10)
    return await cluster.settle(seat.name, order, serving=policy)


async def accepted(resize: Callable[[], Any]) -> None:
    """Ask for a size until it may be written."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await resize()
            except Withheld:
                await asyncio.sleep(0.1)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something is so that tells nobody: an object of the server, a condition."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


def marks(made: Stage, name: str) -> tuple[str, str]:
    metadata = made.pod(name)["metadata"]
    return metadata["labels"].get("emberpool.dev/seat", ""), (metadata.get("annotations") or {}).get(COST, "")


def conditions(cluster: KubeCluster) -> set[ConditionType]:
    return {each.type for each in cluster.conditions.get(FLEET, ())}


def reasons(made: Stage) -> set[str]:
    events = made.api.store.all(BY_PATH["events.k8s.io", "v1", "events"], NAMESPACE_NAME)
    return {item.body["reason"] for item in events}


# ---------------------------------------------------------------- reading


async def test_a_fleet_is_the_same_object_until_one_of_its_seats_changes(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        first, second = await grown(cluster, 2)
        await eventually(lambda: marks(set_up, second.name) == ("Spare", "0"))
        await asyncio.sleep(0)
        before = cluster.stock()[FLEET]
        assert cluster.stock()[FLEET] is before
        await promoted(set_up, cluster, first)
        assert cluster.stock()[FLEET] is not before
        assert next(seat for seat in cluster.seats() if seat.name == second.name) in before


async def test_an_agent_that_falls_silent_makes_its_seat_no_candidate_until_it_is_heard_again(
    set_up: Stage,
) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        (seat,) = await grown(cluster, 1)
        set_up.agents.silent.add(seat.name)
        (held,) = await until(cluster, lambda seats: not seats[0].reachable)
        assert held.value is SeatValue.HELD
        with pytest.raises(Conflict):
            await cluster.claim(held, claim_of(Operation.PROMOTE))
        set_up.agents.silent.clear()
        (again,) = await until(cluster, lambda seats: seats[0].reachable)
        assert again.value is SeatValue.SPARE


async def test_a_pod_is_on_its_way_until_its_agent_has_been_heard(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        await cluster.resize(FLEET, 1)
        (seat,) = await until(cluster, lambda seats: len(seats) == 1)
        assert seat.value is SeatValue.STARTING
        with pytest.raises(Conflict):
            await cluster.claim(seat, claim_of(Operation.PROMOTE))
        await until(cluster, warm(1))


async def test_pods_that_have_ended_are_no_seats(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        seat, _ = await grown(cluster, 2)
        set_up.side.status(seat.name, {"phase": "Failed", "reason": "Evicted"})
        await until(cluster, lambda seats: all(each.uid != seat.uid for each in seats))


async def test_seats_of_a_node_that_is_emptied_finish_and_get_nothing_new(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        seat, other = await grown(cluster, 2)
        serving = await promoted(set_up, cluster, seat)
        set_up.change(serving.node, {"spec": {"unschedulable": True}}, NODE)
        await until(cluster, lambda seats: any(each.node_leaving for each in seats))
        by_name = {each.name: each for each in cluster.seats()}
        assert by_name[seat.name].serving == {CHAT}
        assert by_name[other.name].value is SeatValue.SPARE
        with pytest.raises(Conflict, match=f"node {serving.node}, which is being emptied"):
            await cluster.claim(by_name[seat.name], claim_of(Operation.SWITCH, CODE))
        await cluster.claim(by_name[seat.name], claim_of(Operation.DEMOTE))


async def test_what_is_thought_of_gpus_is_the_seats_verdict(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        (seat,) = await grown(cluster, 1)
        body = {**set_up.agents.state(seat.name), "gpus": ["GPU-1"]}
        cluster.report(body)
        cluster.judge({"GPU-1": Verdict.BAD, "GPU-2": Verdict.SUSPECT})
        assert [each.verdict for each in cluster.seats()] == [Verdict.BAD]


async def test_a_new_controller_is_not_synced_before_every_agent_was_heard_or_asked(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        await grown(cluster, 2)
    async with set_up.controller([fleet_of(FLEET)], leadership=None) as another:
        assert {seat.value for seat in another.seats()} == {SeatValue.SPARE}
        assert another.replicas(FLEET) == 2


async def test_what_a_controller_waits_for_is_said(set_up: Stage) -> None:
    allowed = set_up.api.users["test"]
    set_up.api.users["test"] = User(
        name="test", may=lambda call: call.resource != "nodes" and allowed.may(call)
    )
    made = KubeCluster(
        Place(client=set_up.client, namespace=NAMESPACE_NAME), [fleet_of(FLEET)], set_up.reader
    )
    assert "deployments in pool" in made.waits_for
    async with running([made.run]):
        await eventually(lambda: made.waits_for.startswith("nodes: ") and "forbidden" in made.waits_for)
        assert not made.synced
        set_up.api.users["test"] = allowed
        await eventually(lambda: made.synced)
        assert made.waits_for == ""


# ---------------------------------------------------------------- marks and the readiness gate


async def test_pods_become_ready_and_are_marked_as_their_seats_become_worth_something(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        (seat,) = await grown(cluster, 1)
        await eventually(lambda: marks(set_up, seat.name) == ("Spare", "0"))
        await promoted(set_up, cluster, seat)
        assert marks(set_up, seat.name) == ("Serving", "100")
        cluster.lend({seat.name})
        await eventually(lambda: marks(set_up, seat.name) == ("Lent", "10"))
        (lent,) = await until(cluster, lambda seats: seats[0].lent)
        assert lent.value is SeatValue.LENT


async def test_who_is_promoted_first_makes_the_pod_ready(set_up: Stage) -> None:
    set_up.agents.engines.timing.start = 2.0
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        await cluster.resize(FLEET, 1)
        (seat,) = await until(
            cluster,
            lambda seats: (
                len(seats) == 1 and {r.policy: r.state for r in seats[0].residents}.get(CHAT) is S.PAUSED
            ),
        )
        assert not seat.admitted
        serving = await promoted(set_up, cluster, seat)
        assert serving.admitted


async def test_a_controller_that_does_not_lead_keeps_no_pods(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        await cluster.resize(FLEET, 1)
        await until(cluster, lambda seats: len(seats) == 1)
    before = len(set_up.writes())
    async with set_up.controller([fleet_of(FLEET)], leadership=None) as another:
        await until(another, warm(1))
        with pytest.raises(Withheld, match="leader"):
            await another.resize(FLEET, 2)
    assert set_up.writes()[before:] == []


async def test_a_claim_that_nobody_can_read_is_taken_off(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        (seat,) = await grown(cluster, 1)
        set_up.change(seat.name, {"metadata": {"annotations": {"emberpool.dev/claim": "{"}}})
        (freed,) = await until(cluster, lambda seats: not seats[0].reachable)
        (freed,) = await until(cluster, lambda seats: seats[0].reachable)
        assert freed.value is SeatValue.SPARE
        await eventually(lambda: "ClaimUnreadable" in reasons(set_up))


async def test_what_may_not_be_written_is_written_once_it_may(set_up: Stage) -> None:
    allowed = set_up.api.users["test"]
    set_up.api.users["test"] = User(name="test", may=lambda call: call.verb != "patch" and allowed.may(call))
    set_up.change(FLEET, {"spec": {"replicas": 2}}, DEPLOYMENTS)
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        await until(cluster, warm(2))
        before = len(set_up.api.calls)
        await asyncio.sleep(1.5)
        tried = sum(call.verb == "patch" for call in set_up.api.calls[before:])
        assert 0 < tried <= 4 * 3  # two pods with two chores each, and longer waits in between
        set_up.api.users["test"] = allowed
        await until(cluster, lambda seats: all(seat.ready for seat in seats))


async def test_only_pods_that_have_changed_are_written(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        first, second = await grown(cluster, 2)
        await eventually(lambda: marks(set_up, first.name) == marks(set_up, second.name) == ("Spare", "0"))
        before = len(set_up.writes())
        set_up.change(second.name, {"metadata": {"labels": {"emberpool.dev/seat": "Held"}}})
        await eventually(lambda: marks(set_up, second.name) == ("Spare", "0"))
        assert [(call.verb, call.name) for call in set_up.writes()[before:]] == [("patch", second.name)]


# ---------------------------------------------------------------- sizes


async def test_a_lower_size_waits_until_nobody_who_serves_could_go(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        seats = await grown(cluster, 3)
        serving = await promoted(set_up, cluster, seats[1])
        with pytest.raises(Withheld, match="marked less than"):
            await cluster.resize(FLEET, 1)
        assert cluster.replicas(FLEET) == 3
        await accepted(lambda: cluster.resize(FLEET, 1))
        assert cluster.replicas(FLEET) == 1
        (left,) = await until(cluster, lambda found: len(found) == 1)
        assert left.name == serving.name


async def test_no_size_is_lowered_while_a_promotion_is_in_flight(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        seat, _ = await grown(cluster, 2)
        await cluster.claim(seat, claim_of(Operation.PROMOTE))
        with pytest.raises(Withheld, match="in flight"):
            await cluster.resize(FLEET, 1)


@pytest.mark.parametrize("seconds", [0.0, 1.9])
async def test_no_size_is_written_that_could_arrive_in_another_term(set_up: Stage, seconds: float) -> None:
    ending = Leadership(LEADER.term, lambda wanted: wanted <= seconds)
    async with set_up.controller([fleet_of(FLEET)], ending) as cluster:
        with pytest.raises(Withheld, match="within its term"):
            await cluster.resize(FLEET, 1)
    assert not [call for call in set_up.api.calls if call.subresource == "scale" and call.verb == "update"]


async def test_who_else_writes_a_size_is_told_and_set_right(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        await cluster.resize(FLEET, 1)
        await eventually(lambda: cluster.replicas(FLEET) == 1)
        assert conditions(cluster) == set()
        set_up.change(FLEET, {"spec": {"replicas": 3}}, DEPLOYMENTS)
        await eventually(lambda: ConditionType.SIZE_DRIFTED in conditions(cluster))
        await eventually(lambda: "SizeDrifted" in reasons(set_up))
        assert cluster.replicas(FLEET) == 3
        await cluster.resize(FLEET, 4)
        assert cluster.replicas(FLEET) == 4


async def test_who_leads_no_more_finds_no_fault_with_the_next_leaders_sizes(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)], leadership=None) as cluster:
        async with cluster.leading(LEADER):
            await cluster.resize(FLEET, 1)
        set_up.change(FLEET, {"spec": {"replicas": 3}}, DEPLOYMENTS)
        await eventually(lambda: cluster.replicas(FLEET) == 3)
        assert conditions(cluster) == set()
        async with cluster.leading(LEADER):
            await cluster.resize(FLEET, 4)
        assert conditions(cluster) == set()


async def test_a_new_leader_tells_what_was_so_before_it_led(set_up: Stage) -> None:
    missing = FleetName("nothing")
    async with set_up.controller([fleet_of(missing)], leadership=None) as cluster:
        assert [each.type for each in cluster.conditions[missing]] == [ConditionType.WORKLOAD_MISSING]
        assert reasons(set_up) == set()
        async with cluster.leading(LEADER):
            await eventually(lambda: "WorkloadMissing" in reasons(set_up))


async def test_drift_is_forgotten_in_the_end(set_up: Stage) -> None:
    later = [0.0]
    async with set_up.controller([fleet_of(FLEET)], clock=lambda: time.monotonic() + later[0]) as cluster:
        await cluster.resize(FLEET, 1)
        set_up.change(FLEET, {"spec": {"replicas": 3}}, DEPLOYMENTS)
        await eventually(lambda: ConditionType.SIZE_DRIFTED in conditions(cluster))
        later[0] = DRIFT_SECONDS
        await eventually(lambda: conditions(cluster) == set())


async def test_a_size_that_a_scaled_object_writes_is_left_to_it(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET, resized=False)]) as cluster:
        with pytest.raises(Withheld, match="ScaledObject"):
            await cluster.resize(FLEET, 1)
        set_up.change(FLEET, {"spec": {"replicas": 1}}, DEPLOYMENTS)
        await eventually(lambda: cluster.replicas(FLEET) == 1)
        assert conditions(cluster) == set()


async def test_what_a_lower_size_could_cost_is_said_where_a_scaled_object_writes_it(set_up: Stage) -> None:
    later = [0.0]
    set_up.change(FLEET, {"spec": {"replicas": 3}}, DEPLOYMENTS)
    async with set_up.controller(
        [fleet_of(FLEET, resized=False)], clock=lambda: time.monotonic() + later[0]
    ) as cluster:
        await until(cluster, warm(3))
        claimed = await cluster.claim(cluster.seats()[0], claim_of(Operation.PROMOTE))
        await eventually(lambda: "a promotion is in flight" in cluster.lowering_refused(FLEET, 2))
        assert claimed.claim is not None
        await cluster.settle(claimed.name, claimed.claim, serving=None)
        for seat in cluster.seats()[:2]:
            await promoted(set_up, cluster, seat)
        later[0] = 60.0
        await eventually(lambda: cluster.lowering_refused(FLEET, 2) == "")
        await eventually(lambda: "could be among" in cluster.lowering_refused(FLEET, 1))


async def test_a_workload_that_is_not_there_is_said_to_be_missing(set_up: Stage) -> None:
    missing = FleetName("nothing")
    async with set_up.controller([fleet_of(FLEET), fleet_of(missing)]) as cluster:
        assert [each.type for each in cluster.conditions[missing]] == [ConditionType.WORKLOAD_MISSING]
        assert cluster.replicas(missing) == 0
        with pytest.raises(NotFound):
            await cluster.resize(missing, 1)


# ---------------------------------------------------------------- Observe, and fleets that are refused


async def test_for_a_fleet_that_is_only_observed_nothing_is_ever_written(set_up: Stage) -> None:
    set_up.change(FLEET, {"spec": {"replicas": 2}}, DEPLOYMENTS)
    async with set_up.controller([fleet_of(FLEET, observe=True)]) as cluster:
        seat, other = await until(cluster, warm(2))
        set_up.change(other.name, {"metadata": {"annotations": {"emberpool.dev/claim": "{"}}})
        set_up.change(FLEET, {"spec": {"replicas": 3}}, DEPLOYMENTS)
        await until(cluster, lambda seats: len(seats) == 3)
        order = claim_of(Operation.DEMOTE)
        for attempt in (
            cluster.claim(seat, order),
            cluster.settle(seat.name, order, serving=CHAT),
            cluster.resize(FLEET, 1),
            cluster.delete(seat, reason="test"),
        ):
            with pytest.raises(Withheld, match="Observe"):
                await attempt
        await asyncio.sleep(0.5)
    assert [call for call in set_up.api.calls if call.verb not in {"get", "list", "watch"}] == []


def service(made: Stage, selector: dict[str, str], port: int | str = 8001) -> None:
    spec = {"selector": selector, "ports": [{"port": 80, "targetPort": port}]}
    made.api.create(
        Object(kind=SERVICES, namespace=NAMESPACE_NAME), {"metadata": {"name": "chat"}, "spec": spec}, {}
    )


async def test_while_a_service_could_reach_paused_residents_nothing_is_promoted_and_no_pod_is_ready(
    set_up: Stage,
) -> None:
    listed = json.dumps([{"policy": CHAT, "command": ["x"], "port": 8001}])
    template = {"metadata": {"annotations": {"emberpool.dev/residents": listed}}}
    set_up.change(FLEET, {"spec": {"template": template}}, DEPLOYMENTS)
    service(set_up, {"app": FLEET})
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        assert conditions(cluster) == {ConditionType.PAUSED_RESIDENTS_REACHABLE}
        (said,) = cluster.conditions[FLEET]
        assert 'serving.emberpool.dev/chat: "true"' in said.message
        with pytest.raises(Withheld, match="Service chat"):
            await cluster.resize(FLEET, 1)
        set_up.change(FLEET, {"spec": {"replicas": 1}}, DEPLOYMENTS)
        (seat,) = await until(cluster, warm(1))
        with pytest.raises(Withheld, match="Service chat"):
            await cluster.claim(seat, claim_of(Operation.PROMOTE))
        await eventually(lambda: marks(set_up, seat.name) == ("Spare", "0"))
        assert not seat.admitted
        mended = {"app": FLEET, "serving.emberpool.dev/chat": "true"}
        set_up.change("chat", {"spec": {"selector": mended}}, SERVICES)
        await until(cluster, lambda seats: seats[0].ready)
        assert conditions(cluster) == set()
        await promoted(set_up, cluster, cluster.seats()[0])


async def test_an_inference_pool_that_could_reach_paused_residents_is_as_bad(set_up: Stage) -> None:
    allowed = set_up.api.users["test"]
    set_up.api.users["test"] = User(
        name="test", may=lambda call: call.resource == "inferencepools" or allowed.may(call)
    )
    listed = json.dumps([{"policy": CHAT, "command": ["x"], "port": 8001}])
    template = {"metadata": {"annotations": {"emberpool.dev/residents": listed}}}
    set_up.change(FLEET, {"spec": {"template": template}}, DEPLOYMENTS)
    spec = {"selector": {"matchLabels": {"app": FLEET}}, "targetPorts": [{"number": 8001}]}
    set_up.api.create(
        Object(kind=POOLS, namespace=NAMESPACE_NAME), {"metadata": {"name": "chat"}, "spec": spec}, {}
    )
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        await eventually(lambda: ConditionType.PAUSED_RESIDENTS_REACHABLE in conditions(cluster))
        (said,) = cluster.conditions[FLEET]
        assert "InferencePool chat" in said.message


async def test_pods_that_no_node_takes_are_held_in_the_end(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        await cluster.resize(FLEET, 1)
        (seat,) = await until(cluster, lambda seats: len(seats) == 1)
        since = "2020-01-01T00:00:00Z"
        late = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        set_up.agents.end(seat.name)
        set_up.agents.silent.add(seat.name)
        set_up.side.status(
            seat.name, {"phase": "Pending", "conditions": [{**late, "lastTransitionTime": since}]}
        )
        await until(cluster, lambda seats: seats[0].value is SeatValue.HELD)
        await eventually(lambda: ConditionType.SEATS_UNSCHEDULABLE in conditions(cluster))


# ---------------------------------------------------------------- adoption


STEPS = ["claimed", "resumed", "labelled without the gate", "demoting", "drained", "paused"]


async def stopped_at(step: str, made: Stage, cluster: KubeCluster, seat: Seat) -> None:
    """Bring a seat as far as a controller got that died then."""
    promote, demote = claim_of(Operation.PROMOTE), claim_of(Operation.DEMOTE, number=2)
    reached = STEPS.index(step)
    claimed = await cluster.claim(seat, promote)
    if reached >= 1:
        await made.orders.resume(claimed, promote, CHAT, deadline=10)
    if reached >= 2:
        serving = await cluster.settle(seat.name, promote, serving=CHAT)
        if reached == 2:
            gate = [{"type": kind, "status": "False"} for kind in ("emberpool.dev/admitted", "Ready")]
            made.side.status(seat.name, {"conditions": gate})
    if reached >= 3:
        claimed = await cluster.claim(serving, demote)
    if reached >= 4:
        await made.orders.drain(claimed, demote, CHAT, deadline=10)
    if reached >= 5:
        await made.orders.pause(claimed, demote, CHAT, deadline=10)


ENDS = {
    "claimed": (SeatValue.SPARE, S.PAUSED),
    "resumed": (SeatValue.SERVING, S.SERVING),
    "labelled without the gate": (SeatValue.SERVING, S.SERVING),
    "demoting": (SeatValue.DRAINING, S.SERVING),
    "drained": (SeatValue.DRAINING, S.DRAINING),
    "paused": (SeatValue.SPARE, S.PAUSED),
}


async def serving_all(made: Stage, cluster: KubeCluster, count: int) -> Sequence[Seat]:
    for seat in await grown(cluster, count):
        await promoted(made, cluster, seat)

    def serve(seats: Sequence[Seat]) -> bool:
        return all(seat.ready and seat.residents[0].state is S.SERVING for seat in seats)

    return await until(cluster, serve)


async def test_who_only_seems_to_have_others_beside_it_stays_in_rotation(set_up: Stage) -> None:
    """The watch says nothing any more, and the other seat is being removed."""
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        first, second = await serving_all(set_up, cluster, 2)
        set_up.api.faults.silent = True
        set_up.api.delete(Object(kind=POD, namespace=NAMESPACE_NAME, name=second.name), {}, {})
        assert not any(seat.terminating for seat in cluster.seats())
        with pytest.raises(Withheld, match="chat stays in rotation on seat"):
            await cluster.claim(first, claim_of(Operation.DEMOTE, number=7))
        assert "serving.emberpool.dev/chat" in set_up.pod(first.name)["metadata"]["labels"]


async def test_of_two_that_leave_at_the_same_moment_neither_counts_on_the_other(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        seats = await serving_all(set_up, cluster, 2)
        claims = [
            cluster.claim(seat, claim_of(Operation.DEMOTE, number=number))
            for number, seat in enumerate(seats, 7)
        ]
        outcomes = await asyncio.gather(*claims, return_exceptions=True)
        assert [isinstance(outcome, Withheld) for outcome in outcomes].count(True) == 1
        labels = [set_up.pod(seat.name)["metadata"]["labels"] for seat in seats]
        assert ["serving.emberpool.dev/chat" in each for each in labels].count(True) == 1


@pytest.mark.parametrize("step", STEPS)
async def test_the_next_term_takes_up_what_a_dead_one_had_begun(set_up: Stage, step: str) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as first:
        (seat,) = await grown(first, 1)
        await stopped_at(step, set_up, first, seat)
    second = Leadership(Term(holder="another", epoch=2), lambda _: True)
    async with set_up.controller([fleet_of(FLEET)], second) as cluster:
        (found,) = cluster.seats()
        resolution = resolve_orphan(found, time.time(), 2)
        if resolution is not None:
            await cluster.settle(found.name, resolution.claim, serving=resolution.serving)
        value, state = ENDS[step]
        (ended,) = await until(cluster, lambda seats: seats[0].claim is None and seats[0].ready)
        assert (ended.value, ended.resident(CHAT).state) == (value, state)  # type: ignore[union-attr]
        await eventually(lambda: marks(set_up, seat.name)[0] == value)
        await turned_round(set_up, cluster, ended)
        with pytest.raises(StaleEpoch):
            await set_up.orders.resume(ended, claim_of(Operation.PROMOTE, number=9), CHAT, deadline=10)


async def turned_round(made: Stage, cluster: KubeCluster, seat: Seat) -> None:
    """Demote whoever is resumed, or promote whoever isn't, in the second term."""
    resumed = seat.value is not SeatValue.SPARE
    order = claim_of(Operation.DEMOTE if resumed else Operation.PROMOTE, epoch=2)
    claimed = await cluster.claim(seat, order)
    if resumed:
        await made.orders.drain(claimed, order, CHAT, deadline=10)
        await made.orders.pause(claimed, order, CHAT, deadline=10)
    else:
        await made.orders.resume(claimed, order, CHAT, deadline=10)
    settled = await cluster.settle(seat.name, order, serving=None if resumed else CHAT)
    assert settled.serving == (frozenset() if resumed else {CHAT})


async def test_a_later_term_is_told_by_agents(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        (seat,) = await grown(cluster, 1)
        await set_up.orders.resume(seat, claim_of(Operation.PROMOTE, epoch=7), CHAT, deadline=10)
        async with asyncio.timeout(SECONDS):
            assert await cluster.superseded(1) == 7
        assert cluster.highest_epoch == 7


async def test_other_fleets_are_worked_on_from_then_on(set_up: Stage) -> None:
    async with set_up.controller([]) as cluster:
        with pytest.raises(NotFound):
            cluster.replicas(FLEET)
        cluster.adopt([fleet_of(FLEET)])
        async with asyncio.timeout(SECONDS):
            await cluster.wait_synced()
        (seat,) = await grown(cluster, 1)
        assert SeatName(seat.name)


# ---------------------------------------------------------------- permissions

OURS = {
    "pods",
    "pods/status",
    "services",
    "deployments.apps",
    "deployments.apps/scale",
    "events.events.k8s.io",
}
"""What nothing but this adapter reads or writes."""
OPTIONAL = "inferencepools."
"""What it reads where it may."""


async def test_a_life_of_a_fleet_takes_all_permissions_that_the_documentation_names_and_no_other(
    set_up: Stage,
) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        seat, other = await grown(cluster, 2)
        set_up.api.faults.cut(Cut.AFTER, lambda call: call.verb == "patch", times=1)
        await promoted(set_up, cluster, seat)
        for _ in range(2):
            cluster.recorder.tell(
                said(Subject.of(POD_KIND, NAMESPACE_NAME, seat.name, seat.uid), "Test", "test")
            )
        await cluster.recorder.drain()
        await cluster.delete(other, reason="test")
        await accepted(lambda: cluster.resize(FLEET, 1))
    known = [
        call for call in set_up.api.calls if not call.resource.startswith("/")
    ]  # kinds that there aren't
    used = {(resource_of(call), call.verb) for call in known}
    role = documented_role()
    assert {entry for entry in used if not entry[0].startswith(OPTIONAL)} <= role
    assert {entry for entry in role if entry[0] in OURS} - used <= {("events.events.k8s.io", "patch")}
