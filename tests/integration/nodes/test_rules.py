"""The pure parts of the stand-ins of a cluster: who is removed first, the steps of a rollout, and which node takes a pod."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.cluster.kube.times import seconds_text
from tests.fakes.control_plane.deployments import Bounds, new_size, old_sizes, proportional, template_hash
from tests.fakes.control_plane.disruptions import expected
from tests.fakes.control_plane.endpoint_slices import ports_of
from tests.fakes.control_plane.nodes import taints_of
from tests.fakes.control_plane.replica_sets import ranked
from tests.fakes.control_plane.scheduler import refusal, requests_of
from tests.fakes.kubelet.environment import expanded
from tests.fakes.kubelet.network import Place

NOW = 1_000_000_000.0
COST = "controller.kubernetes.io/pod-deletion-cost"
Body = dict[str, Any]


def at(seconds: float) -> str:
    return seconds_text(NOW + seconds)


def pod(
    name: str,
    *,
    node: str = "n",
    phase: str = "Running",
    ready: float | None = -1000.0,
    cost: int = 0,
    restarts: int = 0,
    born: float = -2000.0,
) -> Body:
    conditions = (
        [] if ready is None else [{"type": "Ready", "status": "True", "lastTransitionTime": at(ready)}]
    )
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "creationTimestamp": at(born),
            "annotations": {COST: str(cost)},
        },
        "spec": {"nodeName": node, "containers": []},
        "status": {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": [{"restartCount": restarts}],
        },
    }


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pod("b", node="", cost=100), pod("a", cost=-100)),
        (pod("b", phase="Pending", ready=None, cost=100), pod("a", ready=None, cost=-100)),
        (pod("b", ready=None, cost=100), pod("a", cost=-100)),
        (pod("b", cost=-100), pod("a", cost=-50)),
        (pod("b", ready=-10), pod("a", ready=-1000)),
        (pod("b", restarts=3), pod("a")),
        (pod("b", born=-10), pod("a", born=-1000)),
        (pod("a", ready=-1000), pod("b", ready=-1020)),
    ],
    ids=[
        "unassigned",
        "pending",
        "not ready",
        "cost",
        "ready for less",
        "restarts",
        "younger",
        "about as old",
    ],
)
def test_who_goes_first(first: Body, second: Body) -> None:
    assert ranked([second, first], NOW) == [first, second]


def test_of_equal_pods_one_with_more_siblings_on_its_node_goes_first() -> None:
    pods = [pod("a", node="x"), pod("b", node="y"), pod("c", node="y")]
    assert ranked(pods, NOW)[-1]["metadata"]["name"] == "a"


def replica_set(size: int, available: int, most: int | None = None) -> Body:
    annotations = {} if most is None else {"deployment.kubernetes.io/max-replicas": str(most)}
    return {
        "metadata": {"name": "s", "creationTimestamp": at(0), "annotations": annotations},
        "spec": {"replicas": size},
        "status": {"availableReplicas": available},
    }


sizes = st.integers(0, 12)


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[Body, list[Body], Bounds]:
    wanted, surge = draw(st.integers(1, 12)), draw(st.integers(0, 4))
    unavailable = draw(st.integers(0 if surge else 1, 4))
    bounds = Bounds(wanted, surge, unavailable)
    left, old = bounds.most, []
    for _ in range(draw(st.integers(0, 3))):
        size = draw(st.integers(0, left))
        left -= size
        old.append(replica_set(size, draw(st.integers(0, size))))
    size = draw(st.integers(0, min(left, wanted)))
    return replica_set(size, draw(st.integers(0, size))), old, bounds


@given(rollouts())
def test_a_step_of_a_rollout_keeps_to_its_bounds(case: tuple[Body, list[Body], Bounds]) -> None:
    new, old, bounds = case
    grown = new_size(new, old, bounds)
    assert new["spec"]["replicas"] <= grown <= bounds.wanted
    assert grown + sum(each["spec"]["replicas"] for each in old) <= bounds.most
    before = [each["status"]["availableReplicas"] for each in old]
    shrunk = old_sizes(new, old, bounds)
    assert all(0 <= after <= each["spec"]["replicas"] for after, each in zip(shrunk, old, strict=True))
    there = new["status"]["availableReplicas"] + sum(before)
    left = new["status"]["availableReplicas"] + sum(map(min, shrunk, before))
    assert left >= min(there, bounds.wanted - bounds.unavailable)


@given(rollouts())
def test_a_rollout_comes_to_its_end_if_new_pods_become_available(
    case: tuple[Body, list[Body], Bounds],
) -> None:
    new, old, bounds = case
    size, counts = new["spec"]["replicas"], [each["spec"]["replicas"] for each in old]
    for _ in range(100):
        held = [replica_set(count, count) for count in counts]
        size = new_size(replica_set(size, size), held, bounds)
        counts = old_sizes(replica_set(size, size), held, bounds)
    assert (size, sum(counts)) == (bounds.wanted, 0)


@given(st.lists(st.integers(1, 10), min_size=2, max_size=4), st.integers(1, 20), st.integers(0, 4))
def test_a_new_size_in_mid_rollout_is_shared_out_whole(counts: list[int], wanted: int, surge: int) -> None:
    bounds = Bounds(wanted, surge, 1)
    made = proportional([replica_set(count, count, most=sum(counts)) for count in counts], bounds)
    assert all(count >= 0 for count in made)
    assert sum(made) == bounds.most


@pytest.mark.parametrize(
    ("strategy", "wanted", "bounds"),
    [
        ({}, 4, (1, 1)),
        ({}, 1, (1, 0)),
        ({"maxSurge": 0, "maxUnavailable": 0}, 3, (0, 1)),
        ({"maxSurge": "50%", "maxUnavailable": "50%"}, 3, (2, 1)),
        ({"maxSurge": 2, "maxUnavailable": 0}, 3, (2, 0)),
    ],
)
def test_percentages_of_surge_are_rounded_up_and_of_absence_down(
    strategy: Body, wanted: int, bounds: tuple[int, int]
) -> None:
    spec = {"replicas": wanted, "strategy": {"rollingUpdate": strategy}}
    found = Bounds.of({"spec": spec})
    assert (found.surge, found.unavailable) == bounds


def test_a_template_has_one_hash_and_another_template_another() -> None:
    assert (
        template_hash({"a": 1, "b": 2}) == template_hash({"b": 2, "a": 1}) != template_hash({"a": 2, "b": 2})
    )


# ---------------------------------------------------------------- scheduling


def node(labels: Body | None = None, **spec: Any) -> Body:
    room = {"cpu": "2", "memory": "4Gi", "pods": "3", "nvidia.com/gpu": "1"}
    return {"metadata": {"name": "n", "labels": labels or {}}, "spec": spec, "status": {"allocatable": room}}


def wanting(**spec: Any) -> Body:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", **spec.pop("c", {})}], **spec}}


TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
EXPRESSION = {"key": "zone", "operator": "In", "values": ["a"]}
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [EXPRESSION]}]
        }
    }
}


@pytest.mark.parametrize(
    ("pod", "node", "taken", "why"),
    [
        (wanting(), node(), {}, ""),
        (wanting(), node(unschedulable=True), {}, "node(s) were unschedulable"),
        (wanting(), node(taints=[TAINT]), {}, "node(s) had untolerated taint(s)"),
        (wanting(tolerations=[{"key": "k", "value": "v"}]), node(taints=[TAINT]), {}, ""),
        (
            wanting(tolerations=[{"key": "k", "value": "w"}]),
            node(taints=[TAINT]),
            {},
            "node(s) had untolerated taint(s)",
        ),
        (wanting(tolerations=[{"operator": "Exists"}]), node(taints=[TAINT]), {}, ""),
        (wanting(), node(taints=[{**TAINT, "effect": "PreferNoSchedule"}]), {}, ""),
        (wanting(nodeSelector={"zone": "a"}), node({"zone": "a"}), {}, ""),
        (
            wanting(nodeSelector={"zone": "b"}),
            node({"zone": "a"}),
            {},
            "node(s) didn't match Pod's node affinity/selector",
        ),
        (wanting(affinity=AFFINITY), node({"zone": "a"}), {}, ""),
        (wanting(affinity=AFFINITY), node(), {}, "node(s) didn't match Pod's node affinity/selector"),
        (wanting(c=GPU), node(), {}, ""),
        (wanting(c=GPU), node(), {"nvidia.com/gpu": 1}, "Insufficient nvidia.com/gpu"),
        (wanting(), node(), {"pods": 3}, "Too many pods"),
        (wanting(c={"resources": {"requests": {"cpu": "2500m"}}}), node(), {}, "Insufficient cpu"),
    ],
)
def test_which_node_takes_a_pod(pod: Body, node: Body, taken: Body, why: str) -> None:
    assert refusal(pod, node, taken) == why


def test_a_sidecar_counts_beside_the_others_and_an_init_container_only_where_it_takes_more() -> None:
    def of(cpu: int, **more: Any) -> Body:
        return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {"containers": [of(2)], "initContainers": [of(1, restartPolicy="Always"), of(5)]}
    assert requests_of({"spec": spec})["cpu"] == 5
    spec["initContainers"][1] = of(1)
    assert requests_of({"spec": spec})["cpu"] == 3


@pytest.mark.parametrize(
    ("status", "cordoned", "keys"),
    [
        ("True", False, []),
        ("True", True, ["node.kubernetes.io/unschedulable"]),
        ("False", False, ["node.kubernetes.io/not-ready"] * 2),
        ("Unknown", False, ["node.kubernetes.io/unreachable"] * 2),
    ],
)
def test_a_nodes_taints_follow_its_state_and_others_stay(
    status: str, cordoned: object, keys: list[str]
) -> None:
    held = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}, TAINT]
    body = {
        "metadata": {"name": "n"},
        "spec": {"taints": held, "unschedulable": cordoned},
        "status": {"conditions": [{"type": "Ready", "status": status}]},
    }
    assert [each["key"] for each in taints_of(body, at(0))] == ["k", *keys]


# ---------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"minAvailable": 2}, (3, 2)),
        ({"minAvailable": "50%"}, (5, 3)),
        ({"maxUnavailable": 1}, (5, 4)),
        ({"maxUnavailable": "30%"}, (5, 3)),
    ],
)
def test_how_many_pods_a_budget_wants(spec: Body, wanted: tuple[int, int]) -> None:
    owner = [{"uid": "set", "controller": True, "kind": "ReplicaSet"}]
    pods = [{**pod(name), "metadata": {"name": name, "ownerReferences": owner}} for name in "abc"]
    assert expected({"spec": spec}, pods, {"set": 5}) == wanted


def test_a_named_port_is_found_on_the_pod_and_a_sidecars_too() -> None:
    ports = [{"port": 80, "targetPort": "web"}, {"name": "x", "port": 81}, {"port": 82, "targetPort": "none"}]
    side = {"name": "s", "restartPolicy": "Always", "ports": [{"name": "web", "containerPort": 8001}]}
    body = {"spec": {"containers": [], "initContainers": [side]}}
    assert ports_of({"spec": {"ports": ports}}, body) == (("", 8001, "TCP"), ("x", 81, "TCP"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("$(A)", "1"),
        ("$$(A)", "$(A)"),
        ("$(B)", "$(B)"),
        ("a$(A)b$(A)", "a1b1"),
        ("$A", "$A"),
        ("$$$$", "$$"),
    ],
)
def test_variables_in_arguments(text: str, found: str) -> None:
    assert expanded(text, {"A": "1"}) == found


def test_a_pods_own_address_is_put_where_all_addresses_or_loopback_are_meant() -> None:
    shared = Place("127.9.8.7", shared=True)
    text = "0.0.0.0:80 127.0.0.1 127.0.0.11 10.0.0.0 http://127.0.0.1:8080/"
    assert shared.translated(text) == "127.9.8.7:80 127.9.8.7 127.0.0.11 10.0.0.0 http://127.9.8.7:8080/"
    assert Place("10.1.2.3").translated(text) == text
