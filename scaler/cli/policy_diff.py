"""`emberpool policy diff`: what a change of policies means."""

from pathlib import Path
from typing import Annotated, Any

import typer

from scaler.cli.failures import FAILED, OK
from scaler.cli.options import examples, path_of
from scaler.cli.output import emit, note
from scaler.cli.policy_files import STDIN, read_contents
from scaler.cli.renderings import Rendering, RenderingOption, as_data, faults_as
from scaler.errors import PolicyError, PolicyFault, UserError
from scaler.policy.base import Envelope
from scaler.policy.diff import Change, check_each
from scaler.policy.diff import diff as changes_between


def register(app: typer.Typer) -> None:
    """Add the command to the commands about policies."""
    app.command(
        "diff",
        epilog=examples(
            "emberpool policy diff policies/ /tmp/policies/",
            "emberpool policy diff chat.yaml chat-new.yaml -o json",
        ),
    )(diff)


def _side(name: str) -> Any:  # noqa: ANN401 - what typer makes an argument of
    return typer.Argument(
        metavar=name, help="File, directory, or - for stdin.", show_default=False, parser=path_of
    )


def diff(
    before: Annotated[Path, _side("A")],
    after: Annotated[Path, _side("B")],
    output: RenderingOption = Rendering.TEXT,
) -> int:
    """Compare two sets of policies by what they mean, in words.

    Objects are matched by kind and name, defaults count as written, and order counts only where it means something. Each
    document has to be right by itself; what it names may be in other files.

    Exit code 0: they mean the same; 1: they differ; 2: one of them can't be used.
    """
    with faults_as(output):
        old, new = _read(before, after)
    changes = changes_between(old, new)
    if output is not Rendering.TEXT:
        emit(as_data([_as_item(change) for change in changes], output))
    elif changes:
        emit("\n".join(change.sentence for change in changes))
    else:
        note(f"{before} and {after} mean the same")
    return FAILED if changes else OK


def _read(*paths: Path) -> list[list[Envelope]]:
    """Read both sets.

    Raises:
        PolicyError: with all faults of both.
        UserError: both are stdin.
    """
    if paths.count(STDIN) > 1:
        raise UserError("stdin can be one of the two only", hint="name a file for the other")
    faults: list[PolicyFault] = []
    sets = []
    for path in paths:
        try:
            sets.append(check_each(read_contents([path])))
        except PolicyError as error:
            faults += error.faults
    if faults:
        raise PolicyError(tuple(faults))
    return sets


def _as_item(change: Change) -> dict[str, object]:
    return {
        "kind": change.kind,
        "name": change.name,
        "path": change.path,
        "before": change.before,
        "after": change.after,
        "meaning": change.meaning,
    }
