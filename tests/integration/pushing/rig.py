"""A controller's signals behind their HTTP, and those who push: well-behaved ones and others."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.core.model import Load
from scaler.policy.compile import compile_set
from scaler.policy.document import parse_documents
from scaler.runtime.clock import SystemClock
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.metrics import ControllerMetrics
from scaler.runtime.push_tokens import PushTokens
from scaler.runtime.signal_api import SignalApi
from scaler.runtime.signals import PolicySignals
from warmpool.seats import PolicyName

CHAT, CODE = PolicyName("chat"), PolicyName("code")
TOKEN, SIGNAL_TOKEN = "agents' own", "for those who push"
PATIENCE_SECONDS = 30.0
POLICIES = "---\n".join(
    f"apiVersion: emberpool.dev/v1alpha1\n{each}"
    for each in (
        "kind: Fleet\nmetadata: {name: spares}\nspec: {maxSeats: 2}\n",
        *(
            f"kind: ScalingPolicy\nmetadata: {{name: {name}}}\n"
            "spec: {fleets: [{name: spares, targetInFlight: 8}]}\n"
            for name in ("chat", "code")
        ),
    )
)


def sample(
    instance: str, sequence: int, numbers: Mapping[str, Any], policy: str = "chat", **fields: Any
) -> dict[str, Any]:
    body = {
        "instance": instance,
        "sequence": sequence,
        "at": time.time(),
        "policies": {policy: numbers},
    }
    return body | fields


@dataclass
class Server:
    """Signals as they listen."""

    url: str
    signals: PolicySignals
    mailbox: Mailbox
    registry: CollectorRegistry
    session: aiohttp.ClientSession
    sequence: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def post(
        self, body: object, *, token: str = SIGNAL_TOKEN, session: aiohttp.ClientSession | None = None
    ) -> tuple[int, str]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with (session or self.session).post(
            f"{self.url}/v1/signals", data=raw, headers={"Authorization": f"Bearer {token}"}
        ) as answer:
            return answer.status, await answer.text()

    async def push(self, numbers: Mapping[str, Any], policy: str = "chat", instance: str = "good") -> int:
        return (await self.post(sample(instance, next(self.sequence), numbers, policy)))[0]

    async def get(self) -> list[dict[str, Any]]:
        async with self.session.get(f"{self.url}/v1/signals") as answer:
            assert answer.status == 200
            return list((await answer.json())["items"])

    def load(self, policy: PolicyName = CHAT) -> Load:
        return self.signals.load(policy, time.monotonic())

    def counted(self, outcome: str, way: str = "Http") -> float:
        labels = {"way": way, "outcome": outcome}
        value = self.registry.get_sample_value("emberpool_signal_samples_total", labels)
        assert value is not None
        return value

    async def until(self, true: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not true():
                    await asyncio.sleep(0.005)  # between two looks
        except TimeoutError:
            raise AssertionError(f"waited for {what}; {self.load()}") from None


@asynccontextmanager
async def served(file: Path | None = None) -> AsyncIterator[Server]:
    mailbox, registry = Mailbox(), CollectorRegistry()
    policies = compile_set(parse_documents(POLICIES, "f.yaml"))
    tokens = PushTokens({"agents": TOKEN, "pushers": SIGNAL_TOKEN}, file)
    signals = PolicySignals(
        policies, mailbox, SystemClock(), ControllerMetrics(registry), {}, lambda: tokens.names
    )
    app = web.Application()
    app.add_routes(SignalApi(signals, tokens).routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            yield Server(url, signals, mailbox, registry, session)
    finally:
        await runner.cleanup()
