"""Objects with versions, and their changes in order: what a watch reads."""

import bisect
import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fakes.kube_api.kinds import Kind
from tests.fakes.kube_api.refusals import Refusal, expired

Key = tuple[str, str]
"""Namespace and name; the namespace is empty for a kind without."""
_HISTORY = 100_000


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of one object; its body is never changed."""

    version: int
    body: Mapping[str, Any]
    text: bytes

    @property
    def full(self) -> bytes:
        """With kind and apiVersion, which the items of a list go without."""
        head = json.dumps({"kind": self.body["kind"], "apiVersion": self.body["apiVersion"]}).encode()
        return head[:-1] + b"," + self.text[1:]


def stored(body: Mapping[str, Any]) -> Stored:
    bare = {key: value for key, value in body.items() if key not in {"kind", "apiVersion"}}
    text = json.dumps(bare, separators=(",", ":")).encode()
    return Stored(int(body["metadata"].get("resourceVersion", 0)), body, text)


@dataclass(frozen=True, slots=True)
class Change:
    """One step of an object: `old` is None when it was created, `new` is its last state when it was deleted."""

    version: int
    old: Stored | None
    new: Stored
    deleted: bool = False


class Store:
    """All objects of the server.

    Attributes:
        version: the version of the last change.
        oldest: a watch may start from this version or a later one.
    """

    def __init__(self) -> None:
        self.version = 0
        self.oldest = 0
        self._objects: dict[Kind, dict[Key, Stored]] = defaultdict(dict)
        self._history: dict[Kind, deque[Change]] = defaultdict(lambda: deque(maxlen=_HISTORY))
        self._listeners: dict[Kind, list[Callable[[Change], None]]] = defaultdict(list)
        self._pages: dict[tuple[Kind, str], Sequence[Stored]] = {}
        self._frozen: dict[Kind, dict[Key, Stored]] | None = None
        self._frozen_at = 0

    def get(self, kind: Kind, key: Key) -> Stored | None:
        return self._objects[kind].get(key)

    def read(self, kind: Kind, key: Key) -> Stored | None:
        """As `get`, but behind if reads are frozen."""
        return self._seen(kind).get(key)

    def all(self, kind: Kind, namespace: str = "") -> list[Stored]:
        """Return all objects in the order of lists, behind if reads are frozen."""
        seen = self._seen(kind)
        return [seen[key] for key in sorted(seen) if not namespace or key[0] == namespace]

    @property
    def read_version(self) -> int:
        return self.version if self._frozen is None else self._frozen_at

    def freeze_reads(self) -> None:
        """Answer reads with the present state from now on, whatever is written: a server that lags behind."""
        self._frozen = defaultdict(dict, {kind: dict(held) for kind, held in self._objects.items()})
        self._frozen_at = self.version

    def thaw_reads(self) -> None:
        self._frozen = None

    def _seen(self, kind: Kind) -> Mapping[Key, Stored]:
        return (self._objects if self._frozen is None else self._frozen)[kind]

    def put(self, kind: Kind, key: Key, body: Mapping[str, Any]) -> Stored:
        """Write an object under the next version."""
        made = self._next(body)
        old = self._objects[kind].get(key)
        self._objects[kind][key] = made
        self._happened(kind, Change(made.version, old, made))
        return made

    def remove(self, kind: Kind, key: Key, body: Mapping[str, Any]) -> Stored:
        """Delete an object; `body` is its last state."""
        made = self._next(body)
        self._happened(kind, Change(made.version, self._objects[kind].pop(key), made, deleted=True))
        return made

    def advance_to(self, version: int) -> None:
        """Let others write elsewhere: versions go on from here."""
        self.version = max(self.version, version)

    def compact(self) -> None:
        """Forget all history: a watch or a page of an earlier version has expired."""
        self.oldest = self.version
        self._history.clear()
        self._pages.clear()

    def since(self, kind: Kind, version: int) -> Sequence[Change]:
        """Return the changes after a version.

        Raises:
            Refusal: 410, they are no longer known.
        """
        if version < self.oldest:
            raise expired(version, self.oldest)
        history = self._history[kind]
        return list(history)[bisect.bisect_right([change.version for change in history], version) :]

    def listen(self, kind: Kind, heard: Callable[[Change], None]) -> Callable[[], None]:
        self._listeners[kind].append(heard)
        return lambda: self._listeners[kind].remove(heard)

    def keep_page(self, token: tuple[Kind, str], rest: Sequence[Stored]) -> None:
        """Remember what the next page of a list is made of."""
        self._pages[token] = rest
        while len(self._pages) > 64:
            del self._pages[next(iter(self._pages))]

    def page(self, token: tuple[Kind, str]) -> Sequence[Stored]:
        if token not in self._pages:
            raise Refusal(
                410,
                "Expired",
                "The provided continue parameter is too old to display a consistent list result. You can start a new list "
                "without the continue parameter, or use the continue token in this response to retrieve the remainder of "
                "the results.",
            )
        return self._pages[token]

    def everything(self) -> Iterator[tuple[Kind, Key]]:
        for kind, held in list(self._objects.items()):
            for key in list(held):
                yield kind, key

    def _next(self, body: Mapping[str, Any]) -> Stored:
        self.version += 1
        return stored({**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}})

    def _happened(self, kind: Kind, change: Change) -> None:
        self._history[kind].append(change)
        for heard in tuple(self._listeners[kind]):
            heard(change)
