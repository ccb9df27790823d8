"""The whole of it, over the examples that people start from."""

from pathlib import Path

import pytest

from scaler.errors import PolicyError
from scaler.policy.compile import compile_set
from scaler.policy.lint import Severity, Subject, lint
from scaler.policy.lint.manifests import pod_templates
from scaler.policy.source import load_documents, parse_documents
from tests.unit.scaler.policy.lint.sets import NOW, fleet, policy, subject

POLICIES = Path(__file__).parents[5] / "policies"
SETS = sorted(
    path
    for path in [*POLICIES.glob("*.yaml"), *POLICIES.glob("drills/*.yaml")]
    if "kind: DrillScenario" not in path.read_text("utf-8")
)


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_no_example_has_an_error(path: Path) -> None:
    report = lint(Subject(policies=compile_set(load_documents([path])), now=NOW))
    assert [each.message for each in report.findings if each.severity is Severity.ERROR] == []
    assert {each.policy.metadata.name for each in report.policies} == set(report.subject.policies.policies)


def test_every_term_has_an_origin_and_every_unknown_says_what_to_set() -> None:
    report = lint(subject(fleet(resizedBy="Keda"), policy(), policy("code", engine={"type": "Generic"})))
    figures = [figure for each in report.policies for figure in each.times]
    for each in report.fleets:
        assert each.memory is not None
        figures += [*each.times, *each.costs, each.memory.needed]
    terms = [term for figure in figures for term in figure.terms]
    terms += [term for finding in report.findings for term in finding.terms]
    assert terms
    assert all(term.origin and term.name and term.unit for term in terms)
    assert all(term.origin.startswith("unknown: ") for term in terms if term.value is None)


def test_an_empty_set_has_nothing_to_say() -> None:
    report = lint(subject())
    assert (report.fleets, report.policies, report.findings) == ((), (), ())


@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param("kind: Service\nmetadata: {name: x}\nspec: {ports: [{port: 1}]}", id="service"),
        pytest.param("kind: Deployment\nspec: {template: 1}", id="template-is-no-mapping"),
        pytest.param("a: 1", id="no-kind"),
    ],
)
def test_a_manifest_that_makes_no_pods_is_refused(manifest: str) -> None:
    with pytest.raises(PolicyError, match="no document here makes pods"):
        pod_templates(parse_documents(manifest, "x.yaml"))


@pytest.mark.parametrize(
    "manifest",
    [
        "kind: Pod\nmetadata: 7\nspec: {containers: 5}",
        "kind: Deployment\nspec: {template: {metadata: {labels: [], annotations: 3}, spec: {containers: [1, {name: 2}]}}}",
        (
            "kind: Deployment\nmetadata: {name: own}\nspec: {strategy: 1, template: {spec: {containers: [{resources: []}],"
            " readinessGates: 5, terminationGracePeriodSeconds: x}}}"
        ),
        (
            "kind: Deployment\nmetadata: {name: own}\nspec: {strategy: {rollingUpdate: {maxUnavailable: x}}, template:"
            " {spec: {containers: [{resources: {limits: {nvidia.com/gpu: many}}}]}}}"
        ),
    ],
)
def test_manifests_of_any_shape_are_looked_at(manifest: str) -> None:
    looked_at = subject(fleet(), policy())
    templates = pod_templates(parse_documents(manifest, "x.yaml"))
    report = lint(Subject(policies=looked_at.policies, now=NOW, templates=templates))
    assert any(finding.place.kind in {"Pod", "Deployment"} for finding in report.findings)
