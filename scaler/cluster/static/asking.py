"""Asking an agent for its state, for the times when it doesn't tell it by itself."""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from scaler.errors import Unreachable

ANSWER_SECONDS = 2.0
"""An agent answers from memory; one that takes longer is down or out of reach."""


class StateReader:
    """Reads `/v1/state` of agents.

    Args:
        session: shared by all calls; its owner closes it.
        token: what agents want to see as bearer token.
    """

    def __init__(self, session: aiohttp.ClientSession, token: str) -> None:
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"}

    async def read(self, agent: str) -> Mapping[str, Any]:
        """Return the state that the agent at a base URL tells.

        Raises:
            Unreachable: no answer in time, or none that is a state; the message says which.
        """
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                self._session.get(f"{agent}/v1/state", headers=self._headers) as response,
            ):
                body = await response.json(content_type=None)
                status = response.status
        except TimeoutError as error:
            raise Unreachable(f"{agent} didn't answer within {ANSWER_SECONDS:g} s") from error
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise Unreachable(f"{agent}: {str(error) or type(error).__name__}") from error
        if status == 401:  # noqa: PLR2004 - HTTP: wrong token
            raise Unreachable(f"{agent} refuses the token: EMBERPOOL_AGENT_TOKEN differs there")
        if status != 200 or not isinstance(body, Mapping):  # noqa: PLR2004 - HTTP OK
            raise Unreachable(f"{agent} answered {status} and no state")
        return body
