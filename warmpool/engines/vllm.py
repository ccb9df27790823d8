"""The adapter for vLLM: pause and resume with everything in place, KV memory given back and taken, each change checked afterwards.

Facts about the routes are in `warmpool.engines.vllm_controls`. `/health` is 200 while paused, and so tells of nothing but a start.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from warmpool.engines.capabilities import Capabilities, Capability, Change, Ground, Verification
from warmpool.engines.deadline import Deadline
from warmpool.engines.drain import until_idle
from warmpool.engines.evidence import Evidence
from warmpool.engines.guarded import GuardedEngine
from warmpool.engines.guards import Guard, OwnGuard, require_empty
from warmpool.engines.kv_memory import Kv
from warmpool.engines.pages import kv_memory_bytes, parse_load, weights_away
from warmpool.engines.port import EngineLoad, KvWhenPaused, Startup
from warmpool.engines.transport import Transport
from warmpool.engines.vllm_controls import VllmControls
from warmpool.engines.vllm_probe import VllmProbe
from warmpool.errors import EngineRejected, EngineUnfit

_NOT_YET: Final = 503
_SETTLE_SECONDS: Final = 0.25
"""How long the metrics may lag behind an answer: vLLM counts at the end of a step, in another task than the one that answers."""
_POLL_SECONDS: Final = 0.01


class VllmEngine(GuardedEngine):
    """One vLLM over HTTP. Belongs to the event loop in which it was made.

    Args:
        control: base URL of the control listener, which never leaves the seat.
        model: the name that its completions route knows it by.
        guard: what stands in front of it; the engine's own if left out.
    """

    kind: ClassVar[str] = "VLLM"
    tells_kv: ClassVar[bool] = False
    """Whether `/is_sleeping` tells released KV memory from a mere pause."""

    def __init__(self, control: str, *, model: str, guard: Guard | None = None) -> None:
        transport = Transport(control)
        super().__init__(transport, model=model, guard=OwnGuard(transport) if guard is None else guard)
        self._controls = VllmControls(transport)
        self._waits = True  # for what runs, when told to; until a probe has seen that it doesn't

    async def startup(self, *, deadline: Deadline) -> Startup:
        """Ask how far it has come: `/health`, and once that is 200 what it tells of itself."""
        answer = await self._transport.get("/health", deadline)
        if answer.status == _NOT_YET:
            return Startup(ready=False, phase=_phase(answer.text))
        answer.checked()
        told = await self._transport.get("/emberpool/startup", deadline)
        if told.missing:
            return Startup(ready=True, kv_bytes=await self._kv_bytes(deadline))
        return _startup(told.checked().json())

    def assume(self, *, kv_released: bool) -> None:
        """Tell the adapter where the KV memory of an engine is that somebody else has driven before."""
        self._controls.kv = Kv.RELEASED if kv_released else Kv.HELD

    async def probe(self, kv: KvWhenPaused, *, deadline: Deadline) -> Capabilities:
        """Find out what it can be told, by asking and by doing what can be undone."""
        await require_empty(self._guard, deadline)
        probe = VllmProbe(self.kind, self._transport, self._controls, self._completions)
        capabilities = await probe.run(kv, deadline)
        self._waits = capabilities.finding(Capability.DRAIN_WAIT).ground is not Ground.PARAMETER_IGNORED
        return capabilities

    async def pause(self, kv: KvWhenPaused, *, deadline: Deadline) -> Verification:
        """Finish what runs, stop the scheduler, release the KV memory if so asked, and verify. Idempotent."""
        release = kv is KvWhenPaused.RELEASE
        evidence = Evidence(Change.RELEASE if release else Change.PAUSE)
        if self._controls.kv is Kv.UNKNOWN:  # taking it makes it known
            await self._controls.take_kv(deadline)
        if not self._waits:  # it would end what runs
            await until_idle(self._load, deadline)
        await self._controls.pause(deadline, clear_cache=release)
        await self._verify_paused(evidence, deadline)
        if release and self._controls.kv is Kv.HELD:
            await self._controls.release_kv(deadline)
        await self._verify_still(evidence, deadline, released=release)
        return evidence.verification()

    async def is_paused(self, *, deadline: Deadline) -> bool:
        """Ask whether its scheduler is off."""
        return await self._controls.is_paused(deadline)

    async def resume(self, kv: KvWhenPaused, *, deadline: Deadline) -> Verification:
        """Take the KV memory if it is away, start the scheduler, and verify. Idempotent."""
        del kv  # what is away is known better than what was asked for: a probe or an undone order may have changed it
        evidence = Evidence(Change.RESUME)
        await self._controls.compute(deadline)
        if await self._controls.is_paused(deadline):
            raise evidence.contradict("GET /is_paused: true")
        evidence.told("GET /is_paused: false")
        sleeping = await self._controls.is_sleeping(deadline)
        if sleeping:
            raise evidence.contradict("GET /is_sleeping: true, so weights or KV memory are still away")
        if sleeping is False:
            evidence.told("GET /is_sleeping: false")
        return evidence.verification()

    async def load(self, *, deadline: Deadline) -> EngineLoad:
        """Read running and waiting requests from `/metrics`."""
        return await self._load(deadline)

    async def _load(self, deadline: Deadline) -> EngineLoad:
        return parse_load(await self._controls.page(deadline))

    # ------------------------------------------------------------------ verification

    async def _verify_paused(self, evidence: Evidence, deadline: Deadline) -> None:
        if not await self._controls.is_paused(deadline):
            raise evidence.contradict("GET /is_paused: false")
        evidence.told("GET /is_paused: true")

    async def _verify_still(self, evidence: Evidence, deadline: Deadline, *, released: bool) -> None:
        """See from its metrics that nothing runs and that the weights are where they were."""
        try:
            idle, page = await self._settled(deadline)
            away = weights_away(page)
        except (EngineUnfit, EngineRejected) as error:
            evidence.untold(str(error))
            return
        if not idle:
            raise evidence.contradict("GET /metrics: requests are still running")
        evidence.told("GET /metrics: nothing runs")
        if away:
            raise evidence.contradict("GET /metrics: its weights have left the device")
        if released:
            await self._verify_released(evidence, deadline)

    async def _verify_released(self, evidence: Evidence, deadline: Deadline) -> None:
        sleeping = await self._controls.is_sleeping(deadline)
        if sleeping is False:
            raise evidence.contradict("GET /is_sleeping: false, so its KV memory is still there")
        if sleeping and self.tells_kv:
            evidence.told("GET /is_sleeping: true")
        else:
            evidence.untold(
                "it doesn't tell whether its KV memory is there; that takes a measurement of the device"
            )

    async def _settled(self, deadline: Deadline) -> tuple[bool, str]:
        """Return whether nothing runs, once the metrics have had time to say so, and the page that says it."""
        settled = deadline.at_most(_SETTLE_SECONDS)
        while True:
            page = await self._controls.page(deadline)
            if not parse_load(page).running:
                return True, page
            if settled.left_seconds <= _POLL_SECONDS:
                return False, page
            await asyncio.sleep(_POLL_SECONDS)

    async def _kv_bytes(self, deadline: Deadline) -> int | None:
        """Read the size of its KV memory, which is good to know and no reason to fail."""
        page = await self._transport.get("/metrics", deadline)
        return kv_memory_bytes(page.text) if page.ok else None


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
