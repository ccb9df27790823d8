"""What goes wrong on demand: slow, refused, lost and misleading answers, and watches that end, stall or tear."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, as rules about who may do what name it.

    Attributes:
        verb: get, list, watch, create, update, patch, delete or deletecollection.
        group, resource, subresource: what it is about; the resource is a path for what is no object.
        namespace, name: which one; empty where there is none. A list or a watch of one name alone has that name.
        user: who asks.
        dry_run: whether it changes nothing.
    """

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    user: str = ""
    dry_run: bool = False


class Cut(Enum):
    """When the connection is cut."""

    BEFORE = auto()
    """The request is lost."""
    AFTER = auto()
    """The request is carried out, and the answer is lost."""
    LATE = auto()
    """The answer is lost at once, and the request carried out when its delay is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer in place of the server's own; HTML comes from a proxy in between."""

    status: int
    retry_after: str = ""
    html: bool = False


@dataclass(slots=True)
class _Rule:
    matches: Callable[[Call], bool]
    times: int | None
    seconds: float = 0.0
    answer: Answer | None = None
    cut: Cut | None = None


@dataclass
class Faults:
    """Rules that the server obeys; each counts down where it was given a number.

    Attributes:
        gone_as_status: say that a version is too old by the HTTP status, not within the stream.
        silent: watches stay open and say nothing.
        tear: watches write half a line of the next event and break off.
        spacing: seconds before each event of a watch.
    """

    gone_as_status: bool = False
    silent: bool = False
    tear: bool = False
    spacing: float = 0.0
    _rules: list[_Rule] = field(default_factory=list)
    _drops: asyncio.Event = field(default_factory=asyncio.Event)

    def delay(self, seconds: float, matches: Callable[[Call], bool], times: int | None = None) -> None:
        """Wait before a request is looked at."""
        self._rules.append(_Rule(matches, times, seconds=seconds))

    def answer(self, answer: Answer, matches: Callable[[Call], bool], times: int | None = None) -> None:
        """Answer with something else, and do nothing."""
        self._rules.append(_Rule(matches, times, answer=answer))

    def cut(self, when: Cut, matches: Callable[[Call], bool], times: int | None = None) -> None:
        """Cut the connection."""
        self._rules.append(_Rule(matches, times, cut=when))

    def clear(self) -> None:
        """Let everything go well from now on."""
        self._rules.clear()
        self.spacing = 0.0
        self.gone_as_status = self.silent = self.tear = False

    def drop_watches(self) -> None:
        """End all watches that are open, as the server does at their timeout."""
        self._drops.set()
        self._drops = asyncio.Event()

    @property
    def dropped(self) -> asyncio.Event:
        """Is set when the watches that are open now are to end."""
        return self._drops

    def take(self, call: Call) -> tuple[float, Answer | None, Cut | None]:
        """Return what befalls a request: seconds of waiting, an answer in place of its own, a cut."""
        seconds, answer, cut = 0.0, None, None
        for rule in self._rules:
            if rule.times == 0 or not rule.matches(call):
                continue
            if rule.times is not None:
                rule.times -= 1
            seconds += rule.seconds
            answer = answer or rule.answer
            cut = cut or rule.cut
        return seconds, answer, cut
