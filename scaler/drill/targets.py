"""Where Prometheus finds what a drill runs: a file of targets that is right for as long as the drill runs.

Every arm's processes take ports of their own choice, so no scrape configuration can name them. Prometheus reads such a
file by itself (`file_sd_configs`), and again whenever it changes.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from scaler.errors import UserError

SUFFIXES: Final = frozenset({".json", ".yaml", ".yml"})
"""How a file's name must end for `file_sd_configs`; JSON is YAML, so all three may hold what is written here."""


class Component(StrEnum):
    """Whose page a target is; the label `component`."""

    CONTROLLER = "controller"
    """`emberpool local`: controller and gateway are one process and share a page."""
    DRILL = "drill"
    """The drill's own page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTarget:
    """One page to scrape.

    Attributes:
        url: any URL of the process that shows it; the page is at `/metrics`.
        component: whose it is.
        arm: the arm that the process belongs to. None for the drill's own page: its metrics have a label `arm` of their
            own, which Prometheus would rename if the target had one too.
    """

    url: str
    component: Component
    arm: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as an element of the file."""
        labels = {"component": str(self.component)}
        if self.arm is not None:
            labels["arm"] = self.arm
        return {"targets": [urlsplit(self.url).netloc], "labels": labels}


class Targets:
    """The targets of now, and the file that holds them, if anybody asked for one.

    A file that can't be written any more is told once and never fails the drill.

    Args:
        file: where they are written; None for nowhere.
        say: called with a warning.
    """

    def __init__(self, file: Path | None, say: Callable[[str], None]) -> None:
        self._file = file
        self._say = say
        self._targets: list[ScrapeTarget] = []
        self._failing = False

    def add(self, target: ScrapeTarget) -> None:
        """Have a page scraped from now on."""
        self._targets.append(target)
        self._update()

    def remove_arm(self, arm: str) -> None:
        """Leave an arm's pages alone from now on: its processes have ended."""
        self._targets = [target for target in self._targets if target.arm != arm]
        self._update()

    def clear(self) -> None:
        """Leave all pages alone from now on."""
        self._targets = []
        self._update()

    def _update(self) -> None:
        try:
            self.write()
        except OSError as error:
            if not self._failing:
                self._say(f"warning: {self._file} isn't up to date: {error.strerror or error}")
            self._failing = True
        else:
            self._failing = False

    def write(self) -> None:
        """Replace the file in one step: Prometheus may read it at any time.

        Raises:
            OSError: it can't be written; what stood there still stands.
        """
        if self._file is None:
            return
        # the name ends in no suffix that a pattern of Prometheus would match
        partial = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            partial.write_text(json.dumps([target.to_json() for target in self._targets], indent=1) + "\n")
            partial.replace(self._file)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


@contextmanager
def listing(file: Path | None, say: Callable[[str], None]) -> Iterator[Targets]:
    """Keep the file of targets while the context is open; it starts empty, and on every way out it is empty again.

    Args:
        file: where targets are written; None for nowhere.
        say: called with warnings.

    Raises:
        UserError: the file can't be written, or Prometheus wouldn't read it.
    """
    if file is not None and file.suffix not in SUFFIXES:
        raise UserError(
            f"Prometheus reads no targets from {file}",
            hint=f"give --targets-file a name that ends in {', '.join(sorted(SUFFIXES))}",
        )
    targets = Targets(file, say)
    try:
        targets.write()
    except OSError as error:
        raise UserError(
            f"the targets can't be written to {file}: {error.strerror or error}",
            hint="name a file with --targets-file in a folder that is there and can be written to",
        ) from error
    try:
        yield targets
    finally:
        targets.clear()
