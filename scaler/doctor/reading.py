"""Reading what checks look at: lists, access reviews, the server's clock, the controller. Nothing is written.

What can't be read for lack of a right, or isn't there, is said in the picture, and everything else is looked at all the same. Only
without pods there is nothing to look at.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from scaler.cluster.kube.client import Request
from scaler.cluster.kube.errors import Forbidden, Rejected
from scaler.cluster.kube.pools import KINDS as POOL_KINDS
from scaler.cluster.kube.resources import (
    DEPLOYMENT,
    LEASE,
    NODE,
    POD,
    SERVICE,
    STATEFUL_SET,
    Collection,
    Kind,
)
from scaler.doctor import rights, wishes
from scaler.doctor.asking import CONTROLLER_NAMESPACE, Asker, NoController, Question
from scaler.doctor.objects import Json, Object, at, listed, text
from scaler.doctor.picture import CONTROLLER_LABELS, Clock, Controller, Part, Picture, Right, Rights
from scaler.doctor.wishes import Wishes
from scaler.errors import ClusterError, NotFound
from warmpool.seats import FLEET_LABEL

_REVIEWS: Final = "/apis/authorization.k8s.io/v1"
_REVIEW_SECONDS: Final = 10.0
_AT_ONCE: Final = 8
"""Requests at once: a fresh look needs some fifty, and API servers limit what one person may ask for."""
_NODE_LEASES: Final = "kube-node-lease"
_BESIDE_CONTROLLER: Final = frozenset({Part.DEPLOYMENTS, Part.STATEFUL_SETS, Part.NETWORK_POLICIES})
"""What is read of the controller's namespace as well, where another one is looked at."""
_NO_SELECTORS: Final[Mapping[str, str]] = MappingProxyType({})


def _kind(group: str, version: str, plural: str, name: str, *, namespaced: bool = True) -> Kind:
    return Kind(group=group, version=version, plural=plural, name=name, namespaced=namespaced)


_KINDS: Final[Mapping[Part, tuple[Kind, ...]]] = MappingProxyType(
    {
        Part.DEPLOYMENTS: (DEPLOYMENT,),
        Part.STATEFUL_SETS: (STATEFUL_SET,),
        Part.NODES: (NODE,),
        Part.NODE_LEASES: (LEASE,),
        Part.SERVICES: (SERVICE,),
        Part.POOLS: POOL_KINDS,
        Part.BUDGETS: (_kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),),
        Part.HPAS: (_kind("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),),
        Part.SCALED_OBJECTS: (_kind("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject"),),
        Part.NETWORK_POLICIES: (_kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),),
        Part.NAMESPACES: (_kind("", "v1", "namespaces", "Namespace", namespaced=False),),
    }
)
"""Kinds of each part but the pods; those that the server doesn't have count as empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Where to look.

    Attributes:
        namespace: this one; empty for all.
        fallback: the one to look in when all may not be listed; empty where only all will do.
        controller: where the controller's Service may be.
        own: whether whoever asks is a service account in a pod, as the controller is.
    """

    namespace: str
    fallback: str = ""
    controller: tuple[str, ...] = (CONTROLLER_NAMESPACE,)
    own: bool = False


class Reader:
    """Reads one cluster.

    Args:
        asker: asks it.
        say: is told what is being read, for people who wait.
        wall: Unix seconds.
    """

    def __init__(
        self, asker: Asker, say: Callable[[str], None], wall: Callable[[], float] = time.time
    ) -> None:
        self._asker = asker
        self._say = say
        self._wall = wall
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def picture(self, scope: Scope, wanted: Wishes | None) -> Picture:
        """Read everything.

        Args:
            scope: where.
            wanted: what policy files want; None to ask the controller.

        Raises:
            ClusterError: pods can't be read.
        """
        self._say("reading pods")
        namespace, pods = await self._pods(scope)
        self._say("reading workloads, nodes, Services, budgets, scalers and network policies")
        picture = await self._parts(Picture(now=self._wall(), objects={Part.PODS: pods}), namespace)
        clock = await self._clock()
        self._say("asking the controller")
        picture = await self._told(picture, scope, wanted)
        self._say("asking what the controller may do")
        held = await self._rights(picture, scope)
        return replace(picture, clock=clock, rights=held)

    # ------------------------------------------------------------ objects

    async def _pods(self, scope: Scope) -> tuple[str, tuple[Object, ...]]:
        """Return the pods of fleets, and the namespace that they were looked for in."""
        try:
            return scope.namespace, await self._listed(POD, scope.namespace, {"labelSelector": FLEET_LABEL})
        except Forbidden:
            if scope.namespace or not scope.fallback:
                raise
        found = await self._listed(POD, scope.fallback, {"labelSelector": FLEET_LABEL})
        self._say(f"all namespaces may not be read, so this looks in {scope.fallback}")
        return scope.fallback, found

    async def _parts(self, picture: Picture, namespace: str) -> Picture:
        objects, unread, absent = dict(picture.objects), dict[Part, str](), set[Part]()
        read_at: dict[Part, float] = {}

        async def read(part: Part) -> None:
            try:
                objects[part] = await self._part(part, namespace)
                read_at[part] = self._wall()
            except (Rejected, NotFound):
                absent.add(part)
            except ClusterError as error:
                unread[part] = str(error)

        async with asyncio.TaskGroup() as tasks:
            for part in _KINDS:
                tasks.create_task(read(part))
        return replace(
            picture,
            now=read_at.get(Part.NODE_LEASES, picture.now),
            objects=objects,
            unread=unread,
            absent=frozenset(absent),
            namespaces=(namespace,) if namespace else (),
        )

    async def _part(self, part: Part, namespace: str) -> tuple[Object, ...]:
        """Return the objects of a part.

        Raises:
            Rejected: the server has none of its kinds.
            ClusterError: they can't be read.
        """
        where = _NODE_LEASES if part is Part.NODE_LEASES else namespace
        found: list[Object] = []
        missing: ClusterError | None = None
        served = False
        for kind in _KINDS[part]:
            try:
                found += await self._listed(kind, where)
                served = True
            except (Rejected, NotFound) as error:
                missing = error
        if missing is not None and not served:
            raise missing
        if where and part in _BESIDE_CONTROLLER:
            found += await self._of_controller(_KINDS[part][0], part, where)
        return tuple(found)

    async def _of_controller(self, kind: Kind, part: Part, namespace: str) -> tuple[Object, ...]:
        """Return what stands beside the controller, where that isn't looked at anyway; nothing if that may not be read."""
        if namespace == CONTROLLER_NAMESPACE:
            return ()
        labels = ",".join(f"{key}={value}" for key, value in CONTROLLER_LABELS.items())
        selectors = _NO_SELECTORS if part is Part.NETWORK_POLICIES else {"labelSelector": labels}
        try:
            return await self._listed(kind, CONTROLLER_NAMESPACE, selectors)
        except ClusterError:
            return ()

    async def _listed(
        self, kind: Kind, namespace: str, selectors: Mapping[str, str] = _NO_SELECTORS
    ) -> tuple[Object, ...]:
        source = Collection(kind=kind, namespace=namespace, selectors=selectors)
        async with self._turns:
            return tuple(Object(each) for each in await self._asker.listed(source))

    async def _clock(self) -> Clock | None:
        """Hold the server's clock against ours; its `Date` is cut to the second."""
        began = self._wall()
        try:
            answer = await self._asker.answer(Request(path="/version"))
            shown = parsedate_to_datetime(answer.date).timestamp()
        except (ClusterError, ValueError, TypeError):
            return None
        ended = self._wall()
        return Clock(ahead=shown + 0.5 - (began + ended) / 2, uncertain=0.5 + (ended - began) / 2)

    # ------------------------------------------------------------ the controller

    async def _told(self, picture: Picture, scope: Scope, wanted: Wishes | None) -> Picture:
        """Ask the controller of each namespace that has fleets: several installations may share a cluster."""
        namespaces = dict.fromkeys(each.namespace for each in picture.fleets) or {"": None}
        told: dict[str, dict[str, list[Json]]] = {}
        status: dict[str, Json] = {}
        missing = ""
        for namespace in namespaces:
            where = tuple(filter(None, (namespace, *scope.controller)))
            try:
                name, seats = await self._items("seats", where)
                if name in told:
                    continue
                told[name] = {"seats": seats}
                status[name] = await self._status(name)
                of = (
                    namespace if name == namespace else ""
                )  # one that stands elsewhere may know several namespaces
                for plural in ("fleets", "policies") if wanted is None else ():
                    _, items = await self._items(plural, (name,))
                    told[name][plural] = [{"namespace": of, **each} for each in items]
            except NoController as error:
                missing = str(error)
        if wanted is None and told and not missing:
            wanted = wishes.of_controller(_all_of("fleets", told), _all_of("policies", told))
        seats = _all_of("seats", told)
        found = Controller(missing=missing, seats=tuple(seats), status=status)
        return replace(picture, controller=found, wishes=wanted)

    async def _status(self, namespace: str) -> Json:
        """Return what a controller says of itself; nothing where it is of a version that doesn't."""
        answer = await self._asker.controller(Question(path="/v1/policies/status"), (namespace,))
        return answer.body if answer.status == HTTPStatus.OK and isinstance(answer.body, Mapping) else {}

    async def _items(self, plural: str, namespaces: tuple[str, ...]) -> tuple[str, list[Json]]:
        """Return where the controller is that answers, and all its objects of a kind."""
        answer = await self._asker.controller(Question(path=f"/v1/{plural}"), namespaces)
        if at(answer.body, "items") is None:
            raise NoController(f"/v1/{plural} answers with status {answer.status}: {answer.refusal}")
        items = [each for each in listed(answer.body, "items") if isinstance(each, Mapping)]
        return answer.namespace, items

    # ------------------------------------------------------------ rights

    async def _rights(self, picture: Picture, scope: Scope) -> tuple[Rights, ...]:
        """Ask, for each controller, about its account in the namespaces that it is responsible for."""
        fleets = {each.namespace for each in picture.fleets}
        responsible: dict[str, list[str]] = {}
        for namespace in sorted(fleets):
            found = picture.controller_of(namespace)
            responsible.setdefault(found.namespace if found else "", []).append(namespace)
        if not responsible:
            responsible = {each.namespace: [] for each in picture.controllers} or {"": []}
        return tuple(
            [
                await self._account(picture, scope, where, tuple(namespaces) or picture.namespaces)
                for where, namespaces in responsible.items()
            ]
        )

    async def _account(
        self, picture: Picture, scope: Scope, where: str, namespaces: tuple[str, ...]
    ) -> Rights:
        """Ask about the controller's account where it is known and may be asked about, else about whoever asks."""
        controller = picture.controller_of(where) if where else None
        everything = rights.needed(namespaces, where or next(iter(namespaces), CONTROLLER_NAMESPACE))
        wanted = [each for each in everything if each.resource.partition(".")[0] not in picture.absent]
        if controller is not None:
            name = text(controller.body, "spec", "template", "spec", "serviceAccountName") or "default"
            try:
                refused = await self._refused(wanted, _subject(controller.namespace, name))
                return Rights(account=f"{controller.namespace}/{name}", refused=refused)
            except ClusterError:
                pass  # others' rights may be asked about by administrators alone
        try:
            return Rights(refused=await self._refused(wanted, {}), own=scope.own)
        except ClusterError as error:
            return Rights(unknown=str(error))

    async def _refused(self, wanted: Iterable[Right], subject: Json) -> tuple[Right, ...]:
        """Return which rights somebody lacks.

        Raises:
            ClusterError: it may not be asked, or there is no answer.
        """
        first, *rest = wanted
        answers = {
            first: await self._allowed(first, subject)
        }  # whether it may be asked at all shows with one

        async def ask(right: Right) -> None:
            answers[right] = await self._allowed(right, subject)

        try:
            async with asyncio.TaskGroup() as tasks:
                for right in rest:
                    tasks.create_task(ask(right))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return tuple(right for right in (first, *rest) if not answers[right])

    async def _allowed(self, right: Right, subject: Json) -> bool:
        name = "SubjectAccessReview" if subject else "SelfSubjectAccessReview"
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": name,
            "spec": {**subject, "resourceAttributes": rights.attributes(right)},
        }
        request = Request(method="POST", path=f"{_REVIEWS}/{name.lower()}s", body=body)
        async with self._turns:
            answer = await self._asker.call(request, seconds=_REVIEW_SECONDS)
        return at(answer, "status", "allowed") is True


def _subject(namespace: str, name: str) -> Json:
    """Return a service account as a review names it, with the groups that it is in."""
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    return {"user": f"system:serviceaccount:{namespace}:{name}", "groups": groups}


def _all_of(plural: str, told: Mapping[str, Mapping[str, list[Json]]]) -> list[Json]:
    """Return the objects of a kind that all controllers have told."""
    return [each for answers in told.values() for each in answers.get(plural, ())]
