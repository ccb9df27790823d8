"""First tokens of promoted residents: told by the gateway that saw them to the controller whose record waits for them.

A gateway doesn't know which of its endpoints were just promoted; it reports the first content of each one that is new
in its table, once. Reports are few and small, and are dropped rather than kept when nobody takes them.
"""

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import structlog

from scaler.errors import SampleRejected
from scaler.gateway.observe import Outcome
from scaler.gateway.routes import Endpoint, EndpointKey
from warmpool.seats import PolicyName, SeatName

log = structlog.get_logger(__name__)

MOST_WAITING = 256
"""Reports that wait for one controller; the oldest goes first."""
LONGEST_AGE_SECONDS = 5.0
"""An older report isn't sent: it could be taken for that of a later promotion of the same resident."""
_PUSH_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """The first content of one endpoint since it entered rotation; Unix times.

    Attributes:
        policy, seat: the resident.
        dispatched: when the request got its slot there.
        at: when its first content came.
        queued_seconds: how long the request had waited before.
    """

    policy: PolicyName
    seat: SeatName
    dispatched: float
    at: float
    queued_seconds: float

    def to_json(self) -> dict[str, Any]:
        """Render it for the wire."""
        return {
            "policy": self.policy,
            "seat": self.seat,
            "dispatched": self.dispatched,
            "at": self.at,
            "queuedSeconds": self.queued_seconds,
        }


def parse(body: bytes, now: float) -> list[FirstToken]:
    """Read a gateway's reports; those that are too old to be told apart from later ones are left out.

    Args:
        body: of the POST.
        now: Unix time.

    Raises:
        SampleRejected: it is malformed.
    """
    try:
        items = json.loads(body)["items"]
        if len(items) > MOST_WAITING:
            raise SampleRejected(f"{len(items)} first tokens at once; {MOST_WAITING} at most")
        tokens = [
            FirstToken(
                policy=PolicyName(_text(item["policy"])),
                seat=SeatName(_text(item["seat"])),
                dispatched=_time(item["dispatched"]),
                at=_time(item["at"]),
                queued_seconds=_time(item["queuedSeconds"]),
            )
            for item in items
        ]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise SampleRejected(f"not first tokens: {error!r}") from error
    return [token for token in tokens if abs(now - token.at) <= 2 * LONGEST_AGE_SECONDS]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise TypeError(f"{value!r} is no time")
    return float(value)


class FirstTokenReporter:
    """The gateway's observer: reports first tokens to all controllers while `run` runs.

    Args:
        instance: the gateway's id.
        controllers: their base URLs.
        dropped: counts reports that nobody took.
    """

    def __init__(
        self, instance: str, controllers: Sequence[str], dropped: Callable[[], None] = lambda: None
    ) -> None:
        self._instance = instance
        self._outboxes = tuple(_Outbox(controller.rstrip("/"), dropped) for controller in controllers)
        self._listed: dict[PolicyName, frozenset[EndpointKey]] = {}
        self._awaited: set[EndpointKey] = set()

    def listed(self, policy: PolicyName, keys: Collection[EndpointKey]) -> None:
        """Take note of a policy's endpoints in a new table, before the first request goes to them."""
        before, known = self._listed.pop(policy, frozenset()), frozenset(keys)
        self._awaited -= before - known
        self._awaited |= known - before
        if known:
            self._listed[policy] = known

    def first_content(
        self, policy: PolicyName, endpoint: Endpoint, dispatched_at: float, at: float, queued_before: float
    ) -> None:
        """See `GatewayObserver.first_content`."""
        if endpoint.key not in self._awaited:
            return
        self._awaited.discard(endpoint.key)
        token = FirstToken(
            policy=policy, seat=endpoint.seat, dispatched=dispatched_at, at=at, queued_seconds=queued_before
        )
        for outbox in self._outboxes:
            outbox.put(token)

    def finished(
        self, policy: PolicyName, outcome: Outcome, *, endpoint: Endpoint | None, at: float, seconds: float
    ) -> None:
        """See `GatewayObserver.finished`: nothing to do."""

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as group:
            for outbox in self._outboxes:
                group.create_task(
                    outbox.deliver(session, self._instance), name=f"tokens to {outbox.controller}"
                )


class _Outbox:
    """What waits for one controller."""

    def __init__(self, controller: str, dropped: Callable[[], None]) -> None:
        self.controller = controller
        self._dropped = dropped
        self._waiting: deque[FirstToken] = deque(maxlen=MOST_WAITING)
        self._filled = asyncio.Event()

    def put(self, token: FirstToken) -> None:
        if len(self._waiting) == MOST_WAITING:
            self._dropped()
        self._waiting.append(token)
        self._filled.set()

    async def deliver(self, session: aiohttp.ClientSession, instance: str) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            await self._filled.wait()
            self._filled.clear()
            tokens = self._take(time.time())
            if not tokens:
                continue
            if await self._push(
                session, {"instance": instance, "items": [each.to_json() for each in tokens]}
            ):
                pause = _FIRST_PAUSE_SECONDS
                continue
            for token in reversed(tokens):
                if len(self._waiting) < MOST_WAITING:
                    self._waiting.appendleft(token)
                else:
                    self._dropped()
            self._filled.set()
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause)

    def _take(self, now: float) -> list[FirstToken]:
        tokens = [each for each in self._waiting if now - each.at <= LONGEST_AGE_SECONDS]
        for _ in range(len(self._waiting) - len(tokens)):
            self._dropped()
        self._waiting.clear()
        return tokens

    async def _push(self, session: aiohttp.ClientSession, body: Mapping[str, Any]) -> bool:
        """Push once; return whether that is over, well or with a refusal that a repeat wouldn't change."""
        timeout = aiohttp.ClientTimeout(total=_PUSH_SECONDS)
        try:
            async with session.post(
                f"{self.controller}/v1/first-tokens", json=body, timeout=timeout
            ) as response:
                await response.read()
                if 400 <= response.status < 500:  # noqa: PLR2004 - HTTP: our fault
                    log.warning("first tokens refused", controller=self.controller, status=response.status)
                    return True
                return response.ok
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False  # samples go the same way and say so in the log
