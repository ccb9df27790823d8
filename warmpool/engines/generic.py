"""The adapter for any server with OpenAI's API: nothing of it can be paused, so pausing means to keep requests away from it.

Its process, its KV memory and whatever it computes by itself stay where they are. It can't share a seat, and nothing that it is told
can be verified beyond what the guard in front of it says.
"""

from types import MappingProxyType
from typing import ClassVar, Final

from warmpool.engines.capabilities import Capabilities, Capability, Change, Finding, Ground, Verification
from warmpool.engines.deadline import Deadline
from warmpool.engines.evidence import Evidence
from warmpool.engines.guarded import GuardedEngine
from warmpool.engines.guards import Guard, require_empty
from warmpool.engines.pages import SGLANG, VLLM, parse_load
from warmpool.engines.port import EngineLoad, KvWhenPaused, Startup
from warmpool.engines.transport import Transport
from warmpool.engines.trials import PROMPT, refused, token_ids_refused_by, tried
from warmpool.errors import EngineError, EngineLost, EngineRejected, EngineUnfit

_NOT_YET: Final = 503
_NO_PAUSE: Final = "a Generic engine has no route for it; it can only be kept out of rotation"


class GenericEngine(GuardedEngine):
    """One OpenAI-compatible server. Belongs to the event loop in which it was made.

    Args:
        control: base URL of its listener, which never leaves the seat.
        model: the name that its completions route knows it by.
        guard: what stands in front of it; one of the engine's own if left out.
    """

    kind: ClassVar[str] = "Generic"

    def __init__(self, control: str, *, model: str, guard: Guard | None = None) -> None:
        super().__init__(Transport(control), model=model, guard=guard)

    async def startup(self, *, deadline: Deadline) -> Startup:
        """Ask `/health`, and `/v1/models` where there is none; 503 means not yet."""
        answer = await self._transport.get("/health", deadline)
        if answer.missing:
            answer = await self._transport.get("/v1/models", deadline)
        if answer.status == _NOT_YET:
            return Startup(ready=False, phase="loading")
        answer.checked()
        return Startup(ready=True)

    def assume(
        self, *, kv_released: bool, parked: bool = False, capabilities: Capabilities | None = None
    ) -> None:
        """Do nothing: its memory never leaves."""

    async def probe(self, kv: KvWhenPaused, *, deadline: Deadline) -> Capabilities:
        """Ask for a token; everything else is refused to engines of this kind, and so isn't tried."""
        del kv
        await require_empty(self._guard, deadline)
        found: dict[Capability, Finding] = {
            capability: refused(Ground.NOT_OF_KIND, _NO_PAUSE)
            for capability in Capability
            if capability is not Capability.TOKEN_IDS
        }
        try:
            await self.complete(PROMPT, tokens=1, deadline=deadline)
            found[Capability.TOKEN_IDS] = tried("a completion told the ids of its tokens")
        except EngineLost:
            raise
        except EngineError as error:
            found[Capability.TOKEN_IDS] = token_ids_refused_by(error)
        return Capabilities(kind=self.kind, findings=MappingProxyType(found))

    async def pause(self, kv: KvWhenPaused, *, deadline: Deadline) -> Verification:
        """See that its guard is closed and nobody is inside: more can't be done. Idempotent.

        Raises:
            EngineUnfit: its KV memory was to be released.
            EngineRejected: requests can still reach it, or are still inside.
        """
        if kv is KvWhenPaused.RELEASE:
            raise EngineUnfit(
                "a Generic engine gives no KV memory back, and so can't share its seat with other residents"
            )
        await require_empty(self._guard, deadline)  # keeping requests away is the only pause that it has
        evidence = Evidence(Change.PAUSE)
        evidence.told("its guard is closed, and nothing is inside")
        evidence.untold("whether it computes by itself can't be asked")
        return evidence.verification()

    async def is_paused(self, *, deadline: Deadline) -> bool:
        """Whether it is kept out of rotation with nothing inside."""
        state = await self._guard.state(deadline=deadline)
        return not state.is_open and not state.in_flight

    async def resume(self, kv: KvWhenPaused, *, deadline: Deadline) -> Verification:
        """See that it still answers; it never stopped. Idempotent."""
        del kv
        (await self._transport.get("/v1/models", deadline)).checked()
        evidence = Evidence(Change.RESUME)
        evidence.told("GET /v1/models: answered")
        evidence.untold("whether it computes can't be asked; the canary shows it")
        return evidence.verification()

    async def park(self, *, deadline: Deadline) -> Verification:
        """Refuse: its weights never leave.

        Raises:
            EngineRejected: always.
        """
        del deadline
        raise EngineRejected(f"the engine can't be parked ({Ground.NOT_OF_KIND}): {_NO_PAUSE}")

    async def unpark(self, *, deadline: Deadline) -> Verification:
        """Refuse: it is never parked.

        Raises:
            EngineRejected: always.
        """
        return await self.park(deadline=deadline)

    async def load(self, *, deadline: Deadline) -> EngineLoad:
        """Read running and waiting requests from `/metrics`, if it uses vLLM's or SGLang's names.

        Raises:
            EngineUnfit: it has no such page.
        """
        page = (await self._transport.get("/metrics", deadline)).checked().text
        try:
            return parse_load(page, VLLM)
        except EngineUnfit:
            return parse_load(page, SGLANG)
