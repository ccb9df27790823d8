"""Images of containers: programs of this machine that stand for what an image brings along."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scaler.errors import UserError

_BIN = Path(sys.executable).parent


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a container of an image runs if its spec doesn't say, and what it finds.

    Attributes:
        entrypoint: as the image's ENTRYPOINT; a container's `command` takes its place.
        arguments: as its CMD; a container's `args` take their place.
        environment: its variables.
    """

    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def words(self, command: Sequence[str], args: Sequence[str]) -> list[str]:
        """Return what is run."""
        if command:
            return [*command, *args]
        return [*self.entrypoint, *(args or self.arguments)]


_PATH = f"{_BIN}:{os.environ.get('PATH', os.defpath)}"
HOST = Image(environment={"PATH": _PATH, "PYTHONUNBUFFERED": "1"})
"""No program of its own: its containers say what they run."""
OURS = Image(entrypoint=(sys.executable, "-m", "scaler"), arguments=("--help",), environment=HOST.environment)
"""What deploy/images builds: `emberpool` is its entry point."""


def name_of(image: str) -> str:
    """Return an image's name without registry, tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


@dataclass(frozen=True)
class Images:
    """The images that there are, by name.

    Attributes:
        known: name without registry and tag → image.
        others: what every other image is; None refuses them as a registry would.
    """

    known: Mapping[str, Image] = field(
        default_factory=lambda: {"emberpool": OURS, "emberpool-seat": OURS, "engine": HOST}
    )
    others: Image | None = None

    def find(self, image: str) -> Image | None:
        return self.known.get(name_of(image), self.others)


def parse_image(text: str) -> tuple[str, Image]:
    """Read `NAME` or `NAME=PROGRAM ARGUMENT …`.

    Raises:
        UserError: there is no name.
    """
    name, _, command = text.partition("=")
    if not name:
        raise UserError(f"{text!r} names no image", hint="write NAME, or NAME=PROGRAM ARGUMENT …")
    return name, Image(entrypoint=tuple(command.split()), environment=HOST.environment)
