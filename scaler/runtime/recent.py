"""The last decisions, kept in memory for whoever asks the controller: as many as tell of some minutes, within bounds.

A record may hold one policy or five hundred, so what is bounded is the number of answers in all records together.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

_WHOLE_DECISIONS: Final = 500
"""Decisions over all policies and fleets that are kept: minutes of a busy controller."""
_MOST_ANSWERS: Final = 20_000
"""Answers for a policy or a fleet that are kept at most: some 50 MB."""


class RecentDecisions:
    """Whole records of the ledger, oldest first."""

    def __init__(self) -> None:
        self._records: deque[tuple[int, Mapping[str, Any]]] = deque()
        self._answers = 0

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (record for _, record in self._records)

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Mapping[str, Any], everything: int) -> None:
        """Keep a record, and forget the oldest ones.

        Args:
            record: a whole record of the ledger; what only a replay needs is left out.
            everything: policies and fleets that there are.
        """
        decision = record["decision"]
        answers = max(1, len(decision["policies"]) + len(decision["fleets"]))
        self._records.append((answers, {key: value for key, value in record.items() if key != "start"}))
        self._answers += answers
        most = min(_WHOLE_DECISIONS * max(1, everything), _MOST_ANSWERS)
        while self._answers > most and len(self._records) > 1:
            self._answers -= self._records.popleft()[0]
