"""The adapter for vLLM: pause and resume with everything in place, KV memory given back and taken, weights parked and unparked.

Each change is checked afterwards. Facts about the routes are in `warmpool.engines.vllm_controls`. `/health` is 200 while paused, and
so tells of nothing but a start.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from warmpool.engines.capabilities import Capabilities, Capability, Change, Finding, Ground, Verification
from warmpool.engines.deadline import Deadline
from warmpool.engines.drain import until_idle
from warmpool.engines.evidence import Evidence
from warmpool.engines.guarded import GuardedEngine
from warmpool.engines.guards import Guard, require_empty
from warmpool.engines.memory import Kv, Weights, require_granted, require_held, require_known
from warmpool.engines.model_list import longest_sequence
from warmpool.engines.owners import of_reference
from warmpool.engines.pages import kv_away, kv_memory_bytes, parse_load, weights_away
from warmpool.engines.port import EngineLoad, KvWhenPaused, Startup
from warmpool.engines.transport import Transport
from warmpool.engines.vllm_controls import VllmControls
from warmpool.engines.vllm_probe import VllmProbe
from warmpool.errors import EngineRejected, EngineUnfit
from warmpool.timeline import TIERS, PassedOver, WeightLoad

_NOT_YET: Final = 503
_REASON_CHARACTERS: Final = 400
_NAME_CHARACTERS: Final = 64
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
    tells_logprobs: ClassVar[bool] = True
    tells_kv: ClassVar[bool] = False
    """Whether `/is_sleeping` tells released KV memory from a mere pause."""
    parks_from_release: ClassVar[bool] = False
    """Whether it can be parked while its KV memory is away."""

    def __init__(self, control: str, *, model: str, guard: Guard | None = None) -> None:
        super().__init__(Transport(control), model=model, guard=guard)
        self._controls = VllmControls(self._transport)
        self._waits = True  # for what runs, when told to; until a probe has seen that it doesn't
        self._parking: Finding | None = None  # once it is granted

    async def startup(self, *, deadline: Deadline) -> Startup:
        """Ask how far it has come: `/health`, and once that is 200 what it tells of itself."""
        answer = await self._transport.get("/health", deadline)
        if answer.status == _NOT_YET:
            return Startup(ready=False, phase=_phase(answer.text))
        answer.checked()
        told = await self._transport.get("/emberpool/startup", deadline)
        if told.missing:
            kv_bytes = await self._kv_bytes(deadline)
            startup = Startup(
                ready=True, kv_bytes=kv_bytes, ownership=await self._probe().ownership(deadline)
            )
        else:
            startup = _startup(told.checked().json())
        return replace(startup, longest=await longest_sequence(self._transport, deadline))

    def assume(
        self, *, kv_released: bool, parked: bool = False, capabilities: Capabilities | None = None
    ) -> None:
        """Tell the adapter what is known of an engine that somebody else has driven before."""
        self._controls.kv = Kv.RELEASED if kv_released or parked else Kv.HELD
        self._controls.weights = Weights.PARKED if parked else Weights.HELD
        self._controls.half_awake = kv_released and not parked  # it may have been unparked
        if capabilities is not None:
            self._waits = _waits(capabilities)

    async def probe(self, kv: KvWhenPaused, *, deadline: Deadline) -> Capabilities:
        """Find out what it can be told, by asking and by doing what can be undone."""
        await require_empty(self._guard, deadline)
        await self._require_weights(deadline)
        capabilities = await self._probe().run(kv, deadline)
        self._waits = _waits(capabilities)
        return capabilities

    async def pause(self, kv: KvWhenPaused, *, deadline: Deadline) -> Verification:
        """Finish what runs, stop the scheduler, release the KV memory if so asked, and verify. Idempotent."""
        await self._require_weights(deadline)
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
        await self._require_weights(deadline)
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

    async def park(self, *, deadline: Deadline) -> Verification:
        """Move its weights to host memory and verify. Idempotent.

        While its KV memory is away vLLM's executor counts as asleep and ignores the order, so the KV memory is taken first.
        """
        await self._know_weights(deadline)
        require_known(self._controls.weights)
        evidence = Evidence(Change.PARK)
        if self._controls.weights is Weights.HELD:
            await self._require_parking(deadline)
            await self._require_paused(deadline)
            if not self.parks_from_release and self._controls.kv is not Kv.HELD:
                await self._controls.take_kv(deadline)
                await self._controls.pause(deadline, clear_cache=True)
            await self._controls.park(deadline)
        await self._verify_paused(evidence, deadline)
        await self._verify_parked(evidence, deadline)
        return evidence.verification()

    async def unpark(self, *, deadline: Deadline) -> Verification:
        """Move its weights back to device memory and verify; it stays paused. Idempotent."""
        await self._know_weights(deadline)
        require_known(self._controls.weights)
        evidence = Evidence(Change.UNPARK)
        if self._controls.weights is Weights.PARKED:
            await self._controls.unpark(deadline)
            await self._verify_paused(evidence, deadline)
        else:
            await self._require_paused(deadline)
            evidence.told("GET /is_paused: true")
        await self._verify_unparked(evidence, deadline)
        return evidence.verification()

    async def load(self, *, deadline: Deadline) -> EngineLoad:
        """Read running and waiting requests from `/metrics`."""
        return await self._load(deadline)

    def _probe(self) -> VllmProbe:
        return VllmProbe(self.kind, self._transport, self._controls, self._completions)

    # ------------------------------------------------------------------ preconditions

    async def _know_weights(self, deadline: Deadline) -> None:
        """Find out where its weights are, if an order that failed left that open. vLLM doesn't tell it of a half-done one."""

    async def _require_weights(self, deadline: Deadline) -> None:
        """See that its weights are in device memory."""
        await self._know_weights(deadline)
        require_held(self._controls.weights)

    async def _require_paused(self, deadline: Deadline) -> None:
        if not await self._controls.is_paused(deadline):
            raise EngineRejected("the engine is not paused; pause it first")

    async def _require_parking(self, deadline: Deadline) -> None:
        if self._parking is None:
            self._parking = require_granted(await self._find_parking(deadline))

    async def _find_parking(self, deadline: Deadline) -> Finding:
        """Ask whether it can be parked. Nothing is moved."""
        return await self._probe().parking(deadline)

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
        if away and not self._controls.half_awake:
            raise evidence.contradict("GET /metrics: its weights have left the device")
        if released:
            await self._verify_released(evidence, page, deadline)

    async def _verify_released(self, evidence: Evidence, page: str, deadline: Deadline) -> None:
        sleeping = await self._controls.is_sleeping(deadline)
        if sleeping is False:
            raise evidence.contradict("GET /is_sleeping: false, so its KV memory is still there")
        if kv_away(page) is False:
            raise evidence.contradict("GET /metrics: its KV memory is still there")
        if sleeping and self.tells_kv:
            evidence.told("GET /is_sleeping: true")
        else:
            evidence.untold(
                "it doesn't tell whether its KV memory is there; that takes a measurement of the device"
            )

    async def _verify_parked(self, evidence: Evidence, deadline: Deadline) -> None:
        if await self._controls.is_sleeping(deadline) is False:
            raise evidence.contradict("GET /is_sleeping: false, so its weights are still there")
        if await self._weights_away(deadline) is False:
            raise evidence.contradict("GET /metrics: its weights are still in the device's memory")
        evidence.untold("what it still holds of the device's memory takes a measurement")

    async def _verify_unparked(self, evidence: Evidence, deadline: Deadline) -> None:
        if self._controls.kv is Kv.RELEASED and await self._controls.is_sleeping(deadline) is False:
            raise evidence.contradict("GET /is_sleeping: false, so its KV memory is there as well")
        evidence.untold("whether its weights are whole shows in the first token that it computes")

    async def _weights_away(self, deadline: Deadline) -> bool | None:
        try:
            return weights_away(await self._controls.page(deadline))
        except (EngineUnfit, EngineRejected):
            return None

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


def _waits(capabilities: Capabilities) -> bool:
    """Whether it waits for what runs when it is told to."""
    return capabilities.finding(Capability.DRAIN_WAIT).ground is not Ground.PARAMETER_IGNORED


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
        parked_bytes=_whole(told.get("parkedBytes")),
        ownership=of_reference(told),
        load=_load(told.get("phases")),
        device=_device(told.get("phases")),
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


def _device(told: object) -> str:
    match told:
        case {"context": {"device": str(device)}}:
            return device
        case _:
            return ""


def _load(told: object) -> WeightLoad | None:
    """Read how the weights came, from what their phase says beside its time."""
    match told:
        case {"weights": {"loadSeconds": float(seconds) | int(seconds), **others}} if seconds >= 0:
            tier, nbytes = others.get("tier"), _whole(others.get("bytes"))
            return WeightLoad(
                tier=tier if isinstance(tier, str) else "",
                nbytes=nbytes or 0,
                seconds=seconds,
                passed_over=_passed_over(others.get("passedOver")),
            )
        case _:
            return None


def _passed_over(told: object) -> tuple[PassedOver, ...]:
    """Read which tiers were tried in vain; there are no more than tiers, and what isn't told as it should be is left out."""
    found = []
    for each in told[: len(TIERS)] if isinstance(told, list) else ():
        match each:
            case {"tier": str(tier), "code": str(code), "reason": str(reason)}:
                found.append(
                    PassedOver(
                        tier=tier[:_NAME_CHARACTERS],
                        code=code[:_NAME_CHARACTERS],
                        reason=reason[:_REASON_CHARACTERS],
                    )
                )
            case _:
                continue
    return tuple(found)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
