"""Quantities as Kubernetes writes them: `500m`, `1k`, `129e6`, `64Gi`."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([eE][+-]?[0-9]{1,2})|([KMGTPE]i|[numkMGTPE]|))"
)
_FACTORS: Final[Mapping[str, Decimal]] = {
    "": Decimal(1),
    "k": Decimal(1000),
    **{unit: Decimal(10) ** power for unit, power in (("n", -9), ("u", -6), ("m", -3))},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("MGTPE", 2)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
"""Suffixes (kubernetes/apimachinery, pkg/api/resource/quantity.go)."""


def quantity(text: object) -> float | None:
    """Return a quantity as a number; None where it is none."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        return None
    number, exponent, suffix = found.groups()
    return float(Decimal(number + (exponent or "")) * _FACTORS[suffix or ""])
