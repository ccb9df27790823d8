"""What the metadata of a ScaledObject's trigger asks for: whose number, which of them, under what name. PURE.

KEDA hands over the trigger's whole `metadata`, its own keys included, and lets people add any others. A key that ends in
`FromEnv` carries the value of that variable of the workload's container; it keeps its suffix, and is left out where there is
no such variable. So `fleetFromEnv` is read as `fleet`, and keys that mean nothing here are tolerated and told.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from scaler.errors import ScalerError

Metadata = Mapping[str, str]
"""A trigger's metadata."""
_LONGEST: Final = 253
"""Characters that names of objects in Kubernetes have at most."""
_SHOWN: Final = 60
"""Characters of something strange that a message repeats, and names that it lists."""
MOST_KEYS: Final = 64
"""Keys of one trigger's metadata. KEDA and Emberpool know a dozen together; with thousands each call would hold up all others."""
MOST_IGNORED: Final = 32
"""Keys that mean nothing here of which the names are kept."""
_IGNORED_CHARACTERS: Final = 63
"""Characters that are kept of such a name."""
_METRIC: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
"""What the metrics API takes as one part of its path; KEDA passes names on as they are."""
_PREFIX: Final = re.compile(r"s\d{1,4}-")
"""What KEDA puts in front of a metric's name for the HPA: the index of its trigger."""
_OURS: Final = ("fleet", "policy", "value", "metricName")
_KEDAS: Final = frozenset(
    {"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsClientCert", "tlsClientKey"}
)
"""Keys of external triggers that KEDA reads itself."""


class Subject(StrEnum):
    """Whose number it is; the word is the key of the metadata."""

    FLEET = "fleet"
    POLICY = "policy"


class Value(StrEnum):
    """Which number."""

    TOTAL = "Total"
    """Fleet: the seats that its workload shall have."""
    SERVING = "Serving"
    """Fleet: the seats that serve or shall. Policy: its residents that serve or shall, on all fleets."""
    SPARE = "Spare"
    """Fleet: the spare seats that it should have."""
    QUEUE_DEPTH = "QueueDepth"
    """Policy: requests that gateways hold."""
    QUEUE_AGE_SECONDS = "QueueAgeSeconds"
    """Policy: how long the oldest of those has waited."""
    PROMOTIONS_IN_FLIGHT = "PromotionsInFlight"
    """Policy: its residents on their way into rotation."""


VALUES: Final[Mapping[Subject, tuple[Value, ...]]] = {
    Subject.FLEET: (Value.TOTAL, Value.SERVING, Value.SPARE),
    Subject.POLICY: (
        Value.SERVING,
        Value.QUEUE_DEPTH,
        Value.QUEUE_AGE_SECONDS,
        Value.PROMOTIONS_IN_FLIGHT,
    ),
}
"""What can be asked for; the first of each is what is meant where nothing is said."""


class BadTrigger(ScalerError):
    """A trigger's metadata asks for nothing that there is; the message is for whoever wrote the ScaledObject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """What one trigger asks for.

    Attributes:
        subject: fleet or policy.
        name: its name.
        namespace: its namespace, where the trigger says it; empty where it doesn't.
        value: which number of it.
        metric: the metric's name, without what KEDA puts in front.
        used: keys of the metadata that were read.
        ignored: the first keys, by name, that mean nothing here, as printable ASCII. What is asked for is the same without them.
        ignored_more: how many more of those there are.
    """

    subject: Subject
    name: str
    namespace: str
    value: Value
    metric: str
    used: tuple[str, ...]
    ignored: tuple[str, ...] = field(default=(), compare=False)
    ignored_more: int = field(default=0, compare=False)

    def names(self, metric: str) -> bool:
        """Whether a metric's name is this trigger's: as it is, with what the HPA sees in front, or none at all."""
        if not metric or metric == self.metric:
            return True
        found = _PREFIX.match(metric)
        return found is not None and metric[found.end() :] == self.metric


def read(metadata: Metadata) -> Trigger:
    """Read a trigger's metadata.

    Raises:
        BadTrigger: it names nothing, or more than one thing, or a value that there isn't, or has too many keys.
    """
    if len(metadata) > MOST_KEYS:
        raise BadTrigger(
            f"the trigger's metadata has {len(metadata)} keys, and {MOST_KEYS} are read at most; `fleet: NAME` alone is enough"
        )
    found = {key: metadata[used] for key in _OURS if (used := _key(metadata, key)) is not None}
    subjects = [subject for subject in Subject if subject in found]
    if len(subjects) != 1:
        raise BadTrigger(_no_subject(metadata, both=bool(subjects)))
    subject = subjects[0]
    namespace, name = _split(subject, found[subject])
    value = _value(subject, found.get("value"))
    ignored = sorted(key for key in metadata if key not in _KEDAS and not _is_ours(key))
    return Trigger(
        subject=subject,
        name=name,
        namespace=namespace,
        value=value,
        metric=_metric(found.get("metricName")) or default_metric(subject, name, value),
        used=tuple(used for key in _OURS if (used := _key(metadata, key)) is not None),
        ignored=tuple(printable(key, _IGNORED_CHARACTERS) for key in ignored[:MOST_IGNORED]),
        ignored_more=max(0, len(ignored) - MOST_IGNORED),
    )


def asks_nothing(metadata: Metadata) -> bool:
    """Whether a trigger's metadata has none of our keys, so that it may be meant for somebody else."""
    return not any(map(_is_ours, metadata))


def default_metric(subject: Subject, name: str, value: Value) -> str:
    """Return the name of a metric that its trigger gives none: lower case, digits and dashes alone."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", value)
    return re.sub(r"[^a-z0-9-]+", "-", f"emberpool-{subject}-{name}-{words}".lower())


def shown(text: str) -> str:
    """Write something strange so that it fits into a message: as ASCII on one line, and cut."""
    return ascii(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def printable(text: str, most: int) -> str:
    """Return the beginning of somebody's text as printable ASCII, what isn't that as an escape."""
    return ascii(text[:most])[1:-1][:most]


def _key(metadata: Metadata, key: str) -> str | None:
    """Return under which key something is given; None where it isn't."""
    return next((each for each in (key, f"{key}FromEnv") if each in metadata), None)


def _is_ours(key: str) -> bool:
    return key.removesuffix("FromEnv") in _OURS


def _no_subject(metadata: Metadata, *, both: bool) -> str:
    if both:
        return "the trigger's metadata names a fleet and a policy; keep one of them"
    keys = ", ".join(shown(key) for key in sorted(metadata)[:8]) or "no key at all"
    unresolved = " (a key with FromEnv is left out when the container has no such variable)"
    return f"the trigger's metadata needs `fleet: NAME` or `policy: NAME`, and has {keys}{unresolved}"


def _split(subject: Subject, text: str) -> tuple[str, str]:
    namespace, slash, name = text.rpartition("/")
    if not name or (slash and not namespace) or "/" in namespace or len(text) > 2 * _LONGEST:
        raise BadTrigger(f"{subject}: {shown(text)} is neither a name nor namespace/name")
    return namespace, name


def _value(subject: Subject, word: str | None) -> Value:
    values = VALUES[subject]
    if word is None:
        return values[0]
    for value in values:
        if value == word:
            return value
    raise BadTrigger(f"value: {shown(word)} is no value of a {subject}; take one of {', '.join(values)}")


def _metric(name: str | None) -> str | None:
    if name is None:
        return None
    if not name:
        raise BadTrigger("metricName: '' is no name; leave the key out for the default")
    if len(name) > _LONGEST or not _METRIC.fullmatch(name):
        raise BadTrigger(
            f"metricName: {shown(name)} can't be a metric's name; use up to {_LONGEST} of A-Z, a-z, 0-9, '-', '_' and '.',"
            " with a letter or digit at both ends"
        )
    return name
