"""Ledgers on disk, as the commands about decisions read them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scaler.cli.failures import FAILED, OK
from scaler.errors import UserError
from scaler.store.journal import older

LEDGER: Final = "decisions.jsonl"
"""Name of the ledger in a state directory."""
_TORN: Final = "is torn"
_HINT: Final = "name a decisions.jsonl, or the state directory that holds it"


class LedgerFile:
    """A ledger, the older file's lines before its own; what is no record is passed over.

    A last line that is torn says only that the writer was killed: nothing is missing then that was ever finished.

    Attributes:
        path: the file.
        records: lines that were read.
        bad: lines in between that are no records.
        passed_over: what is wrong with lines, each with its place; there are at most a few where a writer was killed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = self.bad = 0
        self.passed_over: list[str] = []

    @property
    def verdict(self) -> int:
        """The exit code that its lines lead to: 1 if one in the middle couldn't be read."""
        return FAILED if self.bad else OK

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the records.

        Raises:
            UserError: the file can't be read, isn't text, or begins with what is no record.
        """
        try:
            if (before := older(self.path)).is_file():
                yield from self._records(before)
            yield from self._records(self.path)
        except OSError as error:
            hint = "name a state directory that `emberpool local --state-dir DIR` has written to"
            raise UserError(f"{self.path} can't be read: {error.strerror or error}", hint=hint) from error
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self.path} is no ledger: it isn't UTF-8", hint="name a decisions.jsonl"
            ) from error

    def _records(self, file: Path) -> Iterator[dict[str, Any]]:
        """Yield the records of one file. A bad line is told once another line stands behind it."""
        held: tuple[int, str] | None = None
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if held is not None:
                    self._say(file, *held)
                held = None
                record, problem = _parsed(line)
                if record is not None:
                    self.records += 1
                    yield record
                elif problem:
                    held = number, problem
        if held is not None:
            number, problem = held
            self._check(file, number, problem)
            self.passed_over.append(f"{file}:{number}: the last line {problem}, and is passed over")

    def _say(self, file: Path, number: int, problem: str) -> None:
        self._check(file, number, problem)
        self.bad += 1
        self.passed_over.append(f"{file}:{number}: the line {problem}, and is passed over")

    def _check(self, file: Path, number: int, problem: str) -> None:
        """Refuse a file that begins with something else than a record or a part of one."""
        if not self.records and problem != _TORN:
            raise UserError(f"{file} is no ledger: line {number} {problem}", hint=_HINT)


def _parsed(line: str) -> tuple[dict[str, Any] | None, str]:
    """Return the record of a line, or what is wrong with it; neither for an empty line."""
    if not line.strip():
        return None, ""
    try:
        record = json.loads(line)
    except ValueError:
        torn = line.startswith("{") and not line.rstrip().endswith("}")
        return None, _TORN if torn else "is no JSON"
    return (record, "") if isinstance(record, dict) else (None, "is no JSON object")
