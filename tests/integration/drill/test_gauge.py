"""What a request costs, found out over real sockets on a machine whose costs are known."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from scaler.drill.cpu import Spent
from scaler.drill.gauge import GaugeFailed, gauge
from scaler.drill.load import Target
from scaler.drill.scenario import Scenario
from tests.unit.scaler.drill.conftest import read_scenario

IDLE, REQUEST, TOKEN = 0.1, 0.03, 0.01
"""Processor seconds per second, of a request with one token, and of each further one."""
PACE = 50

SCENARIO = """
apiVersion: emberpool.dev/v1alpha1
kind: DrillScenario
metadata: {name: two}
spec:
  policies: {files: [policies.yaml]}
  engine: {maxTokensPerSecond: 50}
  fit: {}
  models:
    - {policy: chat, requestsPerMinute: 1800, arrivals: {process: Gamma, burstinessPercent: 10}, outputTokens: {type: Fixed, value: 8}, streamPercent: 0}
    - {policy: code, requestsPerMinute: 1200, outputTokens: {type: Uniform, min: 4, max: 10}}
  stages:
    - {name: hold, kind: Hold, seconds: 1}
"""


class Machine:
    """Answers requests at a pace, and counts what that would have taken of a processor; it is a meter, too."""

    def __init__(self) -> None:
        self.url = ""
        self.seconds_to_second = 1 / PACE
        self.status = 200
        self.every = 1
        self.asked = 0
        self._used = self._told = 0.0
        self._at = time.monotonic()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked += 1
        if self.status != 200 and self.asked % self.every == 0:
            return web.json_response({"error": {"message": "full"}}, status=self.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(body["max_tokens"]):
            if number:
                await asyncio.sleep(self.seconds_to_second if number == 1 else 1 / PACE)
            self._used += TOKEN if number else REQUEST
            await response.write(b'data: {"choices": [{"text": "x", "token_ids": [120]}]}\n\n')
        usage = f'data: {{"choices": [], "usage": {{"completion_tokens": {body["max_tokens"]}}}}}\n\n'
        await response.write(f"{usage}data: [DONE]\n\n".encode())
        return response

    def spent(self) -> Spent:
        now = time.monotonic()
        seconds, used = now - self._at, self._used - self._told
        self._at, self._told = now, self._used
        return Spent(seconds=seconds, processor=used + IDLE * seconds)


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    made, app = Machine(), web.Application()
    app.add_routes([web.post("/v1/completions", made.complete)])
    async with TestServer(app) as server:
        made.url = str(server.make_url("")).rstrip("/")
        yield made


@pytest.fixture
def scenario() -> Scenario:
    return read_scenario(SCENARIO)


def target(machine: Machine) -> Target:
    return Target(gateway=machine.url, models={"chat": "chat", "code": "code"}, timeout=20)


async def test_the_costs_of_a_machine_are_found(machine: Machine, scenario: Scenario) -> None:
    async with asyncio.timeout(60):
        found = await gauge(scenario, target(machine), machine)
    assert found.idle == pytest.approx(IDLE)
    assert found.request == pytest.approx(REQUEST)
    assert found.token == pytest.approx(TOKEN, rel=0.25)  # what is on its way at both ends


async def test_a_request_that_fails_now_and_then_changes_no_cost(
    machine: Machine, scenario: Scenario
) -> None:
    machine.status, machine.every = 503, 4
    async with asyncio.timeout(60):
        found = await gauge(scenario, target(machine), machine)
    assert found.request == pytest.approx(REQUEST)
    assert found.token == pytest.approx(TOKEN, rel=0.25)


async def test_requests_that_fail_have_no_cost(machine: Machine, scenario: Scenario) -> None:
    machine.status = 503
    async with asyncio.timeout(60):
        with pytest.raises(GaugeFailed, match=r"can't be measured: .*Http5xx: 503"):
            await gauge(scenario, target(machine), machine)


async def test_a_machine_without_a_token_is_not_taken_for_a_free_one(
    machine: Machine, scenario: Scenario
) -> None:
    machine.seconds_to_second = 1.5
    async with asyncio.timeout(60):
        with pytest.raises(GaugeFailed, match=r"can't be measured: no token came in \d+ s"):
            await gauge(scenario, target(machine), machine)
