"""Marks on real objects of an API server: what is written, what is only told, what is somebody else's, and what people order."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.events import Event, Recorder
from scaler.cluster.kube.hand_marks import EXCLUDED_BY_HAND, HandMark
from scaler.cluster.kube.lanes import lanes
from scaler.cluster.kube.marking import NodeMarking, Post
from scaler.cluster.kube.nodes import GPU_CONDITION, GPU_TAINT, NodeWriter
from scaler.cluster.kube.reflector import Reflector
from scaler.cluster.kube.resources import NODE
from scaler.cluster.kube.resources import Collection as Objects
from scaler.cluster.kube.views import Node, node_from_json
from scaler.cluster.kube.writing import Writing
from scaler.cluster.node_reports import NodeReports
from scaler.errors import Conflict, NotFound
from tests.deploy.test_base import OVERLAY, rendered
from tests.fakes.kube_api import Call, KubeApi, User, kubeconfig, serving
from tests.fakes.kube_api.faults import Answer
from tests.fakes.kube_api.kinds import BY_PATH
from tests.integration.kube.conftest import NAMESPACES, Cluster, written
from tests.integration.nodes.test_base import may
from tests.unit.scaler.cluster.test_node_reports import Clock, report, verdict
from warmpool.nodehealth.breaker import BreakerLimits
from warmpool.nodehealth.marks import LATCHES_ANNOTATION, OWNER_ANNOTATION
from warmpool.seats import Verdict

NAMES = ("gpu-1", "gpu-2", "gpu-3")
FOREIGN = {"key": "other/owner", "effect": "NoSchedule"}


@dataclass
class Rig:
    cluster: Cluster
    nodes: Reflector[Node]
    now: float = 1000.0
    observed: set[str] = field(default_factory=set)
    spared: set[str] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    records: list[Mapping[str, Any]] = field(default_factory=list)
    sequence: int = 0

    def __post_init__(self) -> None:
        self.reports = NodeReports(Clock())
        writer = NodeWriter(
            Writing(self.cluster.client), lanes().housekeeping, lambda: self.now, self.nodes.learn
        )
        self.marking = NodeMarking(
            Post(
                nodes=self.nodes,
                reports=self.reports,
                writer=writer,
                limits=lambda: BreakerLimits(at_least=1, max_percent=20),
                observed=lambda names: self.observed & set(names),
                spared=lambda names: self.spared & set(names),
                writes=lambda: True,
                tell=self.events.append,
                record=lambda kind, **facts: self.records.append({"kind": kind, **facts}),
                wall=lambda: self.now,
            )
        )

    async def said(self, word: Verdict, *names: str) -> None:
        """Nodes say what they are, and the leader looks."""
        for name in names:
            self.sequence += 1
            self.reports.take(report(verdict(word), self.sequence, node=name))
        await self.marking.look()

    async def body(self, name: str) -> Mapping[str, Any]:
        return await self.cluster.get(NODE, name)

    async def taints(self, name: str) -> dict[str, str]:
        taints = (await self.body(name))["spec"].get("taints") or ()
        return {
            each["key"]: each.get("value", "")
            for each in taints
            if not each["key"].startswith("node.kubernetes.io/")
        }

    async def owned(self, name: str) -> bool:
        return OWNER_ANNOTATION in ((await self.body(name))["metadata"].get("annotations") or {})

    async def condition(self, name: str) -> str | None:
        conditions = (await self.body(name)).get("status", {}).get("conditions") or ()
        return next((each["status"] for each in conditions if each["type"] == GPU_CONDITION), None)

    async def until(self, found: Callable[[], Any]) -> None:
        async with asyncio.timeout(10):
            while not found():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def following(cluster: Cluster) -> AsyncIterator[Rig]:
    for name in NAMES:
        await cluster.create(NODE, {"metadata": {"name": name}, "spec": {"taints": [FOREIGN]}})
    nodes = Reflector(cluster.client, Objects(kind=NODE), node_from_json)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(nodes.run())
        await nodes.wait_synced()
        yield Rig(cluster, nodes)
        task.cancel()


@pytest.fixture
async def rig(cluster: Cluster) -> AsyncIterator[Rig]:
    async with following(cluster) as made:
        yield made


async def test_a_bad_node_is_marked_and_a_well_one_unmarked_and_others_marks_stay(rig: Rig) -> None:
    await rig.said(Verdict.BAD, "gpu-1")
    assert await rig.taints("gpu-1") == {"other/owner": "", GPU_TAINT: "Xid79"}
    assert (await rig.owned("gpu-1"), await rig.condition("gpu-1")) == (True, "False")
    assert set(rig.marking.excluded) == {"gpu-1"}
    await rig.said(Verdict.OK, "gpu-1")
    assert await rig.taints("gpu-1") == {"other/owner": ""}
    assert (await rig.owned("gpu-1"), await rig.condition("gpu-1")) == (False, "True")
    assert [each.action for each in rig.events] == ["Quarantine", "Readmit"]
    assert [each["act"] for each in rig.records] == ["Exclude", "Recover"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the base")
async def test_marking_takes_no_call_that_the_manifests_do_not_grant(tmp_path: Path) -> None:
    """Events about nodes lie in another namespace than all else."""
    account, refused = "emberpool-controller", list[Call]()
    objects = await asyncio.to_thread(rendered, OVERLAY)

    def granted(call: Call) -> bool:
        if may(objects, account, call):
            return True
        refused.append(call)
        return False

    api = KubeApi({account: User(name=account, may=granted), "admin": User(name="admin")})
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(api))
        paths = [written(tmp_path / token, kubeconfig(url, token)) for token in (account, "admin")]
        clients = [KubeClient(await find_access(AccessOptions(kubeconfig=path), {})) for path in paths]
        client, admin = [await stack.enter_async_context(each) for each in clients]
        on = Cluster(client, admin, "serving")
        await on.create(NAMESPACES, {"metadata": {"name": "default"}})
        rig = await stack.enter_async_context(following(on))
        recorder = Recorder(Writing(client), lanes().events, "test")
        await rig.said(Verdict.BAD, "gpu-1")
        await rig.said(Verdict.OK, "gpu-1")
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(recorder.run())
            for event in rig.events:
                recorder.tell(event)
            await recorder.drain()
            telling.cancel()
    told = api.store.all(BY_PATH["events.k8s.io", "v1", "events"], "default")
    assert [each.body["regarding"]["name"] for each in told] == ["gpu-1", "gpu-1"]
    assert refused == []


async def test_the_breaker_lets_one_of_three_through_and_says_so_of_the_others(rig: Rig) -> None:
    await rig.said(Verdict.BAD, *NAMES)
    assert len(set(rig.marking.excluded)) == 1
    plan = rig.marking.plan
    assert plan is not None
    assert (plan.admission.tripped, len(plan.admission.waiting)) == (True, 2)
    assert [await rig.condition(name) for name in NAMES] == ["False"] * 3


async def test_what_the_leader_before_has_excluded_counts_for_the_breaker(rig: Rig) -> None:
    await rig.said(Verdict.BAD, "gpu-1")
    rig.__post_init__()
    rig.marking._begin()
    await rig.said(Verdict.BAD, "gpu-1", "gpu-2")
    assert set(rig.marking.excluded) == {"gpu-1"}


async def test_what_a_person_has_excluded_does_not_count_for_the_breaker(rig: Rig) -> None:
    await rig.said(Verdict.OK, "gpu-1")
    await rig.marking.order("gpu-1", order(excluded=True))
    rig.__post_init__()
    rig.marking._begin()
    await rig.said(Verdict.BAD, "gpu-2")
    assert set(rig.marking.excluded) == {"gpu-1", "gpu-2"}


async def test_a_node_of_fleets_that_observe_is_told_of_once_and_not_tainted(rig: Rig) -> None:
    rig.observed = set(NAMES)
    for _ in range(3):
        await rig.said(Verdict.BAD, "gpu-1")
    assert (await rig.taints("gpu-1"), await rig.owned("gpu-1")) == ({"other/owner": ""}, False)
    assert await rig.condition("gpu-1") == "False"
    assert [each.note.startswith("would be excluded") for each in rig.events] == [True]


async def test_what_is_only_told_is_told_once_though_the_condition_can_not_be_written(
    api: KubeApi, rig: Rig
) -> None:
    rig.observed = set(NAMES)
    api.faults.answer(Answer(status=403), lambda call: call.subresource == "status", times=2)
    for _ in range(4):
        await rig.said(Verdict.BAD, "gpu-1")
    assert (len(rig.events), len(rig.records)) == (1, 1)
    assert await rig.condition("gpu-1") == "False"  # once it could be


async def test_a_node_that_keeps_its_other_gpus_is_told_of_and_not_tainted(rig: Rig) -> None:
    rig.spared = {"gpu-1"}
    await rig.said(Verdict.BAD, "gpu-1")
    assert (await rig.taints("gpu-1"), await rig.condition("gpu-1")) == ({"other/owner": ""}, "False")
    rig.spared = set()
    await rig.said(Verdict.BAD, "gpu-1")
    assert (await rig.taints("gpu-1"))[GPU_TAINT] == "Xid79"
    rig.spared = {"gpu-1"}
    await rig.said(Verdict.BAD, "gpu-1")
    assert (await rig.taints("gpu-1"), await rig.owned("gpu-1")) == ({"other/owner": ""}, False)
    assert await rig.condition("gpu-1") == "False"


async def test_a_taint_that_somebody_else_has_set_stays(rig: Rig) -> None:
    theirs = {"key": GPU_TAINT, "value": "Mine", "effect": "NoSchedule"}
    await rig.cluster.patch(NODE, "gpu-1", {"spec": {"taints": [theirs]}})
    await rig.said(Verdict.BAD, "gpu-1")
    await rig.said(Verdict.OK, "gpu-1")
    assert await rig.taints("gpu-1") == {GPU_TAINT: "Mine"}
    with pytest.raises(Conflict, match="somebody else's"):
        await rig.marking.order("gpu-1", order(excluded=True))


def order(*, excluded: bool, until: float | None = None) -> HandMark:
    return HandMark(excluded=excluded, actor="ada", reason="row 3", since=1000.0, until=until)


async def test_what_a_person_excludes_stays_so_until_its_time(rig: Rig) -> None:
    await rig.said(Verdict.OK, "gpu-1")
    await rig.marking.order("gpu-1", order(excluded=True, until=2000.0))
    await rig.said(Verdict.OK, "gpu-1")
    assert (await rig.taints("gpu-1"))[GPU_TAINT] == EXCLUDED_BY_HAND
    assert rig.records[-1]["actor"] == "ada"
    rig.now = 2000.0
    await rig.said(Verdict.OK, "gpu-1")
    assert (await rig.taints("gpu-1"), await rig.owned("gpu-1")) == ({"other/owner": ""}, False)


async def test_why_a_node_is_out_is_told(rig: Rig) -> None:
    await rig.said(Verdict.BAD, "gpu-1")
    await rig.marking.order(
        "gpu-2", HandMark(excluded=True, actor="ada", reason="row 3", since=990.0, until=2000.0)
    )
    await rig.until(lambda: len(rig.marking.orders) == 2)
    ours, theirs = rig.marking.orders["gpu-1"], rig.marking.orders["gpu-2"]
    assert (ours.excluded, ours.since, ours.actor, ours.until) == (True, 1000.0, "", None)
    assert "is Bad" in ours.reason
    assert (theirs.actor, theirs.reason, theirs.since, theirs.until) == ("ada", "row 3", 990.0, 2000.0)


async def test_what_a_person_readmits_stays_so_until_nothing_bad_is_said_of_it(rig: Rig) -> None:
    await rig.said(Verdict.BAD, "gpu-1")
    await rig.marking.order("gpu-1", order(excluded=False))
    await rig.said(Verdict.BAD, "gpu-1")
    assert await rig.taints("gpu-1") == {"other/owner": ""}
    await rig.said(Verdict.OK, "gpu-1")
    assert not await rig.owned("gpu-1")
    await rig.said(Verdict.BAD, "gpu-1")
    assert GPU_TAINT in await rig.taints("gpu-1")


async def test_an_order_on_a_node_that_is_not_there_is_refused(rig: Rig) -> None:
    with pytest.raises(NotFound, match="no node gpu-9"):
        await rig.marking.order("gpu-9", order(excluded=True))


async def test_what_node_agents_have_found_is_kept_on_their_nodes_as_long_as_it_stands(rig: Rig) -> None:
    for sequence, copy in enumerate(("{1}", "{2}", "{2}"), start=1):
        rig.reports.take(report(verdict(), sequence, node="gpu-1", kept=copy))
        await rig.marking.look()
        assert (await rig.body("gpu-1"))["metadata"]["annotations"][LATCHES_ANNOTATION] == copy
        assert rig.marking.kept("gpu-1") == copy
    rig.reports.take(report(verdict(Verdict.OK), 4, node="gpu-1"))
    await rig.marking.look()
    assert LATCHES_ANNOTATION not in ((await rig.body("gpu-1"))["metadata"].get("annotations") or {})
    assert [rig.marking.kept(name) for name in ("gpu-1", "gpu-2", "elsewhere")] == ["", "", ""]
