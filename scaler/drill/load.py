"""The open-loop load: requests leave when the schedule says so, whatever has been answered by then.

A closed loop would stop asking while the server is slow and so hide the very waits that a burst causes (coordinated
omission). Here each request is a task of its own, latencies count from the intended time, and the generator reports how
late it was itself.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from scaler.drill.records import GapHistogram, Outcome, Record
from scaler.drill.schedule import Request

MAX_OPEN = 4096
"""Requests that may be open at once; beyond it a request counts as NotSent, a failure."""
_CONNECT_SECONDS = 10.0
_MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the load goes.

    Attributes:
        gateway: base URL of the gateway.
        models: per policy, the model name that requests carry.
        timeout: seconds that a request may take from its sending.
    """

    gateway: str
    models: Mapping[str, str]
    timeout: float


@dataclass(slots=True)
class Tally:
    """What has happened so far, for the live display and the report.

    Attributes:
        records: finished requests.
        gaps: per (stage, policy), times between tokens.
        open: per policy, requests that are sent and not finished.
        started: Unix time of the start of the load; 0.0 before it.
    """

    records: list[Record] = field(default_factory=list)
    gaps: dict[tuple[str, str], GapHistogram] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)
    started: float = 0.0
    _zero: float = 0.0

    def begin(self) -> None:
        """Start the clock of the load."""
        self.started, self._zero = time.time(), time.monotonic()

    def now(self) -> float:
        """Seconds after the start of the load."""
        return time.monotonic() - self._zero


async def generate(requests: Sequence[Request], target: Target, tally: Tally) -> None:
    """Send all requests at their times and wait until each has ended.

    Results go to `tally`, whose clock must have begun. A failed request is a record, never an exception.
    """
    connector = aiohttp.TCPConnector(limit=MAX_OPEN)
    # timeouts are ours, per request: aiohttp's own default of 5 minutes would be one more clock
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=_MAX_LINE_BYTES) as session,
        asyncio.TaskGroup() as group,
    ):
        for request in requests:
            await asyncio.sleep(max(0.0, request.at - tally.now()))
            if sum(tally.open.values()) >= MAX_OPEN:
                tally.records.append(_not_sent(request, tally.now()))
                continue
            tally.open[request.policy] = tally.open.get(request.policy, 0) + 1
            group.create_task(_Attempt(request, target, tally).run(session))


class _StreamError(Exception):
    """The stream carried an error event, or can't be read on."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


class _Attempt:
    """One request on its way."""

    def __init__(self, request: Request, target: Target, tally: Tally) -> None:
        self._request = request
        self._target = target
        self._tally = tally
        self._sent: float | None = None
        self._first: float | None = None
        self._previous: float | None = None
        self._chunks = 0
        self._usage: int | None = None
        self._done = False

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Send it, read the answer, leave a record."""
        outcome, detail = Outcome.OK, ""
        try:
            async with asyncio.timeout(self._target.timeout):
                outcome, detail = await self._exchange(session)
        except TimeoutError:
            outcome, detail = Outcome.TIMEOUT, f"no whole answer within {self._target.timeout:g} s"
        except _StreamError as error:
            outcome, detail = error.outcome, str(error)
        except (aiohttp.ClientError, OSError) as error:
            outcome = Outcome.CONNECT if self._chunks == 0 else Outcome.BROKEN
            detail = f"{type(error).__name__}: {error}"
        finally:
            self._tally.open[self._request.policy] -= 1
        self._tally.records.append(self._record(outcome, detail))

    async def _exchange(self, session: aiohttp.ClientSession) -> tuple[Outcome, str]:
        self._sent = self._tally.now()
        async with session.post(f"{self._target.gateway}/v1/completions", json=self._body()) as response:
            if response.status != 200:  # noqa: PLR2004 - the one status of success
                text = (await response.text())[:300]
                kind = Outcome.HTTP_5XX if response.status >= 500 else Outcome.HTTP_4XX  # noqa: PLR2004 - HTTP's classes
                return kind, f"{response.status}: {text}"
            if self._request.stream:
                await self._read_stream(response)
            else:
                self._usage = _completion_tokens(_decode(await response.text()))
                self._done = True
        return self._judge()

    def _judge(self) -> tuple[Outcome, str]:
        """Judge an answer that ended without an error: is it whole?"""
        wanted = self._request.max_tokens
        if not self._done:
            return Outcome.BROKEN, f"the stream ended after {self._chunks} chunks without [DONE]"
        if self._usage is None:
            return Outcome.TRUNCATED, "the answer has no usage"
        if self._usage != wanted:
            return Outcome.TRUNCATED, f"{self._usage} tokens instead of {wanted}"
        return Outcome.OK, ""

    async def _read_stream(self, response: aiohttp.ClientResponse) -> None:
        async for data in _events(response.content):
            if data == "[DONE]":
                self._done = True
                return
            chunk = _decode(data)
            if "error" in chunk:
                raise _StreamError(Outcome.INTERRUPTED, json.dumps(chunk["error"])[:300])
            if _has_token(chunk):
                self._token()
            if chunk.get("usage"):
                self._usage = _completion_tokens(chunk)

    def _token(self) -> None:
        now = self._tally.now()
        self._chunks += 1
        if self._first is None:
            self._first = now
        if self._previous is not None:
            key = (self._request.stage, self._request.policy)
            self._tally.gaps.setdefault(key, GapHistogram()).add(now - self._previous)
        self._previous = now

    def _body(self) -> dict[str, object]:
        body: dict[str, object] = {
            "model": self._target.models[self._request.policy],
            "prompt": self._request.prompt,
            "max_tokens": self._request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": self._request.stream,
        }
        if self._request.stream:
            # a token may end in mid-character and have no text yet: its id shows that it is there
            body |= {"stream_options": {"include_usage": True}, "return_token_ids": True}
        return body

    def _record(self, outcome: Outcome, detail: str) -> Record:
        return Record(
            policy=self._request.policy,
            stage=self._request.stage,
            intended=self._request.at,
            sent=self._sent,
            first=self._first,
            last=self._tally.now(),
            tokens=self._chunks if self._usage is None else self._usage,
            outcome=outcome,
            detail=detail,
        )


def _not_sent(request: Request, now: float) -> Record:
    return Record(
        policy=request.policy,
        stage=request.stage,
        intended=request.at,
        sent=None,
        first=None,
        last=now,
        tokens=0,
        outcome=Outcome.NOT_SENT,
        detail=f"{MAX_OPEN} requests were open",
    )


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[str]:
    """The data of each server-sent event; OpenAI-style servers write one `data:` line per event."""
    while line := await content.readline():
        if line.startswith(b"data:"):
            yield line[5:].strip().decode("utf-8", errors="replace")


def _decode(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _StreamError(Outcome.BROKEN, f"not JSON: {text[:100]!r}") from error
    if not isinstance(value, dict):
        raise _StreamError(Outcome.BROKEN, f"not an object: {text[:100]!r}")
    return value


def _has_token(chunk: Mapping[str, object]) -> bool:
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    return bool(choices[0].get("text") or choices[0].get("token_ids"))


def _completion_tokens(answer: Mapping[str, object]) -> int | None:
    usage = answer.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None
