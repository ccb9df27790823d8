"""StatefulSets: pods with numbers for names, each of which is there once at most."""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from scaler.cluster.kube.errors import AlreadyExists
from scaler.cluster.kube.resources import POD
from scaler.errors import NotFound
from tests.fakes.control_plane import pods as reading
from tests.fakes.control_plane.deployments import template_hash
from tests.fakes.control_plane.loops import Caches
from tests.fakes.control_plane.replica_sets import pod_of, reference_to
from tests.fakes.kube_calls import STATEFUL_SET, Body, Calls, Object, controller_of, key_of

REVISION = "controller-revision-hash"


def ordinal(pod: Object) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def member_of(body: Object, number: int) -> Body:
    """Make the pod of a number."""
    name = f"{body['metadata']['name']}-{number}"
    made = pod_of(body)
    del made["metadata"]["generateName"]
    labels = {
        **made["metadata"]["labels"],
        REVISION: template_hash(body["spec"]["template"]),
        "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": str(number),
    }
    metadata = {
        **made["metadata"],
        "name": name,
        "labels": labels,
        "ownerReferences": [reference_to(body, "apps/v1", "StatefulSet")],
    }
    spec = {**made["spec"], "hostname": name, "subdomain": body["spec"].get("serviceName", "")}
    return {"metadata": metadata, "spec": spec}


def next_step(body: Object, pods: Sequence[Object], now: float) -> tuple[list[int], list[Object]]:
    """Return which numbers to make and which pods to delete now. PURE.

    In order unless `podManagementPolicy` is Parallel; pods of an older template go one at a time, the highest number first, each
    once all others are available.
    """
    spec = body["spec"]
    wanted, least = spec.get("replicas", 1), spec.get("minReadySeconds", 0)
    held = {ordinal(pod): pod for pod in pods}
    missing = [number for number in range(wanted) if number not in held]
    surplus = sorted((pod for number, pod in held.items() if number >= wanted), key=ordinal, reverse=True)
    unsettled = [
        number
        for number, pod in sorted(held.items())
        if reading.is_terminating(pod) or reading.available_in(pod, least, now) > 0
    ]
    leaving = [pod for pod in surplus if not reading.is_terminating(pod)]
    if spec.get("podManagementPolicy") != "Parallel":
        blocked = [number for number in unsettled if missing and number < missing[0]]
        missing, leaving = ([] if blocked else missing[:1]), ([] if unsettled or missing else leaving[:1])
    if missing or surplus or (spec.get("updateStrategy") or {}).get("type") == "OnDelete":
        return missing, leaving
    digest = template_hash(spec["template"])
    old = [pod for pod in held.values() if pod["metadata"]["labels"].get(REVISION) != digest]
    if not old:
        return [], []
    sick = [pod for pod in old if ordinal(pod) in unsettled and not reading.is_terminating(pod)]
    if sick:
        return [], [max(sick, key=ordinal)]
    return [], ([] if unsettled else [max(old, key=ordinal)])


class StatefulSets:
    """The controller."""

    reads = (STATEFUL_SET, POD)

    async def sync(self, caches: Caches, calls: Calls) -> float | None:
        """See `Controller.sync`."""
        by_owner: dict[str, list[Object]] = defaultdict(list)
        for pod in caches.all(POD):
            if (owner := controller_of(pod)) is not None:
                by_owner[owner["uid"]].append(pod)
        for body in caches.all(STATEFUL_SET):
            owned = by_owner[body["metadata"]["uid"]]
            if reading.is_terminating(body):
                continue
            made, deleted = next_step(body, owned, time.time())
            for number in made:
                try:
                    await calls.create(POD, body["metadata"]["namespace"], member_of(body, number))
                except AlreadyExists:
                    continue  # the cache doesn't show it yet, or an earlier one is still on its way out
            for pod in deleted:
                try:
                    await calls.delete(POD, *key_of(pod), uid=pod["metadata"]["uid"])
                except NotFound:
                    continue
            await _tell(body, owned, calls)
        return None


async def _tell(body: Object, owned: Sequence[Object], calls: Calls) -> None:
    digest = template_hash(body["spec"]["template"])
    new = [pod for pod in owned if pod["metadata"]["labels"].get(REVISION) == digest]
    wanted: dict[str, Any] = {
        "replicas": len(owned),
        "readyReplicas": sum(map(reading.is_ready, owned)),
        "availableReplicas": sum(map(reading.is_ready, owned)),
        "currentReplicas": len(new),
        "updatedReplicas": len(new),
        "updateRevision": digest,
        "currentRevision": digest if len(new) == len(owned) else "",
        "observedGeneration": body["metadata"]["generation"],
    }
    if {**wanted, **(body.get("status") or {})} != wanted or not body.get("status"):
        await calls.merge(STATEFUL_SET, *key_of(body), {"status": wanted}, "status")
