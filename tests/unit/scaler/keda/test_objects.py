import json

import pytest

from scaler.keda.objects import NotReadable, Pause, read_hpa, read_pause, read_scaled_object
from tests.unit.scaler.keda.kubernetes import RECORDED, hpa, scaled_object

KEDA = "autoscaling.keda.sh/"


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, Pause()),
        ({"autoscaling.keda.sh/other": "true"}, Pause()),
        ({KEDA + "paused": "true"}, Pause(stopped=True)),
        ({KEDA + "paused": "false"}, Pause()),
        ({KEDA + "paused": "yes"}, Pause(stopped=True)),
        ({KEDA + "paused": ""}, Pause(stopped=True)),
        ({KEDA + "paused-replicas": "4"}, Pause(stopped=True, replicas=4)),
        ({KEDA + "paused-replicas": "0"}, Pause(stopped=True, replicas=0)),
        ({KEDA + "paused-replicas": "-1"}, Pause(unreadable="'-1'")),
        ({KEDA + "paused-scale-in": "true"}, Pause(scale_in=True)),
        ({KEDA + "paused-scale-out": "1"}, Pause(scale_out=True)),
        ({KEDA + "force-activation": "true"}, Pause(forced=True)),
    ],
)
def test_annotations_say_how_people_have_stopped_keda(annotations: dict[str, str], expected: Pause) -> None:
    assert read_pause(annotations) == expected
    found = read_scaled_object(scaled_object({"metadata.annotations": annotations}))
    assert found.pause == expected


def test_defaults_are_kedas_and_the_hpas() -> None:
    bare = {"kind": "ScaledObject", "metadata": {"name": "a"}, "spec": {"scaleTargetRef": {"name": "a"}}}
    found = read_scaled_object(bare)
    assert (found.minimum, found.maximum, found.cooldown, found.polling) == (0, 100, 300.0, 30.0)
    assert (found.up.tolerance, found.up.window, found.down.window) == (0.1, 0.0, 300.0)
    assert (found.fallback, found.idle, found.namespace, found.target.kind) == (
        None,
        None,
        "default",
        "Deployment",
    )


def test_the_recorded_objects_are_read() -> None:
    data = json.loads((RECORDED / "scaledobject.json").read_text("utf-8"))
    data["spec"]["triggers"][0]["metadata"]["fleet"] = "llm"
    scaled = read_scaled_object(data)
    assert (scaled.name, scaled.target.name, scaled.own[0].metric) == (
        "llm",
        "llm",
        "s0-emberpool-fleet-llm-total",
    )
    assert scaled.fallback is not None
    assert (scaled.fallback.behavior, scaled.fallback.threshold) == ("static", 2)
    assert scaled.conditions["Ready"] == "True"
    made = read_hpa(json.loads((RECORDED / "hpa-created-by-keda.json").read_text("utf-8")))
    assert (made.owner, made.minimum, made.maximum, made.version) == ("ScaledObject/llm", 1, 20, "main")
    assert made.metrics[0].name == "s0-desired-replicas"
    assert (made.metrics[0].target_type, made.metrics[0].target) == ("AverageValue", 1.0)


@pytest.mark.parametrize("data", [None, [], "text", {}, {"kind": "List"}, hpa()])
def test_another_object_is_refused(data: object) -> None:
    with pytest.raises(NotReadable, match="this is no ScaledObject"):
        read_scaled_object(data)


@pytest.mark.parametrize(
    "spec", [None, [], "x", {"triggers": "x"}, {"triggers": [None, 3]}, {"advanced": [], "fallback": 3}]
)
def test_a_misshapen_object_is_read_as_far_as_it_goes(spec: object) -> None:
    found = read_scaled_object({"kind": "ScaledObject", "metadata": {"name": "a"}, "spec": spec})
    assert found.own == ()
