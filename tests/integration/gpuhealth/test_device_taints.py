"""Single GPUs tainted on an API server that hands them out by DRA: found by their UUID, marked, and others' rules left as they are."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient, Request
from scaler.cluster.kube.device_taints import DeviceMarking, DevicePost, DeviceTaints, devices_in
from scaler.cluster.kube.events import Event
from scaler.cluster.kube.lanes import lanes
from scaler.cluster.kube.resources import Kind
from scaler.cluster.kube.writing import Writing
from scaler.cluster.node_reports import NodeReports
from tests.fakes.kube_api import KubeApi, Pace, User, kubeconfig, serving
from tests.unit.scaler.cluster.test_node_reports import Clock, report
from tests.unit.warmpool.nodehealth.test_device_marks import gpu
from tests.unit.warmpool.nodehealth.test_device_marks import node as verdicts_of
from warmpool.nodehealth.breaker import BreakerLimits
from warmpool.nodehealth.device_marks import GPU_LABEL, Standing
from warmpool.nodehealth.marks import OWNER_ANNOTATION, TAINT_KEY
from warmpool.nodehealth.wire import HealthAnswer, health_to_json
from warmpool.seats import Verdict

GROUP = "resource.k8s.io"
SLICES = Kind(group=GROUP, plural="resourceslices", name="ResourceSlice", namespaced=False)
RULES = Kind(
    group=GROUP, version="v1beta2", plural="devicetaintrules", name="DeviceTaintRule", namespaced=False
)
UUIDS = [f"GPU-A{place}" for place in range(8)]


@dataclass
class Rig:
    client: KubeClient
    spared: set[str] = field(default_factory=lambda: {"n"})
    writes: bool = True
    now: float = 1000.0
    since: float = 0.0
    events: list[Event] = field(default_factory=list)
    records: list[Mapping[str, Any]] = field(default_factory=list)
    fences: list[Collection[str]] = field(default_factory=list)
    sequence: int = 0
    users: dict[str, User] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reports = NodeReports(Clock())
        self.marking = DeviceMarking(
            DevicePost(
                taints=DeviceTaints(Writing(self.client), lanes().housekeeping),
                reports=self.reports,
                spared=lambda names: self.spared & set(names),
                limits=lambda: BreakerLimits(at_least=1, max_percent=20),
                writes=lambda: self.writes,
                tell=self.events.append,
                record=lambda kind, **facts: self.records.append({"kind": kind, **facts}),
                fence=self.fences.append,
                wall=lambda: self.now,
                clock=lambda: self.since,
            )
        )

    async def said(self, *bad: str, code: str = "Xid95", boot: str = "b") -> None:
        """The node says which of its GPUs are Bad, and the leader looks."""
        found = [gpu(uuid, Verdict.BAD if uuid in bad else Verdict.OK, code=code) for uuid in UUIDS]
        said = replace(verdicts_of(*found), boot=boot)
        answer = HealthAnswer(node=said, gpus=UUIDS, epoch=1, reason="", sources={})
        self.sequence += 1
        self.reports.take(report(said, self.sequence, health=health_to_json(answer)))
        await self.marking.look()

    async def named(self) -> dict[str, str]:
        """The devices that rules are about."""
        rules = await self.rules()
        return {name: each["spec"]["deviceSelector"]["device"] for name, each in rules.items()}

    async def rules(self) -> dict[str, Any]:
        listed = await self.client.call(Request(path=RULES.collection()), seconds=10.0)
        return {each["metadata"]["name"]: each for each in listed["items"]}

    async def create(self, kind: Kind, body: Mapping[str, Any]) -> None:
        await self.client.call(Request(method="POST", path=kind.collection(), body=dict(body)), seconds=10.0)


def gpu_slice() -> dict[str, Any]:
    """A node's GPUs as a driver publishes them, one of them a part of another."""
    devices: list[dict[str, Any]] = [
        {"name": f"gpu-{place}", "attributes": {"uuid": {"string": uuid}, "type": {"string": "gpu"}}}
        for place, uuid in enumerate(UUIDS)
    ]
    devices.append({"name": "nic-0", "attributes": {"model": {"string": "x"}}})
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": {"name": "n"}, "devices": devices}
    return {"metadata": {"name": "n-gpu"}, "spec": spec}


@asynccontextmanager
async def connected(directory: Path, url: str) -> AsyncIterator[KubeClient]:
    config = directory / "kubeconfig"
    config.write_text(json.dumps(kubeconfig(url, "admin")), "utf-8")
    async with KubeClient(await find_access(AccessOptions(kubeconfig=str(config)), {})) as client:
        yield client


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    api = KubeApi({"admin": User(name="admin")}, Pace(second=0.02, bookmarks=5))
    async with serving(api) as url, connected(tmp_path, url) as client:
        made = Rig(client, users=api.users)
        await made.create(SLICES, gpu_slice())
        yield made


async def test_one_bad_gpu_of_eight_is_tainted_and_given_back(rig: Rig) -> None:
    await rig.said("GPU-A3")
    ((name, made),) = (await rig.rules()).items()
    assert name == "emberpool-gpu-a3"
    assert made["spec"]["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-3"}
    assert made["spec"]["taint"] == {"key": TAINT_KEY, "value": "Xid95", "effect": "NoSchedule"}
    assert made["metadata"]["labels"] == {GPU_LABEL: "GPU-A3"}
    assert OWNER_ANNOTATION in made["metadata"]["annotations"]
    assert rig.marking.fenced == {"GPU-A3"}

    await rig.said("GPU-A3", code="Xid79")
    ((_, changed),) = (await rig.rules()).items()
    assert changed["spec"]["taint"]["value"] == "Xid79"

    await rig.said()
    assert (await rig.rules(), rig.marking.fenced) == ({}, frozenset())
    assert [each["act"] for each in rig.records] == ["Exclude", "Exclude", "Recover"]
    assert [each.action for each in rig.events] == ["Quarantine", "Quarantine", "Readmit"]


async def test_a_leader_goes_on_marking_and_tells_what_is_fenced(rig: Rig) -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(rig.marking.run())
        found = [gpu(uuid, Verdict.BAD if uuid == "GPU-A1" else Verdict.OK) for uuid in UUIDS]
        answer = HealthAnswer(node=verdicts_of(*found), gpus=UUIDS, epoch=1, reason="", sources={})
        rig.reports.take(report(verdicts_of(*found), health=health_to_json(answer)))
        rig.marking.changed()
        while frozenset({"GPU-A1"}) not in rig.fences:
            await asyncio.sleep(0.01)
        task.cancel()
    assert (await rig.rules()).keys() == {"emberpool-gpu-a1"}


async def test_rules_of_others_stay_and_a_name_that_is_taken_is_told_of(rig: Rig) -> None:
    theirs = {
        "metadata": {"name": "emberpool-gpu-a3"},
        "spec": {"taint": {"key": "x/y", "effect": "None"}, "deviceSelector": {}},
    }
    await rig.create(RULES, theirs)
    await rig.said("GPU-A3")
    assert (await rig.rules())["emberpool-gpu-a3"]["spec"] == theirs["spec"]
    assert rig.marking.fenced == frozenset()
    await rig.said()
    assert (await rig.rules()).keys() == {"emberpool-gpu-a3"}


async def test_where_its_node_is_tainted_or_nothing_may_be_written_no_gpu_is(rig: Rig) -> None:
    rig.spared = set()
    await rig.said("GPU-A3")
    rig.spared, rig.writes = {"n"}, False
    await rig.said("GPU-A3")
    assert await rig.rules() == {}
    assert rig.marking.plan is not None
    assert [mark.gpu for mark in rig.marking.plan.marks] == ["GPU-A3"]


async def test_a_next_leader_finds_what_the_one_before_has_marked(rig: Rig) -> None:
    await rig.said("GPU-A3")
    rig.__post_init__()
    await rig.said("GPU-A3")
    assert (len(await rig.rules()), rig.marking.fenced) == (1, {"GPU-A3"})
    rig.spared = set()
    await rig.said("GPU-A3")
    assert await rig.rules() == {}


async def test_a_next_leader_counts_for_the_breaker_what_the_one_before_has_excluded(rig: Rig) -> None:
    await rig.said("GPU-A3", "GPU-A4")
    rig.__post_init__()
    rig.now += 1
    await rig.said("GPU-A3", "GPU-A4", "GPU-A5")
    assert rig.marking.fenced == {"GPU-A3", "GPU-A4"}
    assert rig.marking.plan is not None
    assert rig.marking.plan.admission.waiting == ("GPU-A5",)


async def test_a_gpu_that_dra_does_not_know_is_told_of_once(rig: Rig) -> None:
    await rig.client.call(Request(method="DELETE", path=SLICES.path("", "n-gpu")), seconds=10.0)
    for _ in range(2):
        await rig.said("GPU-A3")
    assert await rig.rules() == {}
    assert rig.marking.plan is not None
    assert rig.marking.plan.nameless == ("GPU-A3",)
    assert rig.marking.standing("GPU-A3") is Standing.NAMELESS
    (record,), (event,) = rig.records, rig.events
    assert (record["gpu"], record["act"], record["node"]) == ("GPU-A3", "Wait", "n")
    assert (event.reason, event.subject.name, event.warning) == ("GpuNotExcluded", "n", True)
    assert event.note.startswith("GPU-A3 is Bad and isn't excluded: DRA doesn't hand it out")


async def test_gpus_that_the_breaker_holds_back_are_told_of_once_and_excluded_when_there_is_room(
    rig: Rig,
) -> None:
    for _ in range(2):
        await rig.said("GPU-A1", "GPU-A2", "GPU-A3")
    assert len(await rig.rules()) == 2
    waits = [event for event in rig.events if event.reason == "GpuNotExcluded"]
    assert [event.note.partition(" is Bad")[0] for event in waits] == ["GPU-A3"]
    assert "too many GPUs were within the breaker's window" in waits[0].note
    standing = [rig.marking.standing(f"GPU-A{place}") for place in (1, 3, 4)]
    assert standing == [Standing.EXCLUDED, Standing.WAITING, None]
    rig.now += 601
    await rig.said("GPU-A1", "GPU-A2", "GPU-A3")
    assert rig.marking.fenced == {"GPU-A1", "GPU-A2", "GPU-A3"}


async def test_a_mark_goes_with_its_gpu_when_the_node_has_booted_and_its_devices_have_other_names(
    rig: Rig,
) -> None:
    await rig.said("GPU-A3")
    renamed = gpu_slice()
    names = [f"gpu-{place}" for place in (1, 2, 3, 4, 5, 6, 7, 0)]
    for device, name in zip(renamed["spec"]["devices"], names, strict=False):
        device["name"] = name
    change = Request(method="PUT", path=SLICES.path("", "n-gpu"), body=renamed)
    before = await rig.client.call(Request(path=SLICES.path("", "n-gpu")), seconds=10.0)
    renamed["metadata"] = before["metadata"]
    await rig.client.call(change, seconds=10.0)
    await rig.said("GPU-A3")
    assert await rig.named() == {"emberpool-gpu-a3": "gpu-3"}
    rig.since += 6.0
    await rig.said("GPU-A3")
    assert await rig.named() == {"emberpool-gpu-a3": "gpu-3"}  # nothing says that they may have
    await rig.said("GPU-A3", boot="another")
    assert await rig.named() == {"emberpool-gpu-a3": "gpu-4"}


async def test_names_are_read_again_every_minute_while_one_is_needed(rig: Rig) -> None:
    await rig.said("GPU-A3")
    await rig.client.call(Request(method="DELETE", path=SLICES.path("", "n-gpu")), seconds=10.0)
    moved = gpu_slice()
    moved["spec"]["pool"]["name"] = "other"
    await rig.create(SLICES, moved)
    for seconds, pool in ((59.0, "n"), (2.0, "other")):
        rig.since += seconds
        await rig.said("GPU-A3")
        (made,) = (await rig.rules()).values()
        assert made["spec"]["deviceSelector"]["pool"] == pool


async def test_a_cluster_without_the_api_is_left_alone(tmp_path: Path) -> None:
    async def absent(request: web.Request) -> web.Response:
        assert request.path.startswith("/apis/resource.k8s.io/")
        return web.Response(status=404, text="404 page not found\n")

    app = web.Application()
    app.router.add_get("/{path:.*}", absent)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with connected(tmp_path, f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            rig = Rig(client)
            await rig.said("GPU-A3")
            assert rig.marking.plan is None
    finally:
        await runner.cleanup()


def test_uuids_are_read_from_slices_of_older_versions_too() -> None:
    new = gpu_slice()
    devices = [
        {"name": each["name"], "basic": {"attributes": each["attributes"]}} for each in new["spec"]["devices"]
    ]
    old = {**new, "spec": {**new["spec"], "devices": devices}}
    assert devices_in(old) == devices_in(new)
    named = {"gpu.nvidia.com/uuid": {"string": "GPU-A0"}}
    qualified = {**new, "spec": {**new["spec"], "devices": [{"name": "gpu-0", "attributes": named}]}}
    assert devices_in(qualified) == {"GPU-A0": devices_in(new)["GPU-A0"]}


async def test_a_mark_that_is_refused_keeps_none_of_the_others(rig: Rig) -> None:
    rig.now = 0.0
    await rig.said("GPU-A1")
    rig.now = 100_000.0
    await rig.said("GPU-A1", "GPU-A3")
    assert rig.marking.fenced == {"GPU-A1", "GPU-A3"}
    rig.users["admin"] = User(
        name="admin", may=lambda call: (call.verb, call.name) != ("delete", "emberpool-gpu-a1")
    )
    await rig.said()
    assert list(await rig.rules()) == ["emberpool-gpu-a1"]
    assert rig.marking.fenced == {"GPU-A1"}
