"""One pushed sample: what it may say, and how it is read.

docs/pushing-signals.md describes the format to those who push. A sample is taken whole or not at all. PURE.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeGuard

from scaler.core.demand import PLAUSIBLE_MAX
from scaler.errors import SampleRejected
from warmpool.seats import PolicyName

_NAME_LENGTH = 253
"""Longest name of an instance or policy: that of a Kubernetes object."""
_QUOTING = frozenset("\"'`\\")
"""What shells, logs and JSON quote with; a name is shown in all of them."""
_LARGEST = 2.0**53
"""Numbers above this are no counts: JSON's numbers are exact to here."""
_TOTALS = frozenset({"arrived", "completed", "refused", "refusedSeconds", "answered", "late", "failed"})
"""Numbers that count up for as long as an instance lives; all others say what there is at a moment."""
INTERVAL_SECONDS: Final = 1.0
"""How often an instance pushes that doesn't say; gateways do so at least this often."""
LONGEST_INTERVAL_SECONDS: Final = 60.0
"""The longest interval that one may say."""


class Kind(StrEnum):
    """Who pushes."""

    GATEWAY = "Gateway"
    """A gateway: it also gets its share of the residents' slots."""
    QUEUE = "Queue"
    """Anyone else who knows what waits."""


MOST_BYTES: Final[Mapping[Kind, int]] = MappingProxyType({Kind.GATEWAY: 64 * 1024, Kind.QUEUE: 16 * 1024})
"""Size of a sample. A gateway names 128 policies at once, which have some 50 KiB."""
MOST_POLICIES: Final[Mapping[Kind, int]] = MappingProxyType({Kind.GATEWAY: 256, Kind.QUEUE: 64})
"""Policies that a sample names."""
MAX_BYTES: Final = max(MOST_BYTES.values())
"""No sample of any kind is larger."""
_ANY: Final = frozenset(Kind)


class Numbers(NamedTuple):
    """What one sample says of one policy; None where it says nothing."""

    queued: float | None
    in_flight: float | None
    oldest_wait: float | None
    peak: float | None
    arrived: float | None
    completed: float | None
    backlog: float | None
    backlog_age: float | None
    refused: float | None
    refused_seconds: float | None
    answered: float | None
    late: float | None

    @property
    def demand(self) -> float | None:
        """Requests that are here, each counted once."""
        if self.queued is None and self.in_flight is None:
            return None
        return (self.queued or 0.0) + (self.in_flight or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample.

    Attributes:
        instance: who pushes.
        kind: what that is.
        sequence: grows with each sample of an instance.
        at: Unix time at which it was true.
        interval: seconds until the instance pushes again at the latest.
        policies: what it says, per policy.
        strangers: policies that it names and that there aren't; what it says of them wasn't read.
        run: which process of that name pushes; empty: it doesn't say.
    """

    instance: str
    kind: Kind
    sequence: int
    at: float
    interval: float
    policies: Mapping[PolicyName, Numbers]
    strangers: tuple[PolicyName, ...] = ()
    run: str = ""


_PLACES: Final[Mapping[str, int]] = {
    "queued": 0,
    "inFlight": 1,
    "oldestWaitSeconds": 2,
    "peak": 3,
    "arrived": 4,
    "completed": 5,
    "backlog": 6,
    "backlogAgeSeconds": 7,
    "refused": 8,
    "refusedSeconds": 9,
    "answered": 10,
    "late": 11,
    "failed": 12,
}
"""Where each number stands among the numbers of a policy; the last one is checked and not used yet."""
NUMBERS: Final = tuple(_PLACES)
"""What a sample can say of a policy."""
_USED: Final = len(Numbers._fields)


class TooLarge(SampleRejected):
    """A sample is larger than one of its kind may be, or names more policies."""


def parse(body: bytes | Mapping[str, object], known: Collection[PolicyName] | None = None) -> Sample:
    """Read a sample.

    Args:
        body: a push's body, or the JSON object that it held.
        known: policies that there are; None: all that it names.

    Raises:
        TooLarge: it is larger than one of its kind may be.
        SampleRejected: it is malformed; the message names the place.
    """
    size = len(body) if isinstance(body, bytes) else 0
    if isinstance(body, bytes):
        check_size(size, _ANY)
        body = _object(_decode(body), "sample")
    instance, kind = _name(body.get("instance"), "instance"), _kind(body)
    check_size(size, {kind})
    sequence = body.get("sequence")
    if not isinstance(sequence, int) or isinstance(sequence, bool) or not 0 <= sequence <= _LARGEST:
        message = f"sample of {instance}: sequence must be a whole number ≥ 0, got {_shown(sequence)}"
        raise SampleRejected(message)
    policies = _object(body.get("policies"), "policies")
    if len(policies) > MOST_POLICIES[kind]:
        message = f"sample of {instance}: it names {len(policies)} policies, and one of a {kind} at most {MOST_POLICIES[kind]}"
        raise TooLarge(message)
    names = [PolicyName(_name(name, "a policy's name")) for name in policies]
    return Sample(
        instance=instance,
        kind=kind,
        sequence=sequence,
        at=_number(body.get("at"), "sample.at"),
        interval=_interval(body),
        policies={name: _numbers(policies[name], name) for name in names if known is None or name in known},
        strangers=() if known is None else tuple(name for name in names if name not in known),
        run=_name(body["run"], "run") if "run" in body else "",
    )


def check_size(size: int, kinds: Collection[Kind]) -> None:
    """Check a sample's size before it is read.

    Args:
        size: its bytes, or as many as have come.
        kinds: what it can be.

    Raises:
        TooLarge: it is larger than one of any of these.
    """
    if size > max((MOST_BYTES[kind] for kind in kinds), default=0):
        most = " or ".join(f"{MOST_BYTES[kind] // 1024} KiB of a {kind}" for kind in sorted(kinds))
        raise TooLarge(
            f"sample of {size} bytes or more: at most {most} are taken; name fewer policies in one"
        )


def _decode(body: bytes) -> object:
    try:
        return json.loads(body, object_pairs_hook=_keys_once)
    except (ValueError, RecursionError) as error:
        message = f"sample is not JSON: {error}"
        raise SampleRejected(message) from None


def _keys_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make an object of its fields; of one that stands there twice nobody knows which is meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = counts.most_common(1)[0][0]
        raise SampleRejected(f"{_shown(twice)} stands twice in one object; say it once")
    return found


def _kind(body: Mapping[str, object]) -> Kind:
    value = body.get("kind", Kind.QUEUE)
    if not isinstance(value, str) or value not in set(Kind):
        message = f"kind must be {' or '.join(Kind)}, got {_shown(value)}"
        raise SampleRejected(message)
    return Kind(value)


def _interval(body: Mapping[str, object]) -> float:
    if "intervalSeconds" not in body:
        return INTERVAL_SECONDS
    value = _number(body["intervalSeconds"], "intervalSeconds")
    if not INTERVAL_SECONDS <= value <= LONGEST_INTERVAL_SECONDS:
        message = (
            f"intervalSeconds must be {INTERVAL_SECONDS:g} to {LONGEST_INTERVAL_SECONDS:g}, got {value:g}"
        )
        raise SampleRejected(message)
    return value


def _numbers(policy: object, name: str) -> Numbers:
    if not isinstance(policy, Mapping):
        policy = _object(policy, f"policies.{name}")
    found: list[float | None] = [None] * len(_PLACES)
    for key, value in policy.items():
        place = _PLACES.get(key)
        if place is not None:
            most = _LARGEST if key in _TOTALS else PLAUSIBLE_MAX
            found[place] = (
                value
                if _is_count(value) and value <= most
                else _number(value, f"policies.{name}.{key}", most)
            )
    if not any(value is not None for value in found[:_USED]):
        message = f"policies.{name} has none of {', '.join(NUMBERS[:_USED])}"
        raise SampleRejected(message)
    return Numbers(*found[:_USED])


def _is_count(value: object) -> TypeGuard[float]:
    """Whether it is a finite number ≥ 0; the comparison is false for NaN."""
    kind = type(value)  # a boolean is an int, and no number here
    return (kind is float or kind is int) and 0 <= value <= _LARGEST  # type: ignore[operator]


def _number(value: object, where: str, most: float = _LARGEST) -> float:
    if not _is_count(value):
        message = f"{where} must be a finite number ≥ 0, got {_shown(value)}"
        raise SampleRejected(message)
    if value > most:
        message = f"{where} must be {most:,.0f} at most, got {_shown(value)}"
        raise SampleRejected(message)
    return value


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        message = f"{where} must be an object, got {_shown(value)}"
        raise SampleRejected(message)
    return value


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _NAME_LENGTH:
        message = f"{where} must be a string of 1 to {_NAME_LENGTH} characters, got {_shown(value)}"
        raise SampleRejected(message)
    if not value.isprintable() or not _QUOTING.isdisjoint(value):
        message = f"{where} must have no control characters, quotes or backslashes, got {_shown(value)}"
        raise SampleRejected(message)
    return value


def _shown(value: object) -> str:
    """Show a value for an error; a huge integer can't be shown at all."""
    if isinstance(value, int) and abs(value) > _LARGEST:
        return "a number beyond 2⁵³"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return "nothing" if value is None else repr(value)[:80]
