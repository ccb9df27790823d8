"""The garbage collector: what an owner leaves behind goes with it, in the background."""

from scaler.cluster.kube.resources import DEPLOYMENT, POD
from scaler.errors import NotFound
from tests.fakes.control_plane import pods as reading
from tests.fakes.control_plane.loops import Caches
from tests.fakes.kube_calls import (
    ENDPOINT_SLICE,
    REPLICA_SET,
    SERVICE,
    STATEFUL_SET,
    Calls,
    controller_of,
    key_of,
)

_OWNERS = {
    "Deployment": DEPLOYMENT,
    "ReplicaSet": REPLICA_SET,
    "StatefulSet": STATEFUL_SET,
    "Service": SERVICE,
}
_OWNED = (REPLICA_SET, POD, ENDPOINT_SLICE)


class Garbage:
    """The controller."""

    reads = (DEPLOYMENT, REPLICA_SET, STATEFUL_SET, SERVICE, POD, ENDPOINT_SLICE)

    async def sync(self, caches: Caches, calls: Calls) -> float | None:
        """See `Controller.sync`."""
        there = {
            name: {each["metadata"]["uid"] for each in caches.all(kind)} for name, kind in _OWNERS.items()
        }
        for kind in _OWNED:
            for body in caches.all(kind):
                owner = controller_of(body)
                if owner is None or owner["kind"] not in there or owner["uid"] in there[owner["kind"]]:
                    continue
                namespace = body["metadata"]["namespace"]
                if reading.is_terminating(body) or await self._lives(owner, namespace, calls):
                    continue
                try:
                    await calls.delete(kind, *key_of(body), uid=body["metadata"]["uid"])
                except NotFound:
                    continue
        return None

    @staticmethod
    async def _lives(owner: object, namespace: str, calls: Calls) -> bool:
        """Ask the server: the caches of two kinds are not of one moment."""
        assert isinstance(owner, dict)
        found = await calls.find(_OWNERS[owner["kind"]], namespace, owner["name"])
        return found is not None and found["metadata"]["uid"] == owner["uid"]
