"""Taints of single GPUs, where the cluster hands them out by DRA: which device a GPU is, and the objects that taint it.

A `DeviceTaintRule` has one taint for the devices that its selector finds; ours names one device each, and bears our label. The API has
changed its version with each step of its growing up, and may be switched off, so the server is asked which one it has.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog

from scaler.cluster.kube import events
from scaler.cluster.kube.client import MERGE, Request
from scaler.cluster.kube.errors import Forbidden, Rejected, Withheld
from scaler.cluster.kube.lanes import Lane, loop_time
from scaler.cluster.kube.resources import NODE, Kind
from scaler.cluster.kube.seats import HOUSEKEEPING_SECONDS
from scaler.cluster.kube.views import Json
from scaler.cluster.kube.writing import MANAGER, Writing, patch
from scaler.cluster.node_reports import NodeReports
from scaler.errors import ClusterError, Conflict, NotFound
from warmpool.nodehealth.breaker import BreakerLimits, BreakerState
from warmpool.nodehealth.device_marks import (
    GPU_LABEL,
    Device,
    DeviceMark,
    DevicePlan,
    Gpus,
    Standing,
    bad_gpus,
    plan_device_marks,
    seeded,
)
from warmpool.nodehealth.marks import EFFECT, OWNER_ANNOTATION, TAINT_KEY
from warmpool.nodehealth.verdicts import NodeVerdict

log = structlog.get_logger(__name__)

GROUP: Final = "resource.k8s.io"
_RULES, _SLICES = "devicetaintrules", "resourceslices"
_VERSIONS: Final = ("v1", "v1beta2", "v1beta1", "v1alpha3")
"""The newest first; 1.33 to 1.35 have taint rules in v1alpha3, 1.36 in v1beta2."""
_KNOWN_SECONDS: Final = 600.0
"""For how long an answer about versions holds."""
_LOOK_SECONDS: Final = 5.0
_COALESCE_SECONDS: Final = 0.5
"""Between two looks: each reads all rules, and every report of a node asks for one."""
_NAMES_SECONDS: Final = 60.0
"""How old the names of devices may be that marks are to be set on, or are on: a driver that starts anew gives others."""
_NAMES_SOONEST_SECONDS: Final = 5.0
_PAGE: Final = "500"
_NAMELESS: Final = (
    "DRA doesn't hand it out, so a seat on it is a place-holder, and nothing else keeps others from it"
)
_HELD_BACK: Final = "too many GPUs were within the breaker's window"
_UUID: Final = "uuid"


class DeviceTaints:
    """Reads and writes them.

    Args:
        writing: sends the writes.
        lane: the lane that they take.
    """

    def __init__(self, writing: Writing, lane: Lane) -> None:
        self._writing = writing
        self._lane = lane
        self._kinds: Mapping[str, Kind] = {}
        self._asked_at = float("-inf")

    async def there(self) -> bool:
        """Whether the cluster has devices and rules that taint them.

        Raises:
            ClusterError: the server can't be asked now.
        """
        if loop_time() - self._asked_at > _KNOWN_SECONDS:
            self._kinds = await self._discovered()
            self._asked_at = loop_time()
        return self._kinds.keys() == {_RULES, _SLICES}

    async def devices(self) -> Mapping[str, Device]:
        """Return what DRA calls each GPU, by UUID.

        Raises:
            ClusterError: they can't be read now.
        """
        return {
            uuid: device
            for body in await self._all(self._kinds[_SLICES], {})
            for uuid, device in devices_in(body).items()
        }

    async def ours(self) -> Mapping[str, DeviceMark]:
        """Return our marks, by their GPU's UUID; raises as `devices` does."""
        found = [mark_in(body) for body in await self._all(self._kinds[_RULES], {"labelSelector": GPU_LABEL})]
        return {mark.gpu: mark for mark in found if mark is not None}

    async def put(self, mark: DeviceMark, before: DeviceMark | None) -> None:
        """Set a mark, in place of another of the same GPU where there is one.

        Raises:
            Conflict: there is an object of its name that isn't ours.
            ClusterError: it can't be written now.
        """
        kind = self._kinds[_RULES]
        body = rule(kind, mark)
        if before is None:
            request = Request(
                method="POST", path=kind.collection(), body=body, query={"fieldManager": MANAGER}
            )
        else:
            request = patch(kind.path("", mark.name), body, MERGE)
        await self._send(request)

    async def remove(self, mark: DeviceMark) -> None:
        """Take a mark away; idempotent.

        Raises:
            ClusterError: it can't be written now.
        """
        with suppress(NotFound):
            await self._send(Request(method="DELETE", path=self._kinds[_RULES].path("", mark.name)))

    async def _send(self, request: Request) -> None:
        await self._writing.send(self._lane, request, seconds=HOUSEKEEPING_SECONDS)

    async def _discovered(self) -> Mapping[str, Kind]:
        found: dict[str, Kind] = {}
        for version in _VERSIONS:
            try:
                listed: Any = await self._read(f"/apis/{GROUP}/{version}", {})
            except Rejected:  # it doesn't serve this version
                continue
            for each in listed.get("resources") or ():
                if each["name"] in {_RULES, _SLICES}:
                    kind = Kind(
                        group=GROUP,
                        version=version,
                        plural=each["name"],
                        name=each["kind"],
                        namespaced=False,
                    )
                    found.setdefault(kind.plural, kind)
        return found

    async def _all(self, kind: Kind, query: Mapping[str, str]) -> list[Json]:
        found: list[Json] = []
        asked = {**query, "limit": _PAGE}
        while True:
            page: Any = await self._read(kind.collection(), asked)
            found += page.get("items") or ()
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return found
            asked["continue"] = following

    async def _read(self, path: str, query: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON is what it is
        return await self._writing.read(Request(path=path, query=query), seconds=HOUSEKEEPING_SECONDS)


# ---------------------------------------------------------------- objects


def devices_in(body: Json) -> Mapping[str, Device]:
    """Return the GPUs of a ResourceSlice, by UUID: devices that tell one, whoever's driver it is."""
    spec: Any = body["spec"]
    found: dict[str, Device] = {}
    for each in spec.get("devices") or ():
        attributes = (each.get("basic") or each).get("attributes") or {}
        told = attributes.get(_UUID) or attributes.get(f"{spec['driver']}/{_UUID}") or {}
        if uuid := told.get("string"):
            device = Device(driver=spec["driver"], pool=spec["pool"]["name"], name=each["name"])
            found[str(uuid)] = device
    return found


def mark_in(body: Json) -> DeviceMark | None:
    """Read a rule; None where it isn't one that we have written."""
    try:
        metadata: Any = body["metadata"]
        spec: Any = body["spec"]
        selector, taint = spec["deviceSelector"], spec["taint"]
        if taint["key"] != TAINT_KEY:
            return None
        mark = DeviceMark(
            gpu=metadata["annotations"][GPU_LABEL],
            device=Device(driver=selector["driver"], pool=selector["pool"], name=selector["device"]),
            value=taint.get("value", ""),
            annotation=metadata["annotations"][OWNER_ANNOTATION],
        )
    except (KeyError, TypeError):
        return None
    return mark if metadata["name"] == mark.name else None


def rule(kind: Kind, mark: DeviceMark) -> Json:
    """Return the object that is a mark."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {
            "name": mark.name,
            "labels": {GPU_LABEL: mark.gpu},
            "annotations": {GPU_LABEL: mark.gpu, OWNER_ANNOTATION: mark.annotation},
        },
        "spec": {
            "deviceSelector": {
                "driver": mark.device.driver,
                "pool": mark.device.pool,
                "device": mark.device.name,
            },
            "taint": {"key": TAINT_KEY, "value": mark.value, "effect": EFFECT},
        },
    }


# ---------------------------------------------------------------- the leader's loop


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePost:
    """What marking devices works with.

    Attributes:
        taints: reads and writes them.
        reports: what is said of nodes.
        spared: which of some nodes keep their other GPUs when one is Bad.
        limits: what the breaker allows at present.
        writes: whether anything at all may be written.
        tell: takes Events.
        record: takes what was done, for the audit trail.
        fence: takes the UUIDs of GPUs from which marks keep the scheduler.
        wall: Unix seconds.
        clock: monotonic seconds.
    """

    taints: DeviceTaints
    reports: NodeReports
    spared: Callable[[Collection[str]], Collection[str]]
    limits: Callable[[], BreakerLimits]
    writes: Callable[[], bool]
    tell: Callable[[events.Event], None]
    record: Callable[..., None]
    fence: Callable[[Collection[str]], None]
    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = loop_time


class DeviceMarking:
    """Marks devices; `run` inside the leader's TaskGroup.

    Args:
        post: what it works with.

    Attributes:
        plan: what was last wanted; None where the cluster has no devices, or before a leader's first look.
        fenced: UUIDs of GPUs that our marks keep the scheduler from.
    """

    def __init__(self, post: DevicePost) -> None:
        self._post = post
        self._changed = asyncio.Event()
        self._state: BreakerState | None = None
        self._complaint = ""
        self._devices: Mapping[str, Device] = {}
        self._devices_at = float("-inf")
        self._lives: Mapping[str, tuple[str, int]] = {}
        self._said: Mapping[str, str] = {}
        self.plan: DevicePlan | None = None
        self.fenced: frozenset[str] = frozenset()

    def changed(self) -> None:
        """Look again soon."""
        self._changed.set()

    def standing(self, uuid: str) -> Standing | None:
        """Return how a GPU stands; None for one that isn't to be excluded by itself, as far as is known."""
        if uuid in self.fenced:
            return Standing.EXCLUDED
        if self.plan is None:
            return None
        if uuid in self.plan.admission.waiting:
            return Standing.WAITING
        return Standing.NAMELESS if uuid in self.plan.nameless else None

    async def run(self) -> None:
        """Mark until cancelled. What was excluded lately, by whichever leader, counts for the breaker."""
        self.plan, self._state, self._said, self._devices_at = None, None, {}, float("-inf")
        while True:
            self._changed.clear()
            try:
                await self.look()
            except Withheld:
                pass
            except ClusterError as error:
                self._complain(str(error) or type(error).__name__)
            self._post.fence(self.fenced)
            await asyncio.sleep(_COALESCE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()

    async def look(self) -> None:
        """Look at all GPUs of nodes that are to keep their others, and write what is to be written.

        Raises:
            ClusterError: something can't be read or written now; the next look tries again.
        """
        post = self._post
        if not await post.taints.there():
            self.plan, self.fenced = None, frozenset()
            return
        verdicts = post.reports.verdicts
        spared = set(post.spared(verdicts.keys()))
        marks, now = await post.taints.ours(), post.wall()
        devices = await self._named(verdicts, bad_gpus(verdicts, spared).keys() | marks.keys())
        gpus = Gpus(verdicts=verdicts, spared=spared, devices=devices, marks=marks)
        state = seeded(marks, now) if self._state is None else self._state
        self.plan, self._state = plan_device_marks(gpus, state, post.limits(), now)
        self.fenced = frozenset(marks)
        self._tell_of_others(self.plan, verdicts)
        if post.writes():
            await self._carry_out(self.plan, marks)

    async def _named(
        self, verdicts: Mapping[str, NodeVerdict], wanted: Collection[str]
    ) -> Mapping[str, Device]:
        """Return what DRA calls GPUs.

        They are read at first, and then while a name is needed: every minute, and soon after a node of which one is needed has
        booted or lists more GPUs or fewer.

        Args:
            verdicts: what is said of nodes.
            wanted: UUIDs of GPUs whose names are needed.
        """
        age = self._post.clock() - self._devices_at
        lives = {
            name: (node.boot, node.listed)
            for name, node in verdicts.items()
            if any(gpu.uuid in wanted for gpu in node.gpus)
        }
        anew = any(self._lives.get(name, life) != life for name, life in lives.items())
        due = _NAMES_SOONEST_SECONDS if anew else _NAMES_SECONDS
        if age == float("inf") or (wanted and age >= due):
            self._devices, self._devices_at = await self._post.taints.devices(), self._post.clock()
            self._lives = lives
        self._lives = {**lives, **self._lives}
        return self._devices

    def _tell_of_others(self, plan: DevicePlan, verdicts: Mapping[str, NodeVerdict]) -> None:
        """Tell once of each Bad GPU that isn't kept from new pods: DRA doesn't hand it out, or the breaker holds it back."""
        said = dict.fromkeys(plan.nameless, _NAMELESS) | dict.fromkeys(plan.admission.waiting, _HELD_BACK)
        nodes = {gpu.uuid: name for name, node in verdicts.items() for gpu in node.gpus}
        for uuid, why in said.items():
            if self._said.get(uuid) != why:
                log.warning("gpu", gpu=uuid, node=nodes[uuid], act="Wait", why=why)
                self._post.record("gpu", node=nodes[uuid], gpu=uuid, act="Wait", dry=False, why=why)
                about = events.Subject.of(NODE, "", nodes[uuid])
                self._post.tell(events.not_excluded(about, f"{uuid} is Bad and isn't excluded: {why}"))
        self._said = said

    async def _carry_out(self, plan: DevicePlan, there: Mapping[str, DeviceMark]) -> None:
        taints, fenced = self._post.taints, set(there)
        for mark in plan.unmarks:
            if await self._is_done(taints.remove(mark)):
                fenced.discard(mark.gpu)
                self._say("Recover", mark)
        for mark in plan.marks:
            if await self._is_done(taints.put(mark, there.get(mark.gpu))):
                fenced.add(mark.gpu)
                self._say("Exclude", mark)
        self.fenced = frozenset(fenced)

    async def _is_done(self, write: Coroutine[Any, Any, None]) -> bool:
        """Write one mark. One that is refused keeps none of the others; somebody else's object of its name stays."""
        try:
            await write
        except Withheld:
            raise
        except (Conflict, Forbidden, Rejected) as error:
            self._complain(str(error))
            return False
        return True

    def _say(self, act: str, mark: DeviceMark) -> None:
        why = f"{mark.gpu} ({mark.value})"
        log.warning("gpu", gpu=mark.gpu, device=mark.device.name, act=act, why=mark.value)
        self._post.record("gpu", node=mark.device.pool, gpu=mark.gpu, act=act, dry=False, why=mark.annotation)
        about = events.Subject.of(NODE, "", mark.device.pool)
        self._post.tell(
            events.readmitted(about, f"{why} is no longer excluded")
            if act == "Recover"
            else events.quarantined(about, f"{why} alone is excluded")
        )

    def _complain(self, why: str) -> None:
        if why != self._complaint:
            self._complaint = why
            log.warning("a GPU can't be marked", error=why)
