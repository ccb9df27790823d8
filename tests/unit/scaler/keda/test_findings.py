import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaler.keda.findings import Code, Finding, Severity, check
from scaler.keda.objects import read_hpa, read_scaled_object
from tests.unit.scaler.keda.kubernetes import CPU, INTENT, hpa, scaled_object


def found(
    scaled: Mapping[str, Any] | None = None, made: Mapping[str, Any] | None = None, **intent: Any
) -> dict[Code, Finding]:
    made_of = None if made is None else read_hpa(hpa(made))
    findings = check(read_scaled_object(scaled_object(scaled)), made_of, replace(INTENT, **intent))
    return {each.code: each for each in findings}


def test_the_manifest_that_is_shipped_and_the_hpa_of_it_have_nothing_wrong() -> None:
    assert found() == {}
    assert found(made={}) == {}


TRIGGER = "spec.triggers.0"
BEHAVIOR = "spec.advanced.horizontalPodAutoscalerConfig.behavior"
ANNOTATIONS = "metadata.annotations"


@pytest.mark.parametrize(
    ("changes", "code", "severity", "message"),
    [
        ({"spec.triggers": []}, Code.NO_TRIGGER, Severity.ERROR, "no trigger asks for a fleet"),
        ({f"{TRIGGER}.metadata.fleet": None}, Code.BAD_TRIGGER, Severity.ERROR, "needs `fleet: NAME`"),
        ({f"{TRIGGER}.metricType": "Value"}, Code.NOT_AVERAGE_VALUE, Severity.ERROR, "multiply"),
        ({f"{TRIGGER}.type": "external"}, Code.NO_PUSH, Severity.NOTE, "each 5 s"),
        (
            {f"{TRIGGER}.metadata.caCert": "/x"},
            Code.TLS_IN_METADATA,
            Severity.WARNING,
            "TriggerAuthentication",
        ),
        ({"spec.advanced.scalingModifiers": {"formula": "a+1"}}, Code.FORMULA, Severity.WARNING, "formula"),
        ({f"{TRIGGER}.metadata.value": "Serving"}, Code.NOT_THE_TOTAL, Severity.ERROR, "would be deleted"),
        (
            {f"{TRIGGER}.metadata": {"policy": "chat"}},
            Code.POLICY_SCALES_FLEET,
            Severity.ERROR,
            "of a policy",
        ),
        ({f"{TRIGGER}.metadata.fleet": "own"}, Code.WRONG_TARGET, Severity.ERROR, "numbers of own"),
        ({"metadata.namespace": "x"}, Code.OTHER_NAMESPACE, Severity.ERROR, "fleet is in serving"),
        ({"spec.maxReplicaCount": 43}, Code.MAX_BELOW_SEATS, Severity.ERROR, "43 is below the 44 seats"),
        ({"spec.minReplicaCount": 2}, Code.MIN_BELOW_FLOOR, Severity.ERROR, "2 is below the 3 seats"),
        ({"spec.minReplicaCount": None}, Code.MIN_BELOW_FLOOR, Severity.ERROR, "0 is below the 3 seats"),
        ({"spec.idleReplicaCount": 0}, Code.IDLE_REPLICAS, Severity.WARNING, "keeps 0 replicas"),
        ({"spec.fallback": None}, Code.NO_FALLBACK, Severity.NOTE, "don't come up to the floor"),
        ({"spec.fallback.behavior": "static"}, Code.FALLBACK_BELOW_RUNNING, Severity.WARNING, "may have 44"),
        (
            {"spec.fallback.behavior": "currentReplicasIfLower"},
            Code.FALLBACK_SHRINKS,
            Severity.WARNING,
            "lowers the fleet to 3",
        ),
        (
            {"spec.fallback.replicas": 0, "spec.minReplicaCount": 0},
            Code.FALLBACK_ZERO,
            Severity.ERROR,
            "takes unknown for inactive",
        ),
        ({f"{BEHAVIOR}.scaleUp.tolerance": None}, Code.DEAD_ZONE, Severity.WARNING, "from 10 seats on"),
        ({f"{BEHAVIOR}.scaleDown.tolerance": "50m"}, Code.DEAD_ZONE, Severity.WARNING, "from 20 seats on"),
        ({f"{BEHAVIOR}.scaleUp.selectPolicy": "Disabled"}, Code.DISABLED, Severity.ERROR, "changes nothing"),
        ({f"{BEHAVIOR}.scaleUp.policies": None}, Code.SLOW_SCALE_UP, Severity.NOTE, "four pods or 100 %"),
        (
            {f"{BEHAVIOR}.scaleDown.stabilizationWindowSeconds": 300},
            Code.WINDOWS_ADD_UP,
            Severity.NOTE,
            "begins when the fleet's own 300 s have passed",
        ),
        (
            {f"{ANNOTATIONS}.autoscaling~keda~sh/paused": "true"},
            Code.PAUSED,
            Severity.NOTE,
            "deletes its HPA",
        ),
        (
            {f"{ANNOTATIONS}.autoscaling~keda~sh/paused-replicas": "abc"},
            Code.BAD_ANNOTATION,
            Severity.ERROR,
            "unreadable value 'abc'",
        ),
        (
            {f"{ANNOTATIONS}.autoscaling~keda~sh/paused-replicas": "-1"},
            Code.BAD_ANNOTATION,
            Severity.ERROR,
            "unreadable value '-1': KEDA can't use what is no number of replicas",
        ),
        (
            {f"{TRIGGER}.metadata.scalerAddress": None},
            Code.BAD_TRIGGER,
            Severity.ERROR,
            "nobody to ask without it",
        ),
        ({f"{TRIGGER}.metadata.scalerAddress": ""}, Code.BAD_TRIGGER, Severity.ERROR, "it is missing"),
        (
            {"spec.scaleTargetRef.kind": "StatefulSet"},
            Code.WRONG_TARGET,
            Severity.ERROR,
            "fleet spares is Deployment spares, and this scales StatefulSet spares",
        ),
        (
            {"status": {"conditions": [{"type": "Fallback", "status": "True"}]}},
            Code.ON_FALLBACK,
            Severity.ERROR,
            "on its fallback",
        ),
        (
            {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
            Code.NOT_READY,
            Severity.ERROR,
            "can't use",
        ),
    ],
)
def test_each_fault_of_a_scaled_object_is_found(
    changes: dict[str, Any], code: Code, severity: Severity, message: str
) -> None:
    each = found(changes)[code]
    assert each.severity is severity
    assert message in each.message
    assert each.object == "ScaledObject"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec.minReplicaCount", "three", "'three' is no whole number from 0 on"),
        ("spec.minReplicaCount", -1, "'-1' is no whole number from 0 on"),
        ("spec.minReplicaCount", 45, "45 is above maxReplicaCount, 44"),
        ("spec.maxReplicaCount", "44", "'44' is no whole number"),
        ("spec.pollingInterval", 2.5, "'2.5' is no whole number"),
        ("spec.cooldownPeriod", True, "'True' is no whole number"),
        ("spec.idleReplicaCount", "none", "'none' is no whole number"),
        ("spec.fallback.replicas", "3", "'3' is no whole number"),
        ("spec.fallback.failureThreshold", -3, "'-3' is no whole number"),
        (
            "spec.fallback.behavior",
            "bogus",
            "'bogus' is none; take one of static, currentReplicas, currentReplicasIfHigher",
        ),
    ],
)
def test_a_field_that_keda_cant_use_is_named_and_nothing_else_is_said_of_it(
    path: str, value: object, message: str
) -> None:
    findings = check(read_scaled_object(scaled_object({path: value})), None, INTENT)
    (of_it,) = [each for each in findings if each.path == path]
    assert (of_it.code, of_it.severity) == (Code.BAD_FIELD, Severity.ERROR)
    assert message in of_it.message


METRIC = "spec.metrics.0.external"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"spec.metrics": [CPU]}, Code.RESOURCE_METRIC, "scales on cpu (Resource)"),
        ({"spec.metrics": [CPU]}, Code.METRIC_MISSING, "doesn't ask for s0-emberpool-fleet-spares-total"),
        ({f"{METRIC}.metric.name": "s0-other"}, Code.METRIC_MISSING, "doesn't ask for"),
        ({f"{METRIC}.target": {"type": "Value", "value": "1"}}, Code.NOT_AVERAGE_VALUE, "multiply"),
        ({f"{METRIC}.target.averageValue": "2"}, Code.TARGET_NOT_ONE, "the target is 2"),
        ({f"{METRIC}.target.averageValue": "1100m"}, Code.TARGET_NOT_ONE, "the target is 1.1"),
        ({"spec.maxReplicas": 20}, Code.MAX_BELOW_SEATS, "20 is below the 44"),
        ({"spec.minReplicas": 1}, Code.MIN_BELOW_FLOOR, "1 is below the 3"),
        ({"spec.behavior.scaleUp.tolerance": None}, Code.DEAD_ZONE, "from 10 seats on"),
        ({"metadata.ownerReferences": []}, Code.NOT_KEDAS, "owned by nobody"),
        ({"spec.scaleTargetRef.name": "x"}, Code.NOT_KEDAS, "scales Deployment x"),
        (
            {"metadata.labels.app~kubernetes~io/version": "2.18.1"},
            Code.OLD_OPERATOR,
            "2.18.1 is older than 2.20",
        ),
    ],
)
def test_each_fault_of_an_hpa_is_found(changes: dict[str, Any], code: Code, message: str) -> None:
    each = found(made=changes)[code]
    assert message in each.message
    assert each.object == "HorizontalPodAutoscaler"


@pytest.mark.parametrize("version", ["main", "2.20.0", "2.21.3", "v3.0.0", ""])
def test_an_operator_that_is_new_enough_or_unknown_is_no_finding(version: str) -> None:
    assert Code.OLD_OPERATOR not in found(made={"metadata.labels.app~kubernetes~io/version": version})


def test_a_fleet_that_emberpool_resizes_has_a_second_writer() -> None:
    assert "two would write the replicas of spares" in found(by_keda=False)[Code.SECOND_WRITER].message


def test_a_static_fallback_is_an_error_once_the_fleet_is_known_to_be_larger() -> None:
    static = {"spec.fallback.behavior": "static"}
    assert found(static, running=4)[Code.FALLBACK_BELOW_RUNNING].severity is Severity.ERROR
    assert Code.FALLBACK_BELOW_RUNNING not in found(static, running=3)


def test_a_companion_may_follow_a_policy_and_has_bounds_of_its_own() -> None:
    companion = {
        "spec.scaleTargetRef.name": "gateway",
        "spec.triggers.0.metadata": {"scalerAddress": "a:1", "policy": "chat", "value": "QueueDepth"},
        "spec.minReplicaCount": 1,
        "spec.maxReplicaCount": 5,
    }
    assert found(companion) == {}


def test_a_total_that_scales_another_workload_is_told() -> None:
    assert (
        "this scales Deployment gateway"
        in found({"spec.scaleTargetRef.name": "gateway"})[Code.WRONG_TARGET].message
    )


def test_other_triggers_beside_ours_can_blank_it() -> None:
    triggers = [*scaled_object()["spec"]["triggers"], {"type": "prometheus", "metadata": {}}]
    assert "beside prometheus" in found({"spec.triggers": triggers})[Code.OTHER_TRIGGERS].message


def beside(metadata: dict[str, str]) -> dict[Code, Finding]:
    triggers = [*scaled_object()["spec"]["triggers"], {"type": "external-push", "metadata": metadata}]
    return found({"spec.triggers": triggers})


def test_somebody_elses_external_trigger_is_another_trigger_and_no_bad_one_of_ours() -> None:
    findings = beside({"scalerAddress": "vendor:9090", "queue": "orders"})
    assert "beside external-push of 'vendor:9090'" in findings[Code.OTHER_TRIGGERS].message
    assert findings[Code.OTHER_TRIGGERS].severity is Severity.WARNING
    assert Code.BAD_TRIGGER not in findings


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"scalerAddress": "emberpool-keda:6000", "flet": "spares"}, id="a slip at our address"),
        pytest.param({"scalerAddress": "vendor:9090", "fleet": ""}, id="a key of ours at another address"),
        pytest.param({"queue": "orders"}, id="no address"),
    ],
)
def test_a_trigger_that_may_be_meant_for_us_is_a_bad_one(metadata: dict[str, str]) -> None:
    findings = beside(metadata)
    assert findings[Code.BAD_TRIGGER].path.startswith("spec.triggers[1].metadata")
    assert Code.OTHER_TRIGGERS not in findings


@pytest.mark.parametrize("annotation", ["paused", "paused-replicas"])
def test_while_paused_an_hpa_that_is_there_is_named_and_not_said_to_be_gone(annotation: str) -> None:
    each = found({f"{ANNOTATIONS}.autoscaling~keda~sh/{annotation}": "1"}, {})[Code.PAUSED]
    assert "HorizontalPodAutoscaler keda-hpa-spares is there all the same" in each.message
    assert "deletes" not in each.message


def test_errors_come_first() -> None:
    scaled = read_scaled_object(
        scaled_object({"spec.triggers.0.type": "external", "spec.minReplicaCount": 0})
    )
    assert [each.severity for each in check(scaled, None, INTENT)] == [Severity.ERROR, Severity.NOTE]


def test_the_page_of_documentation_lists_every_code() -> None:
    page = (Path(__file__).parents[4] / "docs" / "keda.md").read_text("utf-8")
    section = page.partition("### What is found")[2].partition("\n## ")[0]
    first = " ".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    assert sorted(re.findall(r"`(\w+)`", first)) == sorted(Code)
