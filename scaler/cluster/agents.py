"""The port to agents, and its HTTP client: orders to one seat's engines.

Every call has a deadline, carries the claim's id as its idempotency key and the controller's epoch, and raises a typed
error from `warmpool.errors`. The agent is the authority on its engines' states.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from warmpool.expectations import Recording, Statement
from warmpool.seats import Claim, PolicyName, Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What an order cost.

    Attributes:
        phases: seconds per step as the agent measured them (`unpark`, `kv`, `resume`, `canary`, `drain`, `pause`, `release`).
        aborted: requests that the order ended early (a drain whose deadline passed).
    """

    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    aborted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a resident's agent says of its proof.

    Attributes:
        statement: what the resident answers; None while it was not asked.
        recording: what it is compared with; None where that is its configuration's, or nobody has told it.
        missing: why there is nothing to compare with; empty if there is.
    """

    statement: Statement | None = None
    recording: Recording | None = None
    missing: str = ""


class Starters(Protocol):
    """Agents, as far as they start residents one after the other."""

    async def order_starts(
        self,
        seat: Seat,
        policies: Sequence[PolicyName],
        wanted: Sequence[PolicyName],
        *,
        epoch: int,
        deadline: float,
    ) -> None:
        """Tell in which order residents are needed. Idempotent.

        Args:
            seat: where.
            policies: the most needed first; those that it doesn't have are ignored there.
            wanted: those of which more should serve than seats can give now: a start-up that has only begun gives way to theirs.
            epoch: the controller's term.
            deadline: seconds from now.

        Raises:
            AgentError: the agent refused, because a later term has begun, or didn't answer in time.
        """


class Stagers(Protocol):
    """Agents, as far as they ask their node's stage daemon for weights ahead."""

    async def order_staging(
        self, seat: Seat, checkpoints: Sequence[str], *, epoch: int, deadline: float
    ) -> None:
        """Tell which checkpoints a seat's node will need beside those of its own residents. Idempotent.

        Args:
            seat: whose agent is told.
            checkpoints: by the paths that the node's stage daemon knows, the most needed first; none any more if empty.
            epoch: the controller's term.
            deadline: seconds from now.

        Raises:
            AgentError: the agent refused, because it has no stage daemon or a later term has begun, or didn't answer in time.
        """


class Witnesses(Protocol):
    """What residents answer, and what they are compared with, where nobody has recorded that before."""

    async def ask(self, seat: Seat, policy: PolicyName, *, deadline: float) -> Told:
        """Ask what a resident answers.

        Args:
            seat: where.
            policy: which resident.
            deadline: seconds from now.

        Raises:
            AgentError: the agent refused, or didn't answer in time.
        """

    async def tell(
        self, seat: Seat, policy: PolicyName, recording: Recording, *, epoch: int, deadline: float
    ) -> Told:
        """Tell what a resident is compared with from now on. Idempotent.

        Raises:
            AgentError: the agent refused, because it can't be compared with that or a later term has begun, or didn't answer
                in time.
        """


class Agents(Protocol):
    """Orders to the agents of seats."""

    async def resume(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """Take KV memory, resume the scheduler, pass the canary, open the guard; or recall it from draining.

        A parked resident is unparked first; who may be parked to make room for it stands in the claim.

        Args:
            seat: where.
            claim: in whose name.
            policy: which resident.
            deadline: seconds from now.

        Raises:
            AgentError: the order was refused or not carried out in time; what was begun is undone.
            EngineError: the engine failed; the resident is Failed.
        """

    async def drain(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """Close the guard to new requests and wait until the accepted ones are finished, then end the rest.

        Raises:
            AgentError: the order was refused, or the resident was recalled meanwhile (`WrongState`).
            EngineError: the engine failed.
        """

    async def pause(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """Pause a drained resident, release its KV memory where the seat is shared, and verify.

        Raises:
            AgentError: the order was refused or not carried out in time.
            EngineError: the engine failed.
        """

    async def prove(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """Resume out of rotation, compare tokens, pause again.

        Raises:
            AgentError: the order was refused or not carried out in time.
            EngineError: the engine failed or answered with other tokens.
        """

    async def park(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """Move a paused resident's weights to host memory. A parked one stays as it is.

        Raises:
            AgentError: the order was refused or not carried out in time; what was begun is undone.
            EngineError: the engine failed.
        """

    async def unpark(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """Move a parked resident's weights back to device memory, still paused. A paused one stays as it is.

        Who may be parked to make room for it stands in the claim.

        Raises:
            AgentError: the order was refused, for lack of room too, or not carried out in time; what was begun is undone.
            EngineError: the engine failed.
        """
