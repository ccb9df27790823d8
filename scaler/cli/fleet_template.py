"""`emberpool fleet template`: writes into a manifest what makes its pods the seats of a fleet."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from scaler.cli.options import examples
from scaler.errors import UserError

STDIN: Final = Path("-")
"""The file name that stands for stdin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOptions:
    """What was asked for.

    Attributes:
        fleet: the fleet's name.
        policies: policy files and directories.
        manifest: the file with the fleet's workload.
        commands: POLICY=COMMAND, as given.
        containers: POLICY=NAME, as given.
        in_place: write the file.
        dry_run: write nothing, and show a diff.
        json: say in JSON what was done.
    """

    fleet: str
    policies: tuple[Path, ...]
    manifest: Path
    commands: tuple[str, ...]
    containers: tuple[str, ...]
    in_place: bool
    dry_run: bool
    json: bool


class TemplateFormat(StrEnum):
    """What `-o` takes."""

    YAML = "yaml"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add the command to the commands about fleets."""
    app.command(
        "template",
        epilog=examples(
            "emberpool fleet template chat --policy policies/ --manifest chat.yaml --dry-run",
            "emberpool fleet template chat --policy policies/ --manifest chat.yaml --in-place",
            "emberpool fleet template spares -f policies/ -m spares.yaml --in-place \\",
            "    --command chat='vllm serve /models/chat --port 9001' \\",
            "    --command code='vllm serve /models/code --port 9002'",
            "kustomize build . | emberpool fleet template chat -f policies/ -m - | kubectl apply -f -",
        ),
    )(write_template)


def write_template(  # noqa: PLR0917 - typer hands every option over by name
    fleet: Annotated[str, typer.Argument(metavar="FLEET", help="The fleet.", show_default=False)],
    policy: Annotated[
        list[Path],
        typer.Option(
            "--policy", "-f", metavar="PATH", help="Policy file or directory; repeatable.", show_default=False
        ),
    ],
    manifest: Annotated[
        Path,
        typer.Option(
            "--manifest",
            "-m",
            metavar="FILE",
            help="The file with the fleet's workload, its Deployment as a rule; - reads stdin.",
            show_default=False,
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY=COMMAND",
            help="What starts a policy's engine, where one container holds all engines; repeatable. It is kept in the"
            " annotation, so that it need be given once only.",
        ),
    ] = None,
    container: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY=NAME",
            help="The container that holds a policy's engine, where each has its own (default: the one that is called"
            " as the policy is, or the only one with GPUs); repeatable.",
        ),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Write the file, and print nothing on stdout.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would change, as a diff, and write nothing.")
    ] = False,
    output: Annotated[
        TemplateFormat,
        typer.Option("--output", "-o", help="yaml prints the manifest, json what was done with it."),
    ] = TemplateFormat.YAML,
) -> int:
    """Write into a manifest which residents the seats of a fleet have.

    The pod template gets the label emberpool.dev/fleet, the annotation emberpool.dev/residents, which lists an engine
    for each policy that names the fleet, and the readiness gate emberpool.dev/admitted. Where the fleet says what a seat may
    take (seat.memoryMiB, seat.kvWhenPaused, spare.parked), the annotation emberpool.dev/memory says it, too, and
    emberpool.dev/gpu-health says gpuHealth.mode where the fleet observes. Everything else in the file stays as it is, and a second
    run changes nothing. What was changed is said on stderr, and what was assumed: an engine that no --port of its command or its
    container's args tells where to listen is taken to use its default, 8000 for vLLM. The resident's own port, the guard's, is the
    policy's engine.port.

    To add a resident: create its policy, run this, roll out. To remove one: take the fleet out of its policy, run
    this, roll out.
    """
    if in_place and manifest == STDIN:
        raise UserError(
            "stdin can't be written in place", hint="leave --in-place out, or name the file with --manifest"
        )
    options = TemplateOptions(
        fleet=fleet,
        policies=tuple(policy),
        manifest=manifest,
        commands=tuple(command or ()),
        containers=tuple(container or ()),
        in_place=in_place,
        dry_run=dry_run,
        json=output is TemplateFormat.JSON,
    )
    from scaler.cli.manifest import run  # noqa: PLC0415 - all policy models, which other commands on fleets don't need

    return run(options)
