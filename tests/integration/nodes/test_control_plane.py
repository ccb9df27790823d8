"""The stand-ins of scheduler and controllers: what Kubernetes documents of each, seen through the API server."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scaler.cluster.kube.client import Request
from scaler.cluster.kube.errors import Forbidden, Throttled
from scaler.cluster.kube.resources import DEPLOYMENT, NODE, POD, Kind
from scaler.errors import Unreachable
from tests.fakes.control_plane.deployments import HASH
from tests.fakes.kube_calls import BUDGET, ENDPOINT_SLICE, REPLICA_SET, SERVICE, reflected
from tests.integration.nodes.conftest import GPU, QUIET, World, condition, main, ready

SERVING = "serving.emberpool.dev/chat"
COST = "controller.kubernetes.io/pod-deletion-cost"
PRIORITY = Kind(group="scheduling.k8s.io", plural="priorityclasses", name="PriorityClass", namespaced=False)
Body = dict[str, Any]
QUICK = main("trap exit TERM; while :; do sleep 0.02; done")


def ready_ones(count: int) -> Any:
    return lambda pods: len(pods) == count and all(map(ready, pods))


async def deployed(
    world: World, name: str, replicas: int, container: Body | None = None, **spec: Any
) -> list[Body]:
    await world.deploy(name, replicas, container or QUICK, **spec)
    return await world.when_pods(ready_ones(replicas), f"{replicas} ready pods", app=name)


async def evict(world: World, pod: Body) -> None:
    metadata = {"name": pod["metadata"]["name"], "namespace": "default"}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    await world.calls.post(POD, "default", metadata["name"], "eviction", body)


# ---------------------------------------------------------------- scheduler


async def test_pods_go_where_gpus_are_free_and_wait_where_none_is(world: World) -> None:
    await world.deploy("spares", 5, QUIET | {"resources": GPU})

    def four_of_five(pods: list[Body]) -> bool:
        return len(pods) == 5 and sum(map(ready, pods)) == 4

    pods = await world.when_pods(four_of_five, "four seats for four GPUs", app="spares")
    nodes = [pod["spec"].get("nodeName") for pod in pods]
    assert (nodes.count("gpu-0"), nodes.count("gpu-1"), nodes.count(None)) == (2, 2, 1)
    (left,) = (pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName"))
    seen = await world.when(left, lambda pod: condition(pod, "PodScheduled") == "False")
    (said,) = (each for each in seen["status"]["conditions"] if each["type"] == "PodScheduled")
    assert (said["reason"], said["message"]) == (
        "Unschedulable",
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
    )
    other = next(pod for pod in pods if pod["spec"].get("nodeName"))["metadata"]["name"]
    await world.calls.merge(DEPLOYMENT, "default", "spares", {"spec": {"replicas": 4}})
    await world.when_gone(left)  # of all pods one without a node goes first
    await world.calls.delete(POD, "default", other)
    await world.when_pods(ready_ones(4), "a seat in the place of another", app="spares")


async def test_of_pods_that_wait_one_of_a_higher_class_is_placed_first(world: World) -> None:
    await world.calls.create(PRIORITY, "", {"metadata": {"name": "first"}, "value": 1000})
    holding = await deployed(world, "holding", 4, QUICK | {"resources": GPU})
    await world.pod("low", QUICK | {"resources": GPU})
    await world.pod("high", QUICK | {"resources": GPU}, priorityClassName="first")
    for name in ("low", "high"):
        await world.when(name, lambda pod: condition(pod, "PodScheduled") == "False")
    assert (await world.get(POD, "high"))["spec"]["priority"] == 1000
    await world.calls.merge(DEPLOYMENT, "default", "holding", {"spec": {"replicas": 3}})
    await world.when("high", ready)
    assert not (await world.get(POD, "low"))["spec"].get("nodeName")
    assert len(holding) == 4
    with pytest.raises(Forbidden, match="no PriorityClass with name none was found"):
        await world.pod("wrong", QUICK, priorityClassName="none")


# ---------------------------------------------------------------- deployments


async def test_a_rollout_keeps_to_its_bounds_and_new_pods_are_out_of_rotation(world: World) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
    before = await deployed(world, "web", 4, strategy=rolling)
    for pod in before:
        await world.calls.merge(
            POD, "default", pod["metadata"]["name"], {"metadata": {"labels": {SERVING: "true"}}}
        )
    old = {pod["metadata"]["uid"] for pod in before}
    async with watched(world) as counts:
        patch = {"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}}
        await world.calls.strategic(DEPLOYMENT, "default", "web", patch)

        def all_new(pods: list[Body]) -> bool:
            return ready_ones(4)(pods) and not old & {pod["metadata"]["uid"] for pod in pods}

        after = await world.when_pods(all_new, "four new pods", app="web")
    assert max(active for active, _ in counts) <= 5
    assert min(there for _, there in counts) >= 3
    assert all(SERVING not in pod["metadata"]["labels"] for pod in after)
    assert len({pod["metadata"]["labels"][HASH] for pod in [*before, *after]}) == 2
    sets = await world.calls.list(REPLICA_SET, "default")
    assert sorted(each["spec"]["replicas"] for each in sets) == [0, 4]


@asynccontextmanager
async def watched(world: World) -> AsyncIterator[list[tuple[int, int]]]:
    """Note how many pods count and how many are ready, after each change."""
    counts: list[tuple[int, int]] = []
    held: dict[Any, Any] = {}

    def note() -> None:
        pods = [pod for pod in held[POD].values() if "deletionTimestamp" not in pod["metadata"]]
        counts.append((len(pods), sum(map(ready, pods))))

    async with reflected(world.calls, {POD: None}) as seen:
        held.update(seen)
        seen[POD].subscribe(note)
        yield counts


@pytest.mark.long
async def test_a_rollout_stands_still_while_new_pods_are_not_ready(world: World) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    before = await deployed(world, "web", 2, strategy=rolling)
    gates = [{"conditionType": "emberpool.dev/admitted"}]
    patch = {"progressDeadlineSeconds": 2, "template": {"spec": {"readinessGates": gates}}}
    await world.calls.strategic(DEPLOYMENT, "default", "web", {"spec": patch})

    async def stuck() -> bool:
        found = await world.get(DEPLOYMENT, "web")
        return condition(found, "Progressing") == "False"

    await world.until("a rollout that is too slow", stuck)
    pods = await world.when_pods(lambda found: len(found) == 3, "one more pod", app="web")
    kept = {pod["metadata"]["uid"] for pod in before}
    assert kept < {pod["metadata"]["uid"] for pod in pods}
    (new,) = (pod for pod in pods if pod["metadata"]["uid"] not in kept)
    admitted = {"type": "emberpool.dev/admitted", "status": "True"}
    name = new["metadata"]["name"]
    await world.calls.strategic(POD, "default", name, {"status": {"conditions": [admitted]}}, "status")
    await world.when_pods(
        lambda found: len(found) == 3 and sum(map(ready, found)) == 2, "the next step", app="web"
    )


async def test_of_pods_that_are_ready_those_of_a_lower_deletion_cost_go_first(world: World) -> None:
    pods = await deployed(world, "web", 6)
    names = [pod["metadata"]["name"] for pod in pods]
    for name in names[:4]:
        patch = {"metadata": {"annotations": {COST: "100"}}}
        await world.calls.merge(POD, "default", name, patch)
    for name in names[:4]:
        await world.when_cached(name, lambda pod: COST in pod["metadata"].get("annotations", {}))
    body = {"spec": {"replicas": 4}}
    await world.calls.merge(DEPLOYMENT, "default", "web", body, "scale")
    left = await world.when_pods(lambda found: len(found) == 4, "four pods", app="web")
    assert {pod["metadata"]["name"] for pod in left} == set(names[:4])


async def test_a_pod_that_is_not_ready_goes_before_a_ready_one_whatever_its_cost(world: World) -> None:
    await world.deploy(
        "web",
        3,
        QUICK
        | {
            "readinessProbe": {
                "exec": {"command": ["sh", "-c", "test ! -e $HOME/sick"]},
                "periodSeconds": 0.1,
                "failureThreshold": 1,
            }
        },
    )
    pods = await world.when_pods(ready_ones(3), "three pods", app="web")
    sick = pods[0]
    patch = {"metadata": {"annotations": {COST: "1000"}}}
    await world.calls.merge(POD, "default", sick["metadata"]["name"], patch)
    (world.nodes.setting.root / sick["metadata"]["uid"][:8] / "sick").touch()
    await world.when(sick["metadata"]["name"], lambda pod: not ready(pod))
    await world.when_cached(sick["metadata"]["name"], lambda pod: not ready(pod))
    await world.calls.merge(DEPLOYMENT, "default", "web", {"spec": {"replicas": 2}}, "scale")
    await world.when_gone(sick["metadata"]["name"])
    assert len(await world.pods(app="web")) == 2


async def test_what_a_deployment_made_goes_with_it(world: World) -> None:
    await deployed(world, "web", 2)
    await world.calls.delete(DEPLOYMENT, "default", "web")
    await world.when_pods(lambda pods: not pods, "no pods", app="web")
    assert await world.calls.list(REPLICA_SET, "default") == []


# ---------------------------------------------------------------- endpoints


async def test_endpoints_follow_a_label_readiness_and_the_beginning_of_an_end(world: World) -> None:
    selector = {"app": "web", SERVING: "true"}
    ports = [{"name": "http", "port": 80, "targetPort": 8001}]
    await world.calls.create(
        SERVICE, "default", {"metadata": {"name": "chat"}, "spec": {"selector": selector, "ports": ports}}
    )
    slow = main("trap 'sleep 1; exit' TERM; while :; do sleep 0.02; done")
    await world.deploy("web", 2, slow)
    pods = await world.when_pods(ready_ones(2), "two pods", app="web")
    assert await endpoints(world) == {}
    name, address = pods[0]["metadata"]["name"], pods[0]["status"]["podIP"]
    await world.calls.merge(POD, "default", name, {"metadata": {"labels": {SERVING: "true"}}})
    whole = {"ready": True, "serving": True, "terminating": False}
    await world.until("an endpoint", lambda: has(world, {address: whole}))
    (found,) = await world.calls.list(ENDPOINT_SLICE, "default")
    assert found["ports"] == [{"name": "http", "port": 8001, "protocol": "TCP"}]
    assert found["metadata"]["labels"]["kubernetes.io/service-name"] == "chat"
    await world.calls.delete(POD, "default", name)
    await world.until(
        "one on its way out",
        lambda: has(world, {address: {"ready": False, "serving": True, "terminating": True}}),
    )
    await world.until("none", lambda: has(world, {}))


async def endpoints(world: World) -> dict[str, Body]:
    slices = await world.calls.list(ENDPOINT_SLICE, "default")
    return {each["addresses"][0]: each["conditions"] for one in slices for each in one["endpoints"] or ()}


async def has(world: World, wanted: dict[str, Body]) -> bool:
    return await endpoints(world) == wanted


# ---------------------------------------------------------------- evictions


async def budget(world: World, name: str, least: int, **spec: Any) -> None:
    selector = {"matchLabels": {"app": "web"}}
    body = {"metadata": {"name": name}, "spec": {"selector": selector, "minAvailable": least, **spec}}
    await world.calls.create(BUDGET, "default", body)

    async def seen() -> bool:
        status = (await world.get(BUDGET, name)).get("status") or {}
        return status.get("observedGeneration") == 1 and status.get("expectedPods", 0) > 0

    await world.until("a budget that is known", seen)


async def test_an_eviction_beyond_the_budget_is_refused_and_says_whose(world: World) -> None:
    pods = await deployed(world, "web", 3)
    await budget(world, "web", 2)
    await evict(world, pods[0])
    with pytest.raises(Throttled, match="would violate the pod's disruption budget"):
        await evict(world, pods[1])
    await world.when_gone(pods[0]["metadata"]["name"])
    await world.when_pods(ready_ones(3), "three pods again", app="web")

    async def allowed() -> bool:
        return (await world.get(BUDGET, "web"))["status"]["disruptionsAllowed"] == 1

    await world.until("room for another eviction", allowed)
    await evict(world, pods[1])


async def test_a_pod_that_is_not_ready_may_go_where_its_budget_says_always(world: World) -> None:
    gates = {"readinessGates": [{"conditionType": "emberpool.dev/admitted"}]}
    body = await world.pod("web", QUICK, **gates)
    await world.when("web", lambda pod: condition(pod, "ContainersReady") == "True")
    await budget(world, "never", 1)
    with pytest.raises(Throttled):
        await evict(world, body)
    await world.calls.merge(
        BUDGET, "default", "never", {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}
    )
    await evict(world, body)
    await world.when_gone("web")


async def test_two_budgets_of_one_pod_keep_it_where_it_is(world: World) -> None:
    body = await world.pod("web", QUICK)
    await world.when("web", ready)
    for name in ("one", "two"):
        await budget(world, name, 0)
    with pytest.raises(Unreachable, match="more than one PodDisruptionBudget"):
        await evict(world, body)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl drains as people do")
async def test_kubectl_drains_a_node_pod_by_pod_as_the_budget_allows(world: World, tmp_path: Path) -> None:
    await deployed(world, "web", 4)
    await budget(world, "web", 3, unhealthyPodEvictionPolicy="AlwaysAllow")
    async with watched(world) as counts:
        process = await asyncio.create_subprocess_exec(
            *("kubectl", "--kubeconfig", str(world.kubeconfig), "--cache-dir", str(tmp_path / "cache")),
            *("drain", "gpu-0", "--timeout=60s"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert min(there for _, there in counts) >= 3
    node = await world.calls.get(NODE, "", "gpu-0")
    assert node["spec"]["unschedulable"] is True
    assert {each["key"] for each in node["spec"].get("taints") or ()} <= {"node.kubernetes.io/unschedulable"}
    pods = await world.when_pods(ready_ones(4), "four pods elsewhere", app="web")
    assert {pod["spec"]["nodeName"] for pod in pods} == {"gpu-1"}
    path = f"{NODE.path('', 'gpu-0')}"
    await world.calls.client.call(
        Request(
            method="PATCH",
            path=path,
            body={"spec": {"unschedulable": None}},
            content_type="application/merge-patch+json",
        ),
        seconds=5,
    )

    async def untainted() -> bool:
        return not (await world.calls.get(NODE, "", "gpu-0"))["spec"].get("taints")

    await world.until("a node that takes pods again", untainted)
