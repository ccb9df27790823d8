"""Orders to agents, as whoever holds their token may give them: for depths that the law doesn't choose by itself."""

import uuid
from dataclasses import dataclass

import aiohttp

_OK, _NOT_FOUND = 200, 404


class OrderFailed(Exception):
    """An agent didn't do what it was told; the message holds its answer."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Gives orders in the name of the term that the agents know.

    Attributes:
        session: shared by all calls.
        token: what agents want to see.
    """

    session: aiohttp.ClientSession
    token: str

    async def give(self, agent: str, kind: str, policy: str, *, seconds: float) -> None:
        """Give one order, and wait until it has been carried out.

        Args:
            agent: base URL of the agent.
            kind: the order's kind, as in the agent's paths: `park`, `unpark`, `pause`, …
            policy: whose resident.
            seconds: the order's deadline.

        Raises:
            OrderFailed: it was refused or failed, or this agent knows no such order.
        """
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            async with self.session.get(f"{agent}/v1/state", headers=headers) as response:
                epoch = (await response.json())["epoch"]
            order = {
                "policy": policy,
                "claim": f"bench-{uuid.uuid4()}",  # a repeated one would be answered with the first one's result
                "epoch": epoch,
                "deadlineSeconds": seconds,
            }
            async with self.session.post(f"{agent}/v1/{kind}", json=order, headers=headers) as response:
                status, said = response.status, await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError) as error:
            raise OrderFailed(f"{kind} {policy}: {error!r}") from error
        if status == _NOT_FOUND and "error" not in said:
            raise OrderFailed(f"{kind}: this version's agents know no such order")
        if status != _OK:
            raise OrderFailed(f"{kind} {policy}: {status}: {said[:300]}")
