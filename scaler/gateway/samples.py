"""Samples for controllers: built when something material changes, pushed at once, never in anybody's way.

A burst reaches the controller with the first request that waits. A sample names the policies that changed and those whose
turn it is, and a few at most, so that a gateway of a thousand policies sends no more than it must. What changes faster
than samples may leave is merged, the last state always leaves, and of each policy one state waits for a controller: a
newer one replaces it (with the higher of both peaks), so that a dead controller costs nothing.
"""

import asyncio
import contextlib
import dataclasses
import json
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import aiohttp
import structlog

from scaler.gateway.observe import GatewayMetrics
from scaler.gateway.queue import Dispatcher, PolicyStats
from scaler.gateway.settings import GatewaySettings
from warmpool.seats import PolicyName

HEARTBEAT_SECONDS = 1.0
"""Each policy is named at least this often."""
WAITING_HEARTBEAT_SECONDS = 0.25
"""And this often while anything of it waits, for its age grows without any change."""
MOST_POLICIES = 128
"""Policies that one sample names at most: some 30 KB, which a controller reads in about a millisecond."""
SMALLEST_GAP_SECONDS = 0.01
"""Samples to one controller leave at most this often."""
PUSH_SECONDS = 1.0
"""Deadline of one push."""
LONGEST_PAUSE_SECONDS = 1.0
"""Pause after repeated failures at most."""
MATERIAL_SHARE = 0.1
"""A change of demand by this share of the last sample's (by one request at least) is material."""

_UNAUTHORIZED = (
    "status 401: it wants another token; set EMBERPOOL_SIGNAL_TOKEN here to the controller's EMBERPOOL_SIGNAL_TOKEN, or to "
    "its EMBERPOOL_AGENT_TOKEN"
)
"""What is wrong where a controller doesn't take the gateway's token."""
_NAME_TAKEN = (
    "status 409: another process pushes as gateway `%s`, so nothing that waits here counts and both take whole shares of the "
    "slots; give each gateway an --instance of its own (or EMBERPOOL_GATEWAY_INSTANCE), or none. One that was just restarted gets "
    "in two seconds after its predecessor's last word"
)
"""What is wrong where two gateways have one name."""
_LONGEST_REASON = 300

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySample:
    """One policy's numbers.

    Attributes:
        stats: as they are; totals count from the gateway's start.
        peak: the most requests that were here since the last sample, one that was refused included.
    """

    stats: PolicyStats
    peak: int

    def to_json(self) -> dict[str, float]:
        """Return the sample as it goes over the wire."""
        stats, totals = self.stats, self.stats.totals
        return {
            "queued": stats.queued,
            "inFlight": stats.in_flight,
            "oldestWaitSeconds": stats.oldest_wait_seconds,
            "peak": self.peak,
            "arrived": totals.arrived,
            "completed": totals.completed,
            "refused": totals.refused,
            "refusedSeconds": totals.refused_seconds,
            "failed": totals.failed,
            "abandoned": totals.abandoned,
            "answered": totals.answered,
            "late": totals.late,
            "firstSeconds": round(totals.first_seconds, 3),
            "gaps": totals.gaps,
            "gapSeconds": round(totals.gap_seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What there is to say of some policies at one moment.

    Attributes:
        at: Unix time of the first change that it reports, or of its making when there was none.
        policies: per policy; those that changed come first.
    """

    at: float
    policies: Mapping[PolicyName, PolicySample]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A state as it is pushed to one controller.

    Attributes:
        instance: the gateway.
        run: which process of that name it is.
        sequence: grows with each sample, across restarts too.
        state: what it says.
    """

    instance: str
    run: str
    sequence: int
    state: State

    def to_json(self) -> bytes:
        """Return the body of a push."""
        sample = {
            "instance": self.instance,
            "run": self.run,
            "kind": "Gateway",
            "sequence": self.sequence,
            "at": self.state.at,
            "policies": {name: policy.to_json() for name, policy in self.state.policies.items()},
        }
        return json.dumps(sample, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class _Said:
    """What the last state said of a policy, and when."""

    at: float
    queued: int
    demand: int

    def due(self, now: float) -> float:
        """Return in how many seconds it is to be said again; 0 after the clock was set back."""
        age = now - self.at
        return (WAITING_HEARTBEAT_SECONDS if self.queued else HEARTBEAT_SECONDS) - age if age >= 0.0 else 0.0


_NEVER = _Said(at=0.0, queued=0, demand=0)


class StateBuilder:
    """Knows what was said last, and so what is worth saying. PURE: time is an argument (Unix)."""

    def __init__(self) -> None:
        self._said: dict[PolicyName, _Said] = {}
        self._peaks: dict[PolicyName, int] = {}
        self._changed: dict[PolicyName, float] = {}

    def note(self, policy: PolicyName, queued: int, in_flight: int, now: float, *, beyond: int = 0) -> bool:
        """Take a change of a policy's numbers, and return whether it is worth a sample.

        Args:
            policy: whose.
            queued: requests that wait.
            in_flight: requests that were sent.
            now: Unix time.
            beyond: requests that are here for the moment of their refusal; of them the peak tells.
        """
        demand = queued + in_flight + beyond
        if demand > self._peaks.get(policy, 0):
            self._peaks[policy] = demand
        said = self._said.get(policy, _NEVER)
        material = (queued > 0) != (said.queued > 0) or abs(demand - said.demand) >= max(
            1.0, MATERIAL_SHARE * said.demand
        )
        if material:
            self._changed.setdefault(policy, now)
        return material

    def due(self, policies: Collection[PolicyName], now: float) -> list[PolicyName]:
        """Return what the next state should say of all that there is: what changed, then what wasn't said for longest."""
        for gone in self._said.keys() - policies:
            del self._said[gone]
        for gone in self._changed.keys() - policies:
            del self._changed[gone]
        waiting = [
            name
            for name in policies
            if name not in self._changed and self._said.get(name, _NEVER).due(now) <= 0.0
        ]
        waiting.sort(key=lambda name: self._said.get(name, _NEVER).at)
        return [*self._changed, *waiting][:MOST_POLICIES]

    def build(self, stats: Mapping[PolicyName, PolicyStats], now: float) -> State:
        """Make the next state, of the policies that are due."""
        policies = {
            name: PolicySample(stats=policy, peak=max(self._peaks.pop(name, 0), policy.demand))
            for name, policy in stats.items()
        }
        changes = [at for name in stats if (at := self._changed.pop(name, None)) is not None]
        self._said |= {name: _Said(now, policy.queued, policy.demand) for name, policy in stats.items()}
        return State(at=min(changes, default=now), policies=policies)

    def rest(self, now: float) -> float:
        """Return after how many seconds something is due, if nothing changes meanwhile."""
        if self._changed:
            return 0.0
        soonest = min((said.due(now) for said in self._said.values()), default=HEARTBEAT_SECONDS)
        return min(HEARTBEAT_SECONDS, max(0.0, soonest))


class Outbox:
    """Room for one state of each policy, on its way to one controller."""

    def __init__(self, controller: str, instance: str, run: str, started_at: float) -> None:
        """Begin a series; `started_at` puts its sequence above that of an earlier process of the same name."""
        self.controller = controller
        self._instance = instance
        self._run = run
        self._sequence = int(started_at * 1000)
        self._at = 0.0
        self._waiting: dict[PolicyName, PolicySample] | None = None
        self._filled = asyncio.Event()

    def put(self, state: State) -> None:
        """Put a new state in, over what waits."""
        waiting = self._waiting or {}
        self._at, self._waiting = state.at, waiting | _above(state.policies, waiting)
        self._filled.set()

    def put_back(self, state: State) -> None:
        """Put a state back that could not be delivered, under what is newer."""
        waiting = self._waiting or {}
        self._at = self._at if self._waiting else state.at
        self._waiting = {**state.policies, **_above(waiting, state.policies)}
        self._filled.set()

    async def take(self) -> Sample:
        """Wait for a state and take it out, or as much of it as a sample holds."""
        while self._waiting is None:
            self._filled.clear()
            await self._filled.wait()
        names = list(self._waiting)[:MOST_POLICIES]
        policies = {name: self._waiting.pop(name) for name in names}
        if not self._waiting:
            self._waiting = None
        self._sequence += 1
        state = State(at=self._at, policies=policies)
        return Sample(instance=self._instance, run=self._run, sequence=self._sequence, state=state)


def _above(
    newer: Mapping[PolicyName, PolicySample], older: Mapping[PolicyName, PolicySample]
) -> dict[PolicyName, PolicySample]:
    """Return what is newer with the peaks of what it replaces."""
    return {
        name: dataclasses.replace(policy, peak=older[name].peak)
        if name in older and older[name].peak > policy.peak
        else policy
        for name, policy in newer.items()
    }


class _Problem(NamedTuple):
    """Why a push failed.

    Attributes:
        status: HTTP's; 0: there was no answer.
        text: in words, with what mends it.
    """

    status: int
    text: str


class SamplePusher:
    """Pushes one gateway's samples to all controllers while `run` runs.

    Args:
        settings: the gateway's: who it is, which controllers there are, and what to show them.
        dispatcher: whose numbers they are.
        metrics: counts samples.
    """

    def __init__(self, settings: GatewaySettings, dispatcher: Dispatcher, metrics: GatewayMetrics) -> None:
        self._builder = StateBuilder()
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._headers = {"Content-Type": "application/json"}
        if settings.token:
            self._headers["Authorization"] = f"Bearer {settings.token}"
        self._instance = settings.instance
        began, run = time.time(), secrets.token_hex(8)
        self._outboxes = tuple(
            Outbox(controller.rstrip("/"), settings.instance, run, began)
            for controller in settings.controllers
        )
        self._wake = asyncio.Event()

    def note(self, policy: PolicyName, queued: int, in_flight: int, beyond: int) -> None:
        """Take a change of a policy's numbers, as `StateBuilder` says; a material one makes a sample leave at once."""
        if self._outboxes and self._builder.note(policy, queued, in_flight, time.time(), beyond=beyond):
            self._wake.set()

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Push until cancelled."""
        if not self._outboxes:
            return
        async with asyncio.TaskGroup() as group:
            for outbox in self._outboxes:
                group.create_task(self._deliver(session, outbox), name=f"samples to {outbox.controller}")
            await self._make()

    async def _make(self) -> None:
        while True:
            state = self._state()
            for outbox in self._outboxes:
                outbox.put(state)
            await asyncio.sleep(SMALLEST_GAP_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._builder.rest(time.time())):
                    await self._wake.wait()
            self._wake.clear()

    def _state(self) -> State:
        now, monotonic = time.time(), time.monotonic()
        names = self._builder.due(self._dispatcher.policies(), now)
        return self._builder.build({name: self._dispatcher.stats(name, monotonic) for name in names}, now)

    async def _deliver(self, session: aiohttp.ClientSession, outbox: Outbox) -> None:
        failures, last = 0, 0
        while True:
            sample = await outbox.take()
            problem = await self._push(session, outbox.controller, sample)
            self._metrics.sample(outbox.controller, delivered=problem is None)
            if problem is None:
                if failures:
                    log.info("controller takes samples again", controller=outbox.controller)
                failures = 0
                continue
            if not failures or problem.status != last:
                log.warning("controller takes no samples", controller=outbox.controller, problem=problem.text)
            outbox.put_back(sample.state)
            failures, last = failures + 1, problem.status
            await asyncio.sleep(min(LONGEST_PAUSE_SECONDS, SMALLEST_GAP_SECONDS * 2 ** min(failures, 10)))

    async def _push(self, session: aiohttp.ClientSession, controller: str, sample: Sample) -> _Problem | None:
        """Push one sample and return what went wrong, or None."""
        try:
            async with session.post(
                f"{controller}/v1/signals",
                data=sample.to_json(),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=PUSH_SECONDS),
            ) as response:
                body, status = await response.read(), response.status
                if response.ok:
                    return None
                if status == 401:  # noqa: PLR2004 - HTTP
                    return _Problem(status, _UNAUTHORIZED)
                if status == 409:  # noqa: PLR2004 - HTTP
                    return _Problem(status, _NAME_TAKEN % self._instance)
                return _Problem(status, f"status {status}: {_said_why(body)}")
        except (aiohttp.ClientError, OSError) as error:
            return _Problem(0, str(error) or type(error).__name__)


def _said_why(body: bytes) -> str:
    """Return what a controller says of a sample that it refuses."""
    try:
        return str(json.loads(body)["error"]["message"])[:_LONGEST_REASON]
    except (ValueError, TypeError, KeyError):
        return "no reason given"
