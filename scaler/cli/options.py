"""Options that several commands share, and how a command's examples are shown."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer


class Output(StrEnum):
    """What `-o` takes."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


DEFAULT_SERVER = "http://127.0.0.1:9080"

SERVER_VARIABLES: Final = ("EMBERPOOL_CONTROLLER", "EMBERPOOL_SERVER")
"""Environment variables that name a controller; the first that is set counts."""

Format = Annotated[
    Output, typer.Option("--output", "-o", help="How to print: table, wide, json, yaml or name.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Have it checked, say what would be done, and do nothing.")
]
Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Go on and print again whenever something changed.")
]
OptionalName = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Only this one.", show_default=False)
]
RequiredName = Annotated[str, typer.Argument(metavar="NAME", help="Which one.", show_default=False)]


def path_of(text: str) -> Path:
    """Take a path as it was written; an empty one, from a variable that isn't set, would be the current directory.

    Raises:
        ValueError: it is empty.
    """
    if not text:
        raise ValueError("a path must not be empty")
    return Path(text)


Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH…",
        help="Files, directories with *.yaml and *.yml files, or - for stdin.",
        show_default=False,
        parser=path_of,
    ),
]


def examples(*lines: str) -> str:
    r"""Write the examples below a command's help; `\b` keeps the lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def group(summary: str) -> typer.Typer:
    """Make the group of commands of one noun; without a command it prints its help."""
    app = typer.Typer(help=summary, rich_markup_mode=None, add_completion=False, invoke_without_command=True)
    app.callback()(bare)
    return app


def bare(context: typer.Context) -> None:
    """Print the help of a group that was called without a command, as a usage error."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


class Device(StrEnum):
    """What `--device` takes."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
