"""The values of the arithmetic: terms with their origin, figures made of terms, and findings about places in files."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scaler.policy.base import Envelope
from scaler.policy.document import Path
from scaler.policy.lint.codes import Code

SECONDS: Final = "seconds"
SEATS: Final = "seats"
MIB: Final = "MiB"
GPU_HOURS: Final = "GPU-hours"


class Severity(StrEnum):
    """How much a finding matters."""

    INFO = "Info"
    """A consequence that one should know of."""
    WARNING = "Warning"
    """Probably not what was meant."""
    ERROR = "Error"
    """Can't work as written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One contribution to a figure.

    Attributes:
        name: what it is, in words.
        value: the number; None when it is not known.
        unit: what one of it is.
        origin: where the number comes from: a field, an assumption, a measurement; for an unknown one, what to set.
    """

    name: str
    value: float | None
    unit: str
    origin: str


class Operator(StrEnum):
    """How terms make a figure."""

    SUM = "Sum"
    """They are added."""
    PRODUCT = "Product"
    """They are multiplied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number with all that it was reached by.

    Attributes:
        name: what it is, in words.
        unit: what one of it is.
        terms: what it is made of.
        operator: how.
        never: why it is never reached; empty if it is.
    """

    name: str
    unit: str
    terms: tuple[Term, ...] = ()
    operator: Operator = Operator.SUM
    never: str = ""

    @property
    def total(self) -> float | None:
        """The number: of a sum the known part of it; None for a product with an unknown factor, and for never."""
        if self.never:
            return None
        known = [term.value for term in self.terms if term.value is not None]
        if self.operator is Operator.SUM:
            return math.fsum(known)
        return math.prod(known) if len(known) == len(self.terms) else None

    @property
    def unknown(self) -> tuple[Term, ...]:
        """The terms that are not known: the true number is the total and these."""
        return tuple(term for term in self.terms if term.value is None)

    @property
    def exact(self) -> bool:
        """Whether every term is known."""
        return not self.never and not self.unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a finding points: a value of an object.

    Attributes:
        kind: kind of the object.
        namespace: its namespace.
        name: its name.
        path: the value, in the keys of the file.
    """

    kind: str
    namespace: str
    name: str
    path: Path

    @classmethod
    def of(cls, item: Envelope, *path: str | int) -> "Place":
        """Point at a value of a fleet or policy."""
        return cls(kind=item.kind, namespace=item.metadata.namespace, name=item.metadata.name, path=path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that one should know of a set.

    Attributes:
        code: what kind of finding.
        severity: how much it matters.
        place: what it is about.
        message: what is so, with the numbers.
        hint: what to do about it; may be empty.
        terms: the numbers that it was reached by.
    """

    code: Code
    severity: Severity
    place: Place
    message: str
    hint: str = ""
    terms: tuple[Term, ...] = ()


def worst(findings: Iterable[Finding]) -> Severity | None:
    """Return the highest severity among findings; None where there are none."""
    order = list(Severity)
    return max((finding.severity for finding in findings), key=order.index, default=None)
