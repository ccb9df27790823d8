"""What people order of nodes, on the stand-ins: `emberpool node` asks the base's controllers through the API server's proxy."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scaler.cluster.kube.resources import EVENT, NODE, POD
from tests.fakes.kube_api import User
from tests.fakes.kube_calls import NAMESPACE, SECRET
from tests.fakes.kubelet import NodeOptions
from tests.fakes.whole_cluster import Wanted
from tests.integration.nodes.conftest import World, ready, world_of
from tests.integration.nodes.test_base import ROOT, SERVING, create_all, may, overlay

MARK = "emberpool.dev/gpu-unhealthy-mark"
TAINT = "emberpool.dev/gpu-unhealthy"
UNTIL, UNTIL_SECONDS = "2100-01-01T00:00:00Z", 4102444800.0
FLEETS = {"chat", "spares"}
Asked = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
async def controllers(tmp_path: Path) -> AsyncIterator[World]:
    """The base without its fleets and gateways: two controllers, one of which leads, and two nodes."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl renders the base")
    folder = tmp_path / "overlay"
    folder.mkdir()
    objects = await asyncio.to_thread(overlay, folder)
    account = "emberpool-controller"
    wanted = Wanted(
        nodes=[NodeOptions(name=f"gpu-{number}", gpus=2, cpu="64") for number in range(2)],
        namespace=SERVING,
        accounts={account: User(name=account, may=partial(may, objects, account))},
    )
    async with world_of(tmp_path, wanted) as world:
        await world.calls.create(NAMESPACE, "", {"metadata": {"name": "default"}})  # of events about nodes
        tokens = {"agent": "agents-own", "signal": "gateways-own"}
        await world.calls.create(
            SECRET, SERVING, {"metadata": {"name": "emberpool-tokens"}, "stringData": tokens}
        )
        left_out = FLEETS | {"emberpool-gateway"}
        await create_all(
            world.calls,
            [
                each
                for each in objects
                if each["kind"] != "Deployment" or each["metadata"]["name"] not in left_out
            ],
        )

        async def all_ready() -> bool:
            pods = await world.calls.list(POD, SERVING)
            return len(pods) == 2 and all(map(ready, pods))

        await world.until("two controllers", all_ready)
        yield world


@pytest.fixture
def ask(controllers: World) -> Asked:
    """Runs `emberpool node …` as a person does, in a process of its own."""

    async def asked(*arguments: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scaler", "node", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                "KUBECONFIG": str(controllers.kubeconfig),
                "EMBERPOOL_AGENT_TOKEN": "agents-own",
                "LOGNAME": "ada",  # who orders
                "COLUMNS": "200",
            },
            cwd=ROOT,
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    return asked


async def node(world: World, name: str) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Its taint of our key, and what is written beside it."""
    body = await world.calls.get(NODE, "", name)
    taints = [each for each in body["spec"].get("taints") or () if each["key"] == TAINT]
    mark = (body["metadata"].get("annotations") or {}).get(MARK)
    return (taints[0] if taints else None), json.loads(mark) if mark else {}


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_node_is_excluded_and_readmitted_by_a_person_who_is_told(
    controllers: World, ask: Asked
) -> None:
    assert await ask("exclude", "gpu-1", "--reason", "row 3", "--until", UNTIL) == (
        0,
        "node/gpu-1: excluded\n",
        "",
    )
    taint, mark = await node(controllers, "gpu-1")
    assert taint is not None
    assert taint["effect"] == "NoSchedule"
    assert (mark["by"], mark["why"], mark["until"]) == ("ada", "row 3", UNTIL_SECONDS)
    assert (await node(controllers, "gpu-0")) == (None, {})

    async def told(*words: str) -> bool:
        code, out, err = await ask("describe", "gpu-1")
        return (code, err) == (0, "") and all(word in out for word in words)

    await controllers.until("who has excluded it", lambda: told("Excluded:", f"by ada, until {UNTIL}: row 3"))

    assert (await ask("exclude", "gpu-1", "--reason", "row 4"))[0] == 0, (
        "a second order is the one that counts"
    )
    assert (await node(controllers, "gpu-1"))[1]["why"] == "row 4"
    await controllers.until("the second order", lambda: told("by ada: row 4"))

    assert await ask("readmit", "gpu-1", "--reason", "it has power again") == (
        0,
        "node/gpu-1: readmitted\n",
        "",
    )

    async def back() -> bool:
        return (await node(controllers, "gpu-1"))[0] is None

    await controllers.until("the node to be back", back)

    async def recorded() -> bool:
        notes = {each.get("note") for each in await controllers.calls.list(EVENT, "default")}
        return notes >= {"ada: row 3", "ada: row 4", "ada: it has power again"}

    await controllers.until("events of the node", recorded)

    code, out, err = await ask("exclude", "gpu-9", "--reason", "row 3")
    assert (code, out) == (1, "")
    assert err.startswith("error: node/gpu-9: there is no node gpu-9\n")
