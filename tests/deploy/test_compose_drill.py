"""The services of docker-compose.yaml as plain processes: the same commands, real engines, a burst through the gateway."""

import asyncio
import json
import os
import random
import re
import string
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import aiohttp
import pytest

from scaler.drill.load import Tally, Target, generate
from scaler.drill.records import Outcome
from scaler.drill.schedule import Request
from tests.deploy.compose import ROOT, Here, load
from tests.deploy.monitoring import RUNBOOKS, catalogue, commands, family
from tests.fakes.forked import Emberpool
from tests.integration.processes.rig import Processes, events_in

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


@pytest.mark.drill
async def test_a_burst_through_the_services_promotes_and_loses_nothing(tmp_path: Path) -> None:
    timeout = aiohttp.ClientTimeout(total=30)
    async with Processes(tmp_path) as processes, aiohttp.ClientSession(timeout=timeout) as session:
        here = Here.of(tmp_path, processes)
        for early in ("gateway", "controller", "prepare"):  # in no order: each waits for what it needs
            await here.start(early)
        assert await processes.wait("prepare") == 0, processes.log("prepare")
        for seat in SEATS:
            await here.start(seat)
        await ready(here, session)
        before = len(events_in(here.path("state"), "promotion"))

        load_ = [*requests("chat", 0, 8, 1), *requests("code", 0, 8, 1), *requests("chat", 2, 4, 10)]
        tally = Tally()
        tally.begin()
        target = Target(
            gateway=here.url("gateway", 8000), models={"chat": "chat", "code": "code"}, timeout=30
        )
        await generate(sorted(load_, key=lambda each: each.at), target, tally)

        assert [r for r in tally.records if r.outcome is not Outcome.OK] == []
        assert len(tally.records) == len(load_)
        async with asyncio.timeout(30):
            while not promoted_and_answered(here.path("state"), "chat", before):
                await asyncio.sleep(0.05)
        await scraped(here, session)
        await runbooks(here, session)
        for name in ("controller", "gateway", *SEATS):
            assert await processes.end(name) == 0, processes.log(name)


def promoted_and_answered(state: Path, policy: str, after: int) -> bool:
    """Whether residents were promoted, of the policy at least one, and one of them has answered: all on the record."""
    events = [e for e in events_in(state, "promotion")[after:] if e["outcome"] == "Promoted"]
    answered = {e["claim"] for e in events_in(state, "firstToken")}
    return policy in {e["policy"] for e in events} and not answered.isdisjoint(e["claim"] for e in events)


async def scraped(here: Here, session: aiohttp.ClientSession) -> None:
    """Every target of prometheus.yml answers as Prometheus would ask it, with metrics that METRICS.md lists and no others."""
    metrics = catalogue()
    config = load(ROOT / "deploy/compose/prometheus.yml")
    for job in config["scrape_configs"]:
        if "static_configs" not in job:  # a drill's, which isn't always there
            continue
        token = {"Authorization": "Bearer secret"} if "authorization" in job else {}
        for target in job["static_configs"][0]["targets"]:
            service, _, port = target.partition(":")
            async with session.get(f"{here.url(service, int(port))}/metrics", headers=token) as response:
                assert response.status == 200
                page = await response.text()
            names = set(re.findall(r"^(emberpool_\w+)", page, re.MULTILINE))
            assert names
            assert [name for name in names if family(name, metrics) is None] == []


# ------------------------------------------------------------------ runbooks

ASKING = {"emberpool", "curl", "grep"}
"""First words of the commands that ask these processes."""
NOT_ABOUT_THESE = {
    "emberpool local",
    "emberpool drill run FILE",
    "emberpool node readmit NODE --reason TEXT",
    "emberpool node exclude NODE --reason TEXT",
}
"""Commands in runbooks that start something else, or ask a cluster."""


async def runbooks(here: Here, session: aiohttp.ClientSession) -> None:
    """Every command of the runbooks works for who runs docker-compose.yaml."""
    async with session.post(
        f"{here.url('gateway', 8000)}/v1/completions", json={"model": "nobody"}
    ) as response:
        assert response.status == 404  # so that refused requests are there to be counted
    programs = (await asyncio.to_thread(Emberpool.shared)).command(here.path("state")).parent
    environment = {**os.environ, **variables(here, programs)}
    lines = sorted(typed(here))
    assert len(lines) > 20
    at_once = asyncio.Semaphore(2)
    async with asyncio.TaskGroup() as group:
        tries = {line: group.create_task(shell(line, environment, at_once)) for line in lines}
    assert {line: found for line, attempt in tries.items() if (found := attempt.result())} == {}


def typed(here: Here) -> set[str]:
    """The commands, with files for their placeholders."""
    found = set()
    for book in RUNBOOKS.glob("*.md"):
        lines = commands(book)
        assert {line.split()[0] for line in lines} <= {*ASKING, "export"}, book.name
        found |= {line for line in lines if line.split()[0] in ASKING}
        prose = re.sub(r"```sh\n.*?```", "", book.read_text("utf-8"), flags=re.DOTALL)
        found |= set(re.findall(r"`(emberpool [^`]+)`", prose))
    policies = here.mounts("controller")["/etc/emberpool"] / "policies.yaml"
    return {re.sub(r"\bPATH\b", str(policies), line) for line in found - NOT_ABOUT_THESE}


def variables(here: Here, programs: Path) -> dict[str, str]:
    """What the runbooks' variables hold, as far as they say it, where docker-compose.yaml runs; moved to this machine."""
    found = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "POLICY": "chat",
        "FLEET": "spares",
        "SEAT": SEATS[0],
    }
    for line in {line for book in RUNBOOKS.glob("*.md") for line in commands(book)}:
        match = re.fullmatch(r"export (\w+)=(\S+)(?:\s+#.*?(?:docker-compose\.yaml: (\S+))?)?", line)
        if match is not None:
            found[match[1]] = here.published(match[3] or match[2])
    assert found["EMBERPOOL_SERVER"] == here.url("controller", 9080)
    assert found["GATEWAY_METRICS"] == here.url("gateway", 9082)
    found["STATE_DIR"] = str(here.mounts("controller")[found["STATE_DIR"]])
    return found


async def shell(line: str, environment: Mapping[str, str], at_once: asyncio.Semaphore) -> str:
    """Run a command line; return what is wrong with how it went, in words, or nothing."""
    async with at_once, asyncio.timeout(30):
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", line),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
    said = f"exit code {process.returncode}: {output.decode()[-500:]} {errors.decode()[-500:]}"
    shows = bool(output) or not line.startswith(("emberpool", "curl"))
    return "" if process.returncode == 0 and shows else said


# ------------------------------------------------------------------ the drill service


@pytest.mark.drill
@pytest.mark.long
async def test_the_command_of_the_drill_service_is_understood(tmp_path: Path) -> None:
    async with Processes(tmp_path) as processes:
        here = Here.of(tmp_path, processes)
        nowhere = tmp_path / "file"
        nowhere.touch()
        # the last thing that it looks at before it starts anything
        command = [*here.command("drill"), f"--out={nowhere}"]
        await processes.start("drill", command, {})
        assert await processes.wait("drill") == 2
        assert f"the report can't be written to {nowhere}" in processes.log("drill")
        assert json.loads((here.path("targets") / "drill.json").read_text("utf-8")) == []
