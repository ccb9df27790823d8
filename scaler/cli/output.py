"""Data on stdout, chatter on stderr: consoles, tables, and the formats of `-o`.

rich honours NO_COLOR and terminals that can't; colour only underlines what the words say.
"""

import codecs
import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from ruamel.yaml import YAML

from scaler.policy.visible import escaped

_GAP = "   "
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
"""What a terminal obeys, but for tabs and line breaks."""

STYLES: Final[Mapping[str, str]] = {
    "Serving": "green",
    "Promoting": "cyan",
    "Draining": "yellow",
    "Starting": "yellow",
    "Held": "red",
    "Doomed": "red",
    "Failed": "red",
    "Quarantined": "red",
    "Burst": "yellow",
    "Hold": "red",
    "Bad": "red",
    "Suspect": "red",
    "Stale": "yellow",
    "Missing": "red",
}
"""Colours of the words that stand out in tables."""


def data() -> Console:
    """Return the console for data: stdout."""
    return Console(highlight=False, markup=False, emoji=False)


def chatter() -> Console:
    """Return the console for everything else: stderr."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Text:
    """Lay out columns as kubectl does: no lines, three spaces between, nothing at the end of a line."""
    widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for index, row in enumerate((header, *rows)):
        line = Text()
        for cell, width in zip(row, widths, strict=True):
            line.append(cell, style="" if index == 0 else STYLES.get(cell, ""))
            line.append(" " * (width - cell_len(cell)) + _GAP)
        line.rstrip()
        lines.append(line)
    return Text("\n").join(lines)


def pairs(entries: Sequence[tuple[str, str]], indent: int = 0) -> Text:
    """Lay out `Name:  value` lines with the values in one column."""
    width = max(cell_len(name) for name, _ in entries) + 1
    lines = []
    for name, value in entries:
        line = Text(" " * indent + f"{name}:".ljust(width) + "  ")
        lines.append(line.append(value, style=STYLES.get(value, "")))
    return Text("\n").join(lines)


def as_json(value: object) -> str:
    """Write JSON for people and for jq; what stdout's encoding may lack is escaped."""
    return json.dumps(value, indent=2, ensure_ascii=not _takes_everything())


def as_yaml(value: object) -> str:
    """Write YAML."""
    yaml = YAML(pure=True)  # keeps the order of keys
    yaml.default_flow_style = False
    yaml.allow_unicode = _takes_everything()
    stream = io.StringIO()
    yaml.dump(value, stream)
    return stream.getvalue().rstrip("\n")


def _takes_everything() -> bool:
    """Whether every character can be written to stdout."""
    return codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name == "utf-8"


def _tame(text: Text | str) -> Text | str:
    """Escape what a terminal would obey, which can only come from somebody's file; styles are then left out."""
    plain = text.plain if isinstance(text, Text) else text
    if _CONTROL.search(plain) is None:
        return text
    return _CONTROL.sub(lambda found: escaped(found[0]), plain)


def emit(text: Text | str) -> None:
    """Print data, and let the terminal wrap what is too long."""
    data().print(_tame(text), soft_wrap=True)


def note(text: str) -> None:
    """Print chatter; what can't be printed is left out, for it is nothing that anybody waits for."""
    with suppress(OSError):
        chatter().print(_tame(text), soft_wrap=True)
