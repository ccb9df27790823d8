"""Which workloads the fleets of a policy set are, and what may be written for each.

A workload's kind is found in the cluster itself unless it is one of Kubernetes' own; it must have a scale, because that is
all that we know of it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from scaler.cluster.kube.client import KubeClient, Request
from scaler.cluster.kube.errors import Forbidden, Rejected
from scaler.cluster.kube.resources import DEPLOYMENT, REPLICA_SET, STATEFUL_SET, Kind
from scaler.cluster.kube.scale import Target
from scaler.errors import ClusterError, UserError
from scaler.policy.fleet import Fleet, FleetMode, ResizedBy
from scaler.policy.fleet import Target as WrittenTarget
from warmpool.seats import FleetName

log = structlog.get_logger(__name__)

_OURS: Final[Mapping[tuple[str, str], Kind]] = {
    (kind.api_version, kind.name): kind for kind in (DEPLOYMENT, REPLICA_SET, STATEFUL_SET)
}
_DISCOVERY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeFleet:
    """A fleet as the cluster's adapter needs it.

    Attributes:
        name: its name: what its pods' label says.
        target: its workload.
        resized: whether we write its workload's size.
        observe: nothing at all is written for it.
    """

    name: FleetName
    target: Target
    resized: bool = True
    observe: bool = False


async def find_fleets(
    client: KubeClient, namespace: str, fleets: Iterable[Fleet], followed: Collection[Kind] = ()
) -> tuple[KubeFleet, ...]:
    """Find the workloads' kinds of fleets.

    Args:
        client: reaches the server.
        namespace: the one that this controller works in.
        fleets: as they were written.
        followed: kinds that are looked at already, so that nobody has to ask whether they may be.

    Raises:
        UserError: a fleet is of another namespace, or its workload of a kind that the cluster doesn't have or can't scale, or
            that this controller may not look at.
        ClusterError: the server can't be asked.
    """
    finder, found = _Kinds(client, namespace, followed), []
    for fleet in fleets:
        name, written = fleet.metadata.name, fleet.spec.target or WrittenTarget(name=fleet.metadata.name)
        if fleet.metadata.namespace != namespace:
            raise UserError(
                f"fleet {name} is in namespace {fleet.metadata.namespace}, and this controller works in {namespace}",
                hint="a controller works in one namespace: start another one there, or mend metadata.namespace",
            )
        kind = await finder.find(written.api_version, written.kind, name)
        found.append(
            KubeFleet(
                name=FleetName(name),
                target=Target(kind=kind, namespace=namespace, name=written.name),
                resized=fleet.spec.resized_by is ResizedBy.EMBERPOOL,
                observe=fleet.spec.mode is FleetMode.OBSERVE,
            )
        )
    return tuple(found)


class _Kinds:
    """Kinds by group, version and name, as the server knows them, of which objects may be listed."""

    def __init__(self, client: KubeClient, namespace: str, followed: Collection[Kind]) -> None:
        self._client = client
        self._namespace = namespace
        self._followed = followed
        self._known: dict[tuple[str, str], Kind] = {}

    async def find(self, api_version: str, name: str, fleet: str) -> Kind:
        if (known := self._known.get((api_version, name))) is not None:
            return known
        found = _OURS.get((api_version, name)) or self._read(
            await self._listed(api_version, fleet), api_version, name
        )
        if found is None:
            raise UserError(
                f"fleet {fleet}: the cluster has no {name} of {api_version} that can be scaled",
                hint="`kubectl api-resources` lists its kinds; one with a /scale subresource is wanted",
            )
        if found not in self._followed:
            await self._check_listed(found, fleet)
        self._known[api_version, name] = found
        return found

    async def _check_listed(self, kind: Kind, fleet: str) -> None:
        """Refuse a kind that the Role leaves out: a controller that waits to see it would do nothing for anybody."""
        request = Request(path=kind.collection(self._namespace), query={"limit": "1"})
        try:
            await self._client.call(request, seconds=_DISCOVERY_SECONDS)
        except Forbidden as error:
            raise UserError(
                f"fleet {fleet}: its workload can't be looked at: {error}",
                hint=f"the controller's Role wants {kind.plural} (list, watch) and {kind.plural}/scale (get, update)",
            ) from error
        except ClusterError as error:  # that is no word about the Role; who follows the kind waits for it
            log.info("whether a workload may be looked at isn't known yet", fleet=fleet, error=str(error))

    async def _listed(self, api_version: str, fleet: str) -> list[Mapping[str, Any]]:
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            answer = await self._client.call(Request(path=path), seconds=_DISCOVERY_SECONDS)
        except Rejected as error:
            raise UserError(
                f"fleet {fleet}: the cluster doesn't serve {api_version}",
                hint="`kubectl api-versions` lists what it serves",
            ) from error
        return list(answer.get("resources") or ()) if isinstance(answer, dict) else []

    @staticmethod
    def _read(listed: list[Mapping[str, Any]], api_version: str, name: str) -> Kind | None:
        group, _, version = api_version.rpartition("/")
        names = {each.get("name") for each in listed}
        for each in listed:
            plural = str(each.get("name", ""))
            if each.get("kind") == name and "/" not in plural and f"{plural}/scale" in names:
                return Kind(
                    group=group,
                    version=version,
                    plural=plural,
                    name=name,
                    namespaced=bool(each.get("namespaced", True)),
                )
        return None
