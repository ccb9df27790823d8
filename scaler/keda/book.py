"""Who has asked for what, and was answered what: for people who look for the reason, bounded, in memory."""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from scaler.keda.answers import Answer, Code, Refused
from scaler.keda.trigger import Trigger

MOST_ENTRIES: Final = 2048
"""Triggers that are remembered; the one that has been silent longest makes room."""
_LONGEST: Final = 253


class Asker(NamedTuple):
    """A ScaledObject."""

    namespace: str
    name: str


class Refusal(NamedTuple):
    """Why there was no answer. Not the exception itself: that holds on to all frames that it has come through."""

    code: Code
    message: str

    @classmethod
    def of(cls, error: Refused) -> "Refusal":
        """Return what an exception says."""
        return cls(error.code, str(error))


@dataclass(slots=True)
class Entry:
    """One trigger of one ScaledObject.

    Attributes:
        trigger: what it asks for.
        calls: how often which call was made.
        last: what was answered last: a number or a refusal.
        at: Unix time of that.
        streams: streams that it has open.
        peer: who asked last, by address, and by certificate where there is one.
    """

    trigger: Trigger
    calls: Counter[str] = field(default_factory=Counter)
    last: Answer | Refusal | None = None
    at: float = 0.0
    streams: int = 0
    peer: str = ""


class Book:
    """Entries by who asks, and for what."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[Asker, Trigger], Entry] = OrderedDict()

    def entry(self, asker: Asker, trigger: Trigger) -> Entry:
        """Return the entry of a trigger."""
        key = (Asker(asker.namespace[:_LONGEST], asker.name[:_LONGEST]), trigger)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(trigger)
            if len(self._entries) > MOST_ENTRIES:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        return entry

    def last_calls(self) -> Iterator[tuple[str, float]]:
        """Yield who has asked, as namespace/name, with the Unix time of their last call; who asked last comes first."""
        seen: set[Asker] = set()
        for (asker, _), entry in reversed(self._entries.items()):
            if asker not in seen and entry.at:
                seen.add(asker)
                yield f"{asker.namespace}/{asker.name}", entry.at

    def as_json(self) -> list[dict[str, Any]]:
        """Write all entries, the newest first. Of keys that mean nothing here only the names: values may be secrets."""
        return [_as_json(asker, entry) for (asker, _), entry in reversed(self._entries.items())]


def _as_json(asker: Asker, entry: Entry) -> dict[str, Any]:
    trigger = entry.trigger
    return {
        "scaledObject": f"{asker.namespace}/{asker.name}",
        str(trigger.subject): f"{trigger.namespace}/{trigger.name}" if trigger.namespace else trigger.name,
        "value": str(trigger.value),
        "metricName": trigger.metric,
        "usedKeys": list(trigger.used),
        "ignoredKeys": list(trigger.ignored),
        "calls": dict(entry.calls),
        "openStreams": entry.streams,
        "peer": entry.peer,
        "answeredAt": entry.at,
        **_last(entry.last),
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
    return {"answer": None, "refused": {"code": str(last.code), "message": last.message}}
