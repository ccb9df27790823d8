"""`emberpool policy validate`: whether policy files can be used, for people and for pipelines."""

from collections.abc import Sequence
from pathlib import Path

import typer

from scaler.cli.failures import OK
from scaler.cli.human import plural
from scaler.cli.options import Paths, examples
from scaler.cli.output import emit, note
from scaler.cli.policy_files import read_set
from scaler.cli.renderings import Rendering, RenderingOption, as_data, faults_as
from scaler.errors import PolicyFault
from scaler.policy.compile import PolicySet
from scaler.policy.unbuilt import not_acted_on


def register(app: typer.Typer) -> None:
    """Add the command to the commands about policies."""
    app.command(
        "validate",
        epilog=examples(
            "emberpool policy validate policies/",
            "emberpool policy validate fleet.yaml chat.yaml",
            "emberpool policy validate policies/ -o json | jq '.faults[].message'",
        ),
    )(validate)


def validate(paths: Paths, output: RenderingOption = Rendering.TEXT) -> int:
    """Check policy files, each by itself and all of them together.

    Every fault of all files is printed in one run, in the order of the files, with its file, line and column. What only
    follows from another fault isn't: of a fleet whose document can't be read nobody says that it is missing.

    Exit code 0: they can be used; 2: they can't. What this version accepts and doesn't act on yet is printed as a warning.
    """
    if output is not Rendering.TEXT:
        return _as_data(paths, output)
    loaded, warnings = _read(paths)
    if warnings:
        note("\n".join(f"warning: {warning}" for warning in warnings))
    fleets, policies = plural(len(loaded.fleets), "fleet"), plural(len(loaded.policies), "policy")
    emit(f"ok: {fleets} and {policies} (policy hash {loaded.short_hash})")
    return OK


def _as_data(paths: Sequence[Path], output: Rendering) -> int:
    """Print the verdict with all faults and warnings."""
    with faults_as(output):
        loaded, warnings = _read(paths)
    told = [warning.as_json() for warning in warnings]
    names = {"fleets": list(loaded.fleets), "policies": list(loaded.policies)}
    emit(as_data({"valid": True, "faults": [], "warnings": told, "hash": loaded.short_hash, **names}, output))
    return OK


def _read(paths: Sequence[Path]) -> tuple[PolicySet, list[PolicyFault]]:
    """Read a set, and what of it nothing is done about yet.

    Raises:
        PolicyError: with all faults.
    """
    loaded, documents = read_set(paths)
    warnings = [
        document.fault(found.path, found.message)
        for document in documents
        for found in not_acted_on(document.data)
    ]
    return loaded, warnings
