"""The unit of a number in a file: said by the field itself, or read off the end of its name.

Names end in their unit (`windowSeconds`, `thresholdPercent`), so that a value can be read without a manual. A number of
things (`maxSeats`) can't say it in the same way: there the field gives its unit under `scaler.policy.base.UNIT`.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

ENDINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Milliseconds": "milliseconds",
        "Seconds": "seconds",
        "Minutes": "minutes",
        "Hours": "hours",
        "PerSecond": "per second",
        "PerMinute": "per minute",
        "Percent": "percent",
        "Ratio": "ratio",
        "Bytes": "bytes",
        "Kib": "KiB",
        "MiB": "MiB",
        "Gib": "GiB",
        "Celsius": "°C",
        "Watts": "W",
    }
)
"""What a key ends in, with the unit that it stands for."""

_ENDING: Final = re.compile(f"(?:{'|'.join(ENDINGS)})$")


def unit_of(key: str) -> str | None:
    """Return the unit that a key in lowerCamelCase ends in, or None. It may be all of the key: `seconds`."""
    found = _ENDING.search(key[:1].upper() + key[1:])
    return ENDINGS[found.group()] if found else None
