"""The services of docker-compose.yaml as plain processes: the same commands, real engines, a burst through the gateway."""

import asyncio
import json
import random
import string
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scaler.drill.load import Tally, Target, generate
from scaler.drill.records import Outcome
from scaler.drill.schedule import Request
from tests.deploy.compose import ROOT, Here, load
from tests.integration.processes.rig import Processes

READY_SECONDS = 60.0
SEATS = ("seat-0", "seat-1", "seat-2")
ANSWER_TOKENS = 20
"""At 25 tokens per second an answer takes 0.8 s."""


def requests(policy: str, start: float, seconds: float, per_second: float) -> Iterator[Request]:
    rng = random.Random(f"{policy}/{start}")
    for number in range(round(seconds * per_second)):
        yield Request(
            at=start + number / per_second,
            policy=policy,
            stage="burst" if per_second > 2 else "baseline",
            prompt="".join(rng.choices(string.ascii_lowercase, k=24)),
            prompt_tokens=24,
            max_tokens=ANSWER_TOKENS,
            stream=True,
        )


async def ready(here: Here, session: aiohttp.ClientSession) -> None:
    deadline, last = time.monotonic() + READY_SECONDS, ""
    while time.monotonic() < deadline:
        try:
            async with session.get(f"{here.url('controller', 9080)}/v1/status") as response:
                body = await response.json()
            async with session.get(f"{here.url('gateway', 9082)}/readyz") as response:
                if body["ready"] and response.status == 200:
                    return
            last = str(body["waitingFor"])
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            last = str(error)
        await asyncio.sleep(0.1)
    logs = {name: here.processes.log(name)[-1000:] for name in ("controller", "gateway", *SEATS)}
    raise AssertionError(f"not ready; waits for {last}; logs: {json.dumps(logs, indent=1)}")


def events(here: Here, kind: str) -> list[dict[str, Any]]:
    lines = (here.path("state") / "events.jsonl").read_text("utf-8").splitlines()
    return [event for line in lines if (event := json.loads(line))["kind"] == kind]


@pytest.mark.drill
async def test_a_burst_through_the_services_promotes_and_loses_nothing(tmp_path: Path) -> None:
    timeout = aiohttp.ClientTimeout(total=5)
    async with Processes(tmp_path) as processes, aiohttp.ClientSession(timeout=timeout) as session:
        here = Here.of(tmp_path, processes)
        for early in ("gateway", "controller", "prepare"):  # in no order: each waits for what it needs
            await here.start(early)
        assert await processes.wait("prepare") == 0, processes.log("prepare")
        for seat in SEATS:
            await here.start(seat)
        await ready(here, session)
        before = len(events(here, "promotion"))

        load_ = [*requests("chat", 0, 8, 1), *requests("code", 0, 8, 1), *requests("chat", 2, 4, 10)]
        tally = Tally()
        tally.begin()
        target = Target(
            gateway=here.url("gateway", 8000), models={"chat": "chat", "code": "code"}, timeout=30
        )
        await generate(sorted(load_, key=lambda each: each.at), target, tally)

        assert [r for r in tally.records if r.outcome is not Outcome.OK] == []
        assert len(tally.records) == len(load_)
        promoted = [e for e in events(here, "promotion")[before:] if e["outcome"] == "Promoted"]
        assert [e for e in promoted if e["policy"] == "chat"] != []
        claims = {e["claim"] for e in promoted}
        assert claims & {e["claim"] for e in events(here, "firstToken")}
        await scraped(here, session)
        for name in ("controller", "gateway", *SEATS):
            assert await processes.end(name) == 0, processes.log(name)


async def scraped(here: Here, session: aiohttp.ClientSession) -> None:
    """Every target of prometheus.yml answers as Prometheus would ask it."""
    config = load(ROOT / "deploy/compose/prometheus.yml")
    for job in config["scrape_configs"]:
        token = {"Authorization": "Bearer secret"} if "authorization" in job else {}
        for target in job["static_configs"][0]["targets"]:
            service, _, port = target.partition(":")
            async with session.get(f"{here.url(service, int(port))}/metrics", headers=token) as response:
                assert response.status == 200
                assert "\nemberpool_" in await response.text()
