"""Objects by kind, namespace and name: what stand-ins of a cluster's parts read and write.

They do so on the tests' own API server and on a real one alike.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import MERGE, STRATEGIC, KubeClient, Request
from scaler.cluster.kube.reflector import Reflector, Timing
from scaler.cluster.kube.resources import Collection, Kind
from scaler.errors import NotFound

Body = dict[str, Any]
Object = Mapping[str, Any]
SECONDS = 10.0

NAMESPACE = Kind(plural="namespaces", name="Namespace", namespaced=False)
REPLICA_SET = Kind(group="apps", plural="replicasets", name="ReplicaSet")
STATEFUL_SET = Kind(group="apps", plural="statefulsets", name="StatefulSet")
SERVICE = Kind(plural="services", name="Service")
ENDPOINT_SLICE = Kind(group="discovery.k8s.io", plural="endpointslices", name="EndpointSlice")
BUDGET = Kind(group="policy", plural="poddisruptionbudgets", name="PodDisruptionBudget")
SECRET = Kind(plural="secrets", name="Secret")


def key_of(body: Object) -> tuple[str, str]:
    """Namespace and name."""
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def controller_of(body: Object) -> Mapping[str, Any] | None:
    """The owner that controls an object, if one does."""
    owners = body["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


@dataclass(frozen=True)
class Calls:
    """Calls of one client."""

    client: KubeClient

    async def get(self, kind: Kind, namespace: str, name: str) -> Body:
        return await self._call(Request(path=kind.path(namespace, name)))

    async def find(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """The object, or None where there is none."""
        with contextlib.suppress(NotFound):
            return await self.get(kind, namespace, name)
        return None

    async def list(self, kind: Kind, namespace: str = "", **query: str) -> list[Body]:
        answer = await self._call(Request(path=kind.collection(namespace), query=query))
        head = {"apiVersion": kind.api_version, "kind": kind.name}
        return [{**head, **item} for item in answer.get("items") or ()]

    async def create(self, kind: Kind, namespace: str, body: Object) -> Body:
        head = {"apiVersion": kind.api_version, "kind": kind.name}
        path = kind.collection(namespace)
        return await self._call(Request(method="POST", path=path, body={**head, **body}))

    async def replace(self, kind: Kind, body: Object, subresource: str = "") -> Body:
        """Write a whole object; with a resourceVersion in it, only over that version."""
        head = {"apiVersion": kind.api_version, "kind": kind.name}
        path = kind.path(*key_of(body), subresource)
        return await self._call(Request(method="PUT", path=path, body={**head, **body}))

    async def merge(
        self, kind: Kind, namespace: str, name: str, patch: Object, subresource: str = ""
    ) -> Body:
        path = kind.path(namespace, name, subresource)
        return await self._call(Request(method="PATCH", path=path, body=patch, content_type=MERGE))

    async def strategic(
        self, kind: Kind, namespace: str, name: str, patch: Object, subresource: str = ""
    ) -> Body:
        path = kind.path(namespace, name, subresource)
        return await self._call(Request(method="PATCH", path=path, body=patch, content_type=STRATEGIC))

    async def post(self, kind: Kind, namespace: str, name: str, subresource: str, body: Object) -> Body:
        """Create a subresource: a binding, an eviction."""
        path = kind.path(namespace, name, subresource)
        return await self._call(Request(method="POST", path=path, body=body))

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace: int | None = None
    ) -> None:
        """Delete an object; a pod gets `grace` seconds, or its own."""
        options: Body = {"apiVersion": "v1", "kind": "DeleteOptions"}
        options |= {"preconditions": {"uid": uid}} if uid else {}
        options |= {} if grace is None else {"gracePeriodSeconds": grace}
        await self._call(Request(method="DELETE", path=kind.path(namespace, name), body=options))

    async def _call(self, request: Request) -> Body:
        answer: Body = await self.client.call(request, seconds=SECONDS)
        return answer


@contextlib.asynccontextmanager
async def calling(kubeconfig: str, context: str = "") -> AsyncIterator[Calls]:
    """Open a client of the cluster that a kubeconfig names; without one, of the one that kubectl would find."""
    access = await find_access(AccessOptions(kubeconfig=kubeconfig, context=context), os.environ)
    async with KubeClient(access) as client:
        yield Calls(client)


_TIMING = Timing(backoff=(0.05, 1.0))


def _as_it_is(body: Object) -> Object:
    return body


@contextlib.asynccontextmanager
async def reflected(
    calls: Calls, kinds: Mapping[Kind, Callable[[], None] | None]
) -> AsyncIterator[dict[Kind, Reflector[Object]]]:
    """Follow all objects of some kinds, and call somebody after each change; yields once all have been seen."""
    held = {
        kind: Reflector[Object](calls.client, Collection(kind=kind), _as_it_is, _TIMING) for kind in kinds
    }
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in held.values()]
        try:
            async with asyncio.timeout(3 * SECONDS):
                for each in held.values():
                    await each.wait_synced()
            for kind, changed in kinds.items():
                if changed is not None:
                    held[kind].subscribe(changed)
            yield held
        finally:
            for task in running:
                task.cancel()
