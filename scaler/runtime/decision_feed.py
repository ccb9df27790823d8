"""`GET /v1/decisions/stream`: the stream by which controllers that stand by know what the leader decides.

A reader that is slow gets everything that changed meanwhile in one line: nothing is queued for anybody. Who doesn't lead tells
nothing, and a leader whose term ends ends its streams.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from aiohttp import web

from scaler.keda.published import Board, Named
from scaler.keda.trigger import Subject
from scaler.runtime.api import authorized, unauthorized
from scaler.runtime.clock import Clock
from scaler.runtime.told_decisions import HEARTBEAT, HEARTBEAT_SECONDS, Told, to_line
from warmpool.claim import Term

PATH: Final = "/v1/decisions/stream"
_PAUSE_SECONDS: Final = 0.05
"""Between two lines to one reader: what changes meanwhile goes into one."""
_WRITE_SECONDS: Final = 5.0
"""A reader that takes nothing for this long is gone."""
_MAX_READERS: Final = 64
"""Replicas, and people who look."""


class DecisionFeed:
    """Tells what is put up on a board, while this process leads.

    Args:
        board: where decisions are put up.
        clock: time.
        token: bearer token that readers must show.
    """

    def __init__(self, board: Board, clock: Clock, token: str) -> None:
        self._board = board
        self._clock = clock
        self._token = token
        self._term: Term | None = None
        self._changes = 0
        self._changed_at: Counter[Named] = Counter()
        self._news = asyncio.Event()
        self._readers = 0
        board.subscribe(self._changed)

    @contextmanager
    def of(self, term: Term) -> Iterator[None]:
        """Tell in this term for as long as the context lasts; its end ends all streams."""
        self._term = term
        try:
            yield
        finally:
            self._term = None
            self._tell()

    def _changed(self, changed: Collection[Named]) -> None:
        self._changes += 1
        for named in changed:
            self._changed_at[named] = self._changes
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer one reader, for as long as it reads and the term lasts."""
        if not authorized(request, self._token):
            return unauthorized()
        term = self._term
        if term is None:
            return _refused("NotLeading", "this controller stands by")
        if self._readers >= _MAX_READERS:
            return _refused("TooManyReaders", f"{_MAX_READERS} read already")
        response = web.StreamResponse(
            headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
        )
        self._readers += 1
        try:
            await response.prepare(request)
            await self._write(response, term)
        except (ConnectionError, TimeoutError):
            response.force_close()
        finally:
            self._readers -= 1
        return response

    async def _write(self, response: web.StreamResponse, term: Term) -> None:
        sent = -1
        while self._term is term:
            news, upto = self._news, self._changes  # before they are read, so that no change is missed
            text = HEARTBEAT if upto == sent else to_line(self._since(sent, term), self._clock.monotonic())
            sent = upto
            async with asyncio.timeout(_WRITE_SECONDS):
                await response.write(text)
            await asyncio.sleep(_PAUSE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS - _PAUSE_SECONDS):
                    await news.wait()

    def _since(self, sent: int, term: Term) -> Told:
        """Return what has changed since a number of changes; everything from -1 on."""
        current = self._board.current

        def new(subject: Subject, name: str) -> bool:
            return self._changed_at[Named(subject, name)] > sent

        return Told(
            term=term.epoch,
            holder=term.holder,
            fleets={name: each for name, each in current.fleets.items() if new(Subject.FLEET, name)},
            policies={name: each for name, each in current.policies.items() if new(Subject.POLICY, name)},
        )


def _refused(code: str, message: str) -> web.Response:
    return web.json_response(
        {"error": {"code": code, "message": message}}, status=503, headers={"Retry-After": "1"}
    )
