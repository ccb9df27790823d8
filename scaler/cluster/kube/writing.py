"""A write on its way: which lane it takes, what a 429 does to it, and until when it may take.

The server has done nothing when it asks to wait, so the same request may be sent again. After any other failure that may be done
with what changes nothing when it arrives twice; with everything else the caller looks first.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from scaler.cluster.kube.client import KubeClient, Request
from scaler.cluster.kube.errors import Throttled
from scaler.cluster.kube.lanes import Lane
from scaler.errors import Unreachable

MANAGER: Final = "emberpool"
"""Under which name fields that we write are ours."""
_PAUSE_SECONDS = 0.02
"""Before what has failed is tried again; twice as long each time."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Sends writes through a lane.

    Attributes:
        client: reaches the server.
        dry_run: have every write checked by the server, and none carried out.
    """

    client: KubeClient
    dry_run: bool = False

    async def read(self, request: Request, *, seconds: float) -> Any:  # noqa: ANN401 - JSON is what it is
        """Read an object that a write depends on, again while there is time and the server fails or asks to wait.

        Raises:
            ClusterError: see `KubeClient.call`.
        """
        ends = asyncio.get_running_loop().time() + seconds
        return await self._again(lambda left: self.client.call(request, seconds=left), ends)

    async def send(self, lane: Lane, request: Request, *, seconds: float, repeatable: bool = False) -> Any:  # noqa: ANN401 - JSON is what it is
        """Send a write when its lane lets it, again when the server asks to wait.

        Args:
            lane: the lane that it takes.
            request: the write.
            seconds: until it must have been answered.
            repeatable: it is also sent again when the server fails or the answer is lost. So may be sent what changes nothing
                when it arrives twice, because it asks for a version, an identity, or what is so then.

        Raises:
            Throttled: the server asks to wait for longer than there is time.
            ClusterError: see `KubeClient.call`; `Unreachable` also when the deadline passes before the lane lets it.
        """
        if self.dry_run:
            request = replace(request, query={**request.query, "dryRun": "All"})

        async def sent(left: float) -> Any:  # noqa: ANN401 - JSON is what it is
            try:
                async with lane.turn():
                    return await self.client.call(request, seconds=left)
            except Throttled as throttled:
                lane.pause(throttled.retry_after)
                raise

        ends = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(ends):
                return await self._again(sent, ends, failed=repeatable)
        except TimeoutError as error:
            raise Unreachable(f"{request.method} {request.path}: not sent within {seconds:g} s") from error

    async def _again(
        self, call: Callable[[float], Awaitable[Any]], ends: float, *, failed: bool = True
    ) -> Any:  # noqa: ANN401 - JSON is what it is
        """Make a call that gets the seconds that are left; again if the server asks to wait, and if it `failed` as well."""
        loop, pause = asyncio.get_running_loop(), _PAUSE_SECONDS
        while True:
            try:
                return await call(max(0.0, ends - loop.time()))
            except Throttled as throttled:
                wait = throttled.retry_after
                if loop.time() + wait >= ends:
                    raise
            except Unreachable:
                wait, pause = pause, 2 * pause
                if not failed or loop.time() + wait >= ends:
                    raise
            await asyncio.sleep(wait)


def patch(path: str, body: object, content_type: str) -> Request:
    """Make a patch; its type is always said, never guessed from the body's."""
    return Request(
        method="PATCH",
        path=path,
        body=body,
        content_type=content_type,
        query={"fieldManager": MANAGER},
    )
