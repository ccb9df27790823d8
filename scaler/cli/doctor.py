"""`emberpool doctor`: what is wrong in a cluster, each with the command that mends it."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from scaler.cli.failures import FAILED, OK, Failed, Unasked
from scaler.cli.human import plural
from scaler.cli.kube_options import InCluster, Target, cluster
from scaler.cli.options import examples, path_of
from scaler.cli.output import as_json, as_yaml, emit, note, table
from scaler.cli.policy_files import read_set

if TYPE_CHECKING:
    from scaler.doctor.findings import Finding
    from scaler.doctor.picture import Picture
    from scaler.doctor.wishes import Wishes

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_STYLES: Final = {"Error": "red", "Warning": "yellow", "Note": "cyan"}
_TITLES: Final = {"Error": "Errors", "Warning": "Warnings", "Note": "Notes"}


class DoctorOutput(StrEnum):
    """What `-o` takes."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@app.command(
    epilog=examples(
        "emberpool doctor                                    # all namespaces of kubectl's current context",
        "emberpool doctor --context prod -n serving",
        "emberpool doctor --policy policies/                 # also what policies say and the cluster doesn't",
        "emberpool doctor -o json | jq '.findings[] | select(.severity == \"Error\") | .mend'",
        "kubectl emberpool doctor",
    )
)
@cluster
def doctor(
    policy: Annotated[
        list[Path] | None,
        typer.Option(
            "--policy",
            "-f",
            metavar="PATH",
            help="Policy file or directory that the cluster is held against; repeatable (default: what its controller says).",
            parser=path_of,
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        DoctorOutput, typer.Option("--output", "-o", help="How to print: table, json or yaml.")
    ] = DoctorOutput.TABLE,
    *,
    target: Target,
) -> int:
    """Look at a cluster and say what is wrong with it, and which command mends that. Nothing is changed.

    Looked at are what the controller may do, who else reaches, evicts or sizes its seats, what the seats are made of, engines, KEDA,
    GPUs, clocks and network policies. Without -n all namespaces are looked at, or the context's own where all may not be read.
    Commands that mend are printed and not run: read them first.

    Exit code 0: nothing has to be mended (notes may be there); 1: errors or warnings; 2: the cluster can't be looked at.
    """
    assert isinstance(target, InCluster)
    wanted = _wanted(policy)
    try:
        picture = asyncio.run(_read(target, wanted))
    except Failed as error:
        raise Unasked(str(error), hint=error.hint) from error
    from scaler.doctor.whole import check  # noqa: PLC0415 - all policy models, which help goes without

    found = check(picture)
    if output is DoctorOutput.TABLE:
        emit(_page(found, picture))
    else:
        data = _data(found, picture)
        emit(as_json(data) if output is DoctorOutput.JSON else as_yaml(data))
    return FAILED if any(each.severity != "Note" for each in found) else OK


def _wanted(paths: Sequence[Path] | None) -> "Wishes | None":
    """Read policy files, where some were named.

    Raises:
        PolicyError: with all their faults.
    """
    if not paths:
        return None
    policies, _ = read_set(paths)
    from scaler.doctor.wishes import of_set  # noqa: PLC0415 - as above

    return of_set(policies, ", ".join(map(str, paths)))


async def _read(target: InCluster, wanted: "Wishes | None") -> "Picture":
    """Read the cluster.

    Raises:
        Failed: it can't be.
    """
    from scaler.cli.sources import access_options, controller_namespaces, told_to_people  # noqa: PLC0415 - aiohttp
    from scaler.cluster.kube.access import find_access  # noqa: PLC0415 - as above
    from scaler.doctor.asking import Asker  # noqa: PLC0415 - as above
    from scaler.doctor.reading import Reader, Scope  # noqa: PLC0415 - as above

    access = await find_access(access_options(target), os.environ)
    scope = Scope(
        namespace=target.namespace,
        fallback="" if target.all_namespaces else access.namespace,
        controller=controller_namespaces(target, access.namespace),
        own=access.source.startswith("service account"),
    )
    note(f"looking at {access.server}, as {access.source} says")
    with told_to_people(access):
        async with Asker(access) as asker:
            return await Reader(asker, lambda what: note(f"{what} …")).picture(scope, wanted)


# ------------------------------------------------------------------ what is printed


def _page(found: Sequence["Finding"], picture: "Picture") -> Text:
    """Lay out findings, the gravest first, each with its mend on a line of its own; then what was looked at."""
    blocks = []
    for severity, title in _TITLES.items():
        of_it = [each for each in found if each.severity == severity]
        if of_it:
            blocks.append(_block(title, _STYLES[severity], of_it))
    blocks.append(Text(_summary(found, picture)))
    return Text("\n\n").join(blocks)


def _block(title: str, style: str, found: Sequence["Finding"]) -> Text:
    rows = [[str(each.code), each.object, each.message] for each in found]
    header, *lines = table(["CODE", "OBJECT", "MESSAGE"], rows).split("\n")
    block = Text(f"{title} ({len(found)})", style=style)
    block.append("\n").append_text(header)
    for each, line in zip(found, lines, strict=True):
        block.append("\n").append_text(line)
        if each.path:
            block.append(f"\n  at:   {each.path}")
        if each.mend:
            block.append(f"\n  mend: {each.mend}")
    return block


def _summary(found: Sequence["Finding"], picture: "Picture") -> str:
    where = f"namespace {', '.join(picture.namespaces)}" if picture.namespaces else "all namespaces"
    seats = sum(len(fleet.pods) for fleet in picture.fleets)
    looked = f"{plural(len(picture.fleets), 'fleet')} with {plural(seats, 'seat')} in {where}"
    counted = [
        plural(sum(each.severity == severity for each in found), severity.lower()) for severity in _TITLES
    ]
    return f"{looked}: {', '.join(counted)}"


def _data(found: Sequence["Finding"], picture: "Picture") -> dict[str, Any]:
    return {
        "namespaces": list(picture.namespaces),
        "fleets": [f"{fleet.namespace}/{fleet.name}" for fleet in picture.fleets],
        "findings": [{key: str(value) for key, value in asdict(each).items()} for each in found],
        "summary": {
            title.lower(): sum(each.severity == severity for each in found)
            for severity, title in _TITLES.items()
        },
    }
