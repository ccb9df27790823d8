"""Looks at the ScaledObjects and HPAs of a namespace as `emberpool keda check` does, for as long as the controller runs.

A cluster without KEDA, or a Role that doesn't allow it, is said once and costs nothing more than a question now and then. What was
found is shown by every replica; the one that leads tells Events of it, once for each thing that is new.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Generic, TypeVar

import structlog
from aiohttp import web

from scaler.cluster.kube.client import KubeClient, Request
from scaler.cluster.kube.errors import Forbidden, Rejected
from scaler.cluster.kube.events import Event, Subject
from scaler.cluster.kube.reflector import Reflector
from scaler.cluster.kube.resources import Collection as Objects
from scaler.cluster.kube.resources import Kind
from scaler.cluster.kube.views import Json
from scaler.core.model import OneWay
from scaler.errors import ClusterError, NotFound
from scaler.keda import fleet_findings
from scaler.keda.findings import Intent, Severity
from scaler.keda.fleet_findings import FleetFindings, Placed, look
from scaler.keda.intent import fleet_among, intent_of, workloads_of
from scaler.keda.objects import Hpa, NotReadable, Pause, ScaledObject, read_hpa, read_scaled_object
from scaler.policy.compile import PolicySet
from scaler.policy.fleet import FleetMode, ResizedBy
from warmpool.seats import FleetName

log = structlog.get_logger(__name__)

SCALED_OBJECT: Final = Kind(
    group="keda.sh", version="v1alpha1", plural="scaledobjects", name=fleet_findings.SCALED_OBJECT
)
HPA: Final = Kind(
    group="autoscaling", version="v2", plural="horizontalpodautoscalers", name=fleet_findings.HPA
)
PROBE_SECONDS: Final = 300.0
"""How often a cluster is asked that had no such objects, or didn't let us see them."""
_ASK_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 15.0
"""How often everything is looked at though nothing has changed: sizes count, too."""
_COALESCE_SECONDS: Final = 0.5
"""KEDA writes the status of each ScaledObject that it polls."""
_TOLD: Final = frozenset({Severity.ERROR, Severity.WARNING})
"""What Events are told of."""
_MOST_LOGGED: Final = 10
"""Findings that are logged at once; `emberpool keda findings` has them all."""
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _Seen(Generic[_Value]):
    """An object, and what an Event about it names it by."""

    value: _Value | None
    uid: str


class _Optional(Generic[_Value]):
    """The objects of a kind that a cluster may not have, or not show.

    Args:
        client: reaches the server.
        source: which objects.
        read: makes a value of an object; raises NotReadable.
        changed: is called after each change.
    """

    def __init__(
        self,
        client: KubeClient,
        source: Objects,
        read: Callable[[object], _Value],
        changed: Callable[[], None],
    ) -> None:
        self._client = client
        self._source = source
        self._reflector: Reflector[_Seen[_Value]] = Reflector(client, source, self._seen)
        self._reflector.subscribe(changed)
        self._read = read
        self._said = False

    @property
    def known(self) -> bool:
        """Whether all of them have been seen."""
        return self._reflector.synced

    def values(self) -> list[_Value]:
        """Return those that can be read."""
        return [each.value for each in self._reflector.values() if each.value is not None]

    def uid(self, namespace: str, name: str) -> str:
        """Return an object's UID; empty where it isn't there."""
        found = self._reflector.get(f"{namespace}/{name}")
        return "" if found is None else found.uid

    def _seen(self, body: Json) -> _Seen[_Value]:
        uid = str(body["metadata"].get("uid", ""))
        try:
            # items of a list don't say their kind
            return _Seen(self._read({**body, "kind": self._source.kind.name}), uid)
        except (NotReadable, ValueError, TypeError):
            return _Seen(None, uid)

    async def run(self) -> None:
        """Follow them until cancelled, once the cluster has them and lets us."""
        while not await self._shown():  # noqa: ASYNC110 - the cluster tells nobody that it has a new kind
            await asyncio.sleep(PROBE_SECONDS)
        await self._reflector.run()

    async def _shown(self) -> bool:
        request = Request(path=self._source.path, query={"limit": "1"})
        while True:
            try:
                await self._client.call(request, seconds=_ASK_SECONDS)
            except (Forbidden, NotFound, Rejected) as error:
                if not self._said:
                    self._said = True
                    log.info("not looked at", what=str(self._source), why=str(error))
                return False
            except ClusterError:
                await asyncio.sleep(_ASK_SECONDS)
            else:
                return True


class KedaWatch:
    """Runs until cancelled.

    Args:
        client: reaches the server.
        namespace: where the fleets are.
        policies: the policies in force at first.
        replicas: returns what a fleet's workload is asked for; None where that isn't known.
        tell: takes Events; it drops them where another replica leads.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        policies: PolicySet,
        replicas: Callable[[FleetName], int | None],
        tell: Callable[[Event], None],
    ) -> None:
        self._namespace = namespace
        self._replicas = replicas
        self._tell = tell
        self._changed = asyncio.Event()
        self._scaled = _Optional(
            client,
            Objects(kind=SCALED_OBJECT, namespace=namespace),
            read_scaled_object,
            self._changed.set,
        )
        self._hpas = _Optional(client, Objects(kind=HPA, namespace=namespace), read_hpa, self._changed.set)
        self._found: dict[str, FleetFindings] = {}
        self._paused: Mapping[FleetName, OneWay | None] = {}
        self._looked: dict[str, tuple[Intent, fleet_findings.Objects]] = {}
        self._told: set[tuple[str, str, str, str]] = set()
        self.follow(policies)

    # ------------------------------------------------------------ what it knows

    @property
    def paused(self) -> Mapping[FleetName, OneWay | None]:
        """Fleets whose size is KEDA's to write and that people have stopped it for, and the direction that they left it, if any."""
        return self._paused

    def counts(self) -> Mapping[str, Mapping[Severity, int]]:
        """Return how many findings there are, per fleet that is looked at."""
        return {name: found.counts for name, found in self._found.items()}

    def conditions(self) -> Iterator[dict[str, str]]:
        """Yield what is to be known of fleets: the gravest that was found, and that people have stopped KEDA."""
        for name, found in sorted(self._found.items()):
            for sentence in found.paused:
                yield {"fleet": name, "type": "KedaPaused", "reason": "Annotated", "message": sentence}
            grave = [placed for placed in found.findings if placed.finding.severity in _TOLD]
            if grave:
                first = grave[0]
                more = f", and {len(grave) - 1} more" if len(grave) > 1 else ""
                yield {
                    "fleet": name,
                    "type": "KedaMisfit",
                    "reason": str(first.finding.code),
                    "message": f"{first.kind} {first.name}: {first.finding.message}{more}; see GET /v1/keda/findings",
                }

    def routes(self) -> list[web.RouteDef]:
        """Return the route that shows what was found."""
        return [web.get("/v1/keda/findings", self._shown)]

    async def _shown(self, _: web.Request) -> web.Response:
        looked = {SCALED_OBJECT.plural: self._scaled.known, HPA.plural: self._hpas.known}
        items = [
            {
                "fleet": name,
                "paused": list(found.paused),
                "findings": [_as_json(placed) for placed in found.findings],
            }
            for name, found in sorted(self._found.items())
        ]
        return web.json_response({"lookedAt": looked, "items": items})

    # ------------------------------------------------------------ looking

    def follow(self, policies: PolicySet) -> None:
        """Look for other policies from now on."""
        self._policies = policies
        self._workloads = workloads_of(policies)
        self._intents: dict[str, Intent] = {}
        self._changed.set()

    def lead(self) -> None:
        """Tell Events of everything that is so, as a leader that has just begun doesn't know what was told."""
        self._told.clear()
        self._changed.set()

    async def run(self) -> None:
        """Look at each change, and now and then, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scaled.run())
            tasks.create_task(self._hpas.run())
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._changed.wait()
                self._changed.clear()
                await self._look()
                await asyncio.sleep(_COALESCE_SECONDS)

    async def _look(self) -> None:
        """Look at every fleet, one at a time: a large set of policies is worked out in milliseconds each."""
        if not self._scaled.known and not self._hpas.known:
            self._found, self._paused = {}, {}
            return
        policies, objects, found = self._policies, self._objects(), dict[str, FleetFindings]()
        for name in map(str, policies.fleets):
            if name not in self._intents:
                self._intents[name] = intent_of(policies, name)
            found[name] = self._of(name, self._intents[name], objects[name])
            await asyncio.sleep(0)
            if self._policies is not policies:
                return  # others are in force by now, and are looked at next
        self._found = found
        self._paused = {
            FleetName(name): _left(each.pause)
            for name, each in found.items()
            if (each.pause.stopped or each.pause.scale_in or each.pause.scale_out) and self._by_keda(name)
        }
        self._tell_new()

    def _tell_new(self) -> None:
        present, logged = set(), 0
        for name, found in self._found.items():
            for placed in found.findings:
                finding = placed.finding
                key = (name, placed.name, str(finding.code), finding.path)  # the message may count seats
                present.add(key)
                if key in self._told or finding.severity not in _TOLD:
                    continue
                logged += 1
                if logged <= _MOST_LOGGED:
                    _log(placed)
                if not self._observed(name):
                    self._say(placed)
        if logged > _MOST_LOGGED:
            log.warning("KEDA's objects don't fit the fleets", more=logged - _MOST_LOGGED)
        self._told = present

    def _objects(self) -> Mapping[str, fleet_findings.Objects]:
        """Return what there is about each fleet."""
        scaled: dict[str, list[ScaledObject]] = {str(name): [] for name in self._policies.fleets}
        hpas: dict[str, list[Hpa]] = {str(name): [] for name in self._policies.fleets}
        for each in self._scaled.values():
            if (name := fleet_among(self._workloads, each)) in scaled:
                scaled[name].append(each)
        for hpa in self._hpas.values():
            if (name := self._workloads.get((hpa.namespace, hpa.target))) in hpas:
                hpas[name].append(hpa)
        complete = self._scaled.known
        return {
            name: fleet_findings.Objects(scaled=scaled[name], hpas=hpas[name], complete=complete)
            for name in scaled
        }

    def _of(self, fleet: str, intent: Intent, objects: fleet_findings.Objects) -> FleetFindings:
        """Look at one fleet, unless everything about it is as it was."""
        intent = replace(intent, running=self._replicas(FleetName(fleet)))
        known = self._found.get(fleet)
        if known is not None and self._looked.get(fleet) == (intent, objects):
            return known
        self._looked[fleet] = intent, objects
        return look(intent, objects)

    def _by_keda(self, fleet: str) -> bool:
        found = self._policies.fleets.get(FleetName(fleet))
        return found is not None and found.spec.resized_by is ResizedBy.KEDA

    def _observed(self, fleet: str) -> bool:
        found = self._policies.fleets.get(FleetName(fleet))
        return found is not None and found.spec.mode is FleetMode.OBSERVE

    def _say(self, placed: Placed) -> None:
        """Tell an Event, where there is an object to tell it of: a fleet is none of the cluster's."""
        finding = placed.finding
        if placed.kind == HPA.name:
            kind, uid = HPA, self._hpas.uid(self._namespace, placed.name)
        elif placed.kind == SCALED_OBJECT.name:
            kind, uid = SCALED_OBJECT, self._scaled.uid(self._namespace, placed.name)
        else:
            return
        note = f"{finding.path}: {finding.message}" + (f"; {finding.hint}" if finding.hint else "")
        self._tell(
            Event(
                subject=Subject.of(kind, self._namespace, placed.name, uid),
                action="Check",
                reason=str(finding.code),
                note=note,
                warning=True,
            )
        )


def _left(pause: Pause) -> OneWay | None:
    """Return the direction in which KEDA may still resize; None for neither."""
    if pause.stopped or pause.scale_in == pause.scale_out:
        return None
    return OneWay.UP if pause.scale_in else OneWay.DOWN


def _log(placed: Placed) -> None:
    log.warning(
        "KEDA's objects don't fit the fleet",
        object=f"{placed.kind}/{placed.name}",
        code=str(placed.finding.code),
        what=placed.finding.message,
    )


def _as_json(placed: Placed) -> dict[str, Any]:
    facts = {key: str(value) for key, value in asdict(placed.finding).items() if key != "object"}
    return {"object": placed.kind, "name": placed.name, **facts}
