"""Pods, nodes and sizes as raw JSON reads."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.cluster.kube.views import (
    Taint,
    config_from_json,
    node_from_json,
    pod_from_json,
    unix,
    workload_from_json,
)
from warmpool.claim import Errand, Term, new_claim
from warmpool.seats import Operation, PolicyName, SeatValue
from warmpool.wire import claim_to_json

CLAIM = new_claim(
    Errand(operation=Operation.PROMOTE, policy=PolicyName("chat")),
    Term(holder="c", epoch=3),
    number=1,
    now=0,
    seconds=9,
)


def pod(**changes: Any) -> dict[str, Any]:
    metadata = {
        "name": "seat-0",
        "namespace": "pool",
        "uid": "u",
        "resourceVersion": "7",
        **changes.get("metadata", {}),
    }
    return {"metadata": metadata, "spec": changes.get("spec", {}), "status": changes.get("status", {})}


def condition(kind: str, status: str, **more: str) -> dict[str, str]:
    return {"type": kind, "status": status, **more}


def test_a_pod_that_has_just_been_made_is_no_candidate() -> None:
    seat = pod_from_json(pod()).seat
    assert (seat.name, seat.uid, seat.version) == ("seat-0", "u", "7")
    assert not seat.reachable
    assert not seat.ready
    assert not seat.admitted
    assert seat.value is SeatValue.HELD


def test_labels_and_annotations_say_who_serves_and_who_holds_it() -> None:
    labels = {
        "emberpool.dev/fleet": "spares",
        "serving.emberpool.dev/chat": "true",
        "serving.emberpool.dev/code": "false",
        "pod-template-hash": "abc",
        "emberpool.dev/seat": "Lent",
    }
    annotations = {"emberpool.dev/claim": json.dumps(claim_to_json(CLAIM)), "emberpool.dev/residents": "[]"}
    read = pod_from_json(pod(metadata={"labels": labels, "annotations": annotations}))
    assert (read.seat.fleet, read.seat.template, read.seat.lent) == ("spares", "abc", True)
    assert read.seat.serving == {"chat"}
    assert read.seat.claim == CLAIM
    assert (read.marked, read.residents) == ("Lent", "[]")


def test_conditions_say_whether_it_is_ready_and_admitted() -> None:
    status = {
        "phase": "Running",
        "podIP": "10.0.0.9",
        "conditions": [condition("Ready", "True"), condition("emberpool.dev/admitted", "True")],
    }
    seat = pod_from_json(pod(status=status)).seat
    assert (seat.ready, seat.admitted, seat.reachable) == (True, True, True)


def test_a_pod_that_is_being_deleted_says_until_when() -> None:
    read = pod_from_json(pod(metadata={"deletionTimestamp": "2026-11-30T01:38:09Z"}))
    assert read.seat.terminating
    assert read.seat.leaves_by == unix("2026-11-30T01:38:09Z")


@pytest.mark.parametrize(
    ("reason", "since"), [("Unschedulable", unix("2026-11-30T01:37:27Z")), ("SchedulingGated", None)]
)
def test_a_pod_that_no_node_takes_says_since_when(reason: str, since: float | None) -> None:
    scheduled = condition("PodScheduled", "False", reason=reason, lastTransitionTime="2026-11-30T01:37:27Z")
    assert pod_from_json(pod(status={"conditions": [scheduled]})).unschedulable_since == since


@settings(max_examples=50)
@given(st.text() | st.builds(json.dumps, st.recursive(st.none() | st.integers() | st.text(), st.lists)))
def test_a_claim_that_cannot_be_read_makes_no_candidate(text: str) -> None:
    status = {"phase": "Running", "podIP": "10.0.0.9"}
    read = pod_from_json(pod(metadata={"annotations": {"emberpool.dev/claim": text}}, status=status))
    assert read.unreadable
    assert not read.seat.usable


def test_a_node_says_who_keeps_pods_off_it_and_how_many_gpus_it_has() -> None:
    taints = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "value": "c", "effect": "NoExecute"}]
    node = node_from_json(
        {
            "metadata": {"name": "n", "resourceVersion": "1"},
            "spec": {"taints": taints, "unschedulable": True},
            "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [condition("Ready", "True")]},
        }
    )
    assert node.taints == (
        Taint(key="a", effect="NoSchedule"),
        Taint(key="b", value="c", effect="NoExecute"),
    )
    assert (node.gpus, node.cordoned, node.ready) == (8, True, True)


def test_a_workload_of_size_zero_leaves_its_size_out() -> None:
    body = {"metadata": {"name": "w", "resourceVersion": "1"}, "spec": {}, "status": {"replicas": 2}}
    assert (workload_from_json(body).replicas, workload_from_json(body).observed) == (0, 2)


def test_a_config_map_without_data_is_empty() -> None:
    assert dict(config_from_json({"metadata": {"name": "c", "resourceVersion": "1"}}).data) == {}


@pytest.mark.parametrize(
    ("said", "port"),
    [
        ("9100", 9100),
        ("65535", 65535),
        ("0" * 5000 + "9100", 9100),
        ("65536", 9081),
        ("0", 9081),
        ("", 9081),
        ("-1", 9081),
        ("９１００", 9081),
        ("9" * 4301, 9081),
        ("9" * 200_000, 9081),
    ],
)
def test_whatever_stands_for_the_agents_port_can_be_read(said: str, port: int) -> None:
    read = pod_from_json(pod(metadata={"annotations": {"emberpool.dev/agent-port": said}}))
    assert read.agent_port == port
