"""`-o` of the commands that answer with sentences: as text for people, as JSON or YAML for programs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from scaler.cli.failures import UNUSABLE
from scaler.cli.output import as_json, as_yaml, emit
from scaler.errors import PolicyError, PolicyFault
from scaler.policy.files import told_and_more


class Rendering(StrEnum):
    """What `-o` takes."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


RenderingOption = Annotated[
    Rendering, typer.Option("--output", "-o", help="How to print: text, json or yaml.")
]


def as_data(value: object, rendering: Rendering) -> str:
    """Write plain data as JSON or YAML."""
    return as_yaml(value) if rendering is Rendering.YAML else as_json(value)


@contextmanager
def faults_as(rendering: Rendering) -> Iterator[None]:
    """Tell faults of files as data where data is asked for: whoever does so reads stdout, also for what is wrong.

    Raises:
        PolicyError: as it came, for people.
        typer.Exit: with 2, once the faults are on stdout, in the form of `policy validate`.
    """
    try:
        yield
    except PolicyError as error:
        if rendering is Rendering.TEXT:
            raise
        emit(as_data(refusal(error.faults), rendering))
        raise typer.Exit(UNUSABLE) from error


def refusal(faults: Sequence[PolicyFault]) -> dict[str, object]:
    """Return as plain data that files can't be used."""
    told, more = told_and_more(faults)
    return {
        "valid": False,
        "faults": [fault.as_json() for fault in told],
        "moreFaults": more,
        "warnings": [],
    }
