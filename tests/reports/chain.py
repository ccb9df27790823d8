"""All of a policy's signals as the controller has them, over real sockets: sources, board, pushed samples, one load."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.core.model import Load
from scaler.policy.compile import PolicySet, compile_set
from scaler.policy.document import parse_documents
from scaler.runtime.clock import SystemClock
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.metrics import ControllerMetrics
from scaler.runtime.signal_factories import factories
from scaler.runtime.signal_options import SignalOptions
from scaler.runtime.signals import PolicySignals
from tests.fakes.memory_cluster import MemoryCluster
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

PATIENCE_SECONDS: Final = 20.0
GATEWAY: Final = "{name: gateway, type: Pushed}"
ENGINES: Final = "{name: engines, type: EngineMetrics, intervalMilliseconds: 50, timeoutMilliseconds: 200}"
SPARES: Final = FleetName("spares")

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def query(url: str, measures: str, *, name: str = "query", **more: Any) -> str:
    """Return a signal that asks a server once a second, as JSON."""
    signal = {"name": name, "type": "Prometheus", "server": url, "query": "sum(x)", "measures": measures}
    return json.dumps({**signal, "intervalSeconds": 1, "timeoutSeconds": 1, **more})


def policies(**signals: Sequence[str]) -> PolicySet:
    """Make a set with a policy for each name, with those signals, all on one fleet."""
    documents = ["kind: Fleet\nmetadata: {name: spares}\nspec: {maxSeats: 99}\n"]
    documents += [
        f"kind: ScalingPolicy\nmetadata: {{name: {name}}}\nspec:\n"
        f"  fleets: [{{name: spares, targetInFlight: 8}}]\n  signals: [{', '.join(of)}]\n"
        for name, of in signals.items()
    ]
    text = "---\n".join(f"apiVersion: emberpool.dev/v1alpha1\n{each}" for each in documents)
    return compile_set(parse_documents(text, "f.yaml"))


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """Answer every request; yield the base URL."""
    runner = web.ServerRunner(web.Server(answer, access_log=None), shutdown_timeout=0.1)  # type: ignore[arg-type]
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def vector(*values: str) -> web.Response:
    """What Prometheus answers: one series for each value."""
    now = time.time()
    result = [{"metric": {"namespace": str(n)}, "value": [now, value]} for n, value in enumerate(values)]
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})


def page(running: float, waiting: float = 0.0) -> web.Response:
    """What an engine's metrics page says."""
    return web.Response(text=f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n")


@dataclass
class Chain:
    """The signals of a set while they are read."""

    signals: PolicySignals
    cluster: MemoryCluster
    mailbox: Mailbox
    _sequence: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def engine(self, name: str, url: str, *, policy: str = "chat", uid: str = "") -> SeatName:
        """Put an engine into rotation."""
        of, wall = PolicyName(policy), time.time()
        resident = Resident(policy=of, state=ResidentState.SERVING, since=wall, address=url)
        seat = Seat(
            name=SeatName(name),
            uid=uid or name,
            version="",
            fleet=SPARES,
            residents=(resident,),
            serving=frozenset({of}),
        )
        return self.cluster.objects.add(seat).name

    def push(self, instance: str = "gateway-1", *, policy: str = "chat", **numbers: float) -> None:
        """Push a gateway's sample of one policy."""
        body = {
            "instance": instance,
            "kind": "Gateway",
            "sequence": next(self._sequence),
            "at": time.time(),
            "policies": {policy: numbers},
        }
        self.signals.ingest(json.dumps(body).encode())

    def load(self, policy: str = "chat", *, later: float = 0.0) -> Load:
        """Return what the signals come to; `later`: if nothing more is read for so many seconds."""
        return self.signals.load(PolicyName(policy), time.monotonic() + later)

    def error(self, signal: str, policy: str = "chat") -> str:
        """Return why a signal could not be read the last time; empty if it could."""
        states = {(each["policy"], each["name"]): each for each in self.signals.listed()}
        return "" if (last := states[policy, signal]["lastError"]) is None else str(last["message"])

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for what is read to make something true."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not true():
                await self.mailbox.wait(0.02)  # a failure wakes nobody


@asynccontextmanager
async def chain(**signals: Sequence[str]) -> AsyncIterator[Chain]:
    """Read the signals of these policies for as long as the block runs."""
    of, mailbox = policies(**signals), Mailbox()
    cluster = MemoryCluster({SPARES: list(of.policies)}, time.time)
    read = PolicySignals(
        of,
        mailbox,
        SystemClock(),
        ControllerMetrics(CollectorRegistry()),
        factories(cluster, SignalOptions()),
    )
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read.run())
        try:
            yield Chain(read, cluster, mailbox)
        finally:
            reading.cancel()
