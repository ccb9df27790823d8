"""A gateway that watches pods: an API server, pods whose guards are scripted engines, and a client, all on real sockets."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry
from ruamel.yaml import YAML

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.reflector import Timing
from scaler.cluster.kube.resources import POD
from scaler.gateway.observe import SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.settings import GatewaySettings
from scaler.policy.compile import load_policies
from scaler.runtime.followed_routes import FollowedRoutes
from scaler.runtime.pod_follower import Peers, PodFollower, pods_in
from scaler.runtime.route_follower import RouteFollower
from tests.fakes.kube_api import Call, KubeApi, Pace, User, kubeconfig, serving
from tests.fakes.openai_engine import OpenAIEngine
from tests.integration.gateway.flow import PAGE
from tests.integration.gateway.rig import CHAT, port_of, until
from tests.integration.kube.conftest import NAMESPACES, Cluster, pod_body, written

POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec:
  maxSeats: 4
  seat: {gpus: 0}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets: [{name: spares, targetInFlight: 4}]
  models: [MODEL]
  engine: {type: Reference}
  serving: {min: 0}
  signals: [{name: gateway, type: Pushed}]
"""
QUICK = Timing(call=5, watch=(60, 60), idle=30, backoff=(0.01, 0.05), short=0.05)
READS = frozenset({"get", "list", "watch"})
SERVES = {"serving.emberpool.dev/chat": "true"}


def documented_rules() -> list[dict[str, list[str]]]:
    """Return what docs/gateway.md says that a gateway's account needs."""
    (block,) = re.findall(r"```yaml\n(apiVersion: rbac.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return list(YAML(typ="safe", pure=True).load(block)["rules"])


def documented(call: Call) -> bool:
    """Whether the documented account may make a call."""
    return not call.subresource and any(
        call.group in rule["apiGroups"] and call.resource in rule["resources"] and call.verb in rule["verbs"]
        for rule in documented_rules()
    )


@dataclass
class Watched:
    """What surrounds the gateway."""

    api: KubeApi
    cluster: Cluster
    policies: Path
    session: aiohttp.ClientSession
    stack: AsyncExitStack
    serving: AsyncExitStack
    url: str
    ports: dict[str, int] = field(default_factory=dict)

    async def pod(self, name: str, *, residents: str | None = None, **labels: str) -> OpenAIEngine:
        """Make a running pod whose engine answers at the port that its template's list names."""
        engine = OpenAIEngine()
        port = self.ports[name] = port_of(await self.stack.enter_async_context(engine.serve()))
        listed = json.dumps([{"policy": "chat", "command": ["x"], "port": port}])
        body = pod_body(name, **labels)
        body["metadata"]["annotations"] = {"emberpool.dev/residents": residents or listed}
        body["spec"]["nodeName"] = "node-1"
        await self.cluster.create(POD, body)
        status = {"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
        await self.cluster.patch(POD, name, status, "status")
        return engine

    async def gateway_pod(self, name: str) -> None:
        """Make a pod that runs a gateway."""
        body = pod_body(name, app="gateway")
        del body["metadata"]["labels"]["emberpool.dev/fleet"]
        body["spec"]["nodeName"] = "node-1"
        await self.cluster.create(POD, body)
        await self.cluster.patch(POD, name, {"status": {"phase": "Running"}}, "status")

    async def label(self, name: str, value: str | None = "true") -> None:
        """Put a pod's resident into rotation, or (None) take it out."""
        await self.cluster.patch(POD, name, {"metadata": {"labels": {"serving.emberpool.dev/chat": value}}})

    async def terminate(self, name: str) -> None:
        """Delete a pod, which has its grace."""
        path = POD.path(self.cluster.namespace, name)
        async with self.session.delete(self.url + path, headers={"Authorization": "Bearer admin"}) as answer:
            assert answer.status == 200

    async def go_away(self) -> None:
        """End the API server, watches and all."""
        await self.serving.aclose()

    async def come_back(self) -> None:
        """Serve the API again, where it was."""
        await self.serving.enter_async_context(serving(self.api, port_of(self.url)))


@asynccontextmanager
async def watched(tmp_path: Path, model: str = "m") -> AsyncIterator[Watched]:
    users = {"test": User(name="test", may=documented), "admin": User(name="admin")}
    api = KubeApi(users, Pace(second=0.02, bookmarks=5))
    policies = tmp_path / "policies.yaml"
    policies.write_text(POLICIES.replace("MODEL", model), "utf-8")
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(AsyncExitStack())
        url = await server.enter_async_context(serving(api))
        paths = [
            written(tmp_path / token, kubeconfig(url, token, namespace="serving"))
            for token in ("test", "admin")
        ]
        clients = [KubeClient(await find_access(AccessOptions(kubeconfig=path), {})) for path in paths]
        client, admin = [await stack.enter_async_context(each) for each in clients]
        cluster = Cluster(client, admin, "serving")
        await cluster.create(NAMESPACES, {"metadata": {"name": "serving"}})
        session = await stack.enter_async_context(aiohttp.ClientSession())
        engines = await stack.enter_async_context(AsyncExitStack())
        yield Watched(api, cluster, policies, session, engines, server, url)


@dataclass
class Front:
    """A gateway of this process that watches pods."""

    gateway: Gateway
    followed: FollowedRoutes
    follower: PodFollower
    url: str
    session: aiohttp.ClientSession

    def seats(self) -> set[str]:
        routes = self.gateway.routes.policies.get(CHAT)
        return {each.seat for each in routes.endpoints} if routes is not None else set()

    async def until_seats(self, *names: str, seconds: float = 10.0) -> None:
        await until(lambda: self.seats() == set(names), seconds=seconds)

    async def ask(self, model: str = "m") -> tuple[int, str]:
        return await asked(self.session, self.url, model)


async def asked(session: aiohttp.ClientSession, url: str, model: str = "m") -> tuple[int, str]:
    body: dict[str, Any] = {"model": model, "stream": True}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        return response.status, await response.text()


@asynccontextmanager
async def front(around: Watched, controllers: Sequence[str] = (), peers: str = "") -> AsyncIterator[Front]:
    settings = GatewaySettings(instance="gw-1", controllers=tuple(controllers))
    gateway = Gateway(settings, SilentObserver(), CollectorRegistry())
    followed = FollowedRoutes(gateway, "gw-1", lambda _policy, _keys: None)
    client = around.cluster.client
    gateways = Peers(client, "serving", peers, QUICK) if peers else None
    routes = RouteFollower(controllers, followed.take, instance="gw-1")
    policies = load_policies([around.policies])
    follower = PodFollower(pods_in(client, "serving", QUICK), policies, followed, routes, gateways)
    async with gateway.serve("127.0.0.1", 0) as url, asyncio.TaskGroup() as tasks:
        parts = [tasks.create_task(each) for each in (follower.run(), routes.run(around.session), _quiet())]
        try:
            yield Front(gateway, followed, follower, url, around.session)
        finally:
            for part in parts:
                part.cancel()


async def _quiet() -> None:
    """Keep the group open where nobody else does."""
    await asyncio.Event().wait()
