"""Agents over HTTP: one order, one POST, one typed answer.

A network deadline stands around each call, a little longer than the order's own, so that the agent's word for what
happened normally arrives first.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from scaler.cluster.agents import Done, Told
from warmpool.errors import (
    AgentBusy,
    AgentError,
    BadOrder,
    DeadlineExceeded,
    EngineError,
    EngineLost,
    GpuUnfit,
    NeedsWitness,
    NoRoom,
    StaleEpoch,
    UnknownResident,
    WrongState,
)
from warmpool.expectations import Recording
from warmpool.seats import Claim, PolicyName, Seat
from warmpool.wire import recording_from_json, recording_to_json, statement_from_json

_ANSWER_MARGIN_SECONDS = 0.5
"""What the network may add to an order's own deadline before we stop listening."""

_ERRORS: Mapping[str, type[AgentError]] = {
    error.code: error
    for error in (
        AgentBusy,
        StaleEpoch,
        WrongState,
        NoRoom,
        NeedsWitness,
        GpuUnfit,
        UnknownResident,
        DeadlineExceeded,
        BadOrder,
    )
}


class HttpAgents:
    """The ports `Agents`, `Starters`, `Stagers` and `Witnesses` over one client session.

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

    async def park(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """See `Agents.park`."""
        return await self._order("park", seat, claim, policy, deadline)

    async def unpark(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """See `Agents.unpark`."""
        return await self._order("unpark", seat, claim, policy, deadline)

    async def _order(self, verb: str, seat: Seat, claim: Claim, policy: PolicyName, deadline: float) -> Done:
        order: dict[str, Any] = {
            "policy": policy,
            "claim": claim.id,
            "epoch": claim.epoch,
            "deadlineSeconds": deadline,
        }
        if claim.displace is not None:
            order["displace"] = list(claim.displace)
        if seat.health_observed:
            order["gpuHealth"] = "Observe"
        what = f"{verb} {policy} on {seat.name}"
        return _done(await self._call("POST", seat, f"/v1/{verb}", order, deadline, what))

    async def ask(self, seat: Seat, policy: PolicyName, *, deadline: float) -> Told:
        """See `Witnesses.ask`."""
        what = f"what {policy} answers on {seat.name}"
        return _told(await self._call("GET", seat, f"/v1/proof/{policy}", None, deadline, what), what)

    async def tell(
        self, seat: Seat, policy: PolicyName, recording: Recording, *, epoch: int, deadline: float
    ) -> Told:
        """See `Witnesses.tell`."""
        what = f"what {policy} is to answer on {seat.name}"
        body = {**recording_to_json(recording), "epoch": epoch}
        return _told(await self._call("PUT", seat, f"/v1/proof/{policy}", body, deadline, what), what)

    async def order_starts(
        self,
        seat: Seat,
        policies: Sequence[PolicyName],
        wanted: Sequence[PolicyName],
        *,
        epoch: int,
        deadline: float,
    ) -> None:
        """See `Starters.order_starts`."""
        body = {"epoch": epoch, "policies": list(policies), "wanted": list(wanted)}
        await self._call("PUT", seat, "/v1/starts", body, deadline, f"what to start first on {seat.name}")

    async def order_staging(
        self, seat: Seat, checkpoints: Sequence[str], *, epoch: int, deadline: float
    ) -> None:
        """See `Stagers.order_staging`."""
        body = {"epoch": epoch, "checkpoints": list(checkpoints)}
        await self._call("PUT", seat, "/v1/stage", body, deadline, f"what {seat.node} will need")

    async def _call(
        self, method: str, seat: Seat, path: str, body: object, deadline: float, what: str
    ) -> Mapping[str, Any]:
        """Make a request; return the body of a good answer."""
        if not seat.agent:
            raise EngineLost(f"seat {seat.name} has not told its agent's address yet")
        try:
            async with (
                asyncio.timeout(deadline + _ANSWER_MARGIN_SECONDS),
                self._session.request(
                    method, f"{seat.agent}{path}", json=body, headers=self._headers
                ) as response,
            ):
                status, answer = response.status, await response.json(content_type=None)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{what}: no answer of the agent in {deadline:.1f} s") from error
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise EngineLost(f"{what}: the agent can't be reached: {error}") from error
        return _body(status, answer, what)


def _told(found: Mapping[str, Any], what: str) -> Told:
    try:
        statement, recording = found.get("statement"), found.get("recording")
        return Told(
            statement=None if statement is None else statement_from_json(statement),
            recording=None if recording is None else recording_from_json(recording),
            missing=str(found.get("missing") or ""),
        )
    except BadOrder as error:
        raise AgentError(f"{what}: {error}") from error


def _done(found: Mapping[str, Any]) -> Done:
    phases = {str(name): float(seconds) for name, seconds in dict(found.get("phases") or {}).items()}
    return Done(phases=phases, aborted=int(found.get("aborted") or 0))


def _body(status: int, body: object, what: str) -> Mapping[str, Any]:
    """Return the body of a good answer.

    Raises:
        AgentError: it is an error, of the kind that it says.
        EngineError: the engine failed.
    """
    if not isinstance(body, dict):
        raise AgentError(f"{what}: the agent answered {status} without a JSON object")
    if status == 200:  # noqa: PLR2004 - HTTP OK
        return body
    error = body.get("error")
    if not isinstance(error, dict):
        error = {}  # somebody in between has answered
    code, message = str(error.get("code", "")), str(error.get("message", f"status {status}"))
    if code in _ERRORS:
        raise _ERRORS[code](f"{what}: {message}")
    if code == "EngineFailed":
        raise EngineError(f"{what}: {message}")
    raise AgentError(f"{what}: {message}")
