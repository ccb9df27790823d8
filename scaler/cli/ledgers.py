"""Ledgers on disk, as the commands about decisions read them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scaler.errors import UserError
from scaler.store.journal import read

LEDGER: Final = "decisions.jsonl"
"""Name of the ledger in a state directory."""


def lines_of(ledger: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a ledger; what is torn is skipped.

    Raises:
        UserError: the file can't be read, or isn't text.
    """
    try:
        found: Iterator[Any] = read(ledger)
        yield from (line for line in found if isinstance(line, dict))
    except OSError as error:
        hint = "name a state directory that `emberpool local --state-dir DIR` has written to"
        raise UserError(f"{ledger} can't be read: {error.strerror or error}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{ledger} is no ledger: it isn't UTF-8", hint="name a decisions.jsonl") from error
