"""`emberpool policy schema`: the JSON Schema of the file formats, for editors."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from scaler.cli.failures import OK
from scaler.cli.options import examples, path_of
from scaler.cli.output import as_yaml, emit, note
from scaler.errors import UserError
from scaler.policy.schema import FILE_NAME, schema_of_all, schema_of_kind
from scaler.policy.wording import did_you_mean


class SchemaFormat(StrEnum):
    """What `-o` takes."""

    JSON = "json"
    YAML = "yaml"


def register(app: typer.Typer) -> None:
    """Add the command to the commands about policies."""
    app.command(
        "schema",
        epilog=examples(
            "emberpool policy schema --write schema",
            "emberpool policy schema --kind Fleet -o yaml",
        ),
    )(schema)


def schema(
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Only this kind of document.")
    ] = None,
    output: Annotated[SchemaFormat, typer.Option("--output", "-o", help="How to print: json or yaml.")] = (
        SchemaFormat.JSON
    ),
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="DIR",
            help=f"Write {FILE_NAME} into this folder, and print nothing.",
            parser=path_of,
        ),
    ] = None,
) -> int:
    """Print the JSON Schema of the file formats, or write it where editors find it.

    With yaml-language-server, a comment before each document names the schema, by its path from the file:

    # yaml-language-server: $schema=schema/emberpool.schema.json
    """
    from scaler.cli.formats import FORMATS, as_file  # noqa: PLC0415 - all of the drill, which other commands don't need

    if kind is not None and kind not in FORMATS:
        known = f"known: {', '.join(FORMATS)}"
        raise UserError(f"there is no kind {kind!r}", hint=did_you_mean(kind, FORMATS) or known)
    wanted = schema_of_all(FORMATS) if kind is None else schema_of_kind(kind, FORMATS[kind])
    if write is not None:
        _write(write / FILE_NAME, as_file(wanted))
    else:
        emit(as_yaml(wanted) if output is SchemaFormat.YAML else as_file(wanted).rstrip())
    return OK


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        hint = "name a folder that can be written: --write DIR"
        raise UserError(f"{path} can't be written: {error.strerror or error}", hint=hint) from error
    note(f"wrote {path}")
