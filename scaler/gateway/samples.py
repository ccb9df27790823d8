"""Samples for controllers: built when something material changes, pushed at once, never in anybody's way.

A burst reaches the controller with the first request that waits. What changes faster than samples may leave is
merged, the last state always leaves, and each controller has room for one sample only: a newer one replaces it (with
the higher of both peaks), so that a dead controller costs nothing.
"""

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp
import structlog

from scaler.gateway.observe import GatewayMetrics
from scaler.gateway.queue import PolicyStats
from warmpool.seats import PolicyName

HEARTBEAT_SECONDS = 1.0
"""A sample leaves at least this often."""
WAITING_HEARTBEAT_SECONDS = 0.25
"""And this often while anything waits, for its age grows without any change."""
SMALLEST_GAP_SECONDS = 0.01
"""Samples to one controller leave at most this often."""
PUSH_SECONDS = 1.0
"""Deadline of one push."""
LONGEST_PAUSE_SECONDS = 1.0
"""Pause after repeated failures at most."""
MATERIAL_SHARE = 0.1
"""A change of demand by this share of the last sample's (by one request at least) is material."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySample:
    """One policy's numbers; totals count from the gateway's start."""

    queued: int
    in_flight: int
    oldest_wait_seconds: float
    peak: int
    arrived: int
    completed: int
    refused: int
    failed: int

    def to_json(self) -> dict[str, float]:
        """Return the sample as it goes over the wire."""
        return {
            "queued": self.queued,
            "inFlight": self.in_flight,
            "oldestWaitSeconds": self.oldest_wait_seconds,
            "peak": self.peak,
            "arrived": self.arrived,
            "completed": self.completed,
            "refused": self.refused,
            "failed": self.failed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All policies of one gateway at one moment.

    Attributes:
        instance: the gateway.
        sequence: grows with each sample, across restarts too.
        at: Unix time of the change that it reports, or of its making when there was none.
        policies: per policy.
    """

    instance: str
    sequence: int
    at: float
    policies: Mapping[PolicyName, PolicySample]

    def over(self, older: "Sample | None") -> "Sample":
        """Return this sample with the peaks of one that it replaces."""
        if older is None:
            return self
        policies = dict(self.policies)
        for name, policy in policies.items():
            before = older.policies.get(name)
            if before is not None and before.peak > policy.peak:
                policies[name] = dataclasses.replace(policy, peak=before.peak)
        return dataclasses.replace(self, policies=policies)

    def to_json(self) -> bytes:
        """Return the body of a push."""
        policies = {name: policy.to_json() for name, policy in self.policies.items()}
        sample = {
            "instance": self.instance,
            "sequence": self.sequence,
            "at": self.at,
            "policies": policies,
        }
        return json.dumps(sample, separators=(",", ":")).encode()


class SampleBuilder:
    """Knows what the last sample said, and so what is worth another. PURE: time is an argument (Unix)."""

    def __init__(self, instance: str, started_at: float) -> None:
        """Begin a series; `started_at` puts its sequence above that of an earlier process of the same name."""
        self._instance = instance
        self._sequence = int(started_at * 1000)
        self._said: dict[PolicyName, tuple[int, int]] = {}
        self._peaks: dict[PolicyName, int] = {}
        self._changed_at: float | None = None

    def note(self, policy: PolicyName, queued: int, in_flight: int, now: float) -> bool:
        """Take a change of a policy's numbers, and return whether it is worth a sample."""
        demand = queued + in_flight
        if demand > self._peaks.get(policy, 0):
            self._peaks[policy] = demand
        said_queued, said_demand = self._said.get(policy, (0, 0))
        material = (queued > 0) != (said_queued > 0) or abs(demand - said_demand) >= max(
            1.0, MATERIAL_SHARE * said_demand
        )
        if material and self._changed_at is None:
            self._changed_at = now
        return material

    def build(self, stats: Mapping[PolicyName, PolicyStats], now: float) -> Sample:
        """Make the next sample."""
        self._sequence += 1
        policies = {
            name: PolicySample(
                queued=policy.queued,
                in_flight=policy.in_flight,
                oldest_wait_seconds=policy.oldest_wait_seconds,
                peak=max(self._peaks.get(name, 0), policy.demand),
                arrived=policy.arrived,
                completed=policy.completed,
                refused=policy.refused,
                failed=policy.failed,
            )
            for name, policy in stats.items()
        }
        at = self._changed_at if self._changed_at is not None else now
        self._said = {name: (policy.queued, policy.demand) for name, policy in stats.items()}
        self._peaks = {}
        self._changed_at = None
        return Sample(instance=self._instance, sequence=self._sequence, at=at, policies=policies)


class Outbox:
    """Room for one sample to one controller; a newer one takes its place."""

    def __init__(self, controller: str) -> None:
        self.controller = controller
        self._waiting: Sample | None = None
        self._filled = asyncio.Event()

    def put(self, sample: Sample) -> None:
        """Put a new sample in, over the one that waits."""
        self._waiting = sample.over(self._waiting)
        self._filled.set()

    def put_back(self, sample: Sample) -> None:
        """Put a sample back that could not be delivered, under a newer one."""
        self._waiting = self._waiting.over(sample) if self._waiting is not None else sample
        self._filled.set()

    async def take(self) -> Sample:
        """Wait for a sample and take it out."""
        while self._waiting is None:
            self._filled.clear()
            await self._filled.wait()
        sample, self._waiting = self._waiting, None
        return sample


class SamplePusher:
    """Pushes one gateway's samples to all controllers while `run` runs."""

    def __init__(
        self,
        instance: str,
        controllers: tuple[str, ...],
        read: Callable[[], Mapping[PolicyName, PolicyStats]],
        metrics: GatewayMetrics,
    ) -> None:
        """Make a pusher; `read` gives every policy's numbers at the moment of a sample."""
        self._builder = SampleBuilder(instance, time.time())
        self._read = read
        self._metrics = metrics
        self._outboxes = tuple(Outbox(controller.rstrip("/")) for controller in controllers)
        self._wake = asyncio.Event()

    def note(self, policy: PolicyName, queued: int, in_flight: int) -> None:
        """Take a change of a policy's numbers; a material one makes a sample leave at once."""
        if self._outboxes and self._builder.note(policy, queued, in_flight, time.time()):
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
            stats = self._read()
            sample = self._builder.build(stats, time.time())
            for outbox in self._outboxes:
                outbox.put(sample)
            await asyncio.sleep(SMALLEST_GAP_SECONDS)
            waiting = any(policy.queued for policy in stats.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAITING_HEARTBEAT_SECONDS if waiting else HEARTBEAT_SECONDS):
                    await self._wake.wait()
            self._wake.clear()

    async def _deliver(self, session: aiohttp.ClientSession, outbox: Outbox) -> None:
        failures = 0
        while True:
            sample = await outbox.take()
            problem = await self._push(session, outbox.controller, sample)
            self._metrics.sample(outbox.controller, delivered=problem is None)
            if problem is None:
                if failures:
                    log.info("controller takes samples again", controller=outbox.controller)
                failures = 0
                continue
            if not failures:
                log.warning("controller takes no samples", controller=outbox.controller, problem=problem)
            outbox.put_back(sample)
            failures += 1
            await asyncio.sleep(min(LONGEST_PAUSE_SECONDS, SMALLEST_GAP_SECONDS * 2 ** min(failures, 10)))

    @staticmethod
    async def _push(session: aiohttp.ClientSession, controller: str, sample: Sample) -> str | None:
        """Push one sample and return what went wrong, or None."""
        try:
            async with session.post(
                f"{controller}/v1/signals",
                data=sample.to_json(),
                headers={"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=PUSH_SECONDS),
            ) as response:
                await response.read()
                return None if response.ok else f"status {response.status}"
        except (aiohttp.ClientError, OSError) as error:
            return str(error) or type(error).__name__
