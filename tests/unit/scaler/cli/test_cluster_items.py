"""What pods, workloads and nodes come to, without and with what the controller tells."""

import json
from typing import Any

import pytest

from scaler.cli import answers, cluster_items
from scaler.cli.cluster_items import Objects, Told, declared

RESIDENTS = json.dumps([{"policy": "chat"}, {"policy": "code"}])


def pod(name: str = "s-0", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "serving",
            "uid": f"uid-{name}",
            "labels": {"emberpool.dev/fleet": "spares", **labels},
            "annotations": {"emberpool.dev/residents": RESIDENTS},
        },
        "spec": {"nodeName": "gpu-a"},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }


def value_of(body: dict[str, Any], *told: dict[str, Any]) -> str:
    (item,) = cluster_items.seats(Objects(pods=[body]), Told(seats=told))
    assert answers.seat(item).value == item["value"]
    return str(item["value"])


SERVING = {"serving.emberpool.dev/chat": "true"}


@pytest.mark.parametrize(
    ("body", "told", "value"),
    [
        pytest.param(pod(), [], "Starting", id="nothing-is-known"),
        pytest.param(pod(**SERVING), [], "Serving", id="no-label-of-its-value-yet"),
        pytest.param(pod(**{"emberpool.dev/seat": "Spare"}), [], "Spare", id="as-its-label-says"),
        pytest.param(pod(), [{"uid": "uid-s-0", "value": "Held"}], "Held", id="as-the-controller-says"),
        pytest.param(
            pod(**{"emberpool.dev/seat": "Spare"}),
            [{"uid": "uid-s-0", "value": "Held"}],
            "Spare",
            id="its-label-rules",
        ),
        pytest.param(pod(), [{"uid": "another", "value": "Held"}], "Starting", id="another-pod-of-the-name"),
    ],
)
def test_what_a_seat_is_worth(body: dict[str, Any], told: list[dict[str, Any]], value: str) -> None:
    assert value_of(body, *told) == value


def test_a_pod_that_is_leaving_is_doomed_whatever_its_label_says() -> None:
    body = pod(**{"emberpool.dev/seat": "Serving"}, **SERVING)
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert value_of(body) == "Doomed"


def test_a_claim_that_cant_be_read_is_said() -> None:
    body = pod()
    body["metadata"]["annotations"]["emberpool.dev/claim"] = "{"
    (item,) = cluster_items.seats(Objects(pods=[body]))
    assert item["claim"] is None
    assert item["unreadable"].startswith("annotation emberpool.dev/claim: ")
    assert answers.seat(item).told.unreadable == item["unreadable"]


@pytest.mark.parametrize(
    ("annotation", "policies"),
    [
        (RESIDENTS, ["chat", "code"]),
        ("", []),
        ("{", []),
        ("{}", []),
        ('[1, {"policy": "chat"}, {}]', ["chat"]),
        ("[" * 100_000, []),
    ],
)
def test_residents_that_a_template_declares(annotation: str, policies: list[str]) -> None:
    assert declared(annotation) == policies


def test_a_fleet_without_pods_is_there_by_its_workload() -> None:
    labels = {"emberpool.dev/fleet": "own"}
    workload = {
        "kind": "StatefulSet",
        "metadata": {"name": "own", "namespace": "serving"},
        "spec": {"replicas": 0, "template": {"metadata": {"labels": labels}}},
    }
    (item,) = cluster_items.fleets(Objects(workloads=[workload, {"metadata": {"name": "other"}}]))
    assert (item["name"], item["workload"], item["replicas"], item["seats"]) == (
        "own",
        "StatefulSet/own",
        0,
        {},
    )


def test_seats_are_counted_in_the_order_of_their_worth() -> None:
    values = ("Serving", "Spare", "Doomed", "Newer")
    pods = [pod(f"s-{value.lower()}", **{"emberpool.dev/seat": value}) for value in values]
    (item,) = cluster_items.fleets(Objects(pods=pods))
    assert list(item["seats"]) == ["Doomed", "Spare", "Serving", "Newer"]
    assert item["policies"] == ["chat", "code"]


def test_policies_by_their_pods_alone() -> None:
    items = cluster_items.policies(Objects(pods=[pod(**SERVING), pod("s-1")]))
    assert items == [
        {"name": "chat", "serving": {"spares": 1}, "inRotation": {"spares": 1}},
        {"name": "code", "serving": {"spares": 0}, "inRotation": {"spares": 0}},
    ]


def test_nodes_that_have_gpus_or_seats() -> None:
    def node(name: str, gpus: object) -> dict[str, Any]:
        return {"metadata": {"name": name}, "status": {"capacity": {"nvidia.com/gpu": gpus}}}

    nodes = [node("gpu-b", "8"), node("gpu-a", 0), node("cpu-0", "0"), node("odd-0", "many")]
    items = cluster_items.nodes(Objects(pods=[pod()], nodes=nodes))
    assert [(item["name"], item["gpus"]["capacity"], len(item["seats"])) for item in items] == [
        ("gpu-a", 0, 1),
        ("gpu-b", 8, 0),
    ]
    assert not answers.node(items[0]).ready
