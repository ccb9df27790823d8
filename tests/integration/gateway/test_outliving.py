"""Real controllers and a real gateway, each a process of its own: the controllers write labels and die, and routing goes on."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.contract.kube_rig import NAMESPACE_NAME
from tests.fakes.kube_api import User, kubeconfig
from tests.fakes.kube_api import patches as patching
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.kinds import POD
from tests.fakes.openai_engine import OpenAIEngine
from tests.fakes.ports import free_ports
from tests.integration.gateway.watched import asked, documented
from tests.integration.standby.rig import Rig, running

PORT = 8001
"""Where the rig's agents say that guards listen."""
RESIDENTS = json.dumps([{"policy": "chat", "command": ["x"], "port": PORT}])
SERVING = "serving.emberpool.dev/chat"


def _pods(rig: Rig) -> list[Mapping[str, Any]]:
    return [item.body for item in rig.api.store.all(POD, NAMESPACE_NAME)]


def _change(rig: Rig, name: str, **metadata: Mapping[str, str | None]) -> None:
    """Change a pod as a person does with kubectl."""
    target = Target(kind=POD, namespace=NAMESPACE_NAME, name=name)
    rig.api.patch(target, patching.MERGE, {"metadata": metadata}, {})


async def _seats(session: aiohttp.ClientSession, operators: str) -> set[str]:
    try:
        async with session.get(f"{operators}/v1/gateway") as response:
            found = (await response.json())["policies"].get("chat")
    except aiohttp.ClientError:
        return set()
    return {each["seat"] for each in found["endpoints"] if each["inRotation"]} if found is not None else set()


@pytest.mark.long
async def test_routing_follows_labels_when_both_controllers_have_been_killed(tmp_path: Path) -> None:
    """It takes what three processes take to begin."""
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(running(tmp_path))
        rig.api.users["gateway"] = User(name="gateway", may=documented)
        engines: dict[str, OpenAIEngine] = {}
        for pod in _pods(rig):
            engine = engines[pod["metadata"]["name"]] = OpenAIEngine()
            await stack.enter_async_context(engine.serve(pod["status"]["podIP"], PORT))
            _change(rig, pod["metadata"]["name"], annotations={"emberpool.dev/residents": RESIDENTS})
        config = tmp_path / "gateway.kubeconfig"
        config.write_text(json.dumps(kubeconfig(rig.url, "gateway", NAMESPACE_NAME)), "utf-8")
        port, operated = free_ports(2)
        await rig.processes.emberpool(
            "gateway",
            *("gateway", "--kubernetes", "--kubeconfig", str(config)),
            *(
                "--policy",
                str(tmp_path / "policies.yaml"),
                "--port",
                str(port),
                "--metrics-port",
                str(operated),
            ),
            *(part for replica in rig.replicas for part in ("--controller", replica.url)),
        )
        url, operators = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{operated}"

        async def until_seats(*names: str) -> None:
            async def told() -> bool:
                return await _seats(rig.session, operators) == set(names)

            await rig.until(f"routes to {names}", told)

        (first,) = [pod["metadata"]["name"] for pod in _pods(rig) if pod["metadata"]["labels"].get(SERVING)]
        (second,) = engines.keys() - {first}
        await until_seats(first)
        assert (await asked(rig.session, url, "chat"))[0] == 200
        await asyncio.gather(*(rig.processes.kill(replica.name) for replica in rig.replicas))
        for _ in range(3):
            assert (await asked(rig.session, url, "chat"))[0] == 200
        assert (len(engines[first].seen), len(engines[second].seen)) == (4, 0)
        _change(rig, second, labels={SERVING: "true"})
        _change(rig, first, labels={SERVING: None})
        await until_seats(second)
        assert (await asked(rig.session, url, "chat"))[0] == 200
        assert (len(engines[first].seen), len(engines[second].seen)) == (4, 1)
        assert await rig.processes.end("gateway") == 0
