"""What all adapters have in common: connections to one engine, its completions past the guard, and the guard's orders."""

from typing import ClassVar, Final, Self

from warmpool.engines.capabilities import Finding, Ground
from warmpool.engines.completions import Completions
from warmpool.engines.deadline import Deadline
from warmpool.engines.guards import Guard, OwnGuard
from warmpool.engines.port import Completion, GuardState, Prompt
from warmpool.engines.transport import Transport
from warmpool.errors import EngineRejected

GRAPHS_AT_START: Final = (
    "engines of this kind capture graphs before they are ready, or, told to be eager, never"
)
GRAPHS_FIXED: Final = Finding(ground=Ground.NOT_OF_KIND, reason=GRAPHS_AT_START)
"""What is found of it wherever an engine has no way to be told."""


class GuardedEngine:
    """One engine behind a guard. Belongs to the event loop in which it was made.

    Args:
        transport: its control listener, which never leaves the seat.
        model: the name that its completions route knows it by.
        guard: what stands in front of it; one of the engine's own, whose routes are on that listener, if None.
    """

    tells_logprobs: ClassVar[bool] = False
    """Whether engines of this kind are known to tell log-probabilities."""

    def __init__(self, transport: Transport, *, model: str, guard: Guard | None) -> None:
        self._transport = transport
        self._completions = Completions(transport, model, logprobs=self.tells_logprobs)
        self._guard: Guard = OwnGuard(transport) if guard is None else guard

    async def __aenter__(self) -> Self:
        """Return the engine itself."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections to it. The engine itself goes on."""
        await self._guard.disconnect()
        await self._transport.close()

    async def complete(self, prompt: Prompt, *, tokens: int, deadline: Deadline) -> Completion:
        """Generate `tokens` tokens greedily, past the guard. A server that tells no token ids can't be proven."""
        await self._require_weights(deadline)
        return await self._completions.tokens(prompt, tokens, deadline)

    async def _require_weights(self, deadline: Deadline) -> None:
        """See that its weights are in device memory.

        Raises:
            EngineRejected: they are parked.
            EngineUnfit: it isn't known where they are.
        """

    async def guard(self, *, deadline: Deadline) -> GuardState:
        """Ask the guard for its state."""
        return await self._guard.state(deadline=deadline)

    async def open_guard(self, *, deadline: Deadline) -> None:
        """Let requests through from now on. Idempotent."""
        await self._guard.open(deadline=deadline)

    async def close_guard(self, *, deadline: Deadline) -> GuardState:
        """Refuse new requests from now on. Idempotent. Returns what is still in flight."""
        return await self._guard.close(deadline=deadline)

    async def capture(self, *, deadline: Deadline) -> None:
        """Refuse: whether there are graphs is decided at its start, once and for all.

        Raises:
            EngineRejected: always.
        """
        del deadline
        raise EngineRejected(f"its graphs can't be captured later ({Ground.NOT_OF_KIND}): {GRAPHS_AT_START}")

    async def abort(self, *, deadline: Deadline) -> None:
        """End all requests in flight early; each gets a well-formed error."""
        await self._guard.abort(deadline=deadline)
