"""InferencePools, on clusters that have them, don't, or don't show them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from scaler.cluster.kube.access import Access
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.pools import PoolWatch
from scaler.cluster.kube.views import Service

STABLE = {
    "metadata": {"name": "chat", "namespace": "pool", "uid": "u", "resourceVersion": "5"},
    "spec": {
        "selector": {"matchLabels": {"app": "spares"}},
        "targetPorts": [{"number": 8001}, {"number": 8002}],
    },
}
EARLIER = {
    "metadata": {"name": "chat", "namespace": "pool", "uid": "u", "resourceVersion": "5"},
    "spec": {"selector": {"app": "spares"}, "targetPortNumber": 8001},
}
GROUPS = {"inference.networking.k8s.io": STABLE, "inference.networking.x-k8s.io": EARLIER}


class Nobody:
    async def authorization(self) -> str:
        return ""

    async def renew(self) -> None:
        return


def forbidden() -> web.Response:
    status = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403}
    return web.json_response(status, status=403)


@asynccontextmanager
async def cluster(has: dict[str, str]) -> AsyncIterator[KubeClient]:
    """A server that has, hides or doesn't have each of the groups."""

    async def answer(request: web.Request) -> web.StreamResponse:
        group = request.match_info["group"]
        if group not in has:
            return web.Response(status=404, text="404 page not found\n")
        if has[group] == "hidden":
            return forbidden()
        if request.query.get("watch") == "true":
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await asyncio.sleep(30)
            return response
        body = {"kind": "InferencePoolList", "metadata": {"resourceVersion": "5"}, "items": [GROUPS[group]]}
        return web.json_response(body)

    app = web.Application()
    app.router.add_get("/apis/{group}/{rest:.+}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with KubeClient(
            Access(server=url, namespace="pool", credentials=Nobody(), source="test")
        ) as made:
            yield made
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("has", "ports"),
    [
        pytest.param({"inference.networking.k8s.io": "shown"}, (8001, 8002), id="the stable version"),
        pytest.param({"inference.networking.x-k8s.io": "shown"}, (8001,), id="the one before"),
        pytest.param(
            {"inference.networking.k8s.io": "hidden", "inference.networking.x-k8s.io": "shown"},
            (8001,),
            id="one is hidden",
        ),
    ],
)
async def test_pools_that_there_are_are_found(has: dict[str, str], ports: tuple[int, ...]) -> None:
    async with cluster(has) as client, asyncio.TaskGroup() as tasks:
        changed = asyncio.Event()
        pools = PoolWatch(client, "pool", changed.set)
        running = tasks.create_task(pools.run())
        async with asyncio.timeout(10):
            await changed.wait()
        expected = Service(name="chat", kind="InferencePool", selector={"app": "spares"}, ports=ports)
        assert list(pools.values()) == [expected]
        running.cancel()


@pytest.mark.parametrize("has", [{}, {"inference.networking.k8s.io": "hidden"}], ids=json.dumps)
async def test_a_cluster_without_the_kind_is_no_fault(has: dict[str, Any]) -> None:
    async with cluster(has) as client, asyncio.TaskGroup() as tasks:
        pools = PoolWatch(client, "pool", lambda: None)
        running = tasks.create_task(pools.run())
        await asyncio.sleep(0.3)
        assert not running.done()
        assert list(pools.values()) == []
        running.cancel()
