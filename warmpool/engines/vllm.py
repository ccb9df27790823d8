"""The adapter for engines with vLLM's control routes and the guard's; the reference engine is one.

What a 200 is worth was learned on real servers: `/pause` aborts requests unless `mode=wait` is sent, `/health` is 200 while
paused, routes that don't know a parameter ignore it. So every change is verified by asking for the state afterwards.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Self

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from warmpool.engines.deadline import Deadline
from warmpool.engines.port import EngineLoad, GuardState, KvWhenPaused, Startup
from warmpool.errors import EngineError, EngineLost, EngineRejected, EngineTimeout, EngineUnfit

_KEEPALIVE_SECONDS = 2.0  # below uvicorn's 5 s: a POST on a connection that the server is just closing would look like a lost engine
_SHOWN_CHARACTERS = 300
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_NO_ROUTE = frozenset({404, 405, 501})


class _Kv(Enum):
    """What is known of the KV memory. Routes that release or take it twice are errors on some engines."""

    HELD = auto()
    RELEASED = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    text: str


class VllmEngine:
    """One engine over HTTP. Belongs to the event loop in which it was made.

    Args:
        control: base URL of the control listener, which never leaves the seat.
        model: the name that its completions route knows it by.
    """

    def __init__(self, control: str, *, model: str) -> None:
        self._control = control.rstrip("/")
        self._model = model
        self._kv = _Kv.HELD
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(keepalive_timeout=_KEEPALIVE_SECONDS, limit=0)
        )

    async def __aenter__(self) -> Self:
        """Return the engine itself."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections to it. The engine itself goes on."""
        await self._session.close()

    async def startup(self, *, deadline: Deadline) -> Startup:
        """Ask how far it has come: `/health`, and once that is 200 the phases behind it."""
        answer = await self._request("GET", "/health", deadline)
        if answer.status == 503:  # noqa: PLR2004 (the one status that means "not yet")
            return Startup(ready=False, phase=_phase(answer.text))
        _check(answer, "GET /health")
        told = await self._request("GET", "/emberpool/startup", deadline)
        if told.status in _NO_ROUTE:
            return Startup(ready=True)  # vLLM itself doesn't tell
        _check(told, "GET /emberpool/startup")
        return _startup(_object(told, "GET /emberpool/startup"))

    async def complete(self, prompt: str, *, tokens: int, deadline: Deadline) -> tuple[int, ...]:
        """Generate `tokens` tokens greedily, past the guard."""
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "return_token_ids": True,
            "ignore_eos": True,
        }
        what = "POST /v1/completions"
        answer = await self._request("POST", "/v1/completions", deadline, body=body)
        _check(answer, what)
        try:
            return tuple(int(token) for token in _object(answer, what)["choices"][0]["token_ids"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineUnfit(f"{what}: the answer tells no token ids: {_shown(answer.text)}") from error

    async def pause(self, kv: KvWhenPaused, *, deadline: Deadline) -> None:
        """Finish what runs, stop the scheduler, release the KV memory if so asked, and verify. Idempotent."""
        release = kv is KvWhenPaused.RELEASE
        if (
            self._kv is _Kv.UNKNOWN
        ):  # an order that took or released it wasn't answered; taking it makes it known
            await self._take_kv(deadline)
        # The server's default mode ends running requests; `wait` lets them finish.
        await self._post(
            "/pause", deadline, params={"mode": "wait", "clear_cache": "true" if release else "false"}
        )
        if not await self.is_paused(deadline=deadline):
            raise EngineUnfit(
                "POST /pause?mode=wait was answered with 200, and GET /is_paused says that it isn't paused"
            )
        if release and self._kv is _Kv.HELD:
            self._kv = _Kv.UNKNOWN
            await self._post("/release_kv_cache_memory", deadline)
            self._kv = _Kv.RELEASED

    async def is_paused(self, *, deadline: Deadline) -> bool:
        """Ask whether its scheduler is off."""
        what = "GET /is_paused"
        answer = await self._request("GET", "/is_paused", deadline)
        _check(answer, what)
        paused = _object(answer, what).get("is_paused")
        if not isinstance(paused, bool):
            raise EngineUnfit(f"{what}: is_paused is no boolean: {_shown(answer.text)}")
        return paused

    async def resume(self, kv: KvWhenPaused, *, deadline: Deadline) -> None:
        """Take the KV memory if it was released, and start the scheduler. Idempotent."""
        if kv is KvWhenPaused.RELEASE and self._kv is not _Kv.HELD:
            await self._take_kv(deadline)
        else:
            await self._post("/resume", deadline)

    async def guard(self, *, deadline: Deadline) -> GuardState:
        """Ask the guard for its state."""
        what = "GET /guard"
        answer = await self._request("GET", "/guard", deadline)
        _check(answer, what)
        told = _object(answer, what)
        is_open, in_flight = told.get("open"), told.get("inFlight")
        if not isinstance(is_open, bool) or not isinstance(in_flight, int):
            raise EngineUnfit(f"{what}: no guard's state: {_shown(answer.text)}")
        return GuardState(is_open=is_open, in_flight=in_flight)

    async def open_guard(self, *, deadline: Deadline) -> None:
        """Let requests through from now on, and verify it. Idempotent."""
        await self._post("/guard/open", deadline)
        if not (await self.guard(deadline=deadline)).is_open:
            raise EngineUnfit("POST /guard/open was answered with 200, and GET /guard says that it is closed")

    async def close_guard(self, *, deadline: Deadline) -> GuardState:
        """Refuse new requests from now on, and verify it. Idempotent. Returns what is still in flight."""
        await self._post("/guard/close", deadline)
        state = await self.guard(deadline=deadline)
        if state.is_open:
            raise EngineUnfit("POST /guard/close was answered with 200, and GET /guard says that it is open")
        return state

    async def abort(self, *, deadline: Deadline) -> None:
        """End all requests in flight early; each gets a well-formed error."""
        await self._post("/guard/abort", deadline)

    async def load(self, *, deadline: Deadline) -> EngineLoad:
        """Read running and waiting requests from `/metrics`."""
        answer = await self._request("GET", "/metrics", deadline)
        _check(answer, "GET /metrics")
        return parse_load(answer.text)

    async def _take_kv(self, deadline: Deadline) -> None:
        self._kv = _Kv.UNKNOWN
        await self._post("/wake_up", deadline, params={"tags": "kv_cache"})  # resumes scheduling by itself
        self._kv = _Kv.HELD

    async def _post(self, path: str, deadline: Deadline, *, params: Mapping[str, str] | None = None) -> None:
        _check(await self._request("POST", path, deadline, params=params), f"POST {path}")

    async def _request(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> _Answer:
        what = f"{method} {path}"
        seconds = deadline.left_seconds
        if seconds <= 0:  # to aiohttp a total of 0 means "for ever"
            raise EngineTimeout(f"{what}: no time was left for it")
        timeout = aiohttp.ClientTimeout(total=seconds)
        url = f"{self._control}{path}"
        try:
            async with self._session.request(
                method, url, params=params, json=body, timeout=timeout
            ) as response:
                return _Answer(response.status, await response.text(errors="replace"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _engine_error(error, what, seconds) from error


def parse_load(text: str) -> EngineLoad:
    """Read running and waiting requests from an engine's metrics in Prometheus' text format.

    Several engines of one server (label `engine`) are added up.

    Raises:
        EngineUnfit: the metrics aren't there, or it is no such text.
    """
    # Parsing all of vLLM's 600 lines takes milliseconds; only two families are wanted.
    wanted = "\n".join(line for line in text.splitlines() if line.startswith((_RUNNING, _WAITING)))
    try:
        samples = [sample for family in text_string_to_metric_families(wanted) for sample in family.samples]
    except ValueError as error:
        raise EngineUnfit(f"GET /metrics: not Prometheus' text format: {error}") from error
    running = [sample.value for sample in samples if sample.name == _RUNNING]
    waiting = [sample.value for sample in samples if sample.name == _WAITING]
    if not running or not waiting:
        raise EngineUnfit(f"GET /metrics: {_RUNNING} or {_WAITING} is missing")
    return EngineLoad(running=int(sum(running)), waiting=int(sum(waiting)))


def _engine_error(error: Exception, what: str, seconds: float) -> EngineError:
    """The one place where errors of the HTTP client become ours."""
    match error:
        case TimeoutError():
            return EngineTimeout(f"{what}: no answer within {seconds:.3g} s")
        case aiohttp.InvalidURL():
            return EngineUnfit(f"{what}: the engine's address is no URL: {error}")
        case aiohttp.ContentTypeError() | aiohttp.ClientPayloadError() | aiohttp.ClientResponseError():
            return EngineLost(f"{what}: the answer was cut short or malformed: {error}")
        case _:
            return EngineLost(f"{what}: {str(error) or type(error).__name__}")


def _check(answer: _Answer, what: str) -> None:
    if answer.status in _NO_ROUTE:
        raise EngineUnfit(f"{what}: the engine has no such route ({answer.status}): {_shown(answer.text)}")
    if not 200 <= answer.status < 300:  # noqa: PLR2004 (HTTP's success)
        raise EngineRejected(f"{what}: answered {answer.status}: {_shown(answer.text)}")


def _object(answer: _Answer, what: str) -> Mapping[str, Any]:
    try:
        told = json.loads(answer.text)
    except ValueError as error:
        raise EngineUnfit(f"{what}: the answer is no JSON: {_shown(answer.text)}") from error
    if not isinstance(told, dict):
        raise EngineUnfit(f"{what}: the answer is no JSON object: {_shown(answer.text)}")
    return told


def _phase(text: str) -> str:
    try:
        told = json.loads(text)
    except ValueError:
        return "loading"
    return str(told.get("phase", "loading")) if isinstance(told, dict) else "loading"


def _startup(told: Mapping[str, Any]) -> Startup:
    return Startup(
        ready=True,
        phases=_phases(told.get("phases")),
        pid=_whole(told.get("pid")),
        kv_bytes=_whole(told.get("kvBytes")),
        weights_bytes=_whole(told.get("weightsBytes")),
    )


def _phases(told: object) -> dict[str, float]:
    """Read the phases of a start: each in seconds, or each with the `seconds` from the process's start to its end, in order."""
    phases: dict[str, float] = {}
    ended = 0.0
    for name, value in told.items() if isinstance(told, dict) else ():
        if isinstance(value, int | float):
            phases[str(name)] = float(value)
        elif isinstance(value, dict) and isinstance(value.get("seconds"), int | float):
            phases[str(name)] = max(0.0, float(value["seconds"]) - ended)
            ended = float(value["seconds"])
    return phases


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…"
