"""Deployments: a ReplicaSet for each template that there was, and a rollout from the old ones to the newest.

Follows what Kubernetes documents of Deployments: `maxSurge` rounded up and `maxUnavailable` down, pods that aren't available going
first, `pod-template-hash`, revisions, proportional scaling in the middle of a rollout, and the conditions of its progress.
"""

import hashlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaler.cluster.kube.errors import AlreadyExists
from scaler.cluster.kube.resources import DEPLOYMENT
from scaler.cluster.kube.times import seconds_text
from tests.fakes.control_plane import pods as reading
from tests.fakes.control_plane.loops import Caches
from tests.fakes.control_plane.replica_sets import reference_to
from tests.fakes.kube_calls import REPLICA_SET, Body, Calls, Object, controller_of, key_of

HASH = "pod-template-hash"
_REVISION = "deployment.kubernetes.io/revision"
_DESIRED = "deployment.kubernetes.io/desired-replicas"
_MOST = "deployment.kubernetes.io/max-replicas"
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def template_hash(template: Object) -> str:
    """Return ten letters that stand for a pod template."""
    number = int.from_bytes(hashlib.sha256(json.dumps(template, sort_keys=True).encode()).digest()[:8], "big")
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(10))


def without_hash(template: Object) -> Body:
    metadata = template.get("metadata") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != HASH}
    return {**template, "metadata": {**metadata, "labels": labels}}


@dataclass(frozen=True)
class Bounds:
    """How far a rollout may go from the number of pods asked for."""

    wanted: int
    surge: int
    unavailable: int

    @classmethod
    def of(cls, deployment: Object) -> "Bounds":
        spec, strategy = deployment["spec"], deployment["spec"].get("strategy") or {}
        rolling = strategy.get("rollingUpdate") or {}
        wanted = spec.get("replicas", 1)
        surge = reading.share(rolling.get("maxSurge", "25%"), wanted, up=True)
        unavailable = reading.share(rolling.get("maxUnavailable", "25%"), wanted, up=False)
        return cls(wanted, surge, max(unavailable, 1 if not surge else 0))

    @property
    def most(self) -> int:
        return self.wanted + self.surge if self.wanted else 0


def size(replica_set: Object) -> int:
    return int(replica_set["spec"].get("replicas", 1))


def available(replica_set: Object) -> int:
    return int((replica_set.get("status") or {}).get("availableReplicas", 0))


def new_size(new: Object, old: Sequence[Object], bounds: Bounds) -> int:
    """How large the newest set becomes in the next step of a rollout. PURE."""
    if size(new) >= bounds.wanted:
        return bounds.wanted
    room = bounds.most - size(new) - sum(map(size, old))
    return size(new) + max(0, min(room, bounds.wanted - size(new)))


def old_sizes(new: Object, old: Sequence[Object], bounds: Bounds) -> list[int]:
    """How large each older set becomes in the next step, the oldest first. PURE."""
    sizes = [size(each) for each in old]
    least = bounds.wanted - bounds.unavailable
    missing = size(new) - available(new)
    may_go = sum(sizes) + size(new) - least - missing
    for place, each in enumerate(old):  # those that serve nobody
        gone = max(0, min(may_go, sizes[place] - available(each)))
        sizes[place] -= gone
        may_go -= gone
    left = available(new) + sum(min(kept, available(each)) for kept, each in zip(sizes, old, strict=True))
    may_go = max(0, min(may_go, left - least))
    for place, kept in enumerate(sizes):
        gone = min(may_go, kept)
        sizes[place] -= gone
        may_go -= gone
    return sizes


def proportional(sets: Sequence[Object], bounds: Bounds) -> list[int]:
    """Share out a new size among the sets of an unfinished rollout, as each stands now. PURE."""
    sizes = [size(each) for each in sets]
    add = bounds.most - sum(sizes)
    order = sorted(
        range(len(sets)),
        key=lambda i: (-sizes[i], sets[i]["metadata"]["creationTimestamp"]),
        reverse=False,
    )
    given = 0
    for place in order:
        if not sizes[place]:
            continue
        most = int((sets[place]["metadata"].get("annotations") or {}).get(_MOST, bounds.most)) or 1
        part = round(sizes[place] * bounds.most / most) - sizes[place]
        room = add - given
        part = max(0, min(part, room)) if add > 0 else min(0, max(part, room))
        sizes[place] += part
        given += part
    if order:
        sizes[order[0]] = max(0, sizes[order[0]] + add - given)
    return sizes


class Deployments:
    """The controller."""

    reads = (DEPLOYMENT, REPLICA_SET)

    async def sync(self, caches: Caches, calls: Calls) -> float | None:
        """See `Controller.sync`."""
        by_owner: dict[str, list[Object]] = defaultdict(list)
        for each in caches.all(REPLICA_SET):
            if (owner := controller_of(each)) is not None:
                by_owner[owner["uid"]].append(each)
        again = math.inf
        for deployment in caches.all(DEPLOYMENT):
            if not reading.is_terminating(deployment):
                owned = by_owner[deployment["metadata"]["uid"]]
                again = min(again, await _Rollout(deployment, owned, calls).step())
        return None if math.isinf(again) else max(0.05, again)


class _Rollout:
    """One deployment with its sets, and the next step of what is under way."""

    def __init__(self, deployment: Object, owned: Sequence[Object], calls: Calls) -> None:
        self._deployment = deployment
        self._calls = calls
        self._bounds = Bounds.of(deployment)
        template = without_hash(deployment["spec"]["template"])
        ordered = sorted(owned, key=lambda each: (_revision(each), each["metadata"]["creationTimestamp"]))
        same = [each for each in ordered if without_hash(each["spec"]["template"]) == template]
        self._new = same[0] if same else None
        self._old = [each for each in ordered if each is not self._new]

    async def step(self) -> float:
        """Do what can be done now; return in how many seconds it changes by itself."""
        paused = self._deployment["spec"].get("paused", False)
        if self._new is None and not paused:
            self._new = await self._create()
            return 0.0
        if paused or self._is_scaled():
            await self._scale()
        elif (self._deployment["spec"].get("strategy") or {}).get("type") == "Recreate":
            await self._recreate()
        else:
            await self._roll()
        await self._tidy()
        return await self._tell()

    # ------------------------------------------------------------ sets

    async def _create(self) -> Object | None:
        deployment = self._deployment
        template = without_hash(deployment["spec"]["template"])
        digest = template_hash(template)
        labels = {**template["metadata"]["labels"], HASH: digest}
        selector = deployment["spec"]["selector"]
        matching = {**(selector.get("matchLabels") or {}), HASH: digest}
        revision = max(map(_revision, self._old), default=0) + 1
        body = {
            "metadata": {
                "name": f"{deployment['metadata']['name']}-{digest}",
                "labels": labels,
                "annotations": self._annotations(revision),
                "ownerReferences": [reference_to(deployment, "apps/v1", "Deployment")],
            },
            "spec": {
                "replicas": 0,
                "selector": {**selector, "matchLabels": matching},
                "template": {**template, "metadata": {**template["metadata"], "labels": labels}},
                **_minimum(deployment),
            },
        }
        try:
            made = await self._calls.create(REPLICA_SET, deployment["metadata"]["namespace"], body)
        except AlreadyExists:
            return None  # the cache doesn't show it yet
        await self._note_revision(revision)
        return made

    def _annotations(self, revision: int) -> dict[str, str]:
        return {
            _REVISION: str(revision),
            _DESIRED: str(self._bounds.wanted),
            _MOST: str(self._bounds.most),
        }

    async def _note_revision(self, revision: int) -> None:
        held = (self._deployment["metadata"].get("annotations") or {}).get(_REVISION)
        if held != str(revision):
            patch = {"metadata": {"annotations": {_REVISION: str(revision)}}}
            await self._calls.merge(DEPLOYMENT, *key_of(self._deployment), patch)

    @property
    def _all(self) -> list[Object]:
        return [*self._old, *([self._new] if self._new is not None else [])]

    async def _resize(self, replica_set: Object, replicas: int) -> bool:
        annotations = self._annotations(_revision(replica_set))
        held = replica_set["metadata"].get("annotations") or {}
        if size(replica_set) == replicas and annotations.items() <= held.items():
            return False
        version = replica_set["metadata"]["resourceVersion"]
        patch = {
            "metadata": {"resourceVersion": version, "annotations": annotations},
            "spec": {"replicas": replicas},
        }
        await self._calls.merge(REPLICA_SET, *key_of(replica_set), patch)
        return True

    # ------------------------------------------------------------ steps

    def _is_scaled(self) -> bool:
        """Whether another number of pods is asked for than the sets were made for."""
        return any(
            int((each["metadata"].get("annotations") or {}).get(_DESIRED, self._bounds.wanted))
            != self._bounds.wanted
            for each in self._all
            if size(each)
        )

    async def _scale(self) -> None:
        active = [each for each in self._all if size(each)]
        if len(active) <= 1:
            only = active[0] if active else (self._all[-1] if self._all else None)
            if only is not None:
                await self._resize(only, self._bounds.wanted)
            return
        new = self._new
        if new is not None and size(new) == available(new) == self._bounds.wanted:
            for each in self._old:
                await self._resize(each, 0)
            return
        for each, replicas in zip(self._all, proportional(self._all, self._bounds), strict=True):
            await self._resize(each, replicas)

    async def _roll(self) -> None:
        new = self._new
        if new is None:
            return
        newest = max(map(_revision, self._all), default=0)
        if _revision(new) < newest:  # somebody went back to an earlier template
            patch = {"metadata": {"annotations": {_REVISION: str(newest + 1)}}}
            await self._calls.merge(REPLICA_SET, *key_of(new), patch)
            await self._note_revision(newest + 1)
            return
        if await self._resize(new, new_size(new, self._old, self._bounds)):
            return
        for each, replicas in zip(self._old, old_sizes(new, self._old, self._bounds), strict=True):
            if replicas != size(each):
                await self._resize(each, replicas)

    async def _recreate(self) -> None:
        for each in self._old:
            await self._resize(each, 0)
        gone = all(not (each.get("status") or {}).get("replicas", 0) for each in self._old)
        if gone and self._new is not None:
            await self._resize(self._new, self._bounds.wanted)

    async def _tidy(self) -> None:
        """Remove old sets beyond those that a rollback may want."""
        kept = self._deployment["spec"].get("revisionHistoryLimit", 10)
        empty = [
            each for each in self._old if not size(each) and not (each.get("status") or {}).get("replicas", 0)
        ]
        for each in empty[: max(0, len(empty) - kept)]:
            await self._calls.delete(REPLICA_SET, *key_of(each), uid=each["metadata"]["uid"])

    # ------------------------------------------------------------ status

    async def _tell(self) -> float:
        deployment, everyone, now = self._deployment, self._all, time.time()
        there = {
            key: sum(int((each.get("status") or {}).get(key, 0)) for each in everyone)
            for key in ("replicas", "readyReplicas", "availableReplicas")
        }
        updated = int(((self._new or {}).get("status") or {}).get("replicas", 0))
        counts = {**there, "updatedReplicas": updated}
        counts["unavailableReplicas"] = max(0, sum(map(size, everyone)) - there["availableReplicas"])
        status = {
            **{key: value for key, value in counts.items() if value},
            "observedGeneration": deployment["metadata"]["generation"],
        }
        before = deployment.get("status") or {}
        told, again = self._conditions(status, before, now)
        status["conditions"] = told
        if status != {key: value for key, value in before.items() if key != "terminatingReplicas"}:
            gone = dict.fromkeys(before.keys() - status.keys())
            await self._calls.merge(DEPLOYMENT, *key_of(deployment), {"status": {**gone, **status}}, "status")
        return again

    def _conditions(
        self, status: Mapping[str, Any], before: Mapping[str, Any], now: float
    ) -> tuple[list[Body], float]:
        held = {each["type"]: each for each in before.get("conditions") or ()}
        enough = status.get("availableReplicas", 0) >= self._bounds.wanted - self._bounds.unavailable
        said = ("True", "MinimumReplicasAvailable") if enough else ("False", "MinimumReplicasUnavailable")
        made = [_condition("Available", *said, held.get("Available"), now)]
        progress, again = self._progress(status, before, now)
        return [*made, progress], again

    def _progress(
        self, status: Mapping[str, Any], before: Mapping[str, Any], now: float
    ) -> tuple[Body, float]:
        held = {each["type"]: each for each in before.get("conditions") or ()}.get("Progressing")
        wanted, counts = self._bounds.wanted, ("replicas", "updatedReplicas", "availableReplicas")
        complete = all(status.get(key, 0) == wanted for key in counts)
        if complete:
            return _condition("Progressing", "True", "NewReplicaSetAvailable", held, now), math.inf
        keys = ("updatedReplicas", "readyReplicas", "availableReplicas")
        moved = any(status.get(key, 0) > before.get(key, 0) for key in keys) or (
            status.get("replicas", 0) < before.get("replicas", 0)
        )
        fresh = held is None or moved or held["reason"] == "NewReplicaSetAvailable"
        since = now if fresh else reading.unix((held or {}).get("lastUpdateTime"))
        left = since + self._deployment["spec"].get("progressDeadlineSeconds", 600) - now
        if left <= 0:
            return _condition("Progressing", "False", "ProgressDeadlineExceeded", held, now), math.inf
        made = _condition("Progressing", "True", "ReplicaSetUpdated", held, now)
        made["lastUpdateTime"] = seconds_text(since)
        return made, left


def _revision(replica_set: Object) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(_REVISION, 0))


def _minimum(deployment: Object) -> dict[str, Any]:
    least = deployment["spec"].get("minReadySeconds", 0)
    return {"minReadySeconds": least} if least else {}


def _condition(kind: str, status: str, reason: str, before: Object | None, now: float) -> Body:
    same = before is not None and before["status"] == status
    kept = same and before is not None and before["reason"] == reason
    at = seconds_text(now)
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": reason,
        "lastUpdateTime": before["lastUpdateTime"] if kept and before is not None else at,
        "lastTransitionTime": before["lastTransitionTime"] if same and before is not None else at,
    }
