"""The adapter for SGLang, after the source of its release 0.5.23.

Its control routes have traps of their own. `pause_generation` ends requests unless a mode is sent, has no mode that waits for them,
and answers before its scheduler has acted. `release_memory_occupation` releases weights as well unless tags are sent, answers 200
and frees nothing without `--enable-memory-saver`, and ends the server when anything runs; so does taking memory that isn't away.
`/health` computes a token, and marks a paused server as unhealthy. So the adapter waits for what runs, asks the scheduler
after each order, and never takes memory of which it doesn't know that it is away.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from warmpool.engines.capabilities import Capabilities, Change, Finding, Verification
from warmpool.engines.deadline import Deadline
from warmpool.engines.drain import until_idle
from warmpool.engines.evidence import Evidence
from warmpool.engines.guarded import GuardedEngine
from warmpool.engines.guards import Guard, require_empty
from warmpool.engines.memory import Kv, Weights, require_granted, require_held, require_known
from warmpool.engines.model_list import longest_sequence
from warmpool.engines.owners import of_sglang
from warmpool.engines.port import EngineLoad, KvWhenPaused, Startup
from warmpool.engines.sglang_controls import SglangControls
from warmpool.engines.sglang_probe import SglangProbe, weights_parking
from warmpool.engines.transport import Transport
from warmpool.errors import EngineError, EngineLacksRoute, EngineLost, EngineRejected, EngineUnfit

_NOT_YET: Final = 503
_MOST_GIB: Final = 2**20
_GIB: Final = 2**30  # SGLang's memory figures are in these, rounded to a thousandth


class SglangEngine(GuardedEngine):
    """One SGLang over HTTP. Belongs to the event loop in which it was made.

    Args:
        control: base URL of its listener, which never leaves the seat.
        model: the name that its completions route knows it by.
        guard: what stands in front of it; one of the engine's own if left out.
    """

    kind: ClassVar[str] = "SGLang"

    def __init__(self, control: str, *, model: str, guard: Guard | None = None) -> None:
        super().__init__(Transport(control), model=model, guard=guard)
        self._controls = SglangControls(self._transport)
        self._parking: Finding | None = None  # once it is granted

    async def startup(self, *, deadline: Deadline) -> Startup:
        """Ask `/ready`, and `/health` where there is none; only before it has ever been paused, for both mean that too."""
        answer = await self._transport.get("/ready", deadline)
        if answer.missing:
            answer = await self._transport.get("/health", deadline)
        if answer.status == _NOT_YET:
            return Startup(ready=False, phase="loading")
        answer.checked()
        info = await self._info(deadline)
        usage = _memory_usage(info)
        return Startup(
            ready=True,
            kv_bytes=_bytes(usage.get("kvcache")),
            weights_bytes=_bytes(usage.get("weight")),
            ownership=of_sglang(info),
            longest=await longest_sequence(self._transport, deadline),
        )

    def assume(
        self, *, kv_released: bool, parked: bool = False, capabilities: Capabilities | None = None
    ) -> None:
        """Tell the adapter what is known of an engine that somebody else has driven before."""
        del capabilities  # nothing is done otherwise for them; whether it can be parked is asked again
        self._controls.kv = Kv.RELEASED if kv_released or parked else Kv.HELD
        self._controls.weights = Weights.PARKED if parked else Weights.HELD

    async def probe(self, kv: KvWhenPaused, *, deadline: Deadline) -> Capabilities:
        """Find out what it can be told, by asking and by doing what can be undone."""
        del kv  # releasing is never tried
        await require_empty(self._guard, deadline)
        await self._require_weights(deadline)
        return await SglangProbe(self.kind, self._controls, self._completions).run(deadline)

    async def pause(self, kv: KvWhenPaused, *, deadline: Deadline) -> Verification:
        """Wait for what runs, stop the scheduler, release the KV memory if so asked, and verify. Idempotent.

        Raises:
            EngineUnfit: whether its KV memory is away isn't known.
            EngineError: as the port says.
        """
        release = kv is KvWhenPaused.RELEASE
        await self._require_weights(deadline)
        self._require_known_kv()
        evidence = Evidence(Change.RELEASE if release else Change.PAUSE)
        await self._pause_empty(deadline)
        evidence.told("GET /v1/loads: nothing runs and nothing waits")
        await self._verify_paused(evidence, deadline)
        if release and self._controls.kv is Kv.HELD:
            await self._controls.release_kv(deadline)
        if release:
            evidence.untold(
                "it doesn't tell whether its KV memory is there; that takes a measurement of the device"
            )
        return evidence.verification()

    async def is_paused(self, *, deadline: Deadline) -> bool:
        """Ask whether it is paused; an unhealthy server says so too.

        Raises:
            EngineLacksRoute: it has no `/ready`.
        """
        ready = await self._controls.is_ready(deadline)
        if ready is None:
            raise EngineLacksRoute("GET /ready: the engine has no such route, and nothing else tells")
        return not ready

    async def resume(self, kv: KvWhenPaused, *, deadline: Deadline) -> Verification:
        """Take the KV memory if it is away, start the scheduler, and verify. Idempotent.

        Raises:
            EngineUnfit: whether its KV memory is away isn't known.
            EngineError: as the port says.
        """
        del kv
        await self._require_weights(deadline)
        self._require_known_kv()
        evidence = Evidence(Change.RESUME)
        if self._controls.kv is Kv.RELEASED:
            await self._controls.take_kv(deadline)
        await self._controls.go_on(deadline)
        ready = await self._controls.is_ready(deadline)
        if ready is False:
            raise evidence.contradict("GET /ready: 503")
        if ready is None:
            evidence.untold("it has no /ready, which would tell that it computes")
        else:
            evidence.told("GET /ready: 200")
        return evidence.verification()

    async def park(self, *, deadline: Deadline) -> Verification:
        """Move its weights to host memory and verify as far as it tells. Idempotent.

        Raises:
            EngineUnfit: where its memory is isn't known.
            EngineError: as the port says.
        """
        self._require_known_kv()
        require_known(self._controls.weights)
        evidence = Evidence(Change.PARK)
        if self._controls.weights is Weights.HELD:
            await self._require_parking(deadline)
            await self._require_paused(deadline)
            await self._controls.park(deadline)
        await self._verify_paused(evidence, deadline)
        evidence.untold("what it still holds of the device's memory takes a measurement")
        return evidence.verification()

    async def unpark(self, *, deadline: Deadline) -> Verification:
        """Move its weights back to device memory; it stays paused. Idempotent.

        Raises:
            EngineUnfit: where its memory is isn't known.
            EngineError: as the port says.
        """
        self._require_known_kv()
        require_known(self._controls.weights)
        evidence = Evidence(Change.UNPARK)
        if self._controls.weights is Weights.PARKED:
            await self._controls.unpark(deadline)
        else:
            await self._require_paused(deadline)
        await self._verify_paused(evidence, deadline)
        evidence.untold("whether its weights are whole shows in the first token that it computes")
        return evidence.verification()

    async def load(self, *, deadline: Deadline) -> EngineLoad:
        """Ask its scheduler for running and waiting requests."""
        return await self._controls.load(deadline)

    async def _verify_paused(self, evidence: Evidence, deadline: Deadline) -> None:
        ready = await self._controls.is_ready(deadline)
        if ready:
            raise evidence.contradict("GET /ready: 200")
        if ready is None:
            evidence.untold("it has no /ready, which would tell that it is paused")
        else:
            evidence.told("GET /ready: 503")

    async def _require_weights(self, deadline: Deadline) -> None:
        """See that its weights are in device memory."""
        del deadline
        require_held(self._controls.weights)

    async def _require_paused(self, deadline: Deadline) -> None:
        """See that nothing is inside, for releasing memory then ends the server, and that it is paused as far as it tells."""
        now = await self._controls.load(deadline)
        if now.running + now.waiting or await self._controls.is_ready(deadline):
            raise EngineRejected("the engine is not paused; pause it first")

    async def _require_parking(self, deadline: Deadline) -> None:
        if self._parking is None:
            self._parking = require_granted(weights_parking(await self._controls.server_info(deadline)))

    async def _pause_empty(self, deadline: Deadline) -> None:
        """Pause it with nothing inside: a request that slips in between the wait and the pause is let finish."""
        while True:
            await until_idle(self._controls.load, deadline)
            await self._controls.pause(deadline)
            left = await self._controls.load(deadline)
            if not left.running + left.waiting:
                return
            await self._controls.go_on(deadline)

    def _require_known_kv(self) -> None:
        if self._controls.kv is Kv.UNKNOWN:
            raise EngineUnfit(
                "whether its KV memory is away isn't known, since an order that released or took it was not answered, and asking "
                "again may end the server"
            )

    async def _info(self, deadline: Deadline) -> Mapping[str, Any]:
        """Read what it tells of itself, which is good to know and no reason to fail."""
        try:
            return await self._controls.server_info(deadline)
        except EngineLost:
            raise
        except EngineError:
            return {}


def _memory_usage(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sizes of its memory."""
    match info.get("internal_states"):
        case [{"memory_usage": dict(usage)}, *_]:
            return usage
        case _:
            return {}


def _bytes(gibibytes: object) -> int | None:
    if (
        isinstance(gibibytes, bool)
        or not isinstance(gibibytes, int | float)
        or not 0 <= gibibytes < _MOST_GIB
    ):
        return None
    return int(gibibytes * _GIB)
