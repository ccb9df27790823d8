"""Which rights are asked about, and how."""

import re
from dataclasses import replace
from pathlib import Path

from scaler.doctor.findings import Severity
from scaler.doctor.picture import Right, Rights
from scaler.doctor.rights import NEEDED, attributes, check, needed
from tests.unit.scaler.doctor.cluster import picture

PAGE = Path(__file__).parents[4] / "docs" / "kubernetes.md"


def test_they_are_those_that_the_page_lists() -> None:
    _, _, table = PAGE.read_text().partition("| Resource | Verbs |")
    rows = re.findall(r"^\| ([a-z.0-9/-]+) \| ([a-z, ]+) \|$", table, re.MULTILINE)
    assert {resource: tuple(verbs.split(", ")) for resource, verbs in rows} == NEEDED


def test_each_is_asked_about_where_it_is_needed() -> None:
    asked = list(needed(("serving", "team-b"), "ops"))
    assert {right.namespace for right in asked if right.resource == "pods"} == {"serving", "team-b"}
    assert {right.namespace for right in asked if right.resource.startswith("nodes")} == {""}
    assert {right.namespace for right in asked if right.resource.startswith("leases")} == {"ops"}
    assert len(set(asked)) == len(asked)


def test_without_a_namespace_they_are_asked_about_everywhere() -> None:
    assert {right.namespace for right in needed((), "ops")} == {"", "ops"}


def test_a_right_as_a_review_has_it() -> None:
    scale = Right(resource="deployments.apps/scale", verb="update", namespace="serving")
    assert attributes(scale) == {
        "verb": "update",
        "resource": "deployments",
        "group": "apps",
        "subresource": "scale",
        "namespace": "serving",
    }
    lease = Right(resource="leases.coordination.k8s.io", verb="get", namespace="ops")
    assert attributes(lease) == {
        "verb": "get",
        "resource": "leases",
        "group": "coordination.k8s.io",
        "namespace": "ops",
    }


def test_what_only_device_taints_need_is_a_note() -> None:
    right = Right(resource="devicetaintrules.resource.k8s.io", verb="create", namespace="")
    refused = Rights(account="emberpool/controller", refused=(right,))
    (finding,) = check(replace(picture(), rights=(refused,)))
    assert finding.severity is Severity.NOTE
    assert finding.message.endswith("fleets with gpuHealth.scope: Gpu need it")
