"""Who may push, and what he may say: the tokens of a file, each with its role. PURE.

A sample can take slots from other gateways, or raise a policy's load at will, so a token says what its holder is. A file has
a token a line, `role[:name] token`; a line with nothing but a token is good for all that can be pushed. A name is what its
holder's instances are called, and nobody else's: otherwise an instance belongs to whoever pushed as it first, for as long as
what he said counts (`scaler.signals.pushed`). Several tokens of one role and name are one pusher, so that a token can be
replaced by another while both are good.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from scaler.errors import PolicyError, PolicyFault, SampleRejected
from scaler.signals.sample import Kind

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


class Role(StrEnum):
    """What a token's holder is."""

    GATEWAY = "gateway"
    """It says what it holds, and takes its share of the residents' slots."""
    QUEUE = "queue"
    """It knows what waits."""
    AGENT = "agent"
    """It reports what is on its seat, and pushes no samples."""


class NotAllowed(SampleRejected):
    """A sample says what its pusher may not say; it changed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pusher:
    """The holder of one token, or all who publish over Redis.

    Attributes:
        name: who that is, for people and for telling pushers apart.
        kinds: as what it may push.
        first_tokens: it may tell when promoted residents sent their first tokens.
        reports: it may report what is on a seat.
        own: its instances are called so, or begin so with a hyphen after it; empty: as they like.
        others: what others' instances are called in this way.
    """

    name: str
    kinds: frozenset[Kind] = frozenset(Kind)
    first_tokens: bool = False
    reports: bool = False
    own: str = ""
    others: frozenset[str] = frozenset()

    def check(self, kind: Kind, instance: str) -> None:
        """Check what a sample says of its sender.

        Raises:
            NotAllowed: this pusher may not say so.
        """
        if kind not in self.kinds:
            may = " or ".join(sorted(self.kinds)) or "nobody who pushes"
            raise NotAllowed(f"sample of {instance}: {self.name} pushes as {may}, and not as a {kind}")
        if self.own and not _is_called(instance, self.own):
            raise NotAllowed(
                f"sample of {instance}: the instances of {self.name} are called {self.own} or {self.own}-…"
            )
        if any(_is_called(instance, other) for other in self.others):
            raise NotAllowed(f"sample of {instance}: that name is another pusher's own")


ANYONE: Final = Pusher(name="token", first_tokens=True)
"""Whoever shows a token that has no role."""
OVER_REDIS: Final = Pusher(name="Redis", kinds=frozenset({Kind.QUEUE}))
"""Whoever publishes there, which needs no token: nobody is believed to be a gateway for that."""
_ROLES: Final[Mapping[Role, Pusher]] = MappingProxyType(
    {
        Role.GATEWAY: Pusher(name=Role.GATEWAY, kinds=frozenset({Kind.GATEWAY}), first_tokens=True),
        Role.QUEUE: Pusher(name=Role.QUEUE, kinds=frozenset({Kind.QUEUE})),
        Role.AGENT: Pusher(name=Role.AGENT, kinds=frozenset(), reports=True),
    }
)


def _is_called(instance: str, name: str) -> bool:
    return instance == name or instance.startswith(f"{name}-")


def own_names(pushers: Iterable[Pusher]) -> frozenset[str]:
    """Return what instances of named pushers are called; nobody else may push as these."""
    return frozenset(pusher.own for pusher in pushers if pusher.own and pusher.kinds)


def apart(pushers: Mapping[str, Pusher]) -> Mapping[str, Pusher]:
    """Return pushers, per token, of which each knows what the others' instances are called."""
    names = own_names(pushers.values())
    return {token: replace(pusher, others=names - {pusher.own}) for token, pusher in pushers.items()}


def parse_tokens(text: str, file: str) -> Mapping[str, Pusher]:
    """Read a token file: the pusher of each token.

    Args:
        text: its lines. Empty ones, and those that begin with `#`, say nothing.
        file: its name, for messages. No message shows a token.

    Raises:
        PolicyError: lines are wrong; it tells all of them.
    """
    found: dict[str, Pusher] = {}
    faults: list[PolicyFault] = []
    nameless = Counter[str]()
    for number, line in _lines(text):
        try:
            token, pusher = _entry(line.split())
            if token in found:
                raise _Wrong(
                    "this token stands in an earlier line too", "give each holder a token of its own"
                )
            if not pusher.own:
                nameless[pusher.name] += 1
                if (nth := nameless[pusher.name]) > 1:
                    pusher = replace(pusher, name=f"{pusher.name} {nth}")
            found[token] = pusher
        except _Wrong as wrong:
            place = {"file": file, "line": number, "column": len(line) - len(line.lstrip()) + 1}
            faults.append(PolicyFault(**place, path="", message=wrong.message, hint=wrong.hint))  # type: ignore[arg-type]
    if faults:
        raise PolicyError(tuple(faults))
    return found


class _Wrong(Exception):
    def __init__(self, message: str, hint: str) -> None:
        self.message = message
        self.hint = hint


def _lines(text: str) -> Iterable[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line


def _entry(words: list[str]) -> tuple[str, Pusher]:
    if len(words) == 1:
        return words[0], ANYONE
    roles = ", ".join(Role)
    if len(words) != 2:  # noqa: PLR2004 - a role and a token
        raise _Wrong(f"{len(words)} words stand here", "a line is `role[:name] token`, or a token alone")
    role, colon, name = words[0].partition(":")
    if role not in set(Role):
        raise _Wrong("the first word is no role", f"roles are {roles}; a token without a role stands alone")
    if colon and not _NAME.fullmatch(name):
        raise _Wrong(
            f"{role}'s name is none", "a name has letters, digits, and dots, hyphens or underscores in it"
        )
    pusher = _ROLES[Role(role)]
    return words[1], replace(pusher, name=words[0], own=name) if colon else pusher
