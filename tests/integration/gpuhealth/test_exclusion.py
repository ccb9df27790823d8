"""From a reading of a GPU to a node that gets no new pods, and back: a driver, a node agent, two controllers, an API server."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.kube_rig import NAMESPACE_NAME
from tests.fakes.kube_api.kinds import NODE, POD
from tests.fakes.proc_tree import ProcTree
from tests.integration.nodehealth.conftest import A, Caller, Node
from tests.integration.processes.rig import TOKEN
from tests.integration.standby.rig import Rig, running
from warmpool.engines.deadline import Deadline
from warmpool.errors import GpuUnfit
from warmpool.nodehealth.marks import CONDITION, OWNER_ANNOTATION, TAINT_KEY
from warmpool.nodehealth.records import Rules
from warmpool.nodehealth.telling import Telling
from warmpool.seats import SeatName

SICK, WELL = "node-a", "node-b"
RULES = Rules(hold_seconds=1.0, trial_seconds=3600.0)
"""Without the ten minutes' wait that follows a reset."""
RECOVERY, ERRORS = 0x8000, 12


@dataclass
class Stage:
    rig: Rig
    node: Node
    caller: Caller

    def body(self, name: str) -> Mapping[str, Any]:
        nodes = {item.body["metadata"]["name"]: item.body for item in self.rig.api.store.all(NODE, "")}
        return nodes[name]

    def taint(self, name: str) -> str | None:
        taints = (self.body(name).get("spec") or {}).get("taints") or ()
        return next((each["value"] for each in taints if each["key"] == TAINT_KEY), None)

    def owned(self, name: str) -> bool:
        return OWNER_ANNOTATION in (self.body(name)["metadata"].get("annotations") or {})

    def healthy(self, name: str) -> str | None:
        conditions = (self.body(name).get("status") or {}).get("conditions") or ()
        return next((each["status"] for each in conditions if each["type"] == CONDITION), None)

    def on(self, name: str) -> set[SeatName]:
        pods = (item.body for item in self.rig.api.store.all(POD, NAMESPACE_NAME))
        return {SeatName(pod["metadata"]["name"]) for pod in pods if pod["spec"].get("nodeName") == name}

    def serving(self, name: str) -> set[SeatName]:
        pods = (item.body for item in self.rig.api.store.all(POD, NAMESPACE_NAME))
        return {
            SeatName(pod["metadata"]["name"])
            for pod in pods
            if pod["spec"].get("nodeName") == name
            and "serving.emberpool.dev/chat" in pod["metadata"]["labels"]
        }

    async def until(self, what: str, found: Callable[[], Any]) -> Any:
        async def look() -> Any:
            return found()

        return await self.rig.until(what, look)

    async def read(self) -> None:
        """Have the GPUs read at once."""
        library = self.node.library
        await self.until("events to be watched", lambda: library.emit(library.gpus[0], RECOVERY, 0))


@asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    async with running(directory) as rig:
        place = directory / "node"
        place.mkdir()
        node = Node(place, ProcTree(place / "proc"))
        node.caller_is()
        urls = tuple(each.url for each in rig.replicas)
        options = replace(
            node.options, rules=RULES, telling=Telling(node=SICK, controllers=urls, token=TOKEN)
        )
        async with node.agent(options) as caller:
            await caller.until(lambda body: not body["reason"], "/v1/health")
            on = Stage(rig, node, caller)
            async with meanwhile(equip(on)):
                yield on


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        yield
        task.cancel()


async def equip(on: Stage) -> None:
    """Give the seats of the sick node its GPU, and have their agents refuse as real ones do."""

    def refuse(verb: str, seat: SeatName, _policy: str) -> Exception | None:
        sick = verb == "resume" and seat in on.on(SICK) and on.node.gpus[0].health.ecc != ecc(0)
        return GpuUnfit(f"{A} is Bad") if sick else None

    on.rig.agents.engines.refuse = refuse
    while True:
        for name in on.on(SICK):
            on.rig.agents.gpus[name] = [A]
        await asyncio.sleep(0.02)


def ecc(errors: int) -> dict[tuple[int, int], int]:
    """Totals of a GPU with so many uncorrected errors."""
    return {(0, 0): 0, (0, 1): 0, (1, 0): errors, (1, 1): errors}


async def burst(on: Stage, queued: int) -> None:
    """Have a gateway say that so many requests wait."""
    while True:
        await on.rig.push(queued)
        await asyncio.sleep(0.5)


async def told(on: Stage) -> Mapping[str, Any]:
    _, text, _ = await on.rig.get(on.rig.b, "/v1/nodes")
    return json.loads(text)


async def test_a_node_is_excluded_in_mid_burst_and_comes_back(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        await on.rig.up(on.rig.a, 2)
        async with meanwhile(burst(on, 8)):
            await on.until("a burst to be served", lambda: on.serving(SICK) | on.serving(WELL))
            on.node.gpus[0].health.ecc = ecc(ERRORS)
            await on.read()
            await on.caller.until(lambda body: body["verdict"] == "Bad", "/v1/health")
            read_at = time.monotonic()
            await on.until("the node to be tainted", lambda: on.taint(SICK))
            took = time.monotonic() - read_at
            print(f"from the reading to the taint: {took * 1000:.0f} ms")  # noqa: T201 - shown with -s
            assert took < 3.0, took  # 1 s is wanted, and a busy machine stalls
            assert (on.taint(SICK), on.owned(SICK), on.taint(WELL)) == ("UncorrectableErrors", True, None)
            await on.until("the condition to say so", lambda: on.healthy(SICK) == "False")
            on.rig.kube.nodes = (WELL,)  # as a scheduler heeds the taint

            before = len(on.rig.agents.ordered)
            await on.until("the burst to be served elsewhere", lambda: len(on.serving(WELL)) >= 2)
            resumed = {seat for verb, seat, _ in on.rig.agents.ordered[before:] if verb == "resume"}
            assert not resumed & on.on(SICK), on.rig.agents.ordered
            (item,) = (await told(on))["items"]
            assert (item["name"], item["excluded"], item["verdict"]) == (SICK, True, "Bad")

        on.node.gpus[0].health.ecc = ecc(0)
        on.node.gpus[0].health.fields[230] = (1, 1)
        await on.read()
        await on.caller.until(lambda body: "RecoveryAction" in json.dumps(body), "/v1/health")
        on.node.gpus[0].health.fields[230] = (1, 0)
        await on.read()
        await on.until("the node to be readmitted", lambda: on.taint(SICK) is None)
        assert not on.owned(SICK)
        client = on.caller.client()

        async def well() -> bool:
            assert await client.canary([A], passed=True, proof="", deadline=Deadline.after(5.0))
            return bool((await on.caller.ask("/v1/health"))[1]["verdict"] == "Ok")

        try:
            await on.rig.until("proofs to clear the GPU", well)
        finally:
            await client.close()
        await on.until("the condition to be true again", lambda: on.healthy(SICK) == "True")

        status, answer = await ordered(on, "exclude", "")
        assert (status, answer["error"]["code"]) == (400, "BadOrder")
        assert (await ordered(on, "exclude", "row 3"))[0] == 200
        assert on.taint(SICK) == "ExcludedByHand"
        assert (await ordered(on, "readmit", "it has power again"))[0] == 200
        assert on.taint(SICK) is None
        _, page, _ = await on.rig.get(on.rig.a, "/metrics")
        assert "emberpool_exclusion_breaker_tripped 0.0" in page


@pytest.mark.long
async def test_who_shows_no_token_or_makes_no_sense_is_not_heard(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        await on.until("the node to be told of", lambda: on.healthy(SICK) == "True")
        sick = {"node": SICK, "pid": 1, "seq": 1, "at": 1.0, "health": {"verdict": "Bad"}}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for body, shown, status in ((sick, {}, 401), (sick, headers, 400), ([], headers, 400)):
            async with on.rig.session.post(f"{on.rig.a.url}/v1/nodes", json=body, headers=shown) as answer:
                assert answer.status == status
        async with on.rig.session.post(f"{on.rig.b.url}/v1/nodes/{SICK}/exclude", json={}) as answer:
            assert answer.status == 401
        (item,) = (await told(on))["items"]
        assert (item["verdict"], item["excluded"], on.taint(SICK)) == ("Ok", False, None)


async def ordered(on: Stage, verb: str, reason: str) -> tuple[int, Any]:
    """Have a person order something of the sick node, at the controller that stands by."""
    async with on.rig.session.post(
        f"{on.rig.b.url}/v1/nodes/{SICK}/{verb}",
        json={"actor": "ada", "reason": reason},
        headers={"Authorization": f"Bearer {TOKEN}"},
    ) as answer:
        return answer.status, await answer.json()
