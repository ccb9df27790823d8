"""A cluster as a source of answers: pods and nodes from its API server, the rest from its controller through the same server.

A controller that isn't reached leaves what pods tell, and a sentence on stderr. Orders have no such way around: they go
through the controller, because whoever wrote to a pod behind its back would race it.
"""

import asyncio
import math
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar

import structlog

from scaler.cli import cluster_items
from scaler.cli.client import ORDERS, REFRESH_SECONDS, Items, Json, Show
from scaler.cli.cluster_items import Objects, Told
from scaler.cli.failures import Failed
from scaler.cli.human import age
from scaler.cli.kube_options import InCluster
from scaler.cli.output import note
from scaler.cluster.kube.access import Access, AccessOptions, find_access
from scaler.cluster.kube.errors import Forbidden, Rejected
from scaler.cluster.kube.reflector import Reflector
from scaler.cluster.kube.resources import DEPLOYMENT, NODE, POD, STATEFUL_SET, Collection
from scaler.doctor.asking import (
    CONTROLLER_NAMESPACE,
    Answer,
    Asker,
    NoController,
    Question,
)
from scaler.errors import ClusterError
from warmpool.seats import FLEET_LABEL

TOKEN_HEADER: Final = "Emberpool-Token"  # noqa: S105 - a header's name
"""Shows the controller a token where `Authorization` doesn't get through: the API server's proxy takes that one away."""
_SEATS: Final[Mapping[str, str]] = MappingProxyType({"labelSelector": FLEET_LABEL})
_TOLD: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"fleets": ("fleets", "seats"), "seats": ("seats",), "policies": ("policies",)}
)
"""What the controller is asked for, for each kind."""
_TOGETHER_SECONDS: Final = 0.1
"""Changes that come so soon after one another are shown at once."""
_QUIET_SECONDS: Final = 6.0
"""Longer than a reflector waits before it tries again."""
_T = TypeVar("_T")


class ClusterSource:
    """Answers from one cluster.

    Args:
        target: which cluster, and where in it.
    """

    def __init__(self, target: InCluster) -> None:
        self._target = target
        self._complaint = ""

    @property
    def several_namespaces(self) -> bool:
        """See `Source.several_namespaces`."""
        return self._target.all_namespaces

    def items(self, plural: str) -> Items:
        """See `Source.items`; the cluster knows `nodes` as well."""
        return self._run(lambda look: look.items(plural))

    def ask(self, path: str, namespace: str = "") -> Json:
        """See `Source.ask`."""
        return self._run(lambda look: look.told(path, namespace))

    def follow(self, plural: str, show: Show) -> NoReturn:
        """See `Source.follow`; pods are watched, and everything else is asked for each second."""
        self._run(lambda look: look.follow(plural, show))
        raise AssertionError("a watch ends by being interrupted alone")

    def order(self, body: Json, token: str, path: str = ORDERS) -> tuple[int, Any]:
        """See `Source.order`."""
        return self._run(lambda look: look.order(body, path), {TOKEN_HEADER: token} if token else {})

    def _run(
        self, asked: Callable[["_Look"], Coroutine[Any, Any, _T]], headers: Mapping[str, str] | None = None
    ) -> _T:
        return asyncio.run(self._asked(asked, headers or {}))

    async def _asked(
        self, asked: Callable[["_Look"], Coroutine[Any, Any, _T]], headers: Mapping[str, str]
    ) -> _T:
        target = self._target
        access = await find_access(access_options(target), os.environ)
        with told_to_people(access):
            async with Asker(access, headers) as asker:
                return await asked(_Look(asker, _Scope.of(target, access), self._complain))

    def _complain(self, complaint: str) -> None:
        """Say once what is missing, and again when it is something else; nothing when all is there again."""
        if complaint and complaint != self._complaint:
            note(complaint)
        self._complaint = complaint


def access_options(target: InCluster) -> AccessOptions:
    """Return how a cluster's API server is found."""
    return AccessOptions(kubeconfig=target.kubeconfig, context=target.context, namespace=target.namespace)


def controller_namespaces(target: InCluster, namespace: str) -> tuple[str, ...]:
    """Return where the controller's Service may be, in the order in which it is looked for."""
    return (
        (target.controller_namespace,) if target.controller_namespace else (namespace, CONTROLLER_NAMESPACE)
    )


@contextmanager
def told_to_people(access: Access) -> Iterator[None]:
    """Turn what went wrong on the way to the server into what a person can do about it.

    Raises:
        Failed: something did.
    """
    try:
        yield
    except NoController as error:
        raise Failed(
            f"the cluster's controller isn't reached: {error}",
            hint="--controller-namespace says where it is; commands that take --controller URL ask it without the API server",
        ) from error
    except Forbidden as error:
        raise Failed(
            str(error), hint=f"asked with {access.source}; `kubectl auth can-i --list` shows what it may do"
        ) from error
    except ClusterError as error:
        raise Failed(
            f"the API server at {access.server} can't be read: {error}",
            hint=f"asked with {access.source}; --context names another cluster, --controller URL a controller without one",
        ) from error


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where in a cluster to look.

    Attributes:
        namespace: where fleets and policies are looked for; empty for all.
        on_nodes: whose seats are shown with nodes, which belong to nobody; empty for all.
        target: which cluster was named.
        usual: where things are looked for unless somebody says otherwise.
    """

    namespace: str
    on_nodes: str
    target: InCluster
    usual: str

    @classmethod
    def of(cls, target: InCluster, access: Access) -> "_Scope":
        return cls(
            namespace="" if target.all_namespaces else access.namespace,
            on_nodes=target.namespace,
            target=target,
            usual=access.namespace,
        )

    def controller(self, namespace: str = "") -> tuple[str, ...]:
        """Return where the controller of a namespace may be."""
        return controller_namespaces(self.target, namespace or self.usual)

    def pods(self, plural: str) -> Collection:
        namespace = self.on_nodes if plural == "nodes" else self.namespace
        return Collection(kind=POD, namespace=namespace, selectors=_SEATS)


class _Look:
    """Asks one open connection.

    Args:
        asker: it.
        scope: where to look.
        complain: is told why the controller isn't reached; an empty text when it is.
    """

    def __init__(self, asker: Asker, scope: _Scope, complain: Callable[[str], None]) -> None:
        self._asker = asker
        self._scope = scope
        self._complain = complain

    async def items(self, plural: str) -> Items:
        return await self._items(plural, await self._asker.listed(self._scope.pods(plural)))

    async def _items(self, plural: str, pods: list[Json]) -> Items:
        """Put together what pods say and what else there is to be asked for."""
        if plural == "nodes":
            nodes = await self._asker.listed(Collection(kind=NODE))
            return cluster_items.nodes(Objects(pods=pods, nodes=nodes))
        told = await self._told(_TOLD[plural], pods)
        if plural == "seats":
            return cluster_items.seats(Objects(pods=pods), told)
        if plural == "policies":
            return cluster_items.policies(Objects(pods=pods), told)
        return cluster_items.fleets(Objects(pods=pods, workloads=await self._workloads()), told)

    async def _workloads(self) -> list[Json]:
        """Return what fleets may be made of; nothing of what can't be read, for fleets are told by their pods already."""
        found: list[Json] = []
        for kind in (DEPLOYMENT, STATEFUL_SET):
            try:
                found += await self._asker.listed(Collection(kind=kind, namespace=self._scope.namespace))
            except (Forbidden, Rejected):
                continue
        return found

    async def _told(self, plurals: tuple[str, ...], pods: list[Json]) -> Told:
        """Ask the controller of each namespace that is looked in: several installations may share a cluster."""
        told: dict[str, list[Json]] = {plural: [] for plural in plurals}
        namespaces = {str(each["metadata"].get("namespace", "")) for each in pods}
        asked, complaint = set[str](), ""
        for namespace in [self._scope.namespace] if self._scope.namespace else sorted(namespaces) or [""]:
            try:
                answers = [await self._answer(f"/v1/{plural}", namespace) for plural in plurals]
            except NoController as error:
                complaint = complaint or str(error)
                continue
            if answers[0].namespace in asked:
                continue
            asked.add(answers[0].namespace)
            of = namespace if answers[0].namespace == namespace else ""
            for plural, answer in zip(plurals, answers, strict=True):
                items = answer.body.get("items")
                told[plural] += [
                    {"namespace": of, **each} if of else each
                    for each in (items if isinstance(items, list) else ())
                    if isinstance(each, dict) and self._here(each)
                ]
        what = "the controller isn't reached, so this is what pods tell alone: "
        self._complain(complaint and what + complaint)
        return Told(**told) if asked else Told()

    def _here(self, item: Json) -> bool:
        """Whether an object that the controller tells is of where we look; one that names no namespace may be."""
        namespace = self._scope.namespace
        return not namespace or item.get("namespace", namespace) == namespace

    async def _answer(self, path: str, namespace: str = "") -> Answer:
        """Return a namespace's controller's answer, whose body is a mapping.

        Raises:
            NoController: it doesn't answer, or not so.
        """
        answer = await self._asker.controller(Question(path=path), self._scope.controller(namespace))
        if answer.status != HTTPStatus.OK or not isinstance(answer.body, dict):
            raise NoController(f"{path} answers with status {answer.status}: {answer.refusal}")
        return answer

    async def told(self, path: str, namespace: str) -> Json:
        """Return what a namespace's controller answers.

        Raises:
            NoController: it doesn't, or not with a JSON object.
        """
        body: Json = (await self._answer(path, namespace)).body
        return body

    async def order(self, body: Json, path: str) -> tuple[int, Any]:
        """Give an order to the controller of the namespace that it is about."""
        question = Question(path=path, method="POST", body=body)
        where = self._scope.controller(str(body.get("namespace") or ""))
        answer = await self._asker.controller(question, where)
        return answer.status, answer.body

    async def follow(self, plural: str, show: Show) -> None:
        """Show again when a pod has changed, and each second what the controller says anew."""
        # what a reflector logs is shown in place of what it watches
        structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
        source = self._scope.pods(plural)
        first = await self._asker.listed(source)  # what is wrong at once is told at once
        reflector: Reflector[Json] = Reflector(self._asker, source, lambda body: body)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(reflector.run())
                await self._showing(plural, _Pods(reflector, first), show)
        except ExceptionGroup as group:  # one alone can come: nobody reads what is shown
            raise group.exceptions[0] from None

    async def _showing(self, plural: str, pods: "_Pods", show: Show) -> NoReturn:
        while True:
            try:
                shown: Items | Failed = pods.interrupted() or await self._items(plural, pods.current())
            except ClusterError as error:
                shown = Failed(str(error))
            show(shown)
            await pods.next_change()


class _Pods:
    """Pods that are watched.

    Args:
        reflector: what watches them.
        first: as they were listed before.
    """

    def __init__(self, reflector: Reflector[Json], first: list[Json]) -> None:
        self._reflector = reflector
        self._first = first
        self._changed = asyncio.Event()
        self._failures = 0
        self._until = -math.inf
        reflector.subscribe(self._changed.set)

    def current(self) -> list[Json]:
        """Return them as they are known."""
        return self._reflector.values() if self._reflector.synced else self._first

    def interrupted(self) -> Failed | None:
        """Say that the watch fails; None while it works, which shows by no failure for longer than it waits after one."""
        restarts, now = self._reflector.restarts, asyncio.get_running_loop().time()
        failures = restarts.total() - restarts["ended"]
        if failures > self._failures:
            self._failures, self._until = failures, now + _QUIET_SECONDS
        if now >= self._until:
            return None
        known = (
            f"is {age(self._reflector.age)} old" if self._reflector.synced else "is what was listed at first"
        )
        return Failed(f"watching is interrupted, and what is known {known}")

    async def next_change(self) -> None:
        """Wait for a change, and for those that come with it; for a second at most."""
        try:
            async with asyncio.timeout(REFRESH_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_TOGETHER_SECONDS)
        self._changed.clear()
