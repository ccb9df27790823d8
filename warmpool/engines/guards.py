"""What stands in front of an engine and decides which requests reach it; the count of those inside is the drain's truth.

An engine with a guard of its own is asked over its control listener. One without gets a port of the agent's, on which requests are
passed on; that is the agent's affair, which brings it along.
"""

from typing import Protocol

from warmpool.engines.deadline import Deadline
from warmpool.engines.port import GuardState
from warmpool.engines.transport import Answer, Transport, shown
from warmpool.errors import EngineRejected, EngineUnfit


class Guard(Protocol):
    """A guard. Every call may raise an `EngineError`, as the port says."""

    async def state(self, *, deadline: Deadline) -> GuardState:
        """Tell whether it is open, and how many requests are inside."""

    async def open(self, *, deadline: Deadline) -> GuardState:
        """Let requests through from now on."""

    async def close(self, *, deadline: Deadline) -> GuardState:
        """Refuse requests from now on; those inside go on."""

    async def abort(self, *, deadline: Deadline) -> None:
        """End early what is inside; each request gets a well-formed error."""

    async def disconnect(self) -> None:
        """Give back what it needed; afterwards nobody stands in front of the engine."""


async def require_empty(guard: Guard, deadline: Deadline) -> None:
    """See that requests can't reach the engine and none are inside, so that it may be tried out.

    Raises:
        EngineRejected: it is in rotation, or still drains.
        EngineError: the guard can't be asked.
    """
    state = await guard.state(deadline=deadline)
    if state.is_open or state.in_flight:
        raise EngineRejected(
            f"its guard is {'open' if state.is_open else 'closed'} with {state.in_flight} requests inside: it is in rotation"
        )


class OwnGuard:
    """The guard inside an engine, over its control listener.

    Args:
        transport: the control listener.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def state(self, *, deadline: Deadline) -> GuardState:
        """Ask it.

        Raises:
            EngineUnfit: there is none, or its answer is none.
        """
        return _state((await self._transport.get("/guard", deadline)).checked())

    async def open(self, *, deadline: Deadline) -> GuardState:
        """Open it, and ask it.

        Raises:
            EngineUnfit: it claims to have opened and hasn't.
        """
        return await self._turn(is_open=True, deadline=deadline)

    async def close(self, *, deadline: Deadline) -> GuardState:
        """Close it, and ask it.

        Raises:
            EngineUnfit: it claims to have closed and hasn't.
        """
        return await self._turn(is_open=False, deadline=deadline)

    async def abort(self, *, deadline: Deadline) -> None:
        """End early what is inside."""
        (await self._transport.post("/guard/abort", deadline)).checked()

    async def disconnect(self) -> None:
        """Do nothing: it is the engine's."""

    async def _turn(self, *, is_open: bool, deadline: Deadline) -> GuardState:
        path, told = ("/guard/open", "closed") if is_open else ("/guard/close", "open")
        (await self._transport.post(path, deadline)).checked()
        state = await self.state(deadline=deadline)
        if state.is_open is not is_open:
            raise EngineUnfit(f"POST {path} was answered with 200, and GET /guard says that it is {told}")
        return state


def _state(answer: Answer) -> GuardState:
    is_open, in_flight = answer.flag("open"), answer.json().get("inFlight")
    if not isinstance(in_flight, int) or isinstance(in_flight, bool) or in_flight < 0:
        raise EngineUnfit(f"{answer.what}: inFlight is no count: {shown(answer.text)}")
    return GuardState(is_open=is_open, in_flight=in_flight)
