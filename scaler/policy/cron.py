"""What is wrong with a cron expression: which of its fields, what stands there, and what could.

What an expression means is the library's business, and so is whether it is one. This module finds the words.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from cronsim import CronSim, CronSimError

from scaler.policy.base import Misshapen
from scaler.policy.document import show

_LONGEST_GAP: Final = timedelta(days=366 * 4 + 1)
"""A moment that doesn't come within four years (29 February is the rarest that there is) never comes."""
_BEGIN: Final = datetime(2024, 1, 1, tzinfo=UTC)
_FIELDS: Final = 5
_EXAMPLE: Final = "0 8 * * 1-5 is eight o'clock from Monday to Friday"
_MACROS: Final = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_BY_NUMBER: Final = MappingProxyType({str(number): name for number, name in enumerate(_MONTHS, 1)})
_BY_LETTERS: Final = MappingProxyType({name[:3].upper(): name for name in _MONTHS})


@dataclass(frozen=True, slots=True)
class _Field:
    """One of the five fields.

    Attributes:
        name: what it is called.
        range: what may stand there, in words.
        neutral: the other fields, as they take any moment, with a place for this one.
    """

    name: str
    range: str
    neutral: str


_PARTS: Final = (
    _Field("minute", "0 to 59", "{} * * * *"),
    _Field("hour", "0 to 23", "* {} * * *"),
    _Field("day of month", "1 to 31, L for the last, LW for the last working day", "* * {} * *"),
    _Field("month", "1 to 12, or JAN to DEC", "* * * {} *"),
    _Field(
        "day of week",
        "0 to 7 with 0 and 7 for Sunday, SUN to SAT, 1#2 for the second Monday, 5L",
        "* * * * {}",
    ),
)


def cron_problem(cron: str) -> Misshapen | None:
    """Say what is wrong with a cron expression; None if it is one whose moment comes again and again."""
    fields = cron.split()
    if len(fields) != _FIELDS:
        return _wrong_number(cron.strip(), fields)
    wrong = next(
        ((part, said) for part, said in zip(_PARTS, fields, strict=True) if not _is_right(part, said)), None
    )
    if wrong is not None:
        part, said = wrong
        return f"has {show(said)} for the {part.name}", f"the {part.name} is {part.range}; {_joined(said)}"
    return None if _comes(cron) else _never(fields)


def _wrong_number(cron: str, fields: list[str]) -> Misshapen:
    message = f"must be five cron fields (minute, hour, day of month, month, day of week), is {show(cron)}"
    if (meant := _MACROS.get(cron.lower())) is not None:
        return message, f'write "{meant}"'
    if len(fields) == _FIELDS + 1:
        return message, f'there are no seconds here: write "{" ".join(fields[1:])}"'
    return message, _EXAMPLE


def _is_right(part: _Field, said: str) -> bool:
    """Whether one field is right by itself."""
    try:
        CronSim(part.neutral.format(said), _BEGIN)
    except CronSimError:
        return False
    return True


def _joined(said: str) -> str:
    """Say how several values are written, for the sign that stands there."""
    if "-" in said:
        return "a range goes from the lower to the higher: 1-5"
    return "every fifth is */5" if "/" in said else "several are 1,3 or 1-5"


def _comes(cron: str) -> bool:
    """Whether a moment comes again and again."""
    try:
        return next(CronSim(cron, _BEGIN)) - _BEGIN <= _LONGEST_GAP
    except (CronSimError, StopIteration):
        return False


def _never(fields: list[str]) -> Misshapen:
    """Name the days that don't come."""
    _, _, day, month, _ = fields
    months = [
        _BY_NUMBER.get(each.lstrip("0")) or _BY_LETTERS.get(each.upper(), each) for each in month.split(",")
    ]
    hint = "choose a day that the month has; L is the last one of any month"
    return f"never comes: there is no {' or '.join(f'{day} {name}' for name in months)}", hint
