"""EndpointSlices: who stands behind each Service.

A pod that is being removed stays among the endpoints until it is gone: not `ready`, `serving` as long as it is Ready, and
`terminating`. Traffic goes to those that are `ready`.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from scaler.cluster.kube.resources import POD
from tests.fakes.control_plane import pods as reading
from tests.fakes.control_plane.loops import Caches
from tests.fakes.control_plane.replica_sets import reference_to
from tests.fakes.kube_api.selectors import selects
from tests.fakes.kube_api.service_proxy import SERVICE_NAME
from tests.fakes.kube_calls import ENDPOINT_SLICE, SERVICE, Calls, Object, key_of

_MANAGED = "endpointslice.kubernetes.io/managed-by"
_MANAGER = "endpointslice-controller.k8s.io"
_EXPECTED_SECONDS = 5.0
_MOST = 100
"""Endpoints of one slice."""
Ports = tuple[tuple[str, int, str], ...]


def ports_of(service: Object, pod: Object) -> Ports:
    """Return name, number and protocol of a Service's ports on a pod; a named one that the pod lacks is left out. PURE."""
    spec = pod["spec"]
    containers = [
        *spec["containers"],
        *(each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"),
    ]
    named = {
        port["name"]: port["containerPort"]
        for each in containers
        for port in each.get("ports") or ()
        if port.get("name")
    }
    found = []
    for port in service["spec"].get("ports") or ():
        target = port.get("targetPort", port["port"])
        number = named.get(target) if isinstance(target, str) else target
        if number is not None:
            found.append((port.get("name", ""), int(number), port.get("protocol", "TCP")))
    return tuple(found)


def endpoint_of(pod: Object, *, anyhow: bool) -> dict[str, Any]:
    """Make the endpoint of a pod; `anyhow` publishes it whether it is ready or not. PURE."""
    terminating, ready = reading.is_terminating(pod), reading.is_ready(pod)
    metadata = pod["metadata"]
    return {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {
            "ready": anyhow or (ready and not terminating),
            "serving": ready,
            "terminating": terminating,
        },
        "nodeName": pod["spec"]["nodeName"],
        "targetRef": {
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }


def behind(service: Object, pods: Iterable[Object]) -> dict[Ports, list[dict[str, Any]]]:
    """Return the endpoints of a Service, by the ports on which they are reached. PURE."""
    selector = service["spec"].get("selector")
    if not selector:
        return {}
    anyhow = service["spec"].get("publishNotReadyAddresses", False)
    found: dict[Ports, list[dict[str, Any]]] = {}
    for pod in pods:
        over = reading.phase(pod) in {"Succeeded", "Failed"}
        if over or not pod["status"].get("podIP") or not pod["spec"].get("nodeName"):
            continue
        if selects({"matchLabels": selector}, pod["metadata"].get("labels") or {}):
            found.setdefault(ports_of(service, pod), []).append(endpoint_of(pod, anyhow=anyhow))
    return found


class EndpointSlices:
    """The controller."""

    reads = (SERVICE, POD, ENDPOINT_SLICE)

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], tuple[frozenset[str], float]] = {}

    async def sync(self, caches: Caches, calls: Calls) -> float | None:
        """See `Controller.sync`."""
        slices: dict[tuple[str, str], list[Object]] = {}
        for each in caches.all(ENDPOINT_SLICE):
            labels = each["metadata"].get("labels") or {}
            if labels.get(_MANAGED) == _MANAGER:
                key = each["metadata"]["namespace"], labels.get(SERVICE_NAME, "")
                slices.setdefault(key, []).append(each)
        for service in caches.all(SERVICE):
            key = key_of(service)
            held = slices.get(key, [])
            if service["spec"].get("selector") and self._caught_up(key, held):
                wanted = behind(service, caches.all(POD, key[0])) or {_ports_without_pods(service): []}
                made = await _bring_about(service, wanted, held, calls)
                self._made[key] = made, time.monotonic()
        return None

    def _caught_up(self, key: tuple[str, str], held: Sequence[Object]) -> bool:
        """Whether the cache shows what was made here last; what it never shows was removed at once."""
        made, at = self._made.get(key, (frozenset(), 0.0))
        shown = {each["metadata"]["name"] for each in held}
        return made <= shown or time.monotonic() - at > _EXPECTED_SECONDS


def _ports_without_pods(service: Object) -> Ports:
    ports = service["spec"].get("ports") or ()
    return tuple(
        (port.get("name", ""), int(target), port.get("protocol", "TCP"))
        for port in ports
        if isinstance(target := port.get("targetPort", port["port"]), int)
    )


async def _bring_about(
    service: Object,
    wanted: Mapping[Ports, Sequence[dict[str, Any]]],
    held: Sequence[Object],
    calls: Calls,
) -> frozenset[str]:
    """Write what is missing, and return the names of slices that were made."""
    namespace, name = key_of(service)
    made = set[str]()
    spare = sorted(held, key=lambda each: str(each["metadata"]["name"]))
    for ports, endpoints in wanted.items():
        rest = iter(endpoints)
        first = True
        while (part := list(islice(rest, _MOST))) or first:
            first = False
            body = {
                "endpoints": part,
                "ports": [{"name": n, "port": number, "protocol": kind} for n, number, kind in ports],
            }
            if not spare:
                new = await calls.create(ENDPOINT_SLICE, namespace, {**_head(service, name), **body})
                made.add(new["metadata"]["name"])
                continue
            there = spare.pop(0)
            if _text(there) != _text(body):
                await calls.merge(ENDPOINT_SLICE, *key_of(there), body)
    for each in spare:
        await calls.delete(ENDPOINT_SLICE, *key_of(each), uid=each["metadata"]["uid"])
    return frozenset(made)


def _text(body: Object) -> str:
    return json.dumps([body.get("endpoints"), body.get("ports")], sort_keys=True)


def _head(service: Object, name: str) -> dict[str, Any]:
    return {
        "metadata": {
            "generateName": f"{name}-",
            "labels": {SERVICE_NAME: name, _MANAGED: _MANAGER},
            "ownerReferences": [reference_to(service, "v1", "Service")],
        },
        "addressType": "IPv4",
    }
