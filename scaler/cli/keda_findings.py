"""`emberpool keda findings`: what a controller on Kubernetes finds about the ScaledObjects and HPAs that size its fleets."""

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import typer
from pydantic import Field
from rich.text import Text

from scaler.cli.answers import Answer
from scaler.cli.failures import FAILED, OK, Unasked
from scaler.cli.kube_options import AtUrl, Target, whom
from scaler.cli.options import examples
from scaler.cli.output import emit, note
from scaler.cli.renderings import Rendering, RenderingOption, as_data
from scaler.cli.told import called, page
from scaler.keda.findings import Severity

_PATH: Final = "/v1/keda/findings"


class _Finding(Answer):
    """One finding."""

    object: str
    name: str
    severity: str
    code: str
    path: str = ""
    message: str = ""
    hint: str = ""


class _Fleet(Answer):
    """What was found about one fleet."""

    fleet: str
    paused: Sequence[str] = ()
    findings: Sequence[_Finding] = ()


class _Page(Answer):
    """What a controller answers."""

    looked_at: Mapping[str, bool] = Field(default_factory=dict)
    items: Sequence[_Fleet] = ()


def register(app: typer.Typer) -> None:
    """Add the command to those about KEDA."""
    app.command(
        "findings",
        epilog=examples(
            "emberpool keda findings",
            "emberpool keda findings -n serving -o json | jq '.items[].findings[]'",
        ),
    )(findings)


@whom
def findings(output: RenderingOption = Rendering.TEXT, *, target: Target) -> int:
    """Show what a controller on Kubernetes finds about the ScaledObjects and HPAs that size its fleets.

    It looks at them by itself, as `emberpool keda check` does at files.

    Exit code 0: nothing is wrong; 1: there is an error; 2: nobody could be asked.
    """
    try:
        body, found = page(target, _PATH, _Page.model_validate)
    except Unasked as error:
        if isinstance(target, AtUrl) and f"{_PATH} answers with status {HTTPStatus.NOT_FOUND}" in str(error):
            raise _none_there(target) from error
        raise
    if output is not Rendering.TEXT:
        emit(as_data(dict(body), output))
    else:
        _show(found)
    wrong = any(each.severity == Severity.ERROR for fleet in found.items for each in fleet.findings)
    return FAILED if wrong else OK


def _none_there(target: Target) -> Unasked:
    """Say why a controller knows no such page: it has no Kubernetes to look at."""
    return Unasked(
        f"{called(target)} has no findings: ScaledObjects and HPAs are looked at on Kubernetes alone, and not with"
        " --agents or by `emberpool local`",
        hint="emberpool keda check --scaled-object FILE looks at one from a file",
    )


def _show(page: _Page) -> None:
    for kind in sorted(kind for kind, seen in page.looked_at.items() if not seen):
        note(
            f"{kind} are not looked at: the cluster has none, or the controller may not list and watch them."
        )
    for fleet in page.items:
        for line in _lines(fleet):
            emit(line)


def _lines(fleet: _Fleet) -> Iterator[Text | str]:
    if not fleet.paused and not fleet.findings:
        yield f"{fleet.fleet}: nothing to say"
    for sentence in fleet.paused:
        yield f"{fleet.fleet}: {sentence}"
    for each in fleet.findings:
        place = f"{each.object}/{each.name} {each.path}".rstrip()
        yield Text(f"{fleet.fleet}: {each.severity}: {place}: {each.message} ({each.code})")
        if each.hint:
            yield f"  hint: {each.hint}"
