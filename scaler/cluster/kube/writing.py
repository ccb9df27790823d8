"""A write on its way: which lane it takes, what a 429 does to it, and until when it may take.

The server has done nothing when it asks to wait, so the same request may be sent again; after any other failure the
caller looks first.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final

from scaler.cluster.kube.client import KubeClient, Request
from scaler.cluster.kube.errors import Throttled
from scaler.cluster.kube.lanes import Lane
from scaler.errors import Unreachable

MANAGER: Final = "emberpool"
"""Under which name fields that we write are ours."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Sends writes through a lane.

    Attributes:
        client: reaches the server.
        dry_run: have every write checked by the server, and none carried out.
    """

    client: KubeClient
    dry_run: bool = False

    async def send(self, lane: Lane, request: Request, *, seconds: float) -> Any:  # noqa: ANN401 - JSON is what it is
        """Send a write when its lane lets it, again when the server asks to wait.

        Raises:
            Throttled: the server asks to wait for longer than there is time.
            ClusterError: see `KubeClient.call`; `Unreachable` also when the deadline passes before the lane lets it.
        """
        if self.dry_run:
            request = replace(request, query={**request.query, "dryRun": "All"})
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        try:
            async with asyncio.timeout_at(ends):
                while True:
                    try:
                        async with lane.turn():
                            return await self.client.call(request, seconds=seconds)
                    except Throttled as throttled:
                        lane.pause(throttled.retry_after)
                        if loop.time() + throttled.retry_after >= ends:
                            raise
        except TimeoutError as error:
            raise Unreachable(f"{request.method} {request.path}: not sent within {seconds:g} s") from error


def patch(path: str, body: object, content_type: str) -> Request:
    """Make a patch; its type is always said, never guessed from the body's."""
    return Request(
        method="PATCH",
        path=path,
        body=body,
        content_type=content_type,
        query={"fieldManager": MANAGER},
    )
