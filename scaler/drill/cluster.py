"""A cluster that has fleets already, as a drill sees it: where it answers, whether it is warm, and what its controller records.

A drill changes nothing there but by its load: it sends requests to a gateway and reads a controller. Records are fetched while the load
runs, since a controller keeps the last ones only; where another one answers from some time on, its records are put to those before.
"""

import asyncio
import json
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp

from scaler.drill.child import Endpoints, status
from scaler.drill.collect import Evidence
from scaler.errors import ScalerError, UserError

_POLL_SECONDS: Final = 0.25
_REQUEST_SECONDS: Final = 5.0
_FINISH_SECONDS: Final = 60.0
"""How long the last records are asked for: another controller may have to take over first, which takes a lease's term."""


class ClusterFailed(ScalerError):
    """The cluster isn't warm, or its controller can't be asked."""


async def ready(
    endpoints: Endpoints, policies: Collection[str], seconds: float, waiting: Callable[[str], None]
) -> None:
    """Wait until every floor serves and every spare is warm.

    Args:
        endpoints: where the cluster answers.
        policies: those that the scenario drills.
        seconds: how long that may take.
        waiting: called with what it is waited for, as it changes.

    Raises:
        ClusterFailed: it isn't in time.
        UserError: its controller doesn't know some of the policies.
    """
    deadline = time.monotonic() + seconds
    last = f"an answer of {endpoints.controller}"
    timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while time.monotonic() < deadline:
            warm, last = await status(session, endpoints, last)
            if warm:
                await _check_known(session, endpoints, policies)
                return
            waiting(last)
            await asyncio.sleep(_POLL_SECONDS)
    raise ClusterFailed(f"the cluster is not warm after {seconds:.0f} s; it waits for {last}")


async def _check_known(
    session: aiohttp.ClientSession, endpoints: Endpoints, policies: Collection[str]
) -> None:
    answer = await _fetch(session, f"{endpoints.controller}/v1/policies")
    known = {str(each.get("name")) for each in (answer or {}).get("items") or ()}
    if missing := sorted(set(policies) - known):
        raise UserError(
            f"the controller at {endpoints.controller} has no policy {', '.join(missing)}",
            hint=f"it has: {', '.join(sorted(known)) or 'none'}; name the files of its own policies in the scenario",
        )


class Records:
    """What controllers have recorded, as far as it was fetched.

    Args:
        controller: base URL of the controller; another may answer there from some time on.
    """

    def __init__(self, controller: str) -> None:
        self._url = f"{controller}/v1/events"
        self._read: dict[str, int] = {}
        self._last_asked = ""
        self.events: list[Mapping[str, Any]] = []

    async def follow(self) -> None:
        """Fetch until cancelled."""
        async with self._session() as session:
            while True:
                await self._fetch_all(session)
                await asyncio.sleep(_POLL_SECONDS)

    async def finish(self, evidence: Evidence) -> None:
        """Fetch what is left, and hand everything over in its order.

        Raises:
            ClusterFailed: nobody gives it; figures without the end of the drill would be wrong.
        """
        deadline = time.monotonic() + _FINISH_SECONDS
        async with self._session() as session:
            while not await self._fetch_all(session):
                if time.monotonic() > deadline:
                    raise ClusterFailed(f"{self._url} doesn't give the last records of the drill")
                await asyncio.sleep(_POLL_SECONDS)
        evidence.events = sorted(self.events, key=lambda event: float(event.get("at") or 0.0))

    async def _fetch_all(self, session: aiohttp.ClientSession) -> bool:
        """Fetch until nothing is left; return False once nobody answers."""
        while more := await self._fetch_some(session):
            pass
        return more is not None

    async def _fetch_some(self, session: aiohttp.ClientSession) -> bool | None:
        """Fetch once; return whether there may be more, and None where nobody answered."""
        after = self._read.get(self._last_asked, 0)
        answer = await _fetch(session, f"{self._url}?{urlencode({'after': after})}")
        if answer is None or not isinstance(items := answer.get("items"), list):
            return None
        instance = str(answer.get("instance"))
        if instance != self._last_asked:  # another one answers, whose numbers are others
            self._last_asked = instance
            if self._read.setdefault(instance, 0) != after:
                return True
        self.events += items
        self._read[instance] = int(answer.get("last") or 0)
        return bool(items)

    @staticmethod
    def _session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS))


async def _fetch(session: aiohttp.ClientSession, url: str) -> Mapping[str, Any] | None:
    try:
        async with session.get(url) as response:
            answer = await response.json()
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
    return answer if response.ok and isinstance(answer, dict) else None


def write_events(evidence: Evidence, path: Path) -> None:
    """Write the records as a controller's own file has them."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in evidence.events)
