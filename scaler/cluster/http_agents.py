"""Agents over HTTP: one order, one POST, one typed answer.

A network deadline stands around each call, a little longer than the order's own, so that the agent's word for what
happened normally arrives first.
"""

import asyncio
from collections.abc import Mapping

import aiohttp

from scaler.cluster.agents import Done
from warmpool.errors import (
    AgentBusy,
    AgentError,
    BadOrder,
    DeadlineExceeded,
    EngineError,
    EngineLost,
    StaleEpoch,
    UnknownResident,
    WrongState,
)
from warmpool.seats import Claim, PolicyName, Seat

_ANSWER_MARGIN_SECONDS = 0.5
"""What the network may add to an order's own deadline before we stop listening."""

_ERRORS: Mapping[str, type[AgentError]] = {
    error.code: error
    for error in (AgentBusy, StaleEpoch, WrongState, UnknownResident, DeadlineExceeded, BadOrder)
}


class HttpAgents:
    """The `Agents` port over one client session.

    Args:
        session: shared by all calls; its owner closes it.
        token: what agents want to see as bearer token.
    """

    def __init__(self, session: aiohttp.ClientSession, token: str) -> None:
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def resume(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """See `Agents.resume`."""
        return await self._order("resume", seat, claim, policy, deadline)

    async def drain(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """See `Agents.drain`."""
        return await self._order("drain", seat, claim, policy, deadline)

    async def pause(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """See `Agents.pause`."""
        return await self._order("pause", seat, claim, policy, deadline)

    async def prove(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """See `Agents.prove`."""
        return await self._order("prove", seat, claim, policy, deadline)

    async def _order(self, verb: str, seat: Seat, claim: Claim, policy: PolicyName, deadline: float) -> Done:
        if not seat.agent:
            raise EngineLost(f"seat {seat.name} has not told its agent's address yet")
        order = {"policy": policy, "claim": claim.id, "epoch": claim.epoch, "deadlineSeconds": deadline}
        try:
            async with (
                asyncio.timeout(deadline + _ANSWER_MARGIN_SECONDS),
                self._session.post(f"{seat.agent}/v1/{verb}", json=order, headers=self._headers) as response,
            ):
                body = await response.json(content_type=None)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the agent of {seat.name} didn't answer {verb} in {deadline:.1f} s"
            ) from error
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise EngineLost(f"the agent of {seat.name} can't be reached for {verb}: {error}") from error
        return _answer(response.status, body, f"{verb} {policy} on {seat.name}")


def _answer(status: int, body: object, what: str) -> Done:
    if not isinstance(body, dict):
        raise AgentError(f"{what}: the agent answered {status} without a JSON object")
    if status == 200:  # noqa: PLR2004 - HTTP OK
        phases = {str(name): float(seconds) for name, seconds in dict(body.get("phases") or {}).items()}
        return Done(phases=phases, aborted=int(body.get("aborted") or 0))
    error = body.get("error") or {}
    code, message = str(error.get("code", "")), str(error.get("message", f"status {status}"))
    if code in _ERRORS:
        raise _ERRORS[code](f"{what}: {message}")
    if code == "EngineFailed":
        raise EngineError(f"{what}: {message}")
    raise AgentError(f"{what}: {message}")
