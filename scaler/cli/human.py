"""Numbers, times and sizes as people read them. PURE."""

from collections.abc import Sequence
from typing import Final

NOTHING: Final = "-"
"""What a table shows where there is nothing to show."""

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def age(seconds: float) -> str:
    """Write an age as kubectl does: two units while the smaller one still matters (`12s`, `3m4s`, `2d3h`)."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // _MINUTE, whole // _HOUR, whole // _DAY
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if minutes < 10:  # noqa: PLR2004 - the steps are kubectl's (apimachinery's HumanDuration)
        return _two(minutes, "m", whole % _MINUTE, "s")
    if hours < 3:  # noqa: PLR2004
        return f"{minutes}m"
    if hours < 8:  # noqa: PLR2004
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:  # noqa: PLR2004
        return f"{hours}h"
    if days < 8:  # noqa: PLR2004
        return _two(days, "d", hours % 24, "h")
    return f"{days}d"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def duration(seconds: float) -> str:
    """Write how long something took, with as many digits as matter (`4ms`, `0.82s`, `13.1s`, `3m4s`)."""
    if seconds < 0.1:  # noqa: PLR2004
        return f"{seconds * 1000:.3g}ms"
    if seconds < 10:  # noqa: PLR2004
        return f"{seconds:.2f}s"
    return f"{seconds:.1f}s" if seconds < 2 * _MINUTE else age(seconds)


def number(value: float | None) -> str:
    """Write a number with at most one decimal; nothing where it is unknown."""
    if value is None:
        return NOTHING
    return f"{value:.1f}".removesuffix(".0")


def size(count: int | None) -> str:
    """Write a number of bytes in MiB or GiB; nothing where it is unknown."""
    if count is None:
        return NOTHING
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def listed(names: Sequence[str]) -> str:
    """Write names with commas; nothing where there are none."""
    return ", ".join(names) or NOTHING


def plural(count: int, noun: str) -> str:
    """Write a count with its noun: `1 fault`, `3 faults`, `2 policies`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"
