"""A namespace of one's own: on the API server of the tests, or on the one that KUBECONFIG names.

What a test needs to see wrong answers for takes `api`, which only the tests' own server has.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient, Request
from scaler.cluster.kube.errors import Forbidden
from scaler.cluster.kube.resources import DEPLOYMENT, NODE, POD, Kind
from scaler.cluster.kube.views import pod_from_json
from scaler.errors import NotFound
from tests.fakes.kube_api import Call, KubeApi, Pace, User, kubeconfig, serving
from warmpool.seats import FLEET_LABEL, PolicyName, Resident, Seat
from warmpool.states import ResidentState

NAMESPACES = Kind(plural="namespaces", name="Namespace", namespaced=False)
FLEET, CHAT, CODE = "spares", PolicyName("chat"), PolicyName("code")
SECONDS = 10.0


def pod_body(name: str, **labels: str) -> dict[str, Any]:
    """A pod that no node takes, so that it is deleted at once on a real cluster too."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {FLEET_LABEL: FLEET, **labels}},
        "spec": {
            "automountServiceAccountToken": False,
            "nodeSelector": {"emberpool.dev/no-node": "true"},
            "readinessGates": [{"conditionType": "emberpool.dev/admitted"}],
            "containers": [{"name": "engine", "image": "emberpool.invalid/engine"}],
        },
    }


@dataclass(frozen=True)
class Cluster:
    """A namespace, and two ways to the server.

    Attributes:
        client: may do what docs/kubernetes.md says; on a real server, whatever its kubeconfig may.
        admin: may do everything.
    """

    client: KubeClient
    admin: KubeClient
    namespace: str

    async def get(self, kind: Kind, name: str) -> Any:
        return await self.admin.call(Request(path=kind.path(self.namespace, name)), seconds=SECONDS)

    async def create(self, kind: Kind, body: Mapping[str, Any]) -> Any:
        request = Request(method="POST", path=kind.collection(self.namespace), body=body)
        return await self.admin.call(request, seconds=SECONDS)

    async def delete(self, kind: Kind, name: str) -> None:
        request = Request(
            method="DELETE", path=kind.path(self.namespace, name), body={"gracePeriodSeconds": 0}
        )
        with contextlib.suppress(NotFound):
            await self.admin.call(request, seconds=SECONDS)

    async def patch(self, kind: Kind, name: str, body: Any, subresource: str = "") -> Any:
        request = Request(
            method="PATCH",
            path=kind.path(self.namespace, name, subresource),
            body=body,
            content_type="application/merge-patch+json",
        )
        return await self.admin.call(request, seconds=SECONDS)

    async def workload(self) -> str:
        """Make a Deployment of no pods, which a real cluster's controller leaves alone; return its name."""
        template = {
            "metadata": {"labels": {"app": "x"}},
            "spec": {"containers": [{"name": "engine", "image": "x.invalid/x"}]},
        }
        spec = {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "x"}},
            "template": template,
            "paused": True,
        }
        await self.create(DEPLOYMENT, {"metadata": {"name": "spares"}, "spec": spec})
        return "spares"

    async def pod(self, name: str = "seat-0", **labels: str) -> Any:
        """Make a pod; a new namespace of a real cluster takes a moment to have its service account."""
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    return await self.create(POD, pod_body(name, **labels))
                except Forbidden as error:
                    if "serviceaccount" not in str(error):
                        raise
                    await asyncio.sleep(0.1)

    async def seat(self, name: str = "seat-0") -> Seat:
        """Make a pod with an address and two paused residents, as an agent would tell of them."""
        await self.pod(name)
        address = {"status": {"phase": "Running", "podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}}
        return with_residents(pod_from_json(await self.patch(POD, name, address, "status")).seat)


def with_residents(seat: Seat, **states: ResidentState) -> Seat:
    residents = tuple(
        Resident(policy=policy, state=states.get(policy, ResidentState.PAUSED), since=0, proven_at=1)
        for policy in (CHAT, CODE)
    )
    return Seat(
        name=seat.name,
        uid=seat.uid,
        version=seat.version,
        fleet=seat.fleet,
        serving=seat.serving,
        claim=seat.claim,
        residents=residents,
    )


def written(path: Path, content: object) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def documented_role() -> frozenset[tuple[str, str]]:
    """Resource with its group and subresource, and verb."""
    text = (Path(__file__).parents[3] / "docs" / "kubernetes.md").read_text()
    _, _, table = text.partition("| Resource | Verbs |")
    rows = re.findall(r"^\| ([a-z.0-9/-]+) \| ([a-z, ]+) \|$", table, re.MULTILINE)
    return frozenset((resource, verb) for resource, verbs in rows for verb in verbs.split(", "))


def resource_of(call: Call) -> str:
    """As a Role's rules would name it, with its group and subresource."""
    group = f".{call.group}" if call.group else ""
    subresource = f"/{call.subresource}" if call.subresource else ""
    return f"{call.resource}{group}{subresource}"


def allowed(role: frozenset[tuple[str, str]], call: Call) -> bool:
    return (resource_of(call), call.verb) in role


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl makes the certificate")
    where = tmp_path_factory.mktemp("tls")
    paths = str(where / "tls.crt"), str(where / "tls.key")
    subprocess.run(
        f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=fake"
        f" -addext subjectAltName=IP:127.0.0.1 -out {paths[0]} -keyout {paths[1]}".split(),
        check=True,
        capture_output=True,
        timeout=30,
    )
    return paths


@pytest.fixture
def api() -> KubeApi:
    """The tests' own server, to make it misbehave."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("a real API server answers rightly")
    users = {"test": User(name="test", may=partial(allowed, documented_role())), "admin": User(name="admin")}
    return KubeApi(users, Pace(second=0.02, bookmarks=5))


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as stack:
        paths = [os.environ.get("KUBECONFIG", "")] * 2
        if not paths[0]:
            url = await stack.enter_async_context(serving(request.getfixturevalue("api")))
            paths = [written(tmp_path / token, kubeconfig(url, token)) for token in ("test", "admin")]
        clients = [KubeClient(await find_access(AccessOptions(kubeconfig=path), {})) for path in paths]
        client, admin = [await stack.enter_async_context(each) for each in clients]
        yield await stack.enter_async_context(_namespace(client, admin))


@contextlib.asynccontextmanager
async def _namespace(client: KubeClient, admin: KubeClient) -> AsyncIterator[Cluster]:
    made = Cluster(client, admin, f"emberpool-test-{uuid.uuid4().hex[:10]}")
    await made.create(NAMESPACES, {"metadata": {"name": made.namespace}})
    try:
        yield made
    finally:
        await made.delete(NAMESPACES, made.namespace)


@pytest.fixture
async def node(cluster: Cluster) -> AsyncIterator[str]:
    """A node of one's own, with somebody else's taint."""
    name = f"emberpool-test-{uuid.uuid4().hex[:10]}"
    taints = [{"key": "other/owner", "effect": "NoSchedule"}]
    await cluster.create(NODE, {"metadata": {"name": name}, "spec": {"taints": taints}})
    try:
        yield name
    finally:
        await cluster.delete(NODE, name)
