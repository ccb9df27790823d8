import json
from typing import Any

import pytest

from scaler.keda.findings import check
from scaler.keda.forecast import Rules, at_an_answer, at_an_error, proposed, rules_of
from scaler.keda.objects import Behavior, Fallback, Pause, read_hpa, read_scaled_object
from scaler.runtime.bench.law import hpa as kubernetes
from tests.unit.scaler.keda.kubernetes import CPU, RECORDED, hpa, scaled_object

LARGE = {"minimum": 0, "maximum": 100}


def said(value: float, replicas: int | None, **rules: Any) -> str:
    return " | ".join(at_an_answer(Rules(**{**LARGE, **rules}), value, active=value > 0, replicas=replicas))


@pytest.mark.parametrize(
    ("value", "replicas", "rules", "keda", "hpa_says"),
    [
        (5.0, 0, {}, "it sets the replicas from 0 to 1", "at 0 replicas it is off"),
        (5.0, 0, {"minimum": 3}, "it sets the replicas from 0 to 3", "it is off"),
        (5.0, 2, {}, "it leaves the replicas to the HPA", "asks for 5 in place of 2"),
        (5.0, 5, {}, "leaves the replicas", "asks for 5, as there are"),
        (2.0, 5, {}, "leaves the replicas", "2 in place of 5, once that has held for 300 s"),
        (2.0, 5, {"down": Behavior(window=0.0)}, "leaves the replicas", "2 in place of 5, at once"),
        (21.0, 20, {}, "leaves the replicas", "asks for 20, because 21 is within its tolerance of the 20"),
        (120.0, 20, {}, "leaves the replicas", "asks for 100, for 120 is beyond maxReplicaCount"),
        (
            0.0,
            1,
            {},
            "300 s after it was active last it sets the replicas to 0",
            "asks for 1, for 0 is beyond",
        ),
        (0.0, 3, {"minimum": 3}, "3 at least (minReplicaCount)", "asks for 3"),
        (5.0, 2, {"pause": Pause(stopped=True)}, "nothing, it is paused", ""),
        (5.0, 2, {"pause": Pause(scale_out=True)}, "nothing start from zero", "paused-scale-out keeps 2"),
        (2.0, 5, {"pause": Pause(scale_in=True)}, "leaves the replicas", "paused-scale-in keeps 5"),
        (0.0, 1, {"pause": Pause(scale_in=True)}, "paused-scale-in keeps it from zero", ""),
        (0.0, 1, {"pause": Pause(forced=True)}, "active: it leaves", ""),
        (5.0, None, {}, "from 0 it would set them to 1", "it asks for 5"),
    ],
)
def test_an_answer_has_its_consequences(
    value: float, replicas: int | None, rules: dict[str, Any], keda: str, hpa_says: str
) -> None:
    text = said(value, replicas, **rules)
    assert keda in text
    assert hpa_says in text


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [
        (None, "the ScaledObject has no fallback"),
        (
            Fallback(threshold=2, replicas=6),
            "after more than 2 failures in a row gets 6 replicas, whatever there is",
        ),
        (
            Fallback(threshold=3, replicas=6, behavior="currentReplicasIfHigher"),
            "the replicas that there are, and 6 at least",
        ),
    ],
)
def test_an_error_has_its_consequences(fallback: Fallback | None, expected: str) -> None:
    assert expected in " ".join(at_an_error(Rules(fallback=fallback)))


def test_without_a_scaled_object_nobody_knows_whether_it_has_a_fallback() -> None:
    text = " ".join(at_an_error(rules_of(None, None)))
    assert "has no fallback" not in text
    assert "unless the ScaledObject has a fallback: --scaled-object FILE tells" in text


@pytest.mark.parametrize(
    ("scaled", "made", "keda", "hpa_says"),
    [
        (
            {"spec.advanced.scalingModifiers": {"formula": "serving / 10"}},
            {},
            "KEDA: not forecast: scalingModifiers.formula",
            "HPA:  not forecast: scalingModifiers.formula",
        ),
        (
            {"spec.triggers.0.metricType": "Value"},
            None,
            "leaves the replicas",
            "not forecast: NotAverageValue",
        ),
        ({}, {"spec.metrics": [CPU]}, "leaves the replicas", "not forecast: ResourceMetric, MetricMissing"),
        (
            {},
            {"spec.metrics.0.external.target.averageValue": "2"},
            "leaves the replicas",
            "HPA:  not forecast: TargetNotOne",
        ),
    ],
)
def test_what_is_computed_in_another_way_is_not_forecast(
    scaled: dict[str, Any], made: dict[str, Any] | None, keda: str, hpa_says: str
) -> None:
    objects = read_scaled_object(scaled_object(scaled)), None if made is None else read_hpa(hpa(made))
    rules = rules_of(*objects, check(*objects))
    first, second = at_an_answer(rules, 30.0, active=True, replicas=3)
    assert keda in first
    assert hpa_says in second


@pytest.mark.parametrize("tolerance", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("replicas", [1, 2, 9, 10, 11, 20, 40])
def test_the_hpas_rule_is_the_one_that_is_modelled_for_the_law(tolerance: float, replicas: int) -> None:
    """Two separate readings of Kubernetes' arithmetic, which can't hide each other's errors."""
    pace = kubernetes.DEFAULT_UP.__class__(tolerance=tolerance)
    theirs = kubernetes.Hpa(max_replicas=100, up=pace, down=pace)
    ours = Rules(maximum=100, up=Behavior(tolerance=tolerance), down=Behavior(tolerance=tolerance))
    for total in range(1, 60):
        expected = kubernetes.average_value(theirs, replicas, float(total), 1.0)
        assert proposed(ours, float(total), replicas) == expected


def test_rules_are_read_from_both_objects_and_the_hpa_is_what_acts() -> None:
    scaled, made = (
        read_scaled_object(scaled_object()),
        read_hpa(hpa({"spec.behavior.scaleUp.tolerance": "100m"})),
    )
    rules = rules_of(scaled, made)
    assert (rules.minimum, rules.maximum, rules.up.tolerance, rules.down.tolerance) == (3, 44, 0.1, 0.0)
    assert rules_of(scaled, None).up.tolerance == 0.0
    recorded = read_hpa(json.loads((RECORDED / "hpa-created-by-keda.json").read_text("utf-8")))
    assert rules_of(None, recorded).maximum == 20
