"""What policy files and controllers want, and what is found of sizes when files say it."""

from dataclasses import replace

from scaler.doctor.findings import KedaCode, Severity
from scaler.doctor.picture import Part
from scaler.doctor.whole import check
from scaler.doctor.wishes import FleetWish, PolicyWish, Target, of_controller, of_set
from scaler.policy.compile import PolicySet, compile_set
from scaler.policy.document import parse_documents
from scaler.policy.fleet import ResizedBy
from tests.unit.scaler.doctor import cluster as c

POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares, namespace: serving}
spec: {maxSeats: 44, spare: {min: 2}, resizedBy: Keda, seat: {gpus: 1}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat, namespace: serving}
spec: {fleets: [{name: spares, targetInFlight: 8}], engine: {type: VLLM, port: 8001}, serving: {min: 1}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: code, namespace: serving}
spec: {fleets: [{name: spares, targetInFlight: 8}], engine: {type: VLLM, port: 8002}, serving: {min: 1}}
"""


def policies() -> PolicySet:
    return compile_set(parse_documents(POLICIES, "policies.yaml"))


def test_what_files_want() -> None:
    wishes = of_set(policies(), "policies.yaml")
    fleet = wishes.fleet("serving", "spares")
    assert fleet is not None
    assert fleet.intent is not None
    assert wishes.fleet("team-b", "spares") is None
    assert replace(fleet, intent=None) == FleetWish(
        name="spares",
        policies=("chat", "code"),
        namespace="serving",
        target=Target(group="apps", kind="Deployment", name="spares"),
        resized_by=ResizedBy.KEDA,
        max_seats=44,
        gpus=1,
        spare_min=2,
    )
    assert wishes.policies["code"] == PolicyWish(name="code", port=8002, serving_min=1)


def test_what_a_controller_wants() -> None:
    wishes = of_controller(
        [{"name": "spares", "policies": ["chat"], "maxSeats": 4}, {"name": "own", "namespace": "team-b"}],
        [{"name": "chat"}],
    )
    assert wishes.fleet("serving", "spares") == FleetWish(name="spares", policies=("chat",), max_seats=4)
    assert wishes.fleet("serving", "own") is None
    assert wishes.fleet("team-b", "own") == FleetWish(name="own", namespace="team-b")
    assert wishes.policies == {"chat": PolicyWish(name="chat")}


def test_scaled_objects_are_held_against_what_files_want() -> None:
    found = c.changed(lambda bodies: bodies[Part.SCALED_OBJECTS].append(c.scaled_object()))
    found = replace(found, wishes=of_set(policies(), "policies.yaml"))
    by_code = {each.code: each for each in check(found)}
    tolerance = by_code[KedaCode.DEAD_ZONE]
    assert (tolerance.severity, tolerance.object) == (Severity.WARNING, "ScaledObject serving/spares")
    assert "a tolerance of 10% ignores a change of one seat from 10 seats on" in tolerance.message
    assert tolerance.mend.startswith("kubectl edit scaledobject spares -n serving  # tolerance: 0")
    assert by_code[KedaCode.MAX_BELOW_SEATS].severity is Severity.ERROR
    assert by_code[KedaCode.MIN_BELOW_FLOOR].severity is Severity.ERROR
