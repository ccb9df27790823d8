"""What a vLLM, or an engine with its control routes, can be told: tried on the running engine, and undone.

A route that answers 200 proves nothing: older versions ignore parameters that newer ones obey, and what they do instead ends
requests or takes weights out of the device. So a running request is paused with each mode and watched to its end, a paused
engine is sent a request that it has to hold, and released KV memory has to come back with the same token. What can't be undone is
not tried: `/sleep` makes a copy of the weights in host memory that is not given back, and takes seconds of a start.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from warmpool.engines.capabilities import Capabilities, Capability, Finding, Ground
from warmpool.engines.completions import Completions
from warmpool.engines.deadline import Deadline
from warmpool.engines.guarded import GRAPHS_FIXED
from warmpool.engines.owners import of_vllm
from warmpool.engines.pages import weights_away
from warmpool.engines.port import KvWhenPaused
from warmpool.engines.transport import Transport
from warmpool.engines.trials import (
    PROMPT,
    Fate,
    Watched,
    hold,
    ignored,
    paused_finding,
    refused,
    refused_by,
    token_ids_refused_by,
    tried,
    watch_a_pause,
)
from warmpool.engines.vllm_controls import VllmControls
from warmpool.errors import (
    EngineError,
    EngineLacksRoute,
    EngineLost,
    EngineRejected,
    EngineTimeout,
    EngineUnfit,
)
from warmpool.expectations import Ownership

_STEP_SECONDS: Final = 20.0
"""The longest that one trial may take; a real vLLM 0.32 took 3 s to answer its first `/server_info`, and milliseconds for the rest."""
_UNDO_SHARE: Final = 0.3
_UNDO_AT_MOST_SECONDS: Final = 10.0
_C = Capability
_DEV_MODE: Final = "VLLM_SERVER_DEV_MODE=1 brings the control routes"

Trial = Callable[[Deadline], Awaitable[Finding]]


class VllmProbe:
    """One probe of one engine.

    Args:
        kind: the kind of engine, as policies name it.
        transport: its control listener.
        controls: its control routes, which keep what is known of its KV memory.
        completions: how it is asked for tokens.
    """

    def __init__(
        self, kind: str, transport: Transport, controls: VllmControls, completions: Completions
    ) -> None:
        self._kind = kind
        self._transport = transport
        self._controls = controls
        self._completions = completions
        self._first: tuple[int, ...] = ()
        self._first_seconds = 0.0
        self._found: dict[Capability, Finding] = {}

    async def run(self, kv: KvWhenPaused, deadline: Deadline) -> Capabilities:
        """Find out what the engine can be told.

        Raises:
            EngineError: it is gone, or can't be brought back to computing.
        """
        undo = min(_UNDO_AT_MOST_SECONDS, _UNDO_SHARE * max(0.0, deadline.left_seconds))
        work = deadline.earlier(undo)
        version = await self._version(work)
        config, routes = await self._config(work), await self._routes(work)
        await self._try(_C.TOKEN_IDS, self._token_ids, work)
        self._found[_C.WEIGHTS_PARKING] = _parking(config, routes)
        self._found[_C.LATE_CAPTURE] = GRAPHS_FIXED
        if await self._has_pause_routes(work):
            try:
                await self._try_pausing(kv, config, routes, work)
            finally:
                await self._controls.compute(deadline.at_most(undo))
        return Capabilities(kind=self._kind, version=version, findings=MappingProxyType(dict(self._found)))

    async def parking(self, deadline: Deadline) -> Finding:
        """Find out from what it says of itself whether it can be parked. Nothing is moved.

        Raises:
            EngineLost: it is gone.
        """
        return _parking(await self._config(deadline), await self._routes(deadline))

    # ------------------------------------------------------------------ what it tells

    async def ownership(self, deadline: Deadline) -> Ownership:
        """Ask what it runs with, as far as its routes tell.

        Raises:
            EngineLost: it is gone.
        """
        return of_vllm(await self._version(deadline), await self._config(deadline))

    async def _version(self, deadline: Deadline) -> str:
        told = await self._object("/version", deadline)
        version = told.get("version")
        return version[:64] if isinstance(version, str) else ""

    async def _config(self, deadline: Deadline) -> Mapping[str, Any]:
        """Return what the engine was started with; empty where it doesn't tell."""
        config = (await self._object("/server_info?config_format=json", deadline)).get("vllm_config")
        return config if isinstance(config, dict) else {}

    async def _routes(self, deadline: Deadline) -> Mapping[str, Any]:
        """Return the routes that it lists; empty where it doesn't."""
        paths = (await self._object("/openapi.json", deadline)).get("paths")
        return paths if isinstance(paths, dict) else {}

    async def _object(self, path: str, deadline: Deadline) -> Mapping[str, Any]:
        """Return a JSON object that is good to know, and empty where there is none."""
        try:
            answer = await self._transport.get(path, deadline.at_most(_STEP_SECONDS))
            return answer.json() if answer.ok else {}
        except (EngineUnfit, EngineTimeout):
            return {}

    async def _token_ids(self, deadline: Deadline) -> Finding:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self._first = await self._completions.tokens(PROMPT, 1, deadline)
        except EngineUnfit as error:
            return token_ids_refused_by(error)
        self._first_seconds = loop.time() - began
        return tried("a completion told the ids of its tokens")

    # ------------------------------------------------------------------ pausing

    async def _has_pause_routes(self, deadline: Deadline) -> bool:
        """Whether it has the routes at all; if not, say so of everything that needs them."""
        try:
            answer = await self._transport.get("/is_paused", deadline.at_most(_STEP_SECONDS))
            answer.checked().flag("is_paused")
        except EngineLost:
            raise
        except EngineError as error:
            hint = f"; {_DEV_MODE}" if isinstance(error, EngineLacksRoute) else ""
            self._found[_C.SCHEDULER_PAUSE] = refused(refused_by(error).ground, f"{error}{hint}")
            self._without_pause()
            return False
        return True

    def _without_pause(self) -> None:
        for capability in (_C.DRAIN_WAIT, _C.DRAIN_ABORT, _C.KV_RELEASE):
            self._found.setdefault(
                capability, refused(Ground.NEEDS_PAUSE, self._found[_C.SCHEDULER_PAUSE].reason)
            )

    async def _try_pausing(
        self, kv: KvWhenPaused, config: Mapping[str, Any], routes: Mapping[str, Any], deadline: Deadline
    ) -> None:
        await self._try(_C.DRAIN_WAIT, self._drain_wait, deadline)
        await self._try(_C.SCHEDULER_PAUSE, self._scheduler_pause, deadline)
        if not self._found[_C.SCHEDULER_PAUSE].granted:
            self._without_pause()
            return
        await self._try(_C.DRAIN_ABORT, self._drain_abort, deadline)
        if kv is KvWhenPaused.KEEP:
            self._found[_C.KV_RELEASE] = refused(
                Ground.NOT_TRIED, "it has its seat for itself and keeps its KV memory"
            )
            return
        self._found[_C.KV_RELEASE] = _unsafe_to_release(config) or await self._kv_release(routes, deadline)

    async def _drain_wait(self, deadline: Deadline) -> Finding:
        """See that a running request comes to its own end."""
        watched = await self._watch("wait", lambda fate: fate is not Fate.UNSEEN, deadline)
        match watched.fate:
            case Fate.FINISHED:
                return tried(watched.describe("wait"))
            case Fate.UNSEEN:
                return refused(Ground.NOT_TRIED, watched.describe("wait"))
            case _:
                return ignored(f"{watched.describe('wait')}: it does not wait for what runs")

    async def _drain_abort(self, deadline: Deadline) -> Finding:
        """See that a running request is ended; one that finishes may have been quicker, and a longer one is tried."""
        watched = await self._watch("abort", lambda fate: fate in {Fate.CUT, Fate.LEFT}, deadline)
        match watched.fate:
            case Fate.CUT:
                return tried(watched.describe("abort"))
            case Fate.UNSEEN:
                return refused(Ground.NOT_TRIED, watched.describe("abort"))
            case _:
                return ignored(f"{watched.describe('abort')}: it does not end what runs")

    async def _watch(self, mode: str, conclusive: Callable[[Fate], bool], deadline: Deadline) -> Watched:
        watched = await watch_a_pause(
            lambda count, heard: self._completions.stream(PROMPT, count, heard, deadline),
            lambda: self._controls.pause(deadline, mode=mode),
            self._controls.resume,
            conclusive,
            deadline,
        )
        await self._controls.resume(deadline)
        return watched

    async def _scheduler_pause(self, deadline: Deadline) -> Finding:
        """Pause it idle, see that it holds a request, and that it answers it once it is resumed."""
        await self._controls.pause(deadline)
        if not await self._controls.is_paused(deadline):
            return refused(
                Ground.CONTRADICTED,
                "POST /pause?mode=wait was answered with 200, and GET /is_paused says that it isn't paused",
            )
        held = await hold(
            lambda: self._completions.tokens(PROMPT, 1, deadline),
            self._controls.resume,
            first_seconds=self._first_seconds,
            deadline=deadline,
        )
        return paused_finding(held, self._first)

    # ------------------------------------------------------------------ KV memory

    async def _kv_release(self, routes: Mapping[str, Any], deadline: Deadline) -> Finding:
        finding = await self._attempt(self._release_and_take, deadline)
        if finding.ground is not Ground.ROUTE_MISSING:
            return finding
        if "tags" not in _query(routes, "/sleep"):
            return refused(
                Ground.ROUTE_MISSING,
                f"{finding.reason}; POST /sleep?tags=kv_cache is not tried, for an engine that doesn't know the parameter "
                "answers 200 and moves its weights out of the device",
            )
        self._controls.releases_by_sleep = True
        finding = await self._attempt(self._release_and_take, deadline)
        self._controls.releases_by_sleep = finding.granted
        return finding

    async def _release_and_take(self, deadline: Deadline) -> Finding:
        await self._controls.pause(deadline)
        answer = await self._controls.release_kv(deadline)
        page = await self._page(deadline)
        if "level" in _told(answer.text) or weights_away(page):
            await self._controls.wake_all(deadline)
            return ignored(
                f"{answer.what}?tags=kv_cache was answered with {answer.text[:80]}: it moved its weights out"
            )
        if await self._controls.is_sleeping(deadline) is False:
            await self._controls.take_kv(deadline)
            return refused(
                Ground.CONTRADICTED, f"{answer.what} was answered with 200, and GET /is_sleeping is false"
            )
        await self._controls.take_kv(deadline)
        token = await self._completions.tokens(PROMPT, 1, deadline)
        if self._first and token != self._first:
            return refused(
                Ground.CONTRADICTED,
                f"with its KV memory taken again it answers {token[0]} where it answered {self._first[0]} before",
            )
        return tried(f"{answer.what} and POST /wake_up?tags=kv_cache; it answers as before")

    async def _page(self, deadline: Deadline) -> str:
        try:
            return await self._controls.page(deadline)
        except (EngineUnfit, EngineRejected):
            return ""

    # ------------------------------------------------------------------ trials

    async def _try(self, capability: Capability, trial: Trial, deadline: Deadline) -> None:
        self._found[capability] = await self._attempt(trial, deadline)

    async def _attempt(self, trial: Trial, deadline: Deadline) -> Finding:
        try:
            return await trial(deadline.at_most(_STEP_SECONDS))
        except EngineLost:
            raise
        except EngineError as error:
            return refused_by(error)


def _parking(config: Mapping[str, Any], routes: Mapping[str, Any]) -> Finding:
    """Tell from what it says of itself whether it can move its weights to host memory and back."""
    if routes and "/sleep" not in routes:
        return refused(Ground.ROUTE_MISSING, f"it lists no /sleep; {_DEV_MODE}")
    enabled = _member(config, "model_config", "enable_sleep_mode")
    if enabled is None:
        return refused(
            Ground.NOT_TRIED,
            "it doesn't tell whether sleep mode is on, and trying costs a copy of the weights in host memory that isn't given back",
        )
    if not enabled:
        return refused(Ground.SWITCHED_OFF, "GET /server_info: it was started without --enable-sleep-mode")
    if config.get("kv_transfer_config"):
        return refused(
            Ground.UNCERTIFIED,
            "GET /server_info: it has a KV connector, beside which waking up has been a 500 and the engine's end",
        )
    if _encoder_mode(config) == "data":
        return refused(
            Ground.UNCERTIFIED,
            "GET /server_info: it was started with --mm-encoder-tp-mode data, with which a sleep has answered 200 and left memory "
            "taken",
        )
    return Finding(ground=Ground.DECLARED, reason="GET /server_info: it was started with --enable-sleep-mode")


def _unsafe_to_release(config: Mapping[str, Any]) -> Finding | None:
    """Return why a release must not even be tried; None if nothing speaks against it."""
    if config.get("kv_transfer_config"):
        return refused(
            Ground.UNCERTIFIED,
            "GET /server_info: it has a KV connector, beside which taking the memory again has ended engines",
        )
    switches = [
        _member(config, "model_config", name) for name in ("enable_sleep_mode", "enable_cumem_allocator")
    ]
    if all(switch is False for switch in switches):
        return refused(
            Ground.SWITCHED_OFF,
            "GET /server_info: it was started without --enable-sleep-mode and --enable-cumem-allocator, so that its KV memory "
            "is not in the pool from which it could be released",
        )
    return None


def _member(config: Mapping[str, Any], section: str, name: str) -> bool | None:
    values = config.get(section)
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, bool) else None


def _encoder_mode(config: Mapping[str, Any]) -> object:
    match config.get("model_config"):
        case {"multimodal_config": {"mm_encoder_tp_mode": mode}}:
            return mode
        case _:
            return None


def _query(routes: Mapping[str, Any], path: str) -> frozenset[str]:
    """Return the query parameters that the engine lists for a POST to `path`."""
    match routes.get(path):
        case {"post": {"parameters": list(parameters)}}:
            return frozenset(
                str(each.get("name"))
                for each in parameters
                if isinstance(each, dict) and each.get("in") == "query"
            )
        case _:
            return frozenset()


def _told(text: str) -> str:
    return text if text.lstrip().startswith("{") else ""
