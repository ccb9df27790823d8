"""Acting within a term and not a moment longer: every write and every order is let through only while the lease covers it.

A process that was stopped and goes on, or a loop that was held up, finds its tasks where it had left them, and the news that the term
is over comes to them later than their next step. So each step asks first, and each repetition of a write does.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from scaler.cluster.agents import Agents, Done
from scaler.cluster.kube.election import Leadership
from scaler.cluster.kube.errors import Withheld
from scaler.cluster.kube.lanes import Budget, Lane, Lanes, lanes_of
from scaler.errors import LeadershipLost
from warmpool.seats import Claim, PolicyName, Seat

_WRITE_SECONDS: Final = 2.0
"""What one write to the API server may take: as `Timing.request` of the election says."""

Led = Callable[[], Leadership | None]
"""Returns the term that is on; None while this process doesn't lead."""


class LedLane(Lane):
    """A lane that is closed to who doesn't lead.

    Args:
        budget: what it may do.
        led: the term.
    """

    def __init__(self, budget: Budget, led: Led) -> None:
        super().__init__(budget)
        self._led = led

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """See `Lane.turn`.

        Raises:
            Withheld: this process doesn't lead, or not for long enough.
        """
        async with super().turn():
            leadership = self._led()
            if leadership is None or not leadership.covers(_WRITE_SECONDS):
                raise Withheld("the leader alone writes, well within its term")
            yield


def led_lanes(led: Led) -> Lanes:
    """Make the lanes with their usual budgets, all closed to who doesn't lead."""
    return lanes_of(lambda budget: LedLane(budget, led))


class LedAgents:
    """The port `Agents`, for one term. An order may outlast it: agents refuse it as soon as they have heard of a later one.

    Args:
        agents: carry out what is let through.
        leadership: the term.
    """

    def __init__(self, agents: Agents, leadership: Leadership) -> None:
        self._agents = agents
        self._leadership = leadership

    def _led(self) -> Agents:
        """Return the agents.

        Raises:
            LeadershipLost: the term is over.
        """
        if not self._leadership.covers(0.0):
            raise LeadershipLost(f"term {self._leadership.term.epoch} is over")
        return self._agents

    async def resume(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """See `Agents.resume`; raises LeadershipLost as well."""
        return await self._led().resume(seat, claim, policy, deadline=deadline)

    async def drain(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """See `Agents.drain`; raises LeadershipLost as well."""
        return await self._led().drain(seat, claim, policy, deadline=deadline)

    async def pause(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """See `Agents.pause`; raises LeadershipLost as well."""
        return await self._led().pause(seat, claim, policy, deadline=deadline)

    async def prove(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """See `Agents.prove`; raises LeadershipLost as well."""
        return await self._led().prove(seat, claim, policy, deadline=deadline)

    async def park(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """See `Agents.park`; raises LeadershipLost as well."""
        return await self._led().park(seat, claim, policy, deadline=deadline)

    async def unpark(self, seat: Seat, claim: Claim, policy: PolicyName, *, deadline: float) -> Done:
        """See `Agents.unpark`; raises LeadershipLost as well."""
        return await self._led().unpark(seat, claim, policy, deadline=deadline)
