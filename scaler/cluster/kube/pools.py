"""InferencePools of a namespace, where the cluster has any: they send requests to pods as Services do.

The kind is an add-on. What can't be had, because it isn't there or the Role doesn't allow it, holds nothing up.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from scaler.cluster.kube.client import KubeClient, Request
from scaler.cluster.kube.errors import Forbidden, Rejected
from scaler.cluster.kube.reflector import Reflector
from scaler.cluster.kube.resources import Collection, Kind
from scaler.cluster.kube.views import Service, pool_from_json
from scaler.errors import ClusterError

log = structlog.get_logger(__name__)

KINDS: Final = (
    Kind(group="inference.networking.k8s.io", version="v1", plural="inferencepools", name="InferencePool"),
    Kind(
        group="inference.networking.x-k8s.io",
        version="v1alpha2",
        plural="inferencepools",
        name="InferencePool",
    ),
)
"""The stable version, and the one that came before it under another group."""
AGAIN_SECONDS: Final = 300.0
"""How often a cluster that hasn't the kind is asked again."""
_SECONDS: Final = 10.0


class PoolWatch:
    """InferencePools; `run` inside a TaskGroup.

    Args:
        client: reaches the server.
        namespace: where they are.
        changed: is called after each change.
    """

    def __init__(self, client: KubeClient, namespace: str, changed: Callable[[], None]) -> None:
        self._client = client
        self._namespace = namespace
        self._changed = changed
        self._found: dict[Kind, Reflector[Service]] = {}
        self._hidden: set[Kind] = set()

    def values(self) -> Sequence[Service]:
        """Return all that are known."""
        return [pool for reflector in self._found.values() for pool in reflector.values()]

    async def run(self) -> None:
        """Look for the kind, and follow its objects, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for kind in KINDS:
                    if kind not in self._found and await self._may_list(kind):
                        objects = Collection(kind=kind, namespace=self._namespace)
                        reflector = Reflector(self._client, objects, pool_from_json)
                        reflector.subscribe(self._changed)
                        self._found[kind] = reflector
                        tasks.create_task(reflector.run())
                await asyncio.sleep(AGAIN_SECONDS)

    def _complain(self, kind: Kind) -> None:
        if kind not in self._hidden:
            self._hidden.add(kind)
            log.info("InferencePools may not be listed, so that none is checked", group=kind.group)

    async def _may_list(self, kind: Kind) -> bool:
        request = Request(path=kind.collection(self._namespace), query={"limit": "1"})
        try:
            await self._client.call(request, seconds=_SECONDS)
        except Rejected:
            return False
        except Forbidden:  # also where the kind isn't there: permissions are looked at first
            self._complain(kind)
            return False
        except ClusterError as error:
            log.info("whether there are InferencePools can't be found out now", error=str(error))
            return False
        return True
