"""The format `XidTable`: what each of the driver's error codes says of a GPU.

The driver's own verdict, where it has one, ranks before this table.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from scaler.policy.base import (
    Broken,
    Envelope,
    PolicyModel,
    Unsound,
    as_far_as_sound,
    integer,
    sound_entries,
    text,
)

OF_APPLICATIONS: Final = frozenset({13, 31, 43, 45, 68, 94})
"""Codes that a faulty application causes on a healthy GPU, or that the GPU contained: alone they never exclude a node."""

_DAY: Final = 86_400

Xid = Annotated[int, integer("code of an error", 1, 1023, example=79)]


class XidVerdict(StrEnum):
    """What an error says of its GPU."""

    RECORD = "Record"
    """Nothing: it is counted and shown."""
    SUSPECT = "Suspect"
    """No promotion goes there; what serves may finish."""
    BAD = "Bad"
    """The GPU is excluded, and its seat replaced."""


class Unlisted(StrEnum):
    """What an error says that no rule is about."""

    RECORD = "Record"
    """Nothing: it is counted and shown."""
    SUSPECT = "Suspect"
    """No promotion goes to its GPU; what serves may finish."""


class XidCondition(StrEnum):
    """When a rule holds."""

    ALWAYS = "Always"
    """Whenever one of its errors comes."""
    MULTI_GPU = "MultiGpu"
    """Only where a seat spans several GPUs, which then depend on the link between them."""
    SAYS_FATAL = "SaysFatal"
    """Only when the driver's message calls the error fatal."""


class XidRule(PolicyModel):
    """What some errors say of their GPU."""

    xids: Annotated[tuple[Xid, ...], Field(min_length=1, max_length=200)]
    """Codes that the rule is about."""
    verdict: XidVerdict
    """What they say."""
    when: XidCondition = XidCondition.ALWAYS
    """When the rule holds; otherwise its errors are recorded. The default is `Always`."""
    occurrences: Annotated[int, integer("errors", 1, 1000, example=2)] = 1
    """Errors on one GPU, within `withinSeconds`, that it takes. The default is one."""
    within_seconds: Annotated[int, integer("seconds", 1, 30 * _DAY, example=86_400)] = _DAY
    """Seconds over which `occurrences` are counted. The default is a day."""
    note: Annotated[str, text("a sentence", pattern=r"\S", longest=500, example="GPU has fallen off the bus")]
    """What the errors are, for whoever reads the verdict."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rules that an application's fault excludes no node, and that only what is counted has a time."""
        yield from as_far_as_sound(self._time(), self._of_applications())

    def _time(self) -> Iterator[Broken]:
        if self.occurrences == 1 and self.within_seconds != _DAY:
            message = "is the time over which occurrences are counted, and one is enough here"
            yield Broken(
                path=("withinSeconds",), message=message, hint="set occurrences, or remove withinSeconds"
            )

    def _of_applications(self) -> Iterator[Broken]:
        for index, xid in sound_entries(self.xids):
            if self.verdict is XidVerdict.BAD and xid in OF_APPLICATIONS:
                message = f"Xid {xid} comes from applications on healthy GPUs and alone never makes one Bad"
                yield Broken(
                    path=("xids", index), message=message, hint="use Suspect, or remove it from this rule"
                )


class XidTableSpec(PolicyModel):
    """Rules for error codes."""

    rules: Annotated[tuple[XidRule, ...], Field(max_length=1000)] = ()
    """The rules; each code is in one of them at most."""
    unlisted: Unlisted = Unlisted.RECORD
    """What a code says that no rule is about. The default is `Record`: an error that nobody knows is no reason to lose a
    GPU."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that no code is in two rules."""
        counted = Counter[int]()
        for place, rule in sound_entries(self.rules):
            with suppress(Unsound):
                for index, xid in sound_entries(rule.xids):
                    counted[xid] += 1
                    if counted[xid] > 1:
                        message = f"Xid {xid} is listed twice"
                        yield Broken(
                            path=("rules", place, "xids", index), message=message, hint="keep it in one rule"
                        )


class XidTable(Envelope):
    """What each of the driver's error codes says of a GPU."""

    kind: Literal["XidTable"]
    """Which format the document has."""
    spec: XidTableSpec
    """Rules for error codes."""
