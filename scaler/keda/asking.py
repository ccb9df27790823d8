"""Who asks for what, read once and remembered: an operator asks the same a thousand times a second. Bounded. PURE.

What is read of a message is always the same, so that nothing here ever has to be forgotten for being out of date: neither who asks
for what nor, beside it, the bytes of the answer that was written last, which is good for as long as the number is.

Messages are found by their bytes, and what they say by their words: the same metadata comes in any order, as maps of Go do.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from scaler.keda.book import Asker, Entry, Key, key_of
from scaler.keda.trigger import MOST_KEYS, BadTrigger, Metadata, Trigger, read

MOST_REMEMBERED: Final = 4096
"""Triggers that are remembered; the one that has been silent longest makes room."""
LONGEST_REMEMBERED: Final = 1024
"""Characters of names and metadata: of what is longer each message is read anew. An operator's have some 200."""
MOST_MESSAGES: Final = 4096
"""Messages of one kind that are remembered: of a trigger as many as its metadata comes in orders. Who is silent makes room."""
LONGEST_MESSAGE: Final = 512
"""Bytes of a message that is remembered: an operator's have some 200."""


class Reference(Protocol):
    """A message that says who asks, and for what."""

    @property
    def namespace(self) -> str:
        """Of the ScaledObject."""

    @property
    def name(self) -> str:
        """Of the ScaledObject."""

    @property
    def scalerMetadata(self) -> Metadata:  # noqa: N802 - the message's own word
        """Of its trigger."""


@dataclass(slots=True)
class Written:
    """An answer as it was written.

    Attributes:
        metric: the name that was asked for.
        value: the number.
        text: the message.
    """

    metric: str
    value: float
    text: bytes


@dataclass(slots=True, kw_only=True)
class Asked:
    """Who asks for what.

    Attributes:
        asker: the ScaledObject.
        trigger: what it asks for; None where its metadata asks for nothing.
        refusal: why it asks for nothing; empty where it doesn't.
        key: under which it is in the book.
        entry: that in the book, once there was one; it may have been forgotten.
        spec: its specification as it was written, once it was.
        metrics: the answer that was written last, once one was.
    """

    asker: Asker
    trigger: Trigger | None
    refusal: str = ""
    key: Key = field(init=False)
    entry: Entry | None = None
    spec: bytes | None = None
    metrics: Written | None = None

    def __post_init__(self) -> None:
        self.key = key_of(self.asker, self.trigger)

    def wanted(self) -> Trigger:
        """Return what it asks for.

        Raises:
            BadTrigger: nothing.
        """
        if self.trigger is None:
            raise BadTrigger(self.refusal)
        return self.trigger


class Asking:
    """Reads references, and remembers them."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, frozenset[tuple[str, str]]], Asked] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def read(self, ref: Reference) -> Asked:
        """Return who asks for what. The order of a trigger's metadata doesn't matter: messages have it in any."""
        if (
            len(ref.scalerMetadata) > MOST_KEYS
        ):  # refused for their number: thousands of them are never looked at
            return _read(ref)
        key = ref.namespace, ref.name, frozenset(ref.scalerMetadata.items())
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        asked = _read(ref)
        if sum(map(len, key[:2])) + sum(len(name) + len(text) for name, text in key[2]) <= LONGEST_REMEMBERED:
            self._known[key] = asked
            if len(self._known) > MOST_REMEMBERED:
                self._known.popitem(last=False)
        return asked


class Request(NamedTuple):
    """What a message asks.

    Attributes:
        asked: who asks for what.
        metric: the name of the metric that is asked for; empty where none is.
    """

    asked: Asked
    metric: str


class Requests:
    """Messages of one kind.

    Args:
        parse: reads one: who asks, and for which metric by name. What it raises passes through, and nothing is remembered.
        asking: knows who asks for what.
    """

    def __init__(self, parse: Callable[[bytes], tuple[Reference, str]], asking: Asking) -> None:
        self._parse = parse
        self._asking = asking
        self._known: OrderedDict[bytes, Request] = OrderedDict()
        self._before: OrderedDict[bytes, Request] = OrderedDict()  # what was known when there was no room

    def __len__(self) -> int:
        return len(self._known) + len(self._before)

    def read(self, raw: bytes) -> Request:
        """Return what a message asks."""
        known = self._known.get(raw)
        if known is not None:
            return known
        request = self._before.pop(raw, None) or self._read(raw)
        if len(raw) <= LONGEST_MESSAGE:
            self._keep(raw, request)
        return request

    def _keep(self, raw: bytes, request: Request) -> None:
        """Remember it. One that is silent goes for one that comes: all at once would hold up everybody for milliseconds."""
        if self._before:
            self._before.popitem(last=False)
        if len(self._known) == MOST_MESSAGES - 1:  # as many have come since, so of before there is none
            self._known, self._before = self._before, self._known
        self._known[raw] = request

    def _read(self, raw: bytes) -> Request:
        ref, metric = self._parse(raw)
        return Request(self._asking.read(ref), metric)


def _read(ref: Reference) -> Asked:
    asker = Asker.of(ref.namespace, ref.name)
    try:
        return Asked(asker=asker, trigger=read(ref.scalerMetadata))
    except BadTrigger as error:
        return Asked(asker=asker, trigger=None, refusal=str(error))
