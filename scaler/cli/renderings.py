"""`-o` of the commands that answer with sentences: as text for people, as JSON or YAML for programs."""

from enum import StrEnum
from typing import Annotated

import typer

from scaler.cli.output import as_json, as_yaml


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
