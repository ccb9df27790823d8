"""Greedy completions past the guard, as proofs and probes ask for them: which tokens came, and for streams when and how they ended.

Log-probabilities are asked for where the kind of engine is known to tell them; one that refuses a request for that is asked without.
"""

import json
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Completion, Prompt
from warmpool.engines.transport import Answer, Transport, shown
from warmpool.errors import EngineRejected, EngineUnfit

PATH = "/v1/completions"
_EVENT = b"data:"
_DONE = b"[DONE]"
_BAD_REQUEST = 400


@dataclass(slots=True, kw_only=True)
class Heard:
    """What has been heard of a stream.

    Attributes:
        tokens: tokens that came; one for each event if the engine tells no ids.
        finish: why it ended, in the engine's words; empty until then, or if it doesn't tell.
    """

    tokens: int = 0
    finish: str = ""


class Completions:
    """Asks one engine for greedy tokens.

    Args:
        transport: its control listener, which has the completions route too.
        model: the name that the route knows the model by.
        logprobs: whether log-probabilities are asked for.
    """

    def __init__(self, transport: Transport, model: str, *, logprobs: bool = False) -> None:
        self._transport = transport
        self._model = model
        self._logprobs = logprobs

    async def tokens(self, prompt: Prompt, count: int, deadline: Deadline) -> Completion:
        """Generate `count` tokens, and return their ids. Cancelling it ends the request.

        Raises:
            EngineError: as the port says; `EngineUnfit` if the answer tells no ids.
        """
        body = self._body(prompt, count)
        if self._logprobs:  # 0: of the chosen tokens alone
            answer = await self._transport.post(PATH, deadline, body={**body, "logprobs": 0})
            if answer.status != _BAD_REQUEST:
                return _completion(answer.checked())
        answer = (await self._transport.post(PATH, deadline, body=body)).checked()
        self._logprobs = False
        return _completion(answer)

    async def stream(self, prompt: str, count: int, heard: Heard, deadline: Deadline) -> AsyncIterator[None]:
        """Generate `count` tokens as a stream, and note in `heard` what came; yields after each event.

        Raises:
            EngineError: as the port says.
        """
        body = {**self._body(prompt, count), "stream": True}
        async with self._transport.exchange("POST", PATH, deadline, body=body) as response:
            if not 200 <= response.status < 300:  # noqa: PLR2004 (HTTP's success)
                text = shown((await response.content.read(4096)).decode(errors="replace"))
                raise EngineRejected(f"POST {PATH} (stream): answered {response.status}: {text}")
            async for event in _events(response):
                _note(event, heard)
                yield

    def _body(self, prompt: Prompt, count: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": count,
            "temperature": 0,
            "return_token_ids": True,
            "ignore_eos": True,
        }


def _completion(answer: Answer) -> Completion:
    try:
        choice = answer.json()["choices"][0]
        tokens = tuple(int(token) for token in choice["token_ids"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineUnfit(f"{answer.what}: the answer tells no token ids: {shown(answer.text)}") from error
    return Completion(tokens, _logprobs(choice, len(tokens)))


def _logprobs(choice: Mapping[str, Any], count: int) -> tuple[float, ...]:
    """Return the tokens' log-probabilities; nothing unless there is a number for each."""
    match choice.get("logprobs"):
        case {"token_logprobs": list(values)}:
            told = tuple(float(value) for value in values if isinstance(value, int | float))
            return told if len(told) == count and all(map(math.isfinite, told)) else ()
        case _:
            return ()


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the events of a stream that are JSON objects.

    Raises:
        EngineUnfit: a line is longer than any event.
    """
    try:
        async for line in response.content:
            data = line.removeprefix(_EVENT).strip()
            if line.startswith(_EVENT) and data != _DONE:
                yield _event(data)
    except ValueError as error:  # aiohttp's word for a line without end
        raise EngineUnfit(f"POST {PATH} (stream): {error}") from error


def _event(data: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EngineUnfit(
            f"POST {PATH} (stream): an event is no JSON: {shown(data.decode(errors='replace'))}"
        ) from error
    return event if isinstance(event, dict) else {}


def _note(event: Mapping[str, Any], heard: Heard) -> None:
    if "error" in event:
        heard.finish = "error"
        return
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return
    ids, finish = choices[0].get("token_ids"), choices[0].get("finish_reason")
    # With a reason but without ids the last event of some engines carries no token.
    heard.tokens += len(ids) if isinstance(ids, list) else int(not finish)
    if isinstance(finish, str):
        heard.finish = finish
