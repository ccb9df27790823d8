"""A node agent loses its file: it gets back what controllers have kept, and its node isn't readmitted meanwhile."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aiohttp import web

from scaler.cluster.kube.client import MERGE, Request
from scaler.cluster.kube.nodes import GPU_TAINT
from scaler.cluster.kube.resources import NODE
from scaler.runtime.api import Intake
from scaler.runtime.nodes_api import NodesApi
from tests.fakes.proc_tree import ProcTree
from tests.integration.gpuhealth.test_device_taints import Rig as Devices
from tests.integration.kube.conftest import Cluster
from tests.integration.kube.test_marking import Rig, following
from tests.integration.nodehealth.conftest import TOKEN, Caller, Node
from tests.unit.warmpool.nodehealth.history import History
from warmpool.nodehealth.copies import copied
from warmpool.nodehealth.marks import LATCHES_ANNOTATION
from warmpool.nodehealth.telling import Telling

XID, SICK = 0x8, "gpu-1"


@dataclass
class Stage:
    """A leader that marks nodes, and a node whose agents tell it."""

    rig: Rig
    node: Node
    url: str

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Caller]:
        telling = Telling(node=SICK, controllers=(self.url,), token=TOKEN)
        async with self.node.agent(replace(self.node.options, telling=telling)) as caller:
            yield caller

    async def heard(self, word: str) -> None:
        """Wait until the leader has heard a verdict, and have it look."""
        await self.rig.until(lambda: self.said() == word)
        await self.rig.marking.look()

    async def keep(self, copy: str) -> None:
        """Have a copy on the node, and wait until the leader knows of it."""
        patch = {"metadata": {"annotations": {LATCHES_ANNOTATION: copy}}}
        await self.rig.cluster.admin.call(
            Request(method="PATCH", path=NODE.path("", SICK), body=patch, content_type=MERGE), seconds=10.0
        )
        await self.rig.until(lambda: self.rig.marking.kept(SICK) == copy)

    def said(self) -> str:
        verdict = self.rig.reports.verdicts.get(SICK)
        return "" if verdict is None else str(verdict.verdict)

    @property
    def file(self) -> Path:
        return self.node.directory / "gpu-health.json"


@pytest.fixture
async def stage(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Stage]:
    async with following(cluster) as rig:
        intake = Intake(report=rig.reports.take, token=TOKEN)
        devices = Devices(cluster.client).marking
        api = NodesApi(rig.reports, rig.marking, devices, intake, lambda: rig.now, rig.marking.changed)
        app = web.Application()
        app.add_routes(api.routes())
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        node = Node(tmp_path, ProcTree(tmp_path / "proc"))
        node.caller_is()
        host, port = runner.addresses[0][:2]
        try:
            yield Stage(rig, node, f"http://{host}:{port}")
        finally:
            await runner.cleanup()


async def test_a_bad_gpu_is_bad_after_its_agent_has_lost_its_file(stage: Stage) -> None:
    library = stage.node.library
    async with stage.agent() as caller:
        await stage.heard("Ok")
        await stage.rig.until(lambda: library.emit(library.gpus[0], XID, 79))
        await stage.heard("Bad")
        before = await caller.ask("/v1/health")
    assert (await stage.rig.taints(SICK))[GPU_TAINT] == "Xid79"
    stage.file.unlink()
    async with stage.agent() as caller:
        after = await caller.until(lambda body: body["verdict"] == "Bad", "/v1/health")
        await stage.rig.marking.look()
    assert [each["reasons"] for each in after["gpus"]] == [each["reasons"] for each in before[1]["gpus"]]
    assert (await stage.rig.taints(SICK))[GPU_TAINT] == "Xid79"
    assert [each["act"] for each in stage.rig.records] == ["Exclude"]


async def test_what_a_boot_clears_is_cleared_in_what_was_kept_too(stage: Stage) -> None:
    history = History(judges=False).xid(79)
    gpus = {stage.node.gpus[0].uuid: replace(history.record.gpus["GPU-a"], uuid=stage.node.gpus[0].uuid)}
    await stage.keep(copied(replace(history.record, gpus=gpus)))
    async with stage.agent() as caller:
        body = await caller.until(lambda body: body["gpus"] and body["gpus"][0]["reasons"], "/v1/health")
    assert [each["code"] for each in body["gpus"][0]["reasons"]] == ["Held"]


async def test_a_copy_that_makes_no_sense_leaves_the_gpus_unknown_and_the_node_as_it_is(stage: Stage) -> None:
    for gpu in stage.node.gpus:
        gpu.health.fields.pop(230)
    await stage.keep("{")
    async with stage.agent() as caller:
        await stage.rig.until(lambda: stage.said() == "Ok")
        body = (await caller.ask("/v1/health"))[1]
    assert [each["verdict"] for each in body["gpus"]] == ["Unknown", "Unknown"]
