"""What the formats can say and this version does not act on yet, so that nobody trusts it in vain.

The formats are whole from the start: files that are written today stay right. What the controller doesn't do yet is
told by `policy validate` and in the controller's log, with its place. An entry goes when its part is built.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from scaler.policy.document import Path

EACH: Final = "*"
"""In a path: every entry of a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbuilt:
    """One thing that is accepted and not acted on.

    Attributes:
        kind: the format that it belongs to.
        path: where it is written.
        instead: what happens, as a sentence goes on after "is not acted on yet".
    """

    kind: str
    path: Path
    instead: str


UNBUILT: Final = (
    Unbuilt(
        kind="Fleet",
        path=("spec", "spare", "replenish", "maxPerNode"),
        instead="seats that are starting are not counted by node",
    ),
)


@dataclass(frozen=True, slots=True)
class NotActedOn:
    """Something in a document that is not acted on.

    Attributes:
        path: where it stands.
        message: what happens instead.
    """

    path: Path
    message: str


def not_acted_on(document: Mapping[str, Any]) -> Iterator[NotActedOn]:
    """Yield what a valid document says and this version doesn't act on.

    Args:
        document: what was written, without defaults, in the keys of the file.
    """
    for entry in UNBUILT:
        if entry.kind == document.get("kind"):
            for path in _found(document, entry.path, ()):
                yield NotActedOn(path, f"is not acted on yet: {entry.instead}")


def _found(data: object, path: Path, before: Path) -> Iterator[Path]:
    if not path:
        yield before
        return
    head, rest = path[0], path[1:]
    match data:
        case Mapping() if head in data:
            yield from _found(data[head], rest, (*before, head))
        case list() | tuple() if head == EACH:
            for index, item in enumerate(data):
                yield from _found(item, rest, (*before, index))
        case _:
            pass
