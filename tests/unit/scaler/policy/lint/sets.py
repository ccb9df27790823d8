"""Smallest sets to do arithmetic with, as plain data."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from scaler.policy.compile import compile_set
from scaler.policy.lint import Assumptions, Code, Figure, Finding, Subject, lint, pod_templates
from scaler.policy.source import Document, parse_documents

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
"""A Monday."""

Tree = Mapping[str, Any]


def fleet(name: str = "own", **spec: Any) -> Tree:
    return _document("Fleet", name, {"maxSeats": 4, "spare": {"min": 1}, **spec})


def policy(name: str = "chat", fleets: Mapping[str, int] | None = None, **spec: Any) -> Tree:
    shares = [{"name": fleet, "targetInFlight": target} for fleet, target in (fleets or {"own": 32}).items()]
    return _document(
        "ScalingPolicy", name, {"fleets": shares, "objectives": {"ttft": {"seconds": 5}}, **spec}
    )


def controller(**spec: Any) -> Tree:
    return _document("Controller", "limits", spec)


def deployment(name: str = "own", *, labels: Tree | None = None, **changes: Any) -> Tree:
    """Make a Deployment as it should be; `changes` replace values by their dotted path, None takes them away."""
    residents = [{"policy": "chat", "command": ["vllm"], "port": 8001}]
    tree: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "strategy": {"rollingUpdate": {"maxUnavailable": 1}},
            "template": {
                "metadata": {
                    "labels": {"emberpool.dev/fleet": name} if labels is None else dict(labels),
                    "annotations": {"emberpool.dev/residents": json.dumps(residents)},
                },
                "spec": {
                    "terminationGracePeriodSeconds": 60,
                    "readinessGates": [{"conditionType": "emberpool.dev/admitted"}],
                    "containers": [{"name": "engines", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
                },
            },
        },
    }
    for path, value in changes.items():
        *parents, key = path.split("__")
        node = tree["spec"] if parents[:1] == ["workload"] else tree["spec"]["template"]
        for parent in parents[parents[:1] == ["workload"] :]:
            node = node[parent]
        if value is None:
            del node[key]
        else:
            node[key] = value
    return tree


def residents(*listed: Tree) -> Tree:
    return {"emberpool.dev/residents": json.dumps(listed)}


def subject(*trees: Tree, **assumptions: Any) -> Subject:
    """Compile documents of a set, and manifests among them, as they would be read from files."""
    documents = _read([tree for tree in trees if "emberpool.dev" in tree["apiVersion"]])
    manifests = _read([tree for tree in trees if "emberpool.dev" not in tree["apiVersion"]])
    return Subject(
        policies=compile_set(documents),
        now=NOW,
        assumptions=Assumptions.model_validate(assumptions, by_name=True),
        templates=pod_templates(manifests),
    )


def findings(code: Code, *trees: Tree, **assumptions: Any) -> list[Finding]:
    report = lint(subject(*trees, **assumptions))
    return [finding for finding in report.findings if finding.code is code]


def terms(figure: Figure) -> dict[str, float | None]:
    return {term.name: term.value for term in figure.terms}


def _read(trees: list[Tree]) -> list[Document]:
    return parse_documents("\n---\n".join(json.dumps(tree) for tree in trees), "set.yaml") if trees else []


def _document(kind: str, name: str, spec: Tree) -> Tree:
    return {
        "apiVersion": "emberpool.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {key: value for key, value in spec.items() if value is not None},
    }
