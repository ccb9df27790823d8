"""`GET /v1/events`: the last records of the event log, for whoever has no access to the file: a drill against a cluster, a person.

Records are numbered as they come. Who asks again names the last number that it has (`?after=N`), and gets what came since, if that is
still kept. Numbers are one process's own: the answer says whose, so that a reader notices when another controller answers.
"""

import secrets
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from aiohttp import web

PATH: Final = "/v1/events"
_MOST_KEPT: Final = 20_000
"""Records that are kept, some 10 MB; the oldest go."""
_MOST_TOLD: Final = 2_000
_MOST_DIGITS: Final = 18
"""Records in one answer; who is told so many asks again."""


class RecentEvents:
    """The last records, numbered from 1 on.

    Args:
        instance: whose they are; None draws an id.
        most: how many are kept.
    """

    def __init__(self, instance: str | None = None, most: int = _MOST_KEPT) -> None:
        self._instance = instance or secrets.token_hex(8)
        self._records: deque[Mapping[str, Any]] = deque(maxlen=most)
        self._last = 0

    def add(self, record: Mapping[str, Any]) -> None:
        """Keep a record, and forget the oldest one if there are too many."""
        self._records.append(record)
        self._last += 1

    def after(self, number: int) -> dict[str, Any]:
        """Return the records that came after a number, oldest first, as the answer has them."""
        first = self._last - len(self._records) + 1
        skipped = max(0, number + 1 - first)
        start = min(skipped, len(self._records))
        items = list(islice(self._records, start, start + _MOST_TOLD))
        begin = first + skipped
        return {"instance": self._instance, "items": items, "last": begin + len(items) - 1}

    async def handle(self, request: web.Request) -> web.Response:
        """Answer `GET /v1/events`."""
        text = request.query.get("after", "0")
        if not text.isdecimal() or len(text) > _MOST_DIGITS:
            message = f"after={text[:40]!r} is no number of a record"
            return web.json_response({"error": {"code": "BadNumber", "message": message}}, status=400)
        return web.json_response(self.after(int(text)))
