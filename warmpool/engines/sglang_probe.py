"""What an SGLang can be told: its pause is tried and undone; what it would end for is taken from what it says of itself.

Releasing memory is not tried. Without `--enable-memory-saver` it answers 200 and frees nothing, which `/server_info` tells; with it, a
probe that is cut short between release and return could not be undone without the risk of ending the server.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from warmpool.engines.capabilities import Capabilities, Capability, Finding, Ground
from warmpool.engines.completions import Completions
from warmpool.engines.deadline import Deadline
from warmpool.engines.drain import until_idle
from warmpool.engines.guarded import GRAPHS_FIXED
from warmpool.engines.sglang_controls import SglangControls
from warmpool.engines.trials import (
    PROMPT,
    hold,
    paused_finding,
    refused,
    refused_by,
    token_ids_refused_by,
    tried,
)
from warmpool.errors import EngineError, EngineLost

_STEP_SECONDS: Final = 20.0
_UNDO_SHARE: Final = 0.3
_UNDO_AT_MOST_SECONDS: Final = 10.0
_C = Capability


class SglangProbe:
    """One probe of one engine.

    Args:
        kind: the kind of engine, as policies name it.
        controls: its control routes.
        completions: how it is asked for tokens.
    """

    def __init__(self, kind: str, controls: SglangControls, completions: Completions) -> None:
        self._kind = kind
        self._controls = controls
        self._completions = completions

    async def run(self, deadline: Deadline) -> Capabilities:
        """Find out what the engine can be told.

        Raises:
            EngineError: it is gone, or can't be brought back to computing.
        """
        undo = min(_UNDO_AT_MOST_SECONDS, _UNDO_SHARE * max(0.0, deadline.left_seconds))
        work = deadline.earlier(undo)
        info = await self._info(work)
        found = _declared(info)
        found[_C.LATE_CAPTURE] = GRAPHS_FIXED
        first, seconds = await self._first_token(found, work)
        try:
            found[_C.SCHEDULER_PAUSE] = await self._scheduler_pause(
                first, seconds, work.at_most(_STEP_SECONDS)
            )
        except EngineLost:
            raise
        except EngineError as error:
            found[_C.SCHEDULER_PAUSE] = refused_by(error)
        finally:
            if found.get(_C.SCHEDULER_PAUSE, _UNTOLD).ground is not Ground.ROUTE_MISSING:
                await self._controls.go_on(deadline.at_most(undo))
        version = info.get("version")
        return Capabilities(
            kind=self._kind,
            version=version[:64] if isinstance(version, str) else "",
            findings=MappingProxyType(found),
        )

    async def _info(self, deadline: Deadline) -> Mapping[str, Any]:
        try:
            return await self._controls.server_info(deadline.at_most(_STEP_SECONDS))
        except EngineLost:
            raise
        except EngineError:
            return {}

    async def _first_token(
        self, found: dict[Capability, Finding], deadline: Deadline
    ) -> tuple[tuple[int, ...], float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            first = await self._completions.tokens(PROMPT, 1, deadline.at_most(_STEP_SECONDS))
        except EngineLost:
            raise
        except EngineError as error:
            found[_C.TOKEN_IDS] = token_ids_refused_by(error)
            return (), 0.0
        found[_C.TOKEN_IDS] = tried("a completion told the ids of its tokens")
        return first, loop.time() - began

    async def _scheduler_pause(self, first: tuple[int, ...], seconds: float, deadline: Deadline) -> Finding:
        await until_idle(self._controls.load, deadline)
        await self._controls.pause(deadline)
        if await self._controls.is_ready(deadline):
            return refused(
                Ground.CONTRADICTED, "POST /pause_generation was answered with 200, and GET /ready is too"
            )
        held = await hold(
            lambda: self._completions.tokens(PROMPT, 1, deadline),
            self._controls.go_on,
            first_seconds=seconds,
            deadline=deadline,
        )
        return paused_finding(held, first)


_UNTOLD: Final = refused(Ground.NOT_TRIED, "GET /server_info doesn't tell what it was started with")


def _declared(info: Mapping[str, Any]) -> dict[Capability, Finding]:
    """Return what it says of itself."""
    return {
        _C.DRAIN_WAIT: refused(
            Ground.NOT_OF_KIND,
            "none of SGLang's modes waits for what runs; the adapter waits before it pauses",
        ),
        _C.DRAIN_ABORT: Finding(
            ground=Ground.DECLARED,
            reason="pause_generation's default mode ends what runs; the adapter never sends it",
        ),
        _C.KV_RELEASE: _kv_release(info),
        _C.WEIGHTS_PARKING: weights_parking(info),
    }


def _kv_release(info: Mapping[str, Any]) -> Finding:
    saver = info.get("enable_memory_saver")
    if not isinstance(saver, bool):
        return _UNTOLD
    if not saver:
        return refused(
            Ground.SWITCHED_OFF,
            "GET /server_info: it was started without --enable-memory-saver, so that a release answers 200 and frees nothing",
        )
    if info.get("speculative_algorithm"):
        return refused(
            Ground.UNCERTIFIED,
            "GET /server_info: it has speculative decoding, beside which releasing KV memory has freed draft weights",
        )
    return Finding(
        ground=Ground.DECLARED, reason="GET /server_info: it was started with --enable-memory-saver"
    )


def weights_parking(info: Mapping[str, Any]) -> Finding:
    """Tell from what it says of itself whether it can move its weights to host memory and back.

    Args:
        info: what `/server_info` tells.
    """
    saver, backup = info.get("enable_memory_saver"), info.get("enable_weights_cpu_backup")
    if not isinstance(saver, bool) or not isinstance(backup, bool):
        return _UNTOLD
    if not (saver and backup):
        return refused(
            Ground.SWITCHED_OFF,
            "GET /server_info: it was started without --enable-memory-saver or --enable-weights-cpu-backup, and weights that are "
            "released without a copy don't come back",
        )
    if info.get("speculative_algorithm"):
        return refused(
            Ground.UNCERTIFIED,
            "GET /server_info: it has speculative decoding, beside which releasing KV memory has freed draft weights",
        )
    return Finding(
        ground=Ground.DECLARED,
        reason="GET /server_info: it was started with --enable-memory-saver and --enable-weights-cpu-backup",
    )
