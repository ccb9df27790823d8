"""The objects in deploy/keda: of the right form, and right for the policies that they belong to."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from scaler.cli.app import main
from scaler.keda.findings import Code, Severity, check
from scaler.keda.forecast import proposed, rules_of
from scaler.keda.intent import fleet_of, intent_of
from scaler.keda.objects import read_scaled_object
from scaler.keda.settings import DEFAULT_PORT
from scaler.policy.compile import PolicySet
from scaler.policy.reading import PolicyFiles

ROOT = Path(__file__).parents[2]
KEDA = ROOT / "deploy" / "keda"
OWN = ROOT / "policies" / "keda.yaml"
LAYERS = KEDA / "two-layers" / "policies.yaml"
BELONGS = {
    "scaled-object.yaml": OWN,
    "scaled-object-polled.yaml": OWN,
    "scaled-object-tls.yaml": OWN,
    "companion.yaml": OWN,
    "two-layers/scaled-object.yaml": LAYERS,
}
KEYS = {
    "spec": {
        *("scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval"),
        *("fallback", "advanced", "triggers"),
    },
    "fallback": {"failureThreshold", "replicas", "behavior"},
    "advanced": {"horizontalPodAutoscalerConfig", "scalingModifiers"},
    "horizontalPodAutoscalerConfig": {"behavior"},
    "scalingModifiers": {"formula", "target", "metricType"},
    "behavior": {"scaleUp", "scaleDown"},
    "scaleUp": {"tolerance", "stabilizationWindowSeconds", "policies"},
    "scaleDown": {"tolerance", "stabilizationWindowSeconds"},
}
"""Keys of the format keda.sh/v1alpha1 and of the HPA's `behavior` that are used here; a misspelt one would be dropped."""


def documents(name: str) -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all((KEDA / name).read_text("utf-8")))


def policies(path: Path) -> PolicySet:
    return PolicyFiles((path,)).read().set


def unknown(data: object, name: str = "") -> list[str]:
    if not isinstance(data, dict):
        return []
    wrong = [f"{name}.{key}" for key in data if name in KEYS and key not in KEYS[name]]
    return wrong + [each for key, value in data.items() for each in unknown(value, key)]


def test_every_scaled_object_is_looked_at_here() -> None:
    found = {
        str(path.relative_to(KEDA))
        for path in KEDA.rglob("*.yaml")
        if any(each["kind"] == "ScaledObject" for each in documents(str(path.relative_to(KEDA))))
    }
    assert found == BELONGS.keys()


@pytest.mark.parametrize(("name", "path"), BELONGS.items())
def test_each_has_nothing_wrong_for_its_policies_and_no_misspelt_key(name: str, path: Path) -> None:
    (data,) = documents(name)
    assert unknown(data["spec"], "spec") == []
    scaled, known = read_scaled_object(data), policies(path)
    fleet = fleet_of(known, scaled)
    intent = None if fleet is None else intent_of(known, fleet)
    found = [each for each in check(scaled, None, intent) if each.code is not Code.NO_PUSH]
    assert not [each for each in found if each.severity is not Severity.NOTE]
    assert scaled.own
    for trigger in scaled.own:
        names = known.fleets if trigger.asks.subject == "fleet" else known.policies
        assert trigger.asks.name in names
        assert trigger.metadata["scalerAddress"].endswith(f":{DEFAULT_PORT}")
    if intent is not None:
        assert scaled.minimum == intent.floor
        assert scaled.maximum == intent.max_seats


@pytest.mark.parametrize("name", [name for name in BELONGS if name != "companion.yaml"])
def test_no_step_of_one_seat_is_swallowed(name: str) -> None:
    (data,) = documents(name)
    rules = rules_of(read_scaled_object(data), None)
    for replicas in range(rules.minimum, rules.maximum):
        assert proposed(rules, replicas + 1.0, replicas) == replicas + 1
        assert proposed(rules, float(replicas), replicas + 1) == replicas


def test_the_shared_fleet_of_two_layers_has_one_writer_and_no_scaled_object() -> None:
    known = policies(LAYERS)
    assert {name: fleet.spec.resized_by for name, fleet in known.fleets.items()} == {
        "chat": "Keda",
        "spares": "Emberpool",
    }
    (data,) = documents("two-layers/scaled-object.yaml")
    data["spec"]["scaleTargetRef"]["name"] = "spares"
    scaled = read_scaled_object(data)
    assert fleet_of(known, scaled) == "spares"
    codes = {each.code for each in check(scaled, None, intent_of(known, "spares"))}
    assert Code.SECOND_WRITER in codes


def test_certificates_are_content_of_a_secret_under_the_names_that_keda_reads() -> None:
    secret, authentication = documents("trigger-authentication.yaml")
    given = {each["parameter"]: each["key"] for each in authentication["spec"]["secretTargetRef"]}
    assert given == {"caCert": "ca.crt", "tlsClientCert": "tls.crt", "tlsClientKey": "tls.key"}
    assert all("-----BEGIN" in secret["stringData"][key] for key in given.values())
    (scaled,) = documents("scaled-object-tls.yaml")
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert scaled["metadata"]["namespace"] == authentication["metadata"]["namespace"]


def test_the_service_is_headless_so_that_calls_are_spread() -> None:
    (service,) = documents("service.yaml")
    assert service["spec"]["clusterIP"] == "None"
    assert [port["port"] for port in service["spec"]["ports"]] == [DEFAULT_PORT]


def test_the_policies_are_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "validate", str(LAYERS)]) == 0
    capsys.readouterr()
