"""Who has asked for what, and was answered what: for people who look for the reason, bounded, in memory.

A call that is noted writes to its own entry alone: a thousand of them come at one moment, and what they touch of a list that all
share is in no processor's cache. Who asked last is found when somebody looks, and who is silent when room is needed.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Any, Final, NamedTuple

from scaler.keda.answers import Answer
from scaler.keda.trigger import Trigger, printable

MOST_ENTRIES: Final = 2048
"""Triggers that are remembered; one that has been silent for long makes room."""
MOST_SHOWN: Final = 64
"""Entries on one page, the newest: a page of whatever names is written within a few milliseconds, in which nobody else is answered."""
_LONGEST: Final = 253
"""Characters of a name that are kept."""
_LONGEST_MESSAGE: Final = 1000
"""Characters of a refusal that are kept."""


class Asker(NamedTuple):
    """A ScaledObject."""

    namespace: str
    name: str

    @classmethod
    def of(cls, namespace: str, name: str) -> "Asker":
        """Return who says that these are its names: as printable ASCII, and no longer than names of objects are."""
        return cls(printable(namespace, _LONGEST), printable(name, _LONGEST))


class Refusal(NamedTuple):
    """Why there was no answer. Not the exception itself: that holds on to all frames that it has come through.

    Attributes:
        code: the name of gRPC's status.
        message: what was said.
    """

    code: str
    message: str


@dataclass(slots=True)
class Entry:
    """One trigger of one ScaledObject.

    Attributes:
        asker: the ScaledObject.
        trigger: what it asks for; None where its metadata asks for nothing.
        calls: how often which call was made.
        last: what was answered last: a number or a refusal.
        at: Unix time of that.
        streams: streams that it has open.
        peer: who asked last, by address, and by certificate where there is one.
        turn: which of all calls its last one was.
        placed: its turn when it got its place in the book.
        forgotten: whether it is in the book no more.
    """

    asker: Asker
    trigger: Trigger | None
    calls: Counter[str] = field(default_factory=Counter)
    last: Answer | Refusal | None = None
    at: float = 0.0
    streams: int = 0
    peer: str = ""
    turn: int = 0
    placed: int = 0
    forgotten: bool = False

    def refused(self, at: float, code: str, message: str) -> None:
        """Note that there was no answer, and why."""
        self.at, self.last = at, Refusal(code, message[:_LONGEST_MESSAGE])


Key = str
"""Who asks, and for what, as one text, whose hash Python keeps: under which an entry is found."""


def key_of(asker: Asker, trigger: Trigger | None) -> Key:
    """Return under which key a trigger's entry is; None: that of metadata that asks for nothing."""
    if trigger is None:
        return repr((*asker,))
    words = trigger.subject.value, trigger.namespace, trigger.name, trigger.value.value, trigger.metric
    return repr((*asker, *words))


_TURN: Final = attrgetter("turn")


class Book:
    """Entries by who asks, and for what."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Key, Entry] = OrderedDict()  # in the order of their places
        self._turns = count(1)

    def entry(self, asker: Asker, trigger: Trigger | None) -> Entry:
        """Return the entry of a trigger that asks; None: of metadata that asks for nothing."""
        return self.under(key_of(asker, trigger), asker, trigger)

    def under(self, key: Key, asker: Asker, trigger: Trigger | None) -> Entry:
        """Return the entry of a trigger that asks and whose key is known."""
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= MOST_ENTRIES:
                self._make_room()
            entry = self._entries[key] = Entry(asker, trigger)
            entry.placed = entry.turn = next(self._turns)
        else:
            self.again(entry, trigger)
        return entry

    def again(self, entry: Entry, trigger: Trigger | None) -> None:
        """Note that a trigger asks whose entry is in the book."""
        entry.trigger = trigger  # the same, but for keys that mean nothing
        entry.turn = next(self._turns)

    def _make_room(self) -> None:
        """Forget the first that hasn't asked since it got its place; who has gets a new one, once for all its calls."""
        while True:
            key, entry = self._entries.popitem(last=False)
            if entry.turn == entry.placed:
                entry.forgotten = True
                return
            entry.placed = entry.turn
            self._entries[key] = entry

    def last_calls(self) -> Iterator[tuple[str, float]]:
        """Yield who has asked, as namespace/name, with the Unix time of their last call; who asked last comes first."""
        seen: set[Asker] = set()
        for entry in sorted(self._entries.values(), key=_TURN, reverse=True):
            asker = entry.asker
            if asker not in seen and entry.at:
                seen.add(asker)
                yield f"{asker.namespace}/{asker.name}", entry.at

    def as_json(self, scaled_object: str = "") -> dict[str, Any]:
        """Write the newest entries, the newest first, and how many are left out.

        Of keys that mean nothing here it has only the names: values may be secrets.

        Args:
            scaled_object: only those of this one, as namespace/name; empty: of all.
        """
        namespace, _, name = scaled_object.partition("/")
        of = (namespace, name) if scaled_object else None
        entries = [entry for entry in self._entries.values() if of is None or entry.asker == of]
        items = [_as_json(entry) for entry in heapq.nlargest(MOST_SHOWN, entries, key=_TURN)]
        return {"items": items, "leftOut": len(entries) - len(items)}


def _as_json(entry: Entry) -> dict[str, Any]:
    return {
        "scaledObject": f"{entry.asker.namespace}/{entry.asker.name}",
        **({} if entry.trigger is None else _asks(entry.trigger)),
        "calls": dict(entry.calls),
        "openStreams": entry.streams,
        "peer": entry.peer,
        "answeredAt": entry.at,
        **_last(entry.last),
    }


def _asks(trigger: Trigger) -> dict[str, Any]:
    name = f"{trigger.namespace}/{trigger.name}" if trigger.namespace else trigger.name
    return {
        str(trigger.subject): printable(name, 2 * _LONGEST),
        "value": str(trigger.value),
        "metricName": trigger.metric,
        "usedKeys": list(trigger.used),
        "ignoredKeys": list(trigger.ignored),
        "ignoredKeysMore": trigger.ignored_more,
    }


def _last(last: Answer | Refusal | None) -> dict[str, Any]:
    if isinstance(last, Answer):
        answered = {
            "value": last.value,
            "active": last.active,
            "ageSeconds": round(last.age, 3),
            "stale": last.stale,
        }
        return {"answer": answered}
    if last is None:
        return {"answer": None}
    return {"answer": None, "refused": {"code": last.code, "message": last.message}}
