"""A cluster of stand-ins: the tests' API server, its controllers, and nodes that run pods as processes."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scaler.cluster.kube.resources import DEPLOYMENT, POD, Kind
from tests.fakes.kubelet import HOST, Images, NodeOptions
from tests.fakes.whole_cluster import Cluster, Wanted, whole_cluster
from tests.fakes.workloads import AGENT_PORT, TOKEN

WAIT_SECONDS = 90.0
Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class World(Cluster):
    """A cluster with the nodes gpu-0 and gpu-1, of two GPUs each."""

    async def until(self, what: str, look: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
        """Look again and again until something is there, and return it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := await look():
                return found
            await asyncio.sleep(0.02)
        raise AssertionError(f"waited for {what}; pods: {await self.summary()}; logs: {self.tail()}")

    async def summary(self) -> list[str]:
        return [
            f"{p['metadata']['name']} {p['spec'].get('nodeName')} {json.dumps(p['status'])[:1500]}"
            for p in await self.calls.list(POD)
        ]

    def tail(self) -> str:
        return "\n".join(f"{path}: {path.read_text()[-800:]}" for path in self.logs.rglob("*.log"))

    # ------------------------------------------------------------ pods

    async def pod(self, name: str, container: Mapping[str, Any], **spec: Any) -> Body:
        """Make a pod of one container, which runs a shell's script where it is given one."""
        return await self.calls.create(POD, "default", pod_body(name, container, **spec))

    async def get(self, kind: Kind, name: str) -> Body:
        return await self.calls.get(kind, "default", name)

    async def when(self, name: str, condition: Callable[[Body], Any], what: str = "") -> Body:
        """Wait until a pod fulfils a condition."""

        async def look() -> Body | None:
            found = await self.calls.find(POD, "default", name)
            return found if found is not None and condition(found) else None

        found: Body = await self.until(what or f"pod {name}", look)
        return found

    async def when_gone(self, name: str) -> None:
        async def look() -> bool:
            return await self.calls.find(POD, "default", name) is None

        await self.until(f"the end of {name}", look)

    async def pods(self, **labels: str) -> list[Body]:
        selector = ",".join(f"{key.replace('__', '/')}={value}" for key, value in labels.items())
        return await self.calls.list(POD, "default", labelSelector=selector)

    async def when_pods(self, condition: Callable[[list[Body]], Any], what: str, **labels: str) -> list[Body]:
        async def look() -> tuple[list[Body]] | None:
            found = await self.pods(**labels)
            return (found,) if condition(found) else None

        (found,) = await self.until(what, look)
        return list(found)

    async def when_cached(self, name: str, condition: Callable[[Mapping[str, Any]], Any]) -> None:
        """Wait until the controllers' caches show a pod so."""

        async def look() -> bool:
            found = self.caches.get(POD, "default", name)
            return found is not None and bool(condition(found))

        await self.until(f"{name} in the caches", look)

    async def log(self, name: str, container: str = "main", restarts: int = 0) -> str:
        """What a container of a pod has printed."""
        uid = (await self.get(POD, name))["metadata"]["uid"]
        path = self.logs / f"default_{name}_{uid}" / container / f"{restarts}.log"
        return await asyncio.to_thread(lambda: path.read_text() if path.exists() else "")

    async def printed(self, name: str, text: str, container: str = "main") -> str:
        async def look() -> str:
            found = await self.log(name, container)
            return found if text in found else ""

        found: str = await self.until(f"{text!r} in the log of {name}", look)
        return found

    async def deploy(self, name: str, replicas: int, container: Mapping[str, Any], **spec: Any) -> Body:
        """Make a Deployment of pods with one container."""
        body = deployment_body(name, replicas, container, **spec)
        return await self.calls.create(DEPLOYMENT, "default", body)


def main(script: str, **others: Any) -> Body:
    """A container that runs a shell's script."""
    return {"name": "main", "image": "host", "command": ["sh", "-c", script], **others}


QUIET = main("exec sleep 1000")
GPU = {"limits": {"nvidia.com/gpu": 1}}


def pod_body(name: str, container: Mapping[str, Any], **spec: Any) -> Body:
    whole = {"terminationGracePeriodSeconds": 5, "containers": [dict(container)], **spec}
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": whole}


def deployment_body(name: str, replicas: int, container: Mapping[str, Any], **spec: Any) -> Body:
    template = pod_body(name, container)
    del template["metadata"]["name"]
    selector = {"matchLabels": {"app": name}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": selector, "template": template, **spec},
    }


def condition(body: Mapping[str, Any], kind: str) -> str:
    held = body["status"].get("conditions") or ()
    return next((each["status"] for each in held if each["type"] == kind), "")


def ready(pod: Mapping[str, Any]) -> bool:
    return condition(pod, "Ready") == "True"


def is_running(pod: Mapping[str, Any]) -> bool:
    return pod["status"]["phase"] == "Running"


async def agent_state(pod: Mapping[str, Any]) -> Body | None:
    """What a seat's agent tells of it; None while it tells nothing."""
    url = f"http://{pod['status']['podIP']}:{AGENT_PORT}/v1/state"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
            body: Body = await response.json()
            return body
    return None


@contextlib.asynccontextmanager
async def world_of(directory: Path, wanted: Wanted) -> AsyncIterator[World]:
    async with whole_cluster(directory, wanted) as made:
        yield World(**vars(made))


TWO_NODES = Wanted(
    nodes=[NodeOptions(name=f"gpu-{number}", gpus=2) for number in range(2)],
    images=Images({**Images().known, "host": HOST}),
    node_grace=3.0,
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path, TWO_NODES) as made:
        yield made
