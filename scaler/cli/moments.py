"""Moments to come, as people write them."""

from datetime import datetime
from typing import Final

from scaler.errors import UserError

_HINT: Final = "write it as 2026-12-24T18:00:00Z"


def moment_to_come(text: str, now: float) -> datetime:
    """Read what `--until` says; `now` is Unix time.

    Raises:
        UserError: it is no moment, has no zone, or is over.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(f"--until {text!r} is no time", hint=_HINT) from error
    if at.tzinfo is None:
        raise UserError(f"--until {text!r} has no zone", hint=_HINT)
    if at.timestamp() <= now:
        raise UserError(f"--until {text!r} is over already", hint="name a moment to come")
    return at
