"""Reading one engine's metrics page over HTTP: where it is, how much of it to ask for, and when to refuse it.

Most engines have the page at `/metrics`; TensorRT-LLM has iteration statistics in JSON there and the page at
`/prometheus/metrics`. Which it is shows once, and so does whether the engine can be asked for the wanted names alone
(`?name[]=…`, which prometheus-client's exporters know): rendering a whole page costs a Python engine milliseconds of the
loop that its tokens go through. An engine that ignores the names, or loses some by them, is asked for whole pages.
"""

from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from scaler.errors import SignalError
from scaler.signals.engine_page import Dialect, EnginePage, PageUnreadable, read_page
from scaler.signals.engine_targets import EngineTarget
from scaler.signals.failures import system_reason

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""A larger page is refused: vLLM's has 50 KB."""
PATHS: Final = ("/metrics", "/prometheus/metrics")
_HEADERS: Final = {
    "Accept": "text/plain; version=0.0.4, */*; q=0.1",
    "Accept-Encoding": "identity",  # unpacking costs more than a near network does
    "User-Agent": "emberpool",
}


class EngineSilent(SignalError):
    """The engine told nothing that can be used; the message says why."""


def scrape_session() -> aiohttp.ClientSession:
    """Return a session for scrapers, with connections that stay open; who calls it closes it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),  # each engine has one reading at a time: as many as engines
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=_HEADERS,
        timeout=aiohttp.ClientTimeout(total=None),  # the caller's deadline covers all of a reading
        auto_decompress=False,
    )


class EngineScraper:
    """Reads one engine, one reading at a time.

    Args:
        session: from `scrape_session`.
        target: the engine.
    """

    def __init__(self, session: aiohttp.ClientSession, target: EngineTarget) -> None:
        self._session = session
        self._base = target.url.rstrip("/")
        self._path = PATHS[0]
        self._dialect: Dialect | None = None
        self._narrow: URL | None = None
        self._told: tuple[bool, bool] | None = None

    async def page(self) -> EnginePage:
        """Read the page; put it under a deadline.

        Raises:
            EngineSilent: there was none that could be used.
        """
        if not self._base:
            raise EngineSilent("its address isn't known yet")
        narrow = None if self._narrow is None else await self._narrowly(self._narrow)
        return narrow if narrow is not None else await self._wholly()

    async def _wholly(self) -> EnginePage:
        failures: list[tuple[str, PageUnreadable]] = []
        for path in PATHS if self._dialect is None else (self._path,):
            try:
                page = read_page(await self._get(self._base + path), self._dialect)
            except PageUnreadable as error:
                failures.append((path, error))
            else:
                # the first whole page shows what to ask for; one that was needed after it, that names don't bring that
                self._narrow = self._named(path, page.dialect) if self._told is None else None
                self._path, self._dialect, self._told = path, page.dialect, _told(page)
                return page
        self._dialect = None  # it may have become another engine
        place, why = failures[0]
        raise EngineSilent(f"{place}: {why}") from why

    def _named(self, path: str, dialect: Dialect) -> URL:
        names = urlencode([("name[]", name.decode()) for name in dialect.names])
        return URL(f"{self._base}{path}?{names}", encoded=True)

    async def _narrowly(self, url: URL) -> EnginePage | None:
        """Read the wanted names alone; None if that brings less than the whole page did."""
        try:
            page = read_page(await self._get(url), self._dialect)
        except PageUnreadable:
            return None
        return page if _told(page) == self._told else None

    async def _get(self, url: URL | str) -> bytes:
        """Return a page's bytes.

        Raises:
            PageUnreadable: an answer came, and it is no page.
            EngineSilent: no answer came.
        """
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                _check(response)
                body = await _body(response)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: the address is no URL
            raise EngineSilent(system_reason(error)) from error
        if body.startswith((b"[", b"{")) and response.content_type == "application/json":
            raise PageUnreadable(
                "it is JSON and no metrics page (TensorRT-LLM has one with return_perf_metrics)"
            )
        return body


def _told(page: EnginePage) -> tuple[bool, bool]:
    """Return which of the numbers that may be missing are there."""
    return page.first_tokens is not None, page.started is not None


def _check(response: aiohttp.ClientResponse) -> None:
    """Refuse what is no page, or too large a one, before its body is read."""
    if response.status == HTTPStatus.NOT_FOUND:
        raise PageUnreadable("answered 404 (SGLang has the page with --enable-metrics)")
    if response.status != HTTPStatus.OK:
        raise PageUnreadable(f"answered {response.status}")
    coding = response.headers.get("Content-Encoding", "identity")
    if coding != "identity":
        raise PageUnreadable(f"it is packed ({coding}), which wasn't asked for")
    if (response.content_length or 0) > MAX_PAGE_BYTES:
        raise PageUnreadable(f"it has {response.content_length} bytes, at most {MAX_PAGE_BYTES} are read")


async def _body(response: aiohttp.ClientResponse) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_PAGE_BYTES:
            raise PageUnreadable(f"it has more than {MAX_PAGE_BYTES} bytes")
    return b"".join(chunks)
