"""Engines that end again and again, with real processes from the controller down to the engine: what is replaced, and what isn't."""

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from scaler.cluster.kube.resources import EVENT
from tests.fakes.workloads import SeatFleet, SeatResident, scripted
from tests.integration.nodes.conftest import World, agent_state
from tests.integration.processes.rig import Processes
from warmpool.seats import SEAT_LABEL, SERVING_LABEL_PREFIX

CONSECUTIVE = 2
POLICIES = f"""\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {{name: spares}}
spec:
  maxSeats: 2
  spare: {{mode: Fixed, min: 1}}
  selfHealing: {{initDurationSeconds: 30, consecutive: {CONSECUTIVE}}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {{name: chat}}
spec:
  fleets: [{{name: spares, targetInFlight: 4}}]
  engine: {{type: Reference, port: 8001}}
  serving: {{min: 1, max: 1}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {{name: code}}
spec:
  fleets: [{{name: spares, targetInFlight: 4}}]
  engine: {{type: Reference, port: 8002}}
  serving: {{min: 0, max: 1}}
"""
SERVES = f"{SERVING_LABEL_PREFIX}chat"
Body = Mapping[str, Any]


def spoilt(resident: SeatResident, file: Path) -> SeatResident:
    """A resident whose engine ends at once, and again and again, while there is a file."""
    command = ["sh", "-c", f'test ! -e {shlex.quote(str(file))} || exit 3; exec "$@"', "sh"]
    return replace(resident, config={**resident.config, "command": [*command, *resident.config["command"]]})


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A fleet of which one seat serves and one is spare, and its controller."""

    world: World
    url: str
    bad: Path

    async def seats(self) -> tuple[list[Body], list[Body]]:
        """The pods that serve, and the others that aren't on their way out."""
        pods = [
            each
            for each in await self.world.pods(app="spares")
            if "deletionTimestamp" not in each["metadata"]
        ]
        serving = [each for each in pods if each["metadata"]["labels"].get(SERVES) == "true"]
        return serving, [each for each in pods if each not in serving]

    async def is_warm(self) -> tuple[Body, Body] | None:
        serving, others = await self.seats()
        spare = [each for each in others if each["metadata"]["labels"].get(SEAT_LABEL) == "Spare"]
        return (serving[0], spare[0]) if (len(serving), len(spare), len(others)) == (1, 1, 1) else None

    async def told(self, reason: str, pod: str = "") -> Body | None:
        """An Event of a reason about a pod, or about any."""
        events = await self.world.calls.list(EVENT, "default")
        about = [each for each in events if each.get("reason") == reason]
        return next((each for each in about if pod in {"", _regarding(each)["name"]}), None)

    async def figures(self) -> dict[str, float]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as response:
            text = await response.text()
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        of_fleet = [each for each in samples if each.labels.get("fleet") == "spares"]
        found: dict[str, float] = {}
        for each in of_fleet:
            name = each.name.removeprefix("emberpool_")
            found[name] = found.get(name, 0.0) + each.value
        return found


def _regarding(event: Body) -> Body:
    found: Body = event.get("involvedObject") or event.get("regarding") or {"name": ""}
    return found


@contextlib.asynccontextmanager
async def governed(world: World, directory: Path, **of_pods: Any) -> AsyncIterator[Fleet]:
    """Have a controller, and a fleet whose pods' spec has something laid over it."""
    (directory / "policies.yaml").write_text(POLICIES, "utf-8")
    bad = directory / "bad"
    address = await world.nodes.setting.network.virtual("default/controller")
    url = f"http://{address}:9080"
    seats = SeatFleet(
        name="spares",
        residents=[scripted("chat", 8001), spoilt(scripted("code", 8002, seed=2), bad)],
        replicas=2,
        settings={"controllers": [url]},
        template=of_pods,
    )
    await seats.create(world.calls)
    async with Processes(directory) as processes:
        where = ["--kubernetes", "--kubeconfig", str(world.kubeconfig), "--namespace", "default"]
        at = ["--host", address, "--port", "9080", "--state-dir", str(directory / "state")]
        await processes.emberpool(
            "controller", "controller", "--policy", str(directory / "policies.yaml"), *where, *at
        )
        yield Fleet(world=world, url=url, bad=bad)


async def kill_engine(pod: Body, policy: str) -> None:
    state = await agent_state(pod)
    assert state is not None
    (pid,) = [each["pid"] for each in state["residents"] if each["policy"] == policy]
    os.kill(pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def every_pod(fleet: Fleet) -> AsyncIterator[set[str]]:
    """The names of all pods that there ever are."""
    names: set[str] = set()

    async def look() -> None:
        while True:
            names.update(each["metadata"]["name"] for each in await fleet.world.pods(app="spares"))
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(look())
        yield names
        looking.cancel()


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_of_two_seats_whose_engine_ends_again_and_again_the_one_that_serves_nobody_is_replaced_once(
    world: World, tmp_path: Path
) -> None:
    """What is wrong is the same everywhere: the successor fares no better, and from then on the fleet isn't burnt for it."""
    async with governed(world, tmp_path) as fleet:
        await one_is_replaced(fleet)


async def one_is_replaced(fleet: Fleet) -> None:
    world = fleet.world
    serving, spare = await world.until("a seat that serves and a spare one", fleet.is_warm)
    async with every_pod(fleet) as names:
        fleet.bad.touch()
        for pod in (serving, spare):
            await kill_engine(pod, "code")
        await world.until(
            "its replacement", lambda: fleet.told("CrashLoopReplaced", spare["metadata"]["name"])
        )
        await world.when_gone(spare["metadata"]["name"])

        async def held_back() -> Body | None:
            _, others = await fleet.seats()
            names_of = [each["metadata"]["name"] for each in others]
            told = [await fleet.told("CrashLoopHeldBack", name) for name in names_of]
            return next((each for each in told if each is not None), None)

        event = await world.until("the budget to hold the next one back", held_back)
        assert event["type"] == "Warning"
        assert f"{CONSECUTIVE} starts of code in a row were bad" in (event.get("message") or event["note"])
        figures = await fleet.figures()
        expected = {"replacements_total": 1.0, "fleet_ailing_seats": 1.0, "fleet_healing_held_back": 1.0}
        assert {name: figures[name] for name in expected} == expected
        ((still,), (successor,)) = await fleet.seats()
        assert still["metadata"]["uid"] == serving["metadata"]["uid"]
        assert await fleet.told("CrashLoopReplaced", serving["metadata"]["name"]) is None
        fleet.bad.unlink()
        await world.until("the successor to get well by itself", fleet.is_warm)

        async def calm() -> bool:
            return (await fleet.figures())["fleet_ailing_seats"] == 0.0

        await world.until("nothing to ail any more", calm)
        assert names == {each["metadata"]["name"] for each in (serving, spare, successor)}


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_bad_image_is_told_of_and_replaces_nobody(world: World, tmp_path: Path) -> None:
    engines = {"name": "engines", "image": "nowhere", "command": ["engine"]}
    async with governed(world, tmp_path, containers=[engines]) as fleet, every_pod(fleet) as names:
        event = await world.until("an Event", lambda: fleet.told("CannotStartReported"))
        assert "engines is in " in (event.get("message") or event["note"])

        async def both() -> bool:
            return (await fleet.figures()).get("fleet_crash_looping_seats") == 2.0

        await world.until("both seats to be counted", both)
        assert (await fleet.figures())["replacements_total"] == 0.0
        serving, others = await fleet.seats()
        assert (len(serving), {each["metadata"]["name"] for each in others}) == (0, names)
        assert len(names) == 2
