"""Services that could send requests to paused residents."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from scaler.cluster.kube.reach import reaching
from scaler.cluster.kube.views import Service, Workload, service_from_json, workload_from_json
from warmpool.seats import FLEET_LABEL

BASE = Path(__file__).parents[5] / "deploy" / "base"
LISTED = [
    {"policy": "chat", "command": ["x"], "port": 8001, "enginePort": 9001},
    {"policy": "code", "command": ["x"], "port": 8002},
]
WORKLOAD = Workload(
    name="spares",
    version="1",
    replicas=1,
    labels={"app": "spares"},
    ports={"http": 8001, "metrics": 9400},
    residents=json.dumps(LISTED),
)
CHAT, CODE = {"serving.emberpool.dev/chat": "true"}, {"serving.emberpool.dev/code": "true"}


@pytest.mark.parametrize(
    ("selector", "ports", "policies"),
    [
        pytest.param({"app": "spares"}, (8001,), ["chat"], id="asks for no serving label"),
        pytest.param({"app": "spares", **CHAT}, (8001,), [], id="asks for it"),
        pytest.param({"app": "spares", **CODE}, (8001,), ["chat"], id="asks for another's"),
        pytest.param(
            {"app": "spares", "serving.emberpool.dev/chat": "yes"},
            (8001,),
            [],
            id="asks for what is never set",
        ),
        pytest.param(
            {"serving.emberpool.dev/other": "true"}, (8001,), [], id="asks for a policy that lives elsewhere"
        ),
        pytest.param({"emberpool.dev/fleet": "spares"}, (8002,), ["code"], id="by the fleet's label"),
        pytest.param({"app": "spares", "emberpool.dev/seat": "Spare"}, (8001,), ["chat"], id="by the seat's"),
        pytest.param({"app": "spares"}, (8001, 8002), ["chat", "code"], id="two ports"),
        pytest.param({"app": "spares"}, ("http",), ["chat"], id="a port by its name"),
        pytest.param({"app": "spares"}, (9001,), ["chat"], id="the engine behind its guard"),
        pytest.param({"app": "spares"}, (9400, "metrics", "none"), [], id="ports of nobody's"),
        pytest.param({"app": "other"}, (8001,), [], id="other pods"),
        pytest.param({"app": "spares", "tier": "x"}, (8001,), [], id="a label that the pods don't have"),
        pytest.param({}, (8001,), [], id="selects nothing"),
    ],
)
def test_which_residents_a_service_could_reach(
    selector: dict[str, str], ports: tuple[int | str, ...], policies: list[str]
) -> None:
    service = Service(name="s", selector=selector, ports=ports)
    found = list(reaching(WORKLOAD, [service], "spares"))
    assert len(found) == len(policies)
    for message, policy in zip(found, policies, strict=True):
        assert f'add serving.emberpool.dev/{policy}: "true"' in message


@pytest.mark.parametrize("listed", ["", "{", "5", "[5]", '[{"policy": "chat"}]', '[{"port": "x"}]'])
def test_a_list_that_can_not_be_read_has_no_residents(listed: str) -> None:
    workload = Workload(name="s", version="1", replicas=1, labels={"app": "s"}, residents=listed)
    assert list(reaching(workload, [Service(name="s", selector={"app": "s"}, ports=(1,))], "s")) == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(
            {"selector": {"a": "b"}, "ports": [{"port": 80, "targetPort": "http"}, {"port": 81}]},
            Service(name="s", selector={"a": "b"}, ports=("http", 81)),
            id="a target, and none",
        ),
        pytest.param({"externalName": "x"}, Service(name="s", selector={}), id="nothing selected"),
    ],
)
def test_a_service_is_read(spec: dict[str, Any], expected: Service) -> None:
    assert service_from_json({"metadata": {"name": "s"}, "spec": spec}) == expected


def test_no_service_of_the_base_manifests_could_reach_a_paused_resident() -> None:
    read = YAML(typ="safe").load_all
    bodies = [
        body
        for path in sorted(BASE.glob("fleets/*/*.yaml"))
        for body in read(path.read_text())
        if body and body["kind"] in {"Deployment", "Service"}
    ]
    services = [service_from_json(body) for body in bodies if body["kind"] == "Service"]
    workloads = [workload_from_json(body) for body in bodies if body["kind"] == "Deployment"]
    assert services
    assert all(workload.residents for workload in workloads)
    for workload in workloads:
        assert list(reaching(workload, services, workload.labels[FLEET_LABEL])) == []
