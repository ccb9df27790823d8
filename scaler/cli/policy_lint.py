"""`emberpool policy lint`: what a set of policies means, in numbers, before it is live."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from scaler.cli.client import Gateway
from scaler.cli.failures import FAILED, OK
from scaler.cli.lint_text import page
from scaler.cli.options import Paths, examples, path_of
from scaler.cli.output import emit
from scaler.cli.policy_files import read_documents, read_set
from scaler.cli.renderings import Rendering, as_data, faults_as
from scaler.errors import PolicyError, PolicyFault, UserError
from scaler.policy.compile import PolicySet
from scaler.policy.document import Document, dotted
from scaler.policy.lint import (
    Assumptions,
    Figure,
    Finding,
    Place,
    PodTemplate,
    Report,
    Severity,
    Subject,
    Term,
    lint,
    pod_templates,
    worst,
)
from scaler.policy.lint.memory import SeatMemory
from scaler.policy.wording import did_you_mean, expectation, schema_at, schema_of

ASSUMPTIONS: Final = tuple(field.alias or name for name, field in Assumptions.model_fields.items())
"""What `--assume` takes."""

Position = tuple[str, int, int]
"""File, line and column (1-based)."""


class LintOutput(StrEnum):
    """What `-o` takes."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


_RENDERINGS: Final = {
    LintOutput.TABLE: Rendering.TEXT,
    LintOutput.WIDE: Rendering.TEXT,
    LintOutput.JSON: Rendering.JSON,
    LintOutput.YAML: Rendering.YAML,
}
"""How what can't be used is told."""


def register(app: typer.Typer) -> None:
    """Add the command to the commands about policies."""
    app.command(
        "lint",
        epilog=examples(
            "emberpool policy lint policies/",
            "emberpool policy lint policies/ -o wide --assume podStartSeconds=40",
            "emberpool policy lint policies/ --assume gatewayQueueSeconds=30 --assume answerSeconds=120",
            "emberpool policy lint policies/ --gateway http://127.0.0.1:9082",
            "emberpool policy lint policies/ --template deployment.yaml --strict",
            "emberpool policy lint policies/ -o json | jq '.findings[] | select(.severity == \"Error\")'",
        ),
    )(lint_command)


def lint_command(  # noqa: PLR0917 - typer hands every option over by name
    paths: Paths,
    output: Annotated[
        LintOutput, typer.Option("--output", "-o", help="How to print: table, wide, json or yaml.")
    ] = LintOutput.TABLE,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings, too.")] = False,
    seat_memory_mib: Annotated[
        int | None,
        typer.Option(
            "--seat-memory-mib", metavar="N", help="GPU memory of a seat, where a fleet doesn't say it."
        ),
    ] = None,
    template: Annotated[
        list[Path] | None,
        typer.Option(
            "--template",
            metavar="MANIFEST",
            help="Manifest of a fleet's pods; several may be given.",
            parser=path_of,
        ),
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            "--assume",
            metavar="NAME=VALUE",
            help=f"What isn't in any policy, as a whole number; may be repeated. Names: {', '.join(ASSUMPTIONS)}.",
        ),
    ] = None,
    gateway: Annotated[
        str,
        typer.Option(
            "--gateway",
            metavar="URL",
            help="A running gateway, by the port of its metrics: its settings are assumed, but for what --assume says.",
            show_default=False,
        ),
    ] = "",
) -> int:
    """Tell what policies mean: worst-case times, costs, GPU memory, and what can't come true.

    Every number says what it is made of; -o wide says where each part comes from. What isn't known is left out of a total,
    which then says so with a >. Times hold while nothing fails: no reading times out, no promotion needs a second try. Exit
    code 0: no errors; 1: errors, with --strict warnings too; 2: the files can't be used.
    """
    with faults_as(_RENDERINGS[output]):
        policies, documents, templates = _read(paths, template or ())
    subject = Subject(
        policies=policies,
        now=datetime.now(UTC),
        assumptions=parse_assumptions(assume or [], seat_memory_mib, _of_gateway(gateway)),
        templates=templates,
    )
    report = lint(subject)
    places = _Places(documents, subject.templates)
    if _RENDERINGS[output] is not Rendering.TEXT:
        emit(as_data(to_tree(report, places), _RENDERINGS[output]))
    else:
        ordered = sorted(report.findings, key=lambda finding: places.of(finding.place))
        emit(
            page(
                report,
                [(finding, places.of(finding.place)) for finding in ordered],
                wide=output is LintOutput.WIDE,
            )
        )
    failing = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    return FAILED if worst(report.findings) in failing else OK


def _read(
    paths: Sequence[Path], manifests: Sequence[Path]
) -> tuple[PolicySet, Sequence[Document], tuple[PodTemplate, ...]]:
    """Read a set with its documents, and the pod templates beside it.

    Raises:
        PolicyError: with all faults of the policies, and of the manifests behind them.
    """
    faults: list[PolicyFault] = []
    templates: tuple[PodTemplate, ...] = ()
    try:
        templates = pod_templates(read_documents(manifests)) if manifests else ()
    except PolicyError as error:
        faults += error.faults
    try:
        policies, documents = read_set(paths)
    except PolicyError as error:
        raise PolicyError((*error.faults, *faults)) from error
    if faults:
        raise PolicyError(tuple(faults))
    return policies, documents, templates


def _of_gateway(url: str) -> Mapping[str, int]:
    """Ask a gateway for its settings, as far as they are assumptions of this version.

    Raises:
        Failed: nobody answers, or who does is no gateway.
    """
    if not url:
        return {}
    return {name: value for name, value in Gateway(url).assumptions().items() if name in ASSUMPTIONS}


def parse_assumptions(
    written: Sequence[str], seat_memory_mib: int | None, told: Mapping[str, int] | None = None
) -> Assumptions:
    """Read `NAME=VALUE` options.

    Args:
        written: the options.
        seat_memory_mib: memory of a seat; None where nobody said.
        told: what is assumed where no option says otherwise.

    Raises:
        UserError: an unknown name, or a value that can't be one.
    """
    values = dict(told or {})
    if seat_memory_mib is not None:
        values["seatMemoryMiB"] = seat_memory_mib
    for each in written:
        name, equals, value = each.partition("=")
        if not equals or not value.isdecimal():
            raise UserError(
                f"--assume {each} is not NAME=VALUE with a whole number", hint="such as podStartSeconds=40"
            )
        if name not in ASSUMPTIONS:
            hint = did_you_mean(name, ASSUMPTIONS) or f"known: {', '.join(ASSUMPTIONS)}"
            raise UserError(f"--assume {each}: there is no assumption {name}", hint=hint)
        values[name] = int(value)
    try:
        return Assumptions.model_validate(values, by_alias=True, by_name=False)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        expected = expectation(schema_at(schema_of(Assumptions), (name,)))
        raise UserError(f"{name} must be {expected}, is {values[name]}") from error


class _Places:
    """Where the objects of a set stand in files."""

    def __init__(self, documents: Sequence[Document], templates: Sequence[PodTemplate]) -> None:
        self._documents = {_identity(document): document for document in reversed(documents)}
        for each in reversed(templates):
            place = each.workload_place()
            self._documents[place.kind, place.namespace, place.name] = each.document

    def of(self, place: Place) -> Position:
        document = self._documents[place.kind, place.namespace, place.name]
        return (document.file, *document.position(place.path))


def _identity(document: Document) -> tuple[str, str, str]:
    metadata = document.data["metadata"]
    return str(document.data["kind"]), str(metadata.get("namespace", "default")), str(metadata["name"])


# ------------------------------------------------------------------ for machines


def to_tree(report: Report, places: _Places) -> dict[str, Any]:
    """Return a report as plain data, with the keys in lowerCamelCase."""
    findings = sorted(report.findings, key=lambda finding: places.of(finding.place))
    return {
        "policyHash": report.subject.policies.hash,
        "assumptions": report.subject.assumptions.model_dump(mode="json", by_alias=True),
        "fleets": [
            {
                "name": each.fleet.metadata.name,
                "policies": list(each.policies),
                "times": [_figure(figure) for figure in each.times],
                "costsPerDay": [_figure(figure) for figure in each.costs],
                "memory": None if each.memory is None else _memory(each.memory),
            }
            for each in report.fleets
        ],
        "policies": [
            {
                "name": each.policy.metadata.name,
                "times": [_figure(figure) for figure in each.times],
                "path": [
                    {"stage": stage.name, "then": stage.then, **_figure(stage.figure)} for stage in each.path
                ],
            }
            for each in report.policies
        ],
        "findings": [_finding(finding, places.of(finding.place)) for finding in findings],
        "summary": summary(report.findings),
    }


def summary(findings: Sequence[Finding]) -> Mapping[str, int]:
    """Count findings by severity."""
    return {
        f"{severity.value.lower()}s": sum(finding.severity is severity for finding in findings)
        for severity in reversed(Severity)
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "unit": figure.unit,
        "total": figure.total,
        "exact": figure.exact,
        "never": figure.never or None,
        "operator": figure.operator.value,
        "terms": list(_terms(figure.terms)),
    }


def _terms(terms: Sequence[Term]) -> Iterator[dict[str, Any]]:
    for term in terms:
        yield {"name": term.name, "value": term.value, "unit": term.unit, "origin": term.origin}


def _memory(memory: SeatMemory) -> dict[str, Any]:
    return {
        "memoryMiB": memory.memory,
        "hostMemoryMiB": memory.host,
        "needed": _figure(memory.needed),
        "residents": [
            {
                "policy": room.footprint.name,
                "tier": str(memory.tiers[room.footprint.name]) if memory.tiers else None,
                "displaces": list(memory.displaced.get(room.footprint.name, ())),
                "pausedMiB": room.footprint.paused,
                "kvMiB": room.footprint.kv,
                "kvAloneMiB": room.alone,
                "kvSharedMiB": room.shared,
                "share": room.share,
                "targetInFlight": room.footprint.target,
                "inFlight": room.in_flight,
            }
            for room in memory.rooms
        ],
    }


def _finding(finding: Finding, position: Position) -> dict[str, Any]:
    file, line, column = position
    return {
        "code": finding.code.value,
        "severity": finding.severity.value,
        "kind": finding.place.kind,
        "namespace": finding.place.namespace,
        "name": finding.place.name,
        "file": file,
        "line": line,
        "column": column,
        "path": dotted(finding.place.path),
        "message": finding.message,
        "hint": finding.hint,
        "terms": list(_terms(finding.terms)),
    }
