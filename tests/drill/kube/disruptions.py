"""What an operator does to pods while they serve: roll a fleet out, evict, drain a node. Each waits until it is done."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from scaler.cluster.kube.errors import Throttled
from scaler.cluster.kube.resources import DEPLOYMENT, NODE, POD
from scaler.errors import NotFound
from tests.drill.kube.bring_up import Body, NotThere, Site, until

_SECONDS = 90.0
_RETRY_SECONDS = 0.5
_REFUSALS = 5
"""Evictions of the last serving pod that are tried."""
Tell = Callable[[str], None]


def _uids(pods: Sequence[Body]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


async def _gone(site: Site, uids: set[str]) -> bool:
    return not uids & _uids(await site.pods())


# ------------------------------------------------------------------ a rollout


async def roll_out(site: Site, tell: Tell) -> None:
    """Change the template of a fleet whose pods serve, then that of the spares, and wait as `kubectl rollout status` does.

    Raises:
        NotThere: it isn't over in time.
    """
    for fleet in ("chat", "spares"):
        begun = time.monotonic()
        before = _uids(await site.pods(app=fleet))
        changed = {"kubectl.kubernetes.io/restartedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        patch = {"spec": {"template": {"metadata": {"annotations": changed}}}}
        await site.ground.calls.merge(DEPLOYMENT, site.ground.namespace, fleet, patch)
        what = f"the rollout of {fleet}"
        await until(partial(str, what), partial(_rolled_out, site, fleet, before), _SECONDS)
        tell(f"rollout of {fleet}: {len(before)} pods replaced in {time.monotonic() - begun:.1f} s")


async def _rolled_out(site: Site, fleet: str, before: set[str]) -> bool:
    body = await site.ground.calls.get(DEPLOYMENT, site.ground.namespace, fleet)
    spec, status = body["spec"], body.get("status") or {}
    wanted = int(spec.get("replicas", 1))
    told = status.get("observedGeneration", 0) >= body["metadata"]["generation"]
    there = [int(status.get(key) or 0) for key in ("replicas", "updatedReplicas", "availableReplicas")]
    return told and there == [wanted] * 3 and await _gone(site, before)


# ------------------------------------------------------------------ evictions


async def _evict(site: Site, pod: Body) -> bool:
    """Ask for a pod's eviction; return whether it was granted."""
    metadata = pod["metadata"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {"preconditions": {"uid": metadata["uid"]}},
    }
    try:
        await site.ground.calls.post(POD, metadata["namespace"], metadata["name"], "eviction", body)
    except Throttled:
        return False
    except NotFound:
        return True
    return True


async def refused_evictions(site: Site, policy: str, tries: int) -> int:
    """Try to evict the last pod that serves a policy; return how often its budget refused that.

    Raises:
        NotThere: it was granted.
    """
    refused = 0
    for _ in range(tries):
        serving = await site.serving(policy)
        if len(serving) == 1:
            if await _evict(site, serving[0]):
                raise NotThere(f"the last pod that serves {policy} was evicted")
            refused += 1
        await asyncio.sleep(_RETRY_SECONDS)
    return refused


async def evict(site: Site, tell: Tell) -> None:
    """Evict the last serving pod of each model, which its budget must refuse, and every spare, one at a time.

    Raises:
        NotThere: a budget grants what it must not, or spares can't be evicted in time.
    """
    refused = sum([await refused_evictions(site, policy, _REFUSALS) for policy in site.policies.policies])
    begun, granted, waited = time.monotonic(), 0, 0
    for pod in await site.pods(app="spares"):
        while not await _evict(site, pod):
            waited += 1
            if time.monotonic() > begun + _SECONDS:
                raise NotThere(f"the spare {pod['metadata']['name']} can't be evicted in {_SECONDS:.0f} s")
            await asyncio.sleep(_RETRY_SECONDS)
        granted += 1
    tell(
        f"evictions: {refused} of serving pods refused; {granted} of spares granted, {waited} put off, "
        f"in {time.monotonic() - begun:.1f} s"
    )
    await site.when_warm()
    tell(f"evictions: warm again {time.monotonic() - begun:.1f} s after the first")


# ------------------------------------------------------------------ a node drain


async def drain(site: Site, tell: Tell) -> None:
    """Cordon the node on which a model serves, evict all that is there as `kubectl drain` does, and uncordon it.

    Raises:
        NotThere: it isn't empty in time.
    """
    (serving, *_) = await site.serving("chat")
    node, begun = serving["spec"]["nodeName"], time.monotonic()
    await site.ground.calls.merge(NODE, "", node, {"spec": {"unschedulable": True}})
    refused = 0

    async def emptied() -> bool:
        nonlocal refused
        left = [pod for pod in await site.pods() if pod["spec"].get("nodeName") == node]
        for pod in left:
            if "deletionTimestamp" not in pod["metadata"] and not await _evict(site, pod):
                refused += 1
        return not left

    try:
        await until(lambda: f"{node} to be empty", emptied, _SECONDS, every=_RETRY_SECONDS)
        tell(f"drain of {node}: empty after {time.monotonic() - begun:.1f} s; {refused} evictions put off")
        await site.when_warm()
        tell(f"drain of {node}: warm again after {time.monotonic() - begun:.1f} s")
    finally:
        await site.ground.calls.merge(NODE, "", node, {"spec": {"unschedulable": None}})


DISRUPTIONS: Mapping[str, Callable[[Site, Tell], Awaitable[None]]] = {
    "rollout": roll_out,
    "evictions": evict,
    "drain": drain,
}
