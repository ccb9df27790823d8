"""All that sizes a fleet, or should."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from scaler.keda.findings import Code, Severity
from scaler.keda.fleet_findings import FleetFindings, Objects, look
from scaler.keda.objects import read_hpa, read_scaled_object
from tests.unit.scaler.keda.kubernetes import INTENT, hpa, scaled_object

Changes = Mapping[str, Any]
OTHERS: Changes = {"metadata.name": "mine", "metadata.ownerReferences": []}


def found(
    scaled: Sequence[Changes] = (), hpas: Sequence[Changes] = (), *, complete: bool = True, **intent: Any
) -> FleetFindings:
    objects = Objects(
        scaled=[read_scaled_object(scaled_object(each)) for each in scaled],
        hpas=[read_hpa(hpa(each)) for each in hpas],
        complete=complete,
    )
    return look(replace(INTENT, **intent), objects)


def said(findings: FleetFindings) -> list[tuple[str, str, Code]]:
    return [(each.kind, each.name, each.finding.code) for each in findings.findings]


@pytest.mark.parametrize(
    ("scaled", "hpas", "intent", "expected"),
    [
        pytest.param([{}], [{}], {}, [], id="as it should be"),
        pytest.param([], [], {"by_keda": False}, [], id="ours, and nobody else's"),
        pytest.param([], [], {}, [("Fleet", "spares", Code.NO_SCALED_OBJECT)], id="nobody sizes it"),
        pytest.param(
            [],
            [OTHERS],
            {"by_keda": False},
            [("HorizontalPodAutoscaler", "mine", Code.SECOND_WRITER)],
            id="an HPA beside us",
        ),
        pytest.param(
            [{}],
            [{}, OTHERS],
            {},
            [("HorizontalPodAutoscaler", "mine", Code.NOT_KEDAS)],
            id="an HPA beside KEDA's",
        ),
        pytest.param(
            [{}, {"metadata.name": "again"}],
            [{}],
            {},
            [("ScaledObject", "again", Code.SECOND_WRITER)],
            id="two ScaledObjects",
        ),
        pytest.param(
            [{}],
            [{"spec.maxReplicas": 12}],
            {},
            [("HorizontalPodAutoscaler", "keda-hpa-spares", Code.MAX_BELOW_SEATS)],
            id="the HPA that was made isn't the one that was meant",
        ),
        pytest.param(
            [{}, {"metadata.name": "other", "spec.scaleTargetRef": {"name": "other"}}],
            [{}],
            {},
            [("ScaledObject", "other", Code.WRONG_TARGET)],
            id="another workload follows the total",
        ),
        pytest.param(
            [{"spec.scaleTargetRef.kind": "StatefulSet"}],
            [],
            {},
            [("ScaledObject", "spares", Code.WRONG_TARGET), ("Fleet", "spares", Code.NO_SCALED_OBJECT)],
            id="a workload of its name and another kind",
        ),
    ],
)
def test_what_is_found(
    scaled: Sequence[Changes], hpas: Sequence[Changes], intent: dict[str, Any], expected: list[object]
) -> None:
    assert said(found(scaled, hpas, **intent)) == expected


def test_nothing_is_missing_while_nobody_knows_what_there_is() -> None:
    assert said(found(complete=False)) == []


def test_the_gravest_comes_first_and_all_are_counted() -> None:
    findings = found([{"spec.fallback": None, "spec.maxReplicaCount": 3}])
    assert [each.finding.severity for each in findings.findings] == [Severity.ERROR, Severity.NOTE]
    assert findings.counts == {Severity.ERROR: 1, Severity.WARNING: 0, Severity.NOTE: 1}


def test_who_scales_another_kind_of_workload_is_named_where_nobody_sizes_the_fleet() -> None:
    findings = found([{"spec.scaleTargetRef.kind": "StatefulSet"}]).findings
    (nobody,) = (each.finding for each in findings if each.finding.code is Code.NO_SCALED_OBJECT)
    assert "no ScaledObject scales Deployment spares" in nobody.message
    assert nobody.message.endswith("; spares scales StatefulSet spares")


def test_what_is_said_of_a_pause_knows_whether_the_hpa_is_there() -> None:
    paused = {"metadata.annotations": {"autoscaling.keda.sh/paused": "true"}}
    both, alone = found([paused], [{}]), found([paused])
    assert "keda-hpa-spares is there all the same" in both.paused[0]
    assert "deletes its HPA" in alone.paused[0]
    for each in (both, alone):
        said_as_finding = [one.finding.message for one in each.findings if one.finding.code is Code.PAUSED]
        assert said_as_finding == list(each.paused)


def test_a_pause_is_that_of_who_scales_the_workload() -> None:
    paused = {"metadata.annotations": {"autoscaling.keda.sh/paused-replicas": "3"}}
    assert found([paused]).pause.replicas == 3
    assert found([paused]).pause.stopped
    elsewhere = {**paused, "spec.scaleTargetRef": {"name": "other"}}
    assert not found([elsewhere]).pause.stopped
