"""What each of the driver's error codes (Xids) says of a GPU, as a plain table. PURE.

The table is policy: people edit it as `kind: XidTable`, and it comes here as that document's `spec`. Without one, what holds is
`DEFAULT_TABLE`, which says the same as policies/xid-table.yaml. Whatever a table says, errors that a program causes on a healthy
GPU never make one Bad.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from warmpool.seats import Verdict

OF_APPLICATIONS: Final = frozenset({13, 31, 43, 45, 68, 94})
"""Codes that a faulty program causes on a healthy GPU, or that the GPU contained: alone they never exclude."""
OF_LINKS: Final = frozenset({74, 144, 145, 146, 147, 148, 149, 150, 155, 156})
"""Codes of links between GPUs, which a GPU also reports where its peer at the other end has died."""
OFF_THE_BUS: Final = 79
"""The GPU has fallen off the bus; only a boot brings it back."""
RECOVERY_CHANGED: Final = 154
"""The driver's own verdict has changed: it is read."""
CANCELS: Final[Mapping[int, int]] = MappingProxyType({162: 163})
"""Codes that say that an earlier error of another code is over."""
DAY: Final = 86_400.0
LARGEST: Final = 1023


class When(StrEnum):
    """When a rule holds; otherwise its errors are recorded."""

    ALWAYS = "Always"
    MULTI_GPU = "MultiGpu"
    """Where a pod spans several GPUs, which depend on the link between them."""
    SAYS_FATAL = "SaysFatal"
    """When the driver's message calls the error fatal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRule:
    """What an error says of its GPU.

    Attributes:
        verdict: what it says; Ok: nothing, it is recorded.
        when: when that holds.
        occurrences: errors on one GPU that it takes.
        within_seconds: the time over which they are counted.
        note: what the error is.
    """

    verdict: Verdict
    when: When = When.ALWAYS
    occurrences: int = 1
    within_seconds: float = DAY
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidTable:
    """What all errors say.

    Attributes:
        rules: by code.
        unlisted: what a code says that no rule is about; never Bad.
    """

    rules: Mapping[int, XidRule] = field(default_factory=lambda: MappingProxyType({}))
    unlisted: Verdict = Verdict.OK

    def rule(self, xid: int) -> XidRule:
        """Return the rule that a code falls under."""
        found = self.rules.get(xid)
        return (
            found
            if found is not None
            else XidRule(verdict=self.unlisted, note="an error of no known meaning")
        )


def table_of(spec: Mapping[str, Any]) -> XidTable:
    """Read the `spec` of a document of kind XidTable.

    Raises:
        ValueError: it isn't one; the message names the place.
    """
    rules: dict[int, XidRule] = {}
    entries = spec.get("rules", ())
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise ValueError("rules: takes a list")  # noqa: TRY004 - it is data that is wrong
    for place, entry in enumerate(entries):
        try:
            rule, xids = _rule(entry), entry["xids"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"rules[{place}]: {error}") from error
        for xid in xids:
            if not isinstance(xid, int) or not 1 <= xid <= LARGEST:
                raise ValueError(f"rules[{place}].xids: {xid!r} is no code of an error (1 to {LARGEST})")
            if xid in rules:
                raise ValueError(f"rules[{place}].xids: {xid} is listed twice")
            if xid in OF_APPLICATIONS and rule.verdict is Verdict.BAD:
                raise ValueError(
                    f"rules[{place}].xids: {xid} comes from programs on healthy GPUs and never makes one Bad"
                )
            rules[xid] = rule
    unlisted = _verdict(spec.get("unlisted", "Record"))
    if unlisted is Verdict.BAD:
        raise ValueError("unlisted: a code that nobody knows never makes a GPU Bad")
    return XidTable(rules=MappingProxyType(rules), unlisted=unlisted)


def _rule(entry: Mapping[str, Any]) -> XidRule:
    return XidRule(
        verdict=_verdict(entry["verdict"]),
        when=When(entry.get("when", "Always")),
        occurrences=int(entry.get("occurrences", 1)),
        within_seconds=float(entry.get("withinSeconds", DAY)),
        note=str(entry.get("note", "")),
    )


def _verdict(word: str) -> Verdict:
    return Verdict.OK if word == "Record" else Verdict(word)


# ---------------------------------------------------------------------- the driver's messages

_CODE = re.compile(r"(\d+)(?:, (.*))?", re.DOTALL)
_LINK = re.compile(
    r"(?:pid=\S+, name=[^,]*, )?(?P<unit>[A-Z][A-Z0-9_/]*)\s+(?P<severity>Fatal|Nonfatal)\b"
    r".*?\bLink\s+(?P<link>-?\d+)(?:\s*[(\[](?P<words>[0-9a-fx ]+)[)\]])?"
)
_CAUSED = re.compile(r"caused by previous Xid (\d+)")
_SUBCODE_SHIFT, _SUBCODE_MASK = 20, 0x3F


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFault:
    """What the driver says of a fault of NVLink 5 (Xids 144 to 150).

    Attributes:
        unit: the part that reports it.
        fatal: whether the driver calls it fatal.
        link: number of the link; -1: none in particular.
        subcode: which of the unit's faults, bits 20 to 25 of the first word; None where no word is told.
    """

    unit: str
    fatal: bool
    link: int
    subcode: int | None


def link_fault(text: str) -> LinkFault | None:
    """Read the message of a fault of NVLink 5; None if it isn't one.

    Args:
        text: what follows the code in the driver's message.
    """
    found = _LINK.search(text)
    if found is None:
        return None
    words = (found["words"] or "").split()
    subcode = None
    if words:
        try:
            subcode = (int(words[0], 16) >> _SUBCODE_SHIFT) & _SUBCODE_MASK
        except ValueError:
            subcode = None
    return LinkFault(
        unit=found["unit"], fatal=found["severity"] == "Fatal", link=int(found["link"]), subcode=subcode
    )


def caused_by(text: str) -> int | None:
    """Return the code of the earlier error that the driver says an error follows from; None if it says none."""
    found = _CAUSED.search(text)
    return None if found is None else int(found[1])


# ---------------------------------------------------------------------- the default

_RECORD, _SUSPECT, _BAD = "Record", "Suspect", "Bad"


def _entry(xids: Sequence[int], verdict: str, note: str, **more: str | int) -> Mapping[str, Any]:
    return MappingProxyType({"xids": tuple(xids), "verdict": verdict, "note": note, **more})


DEFAULT_SPEC: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "unlisted": _RECORD,
        "rules": (
            _entry([13, 31], _RECORD, "Illegal instruction or address of a program"),
            _entry([43, 45], _RECORD, "The program was stopped, or cleaned up after"),
            _entry([68], _RECORD, "Video decoder: the program restarts"),
            _entry([94], _RECORD, "Memory error that was contained"),
            _entry([8, 11, 25, 32, 69, 80], _SUSPECT, "Faults in a program's command stream", occurrences=2),
            _entry([48], _BAD, "Double-bit memory error"),
            _entry([63], _SUSPECT, "A memory row is to be replaced at the next reset"),
            _entry([64], _BAD, "Replacing a memory row failed"),
            _entry([92], _SUSPECT, "Many single-bit memory errors"),
            _entry([95, 140], _BAD, "Memory error that was not contained"),
            _entry([46, 62, 169], _BAD, "The GPU or a controller on it has stopped"),
            _entry([54], _BAD, "A power cable is missing"),
            _entry([79], _BAD, "The GPU has fallen off the bus"),
            _entry([109], _BAD, "Switching between programs took too long", occurrences=2),
            _entry([110], _BAD, "Security fault"),
            _entry([119, 120], _BAD, "The GPU's system processor does not answer, or failed"),
            _entry([142, 151], _BAD, "Video encoder, or rotation of keys"),
            _entry([143], _BAD, "The GPU could not be initialised"),
            _entry([74], _BAD, "NVLink error", when="MultiGpu"),
            _entry([136], _BAD, "A link could not be trained"),
            _entry(range(144, 151), _BAD, "Parts of NVLink 5", when="SaysFatal"),
            _entry([155, 156, 158], _BAD, "NVLink that does not come back without a reset"),
            _entry([157], _SUSPECT, "A part could not be retired"),
            _entry([37, 38, 44, 66, 67], _RECORD, "Errors of the driver's firmware"),
            _entry([121], _RECORD, "Link between CPU and GPU, corrected"),
            _entry([137, 141, 159, 160, 161], _RECORD, "NVLink privileges, fast path, channels"),
            _entry([154], _RECORD, "The driver's verdict has changed"),
            _entry([162, 163, 164, 165], _RECORD, "Power smoothing"),
        ),
    }
)
"""What holds where no document says."""

DEFAULT_TABLE: Final = table_of(DEFAULT_SPEC)
"""The same, read."""
