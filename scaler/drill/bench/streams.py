"""One streamed request as a client sees it: its tokens, when they came, and how it ended.

A request may fail; it may not be lost. So what is told apart here is an end that the client can understand (a whole
answer, an error event, a status with an error in JSON) and one that it can't (silence, a cut connection, too few tokens).
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from scaler.drill.records import Outcome

UNDERSTOOD = frozenset({Outcome.OK, Outcome.HTTP_4XX, Outcome.HTTP_5XX, Outcome.INTERRUPTED})
"""How a request may end: the client knows what became of it."""
_OK, _SERVER_ERROR = 200, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        model: the name that the request carries.
        prompt: token ids.
        tokens: tokens that the answer must have.
    """

    model: str
    prompt: Sequence[int]
    tokens: int

    def body(self) -> dict[str, object]:
        """Render the request."""
        return {
            "model": self.model,
            "prompt": list(self.prompt),
            "max_tokens": self.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }


@dataclass(slots=True, kw_only=True)
class Answer:
    """What came of a question; times are Unix seconds. It fills while the stream runs.

    Attributes:
        model: whose answer it is.
        sent: when the question was sent.
        tokens: token ids so far.
        arrivals: when each of them came.
        ended: when the answer ended, well or not; None while it runs.
        outcome: how it ended.
        detail: for anything but a whole answer, what was seen.
    """

    model: str
    sent: float
    tokens: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    ended: float | None = None
    outcome: Outcome = Outcome.BROKEN
    detail: str = ""

    @property
    def first(self) -> float | None:
        """When the first token came."""
        return self.arrivals[0] if self.arrivals else None

    @property
    def understood(self) -> bool:
        """Whether its end told the client what became of the request."""
        return self.outcome in UNDERSTOOD

    @property
    def longest_gap(self) -> float:
        """Longest time between two of its tokens, in seconds."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=0.0)

    def agrees(self, expected: Sequence[int]) -> bool:
        """Whether every token is the expected one, as far as both are known."""
        known = min(len(self.tokens), len(expected))
        return self.tokens[:known] == list(expected[:known])


class _Ended(Exception):
    """The answer has ended otherwise than whole."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


async def ask(
    session: aiohttp.ClientSession,
    base: str,
    question: Question,
    *,
    seconds: float,
    answer: Answer | None = None,
) -> Answer:
    """Ask, and read the answer to its end, whatever that is.

    Args:
        session: shared by all requests.
        base: base URL of a gateway or of an engine.
        question: what is asked.
        seconds: how long the whole answer may take; one that takes longer is lost.
        answer: filled as the stream runs, for whoever looks on; None for a new one.
    """
    told = answer if answer is not None else Answer(model=question.model, sent=0.0)
    told.sent = time.time()
    try:
        async with (
            asyncio.timeout(seconds),
            session.post(f"{base}/v1/completions", json=question.body()) as response,
        ):
            if response.status != _OK:
                raise _refusal(response.status, await response.text())
            await _read(response.content, told)
        told.outcome, told.detail = _judged(told, question.tokens)
    except TimeoutError:
        told.outcome, told.detail = Outcome.TIMEOUT, f"no end within {seconds:g} s"
    except _Ended as ended:
        told.outcome, told.detail = ended.outcome, str(ended)
    except (aiohttp.ClientError, OSError) as error:
        told.outcome = Outcome.BROKEN if told.tokens else Outcome.CONNECT
        told.detail = f"{type(error).__name__}: {error}"
    told.ended = time.time()
    return told


async def _read(content: aiohttp.StreamReader, answer: Answer) -> None:
    while line := await content.readline():
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        chunk = _object(data)
        if "error" in chunk:
            raise _Ended(Outcome.INTERRUPTED, json.dumps(chunk["error"])[:300])
        for choice in chunk.get("choices") or ():
            found = choice.get("token_ids") or ()
            answer.tokens += found
            answer.arrivals += [time.time()] * len(found)
    raise _Ended(Outcome.BROKEN, f"the stream ended after {len(answer.tokens)} tokens without [DONE]")


def _judged(answer: Answer, wanted: int) -> tuple[Outcome, str]:
    if len(answer.tokens) != wanted:
        return Outcome.TRUNCATED, f"{len(answer.tokens)} tokens instead of {wanted}"
    return Outcome.OK, ""


def _refusal(status: int, text: str) -> _Ended:
    """Tell a status with an error that can be read from one that can't."""
    try:
        error: object = _object(text.encode()).get("error")
    except _Ended:
        error = None
    if not isinstance(error, Mapping) or not error.get("message"):
        return _Ended(Outcome.BROKEN, f"{status} without an error in JSON: {text[:200]!r}")
    kind = Outcome.HTTP_5XX if status >= _SERVER_ERROR else Outcome.HTTP_4XX
    return _Ended(kind, f"{status}: {error['message']}"[:300])


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise _Ended(Outcome.BROKEN, f"not JSON: {data[:100]!r}") from error
    if not isinstance(value, dict):
        raise _Ended(Outcome.BROKEN, f"not an object: {data[:100]!r}")
    return value
