"""From a reading of a GPU to a node that gets no new pods, and back: a driver, a node agent, two controllers, an API server."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
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
from warmpool.nodehealth.marks import CONDITION, LATCHES_ANNOTATION, OWNER_ANNOTATION, TAINT_KEY
from warmpool.nodehealth.records import Rules
from warmpool.nodehealth.telling import Telling
from warmpool.seats import CLAIM_ANNOTATION, SeatName

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

    def kept(self, name: str) -> str:
        return str((self.body(name)["metadata"].get("annotations") or {}).get(LATCHES_ANNOTATION, ""))

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

    def claimed(self, name: str) -> set[SeatName]:
        """Seats that are promised and don't serve yet."""
        pods = (item.body for item in self.rig.api.store.all(POD, NAMESPACE_NAME))
        return {
            SeatName(pod["metadata"]["name"])
            for pod in pods
            if CLAIM_ANNOTATION in (pod["metadata"].get("annotations") or {})
        } & (self.on(name) - self.serving(name))

    async def until(self, what: str, found: Callable[[], Any]) -> Any:
        async def look() -> Any:
            return found()

        return await self.rig.until(what, look)

    async def eventually(self, what: str, look: Callable[[], Awaitable[Any]]) -> Any:
        """Wait for what whoever leads tells: a machine that stalls for some seconds changes who that is."""
        return await self.rig.until(what, look)

    async def read(self) -> None:
        """Have the GPUs read at once."""
        library = self.node.library
        await self.until("events to be watched", lambda: library.emit(library.gpus[0], RECOVERY, 0))


@asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    async with running(directory, {SICK: A}) as rig:
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
            refuse_on_the_sick(on)
            yield on


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        yield
        task.cancel()


def refuse_on_the_sick(on: Stage) -> None:
    """Have agents of the sick node refuse as real ones do."""

    def refuse(verb: str, seat: SeatName, _policy: str) -> Exception | None:
        sick = verb == "resume" and seat in on.on(SICK) and on.node.gpus[0].health.ecc != ecc(0)
        return GpuUnfit(f"{A} is Bad") if sick else None

    on.rig.agents.engines.refuse = refuse


def ecc(errors: int) -> dict[tuple[int, int], int]:
    """Totals of a GPU with so many uncorrected errors."""
    return {(0, 0): 0, (0, 1): 0, (1, 0): errors, (1, 1): errors}


async def burst(on: Stage, queued: int) -> None:
    """Have a gateway say that so many requests wait."""
    while True:
        await on.rig.push(queued)
        await asyncio.sleep(0.5)


def said_of(on: Stage, *wanted: tuple[str, bool, str]) -> Callable[[], Awaitable[bool]]:
    """Whether a controller says of the nodes what it should: their names, whether they are excluded, and their verdicts."""

    async def look() -> bool:
        status, text, _ = await on.rig.get(on.rig.b, "/v1/nodes")
        items = json.loads(text)["items"] if status == 200 else []
        return [(item["name"], item["excluded"], item.get("verdict")) for item in items] == [*wanted]

    return look


async def breaker(on: Stage) -> bool:
    pages = [(await on.rig.get(each, "/metrics"))[1] for each in on.rig.replicas]
    return any("emberpool_exclusion_breaker_tripped 0.0" in page for page in pages)


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
            assert took < 10.0, took  # 1 s is wanted, and a busy machine stalls
            assert (on.taint(SICK), on.owned(SICK), on.taint(WELL)) == ("UncorrectableErrors", True, None)
            await on.until("the condition to say so", lambda: on.healthy(SICK) == "False")
            await on.until("what was found to be kept", lambda: "UncorrectableErrors" in on.kept(SICK))
            on.rig.kube.nodes = (WELL,)  # as a scheduler heeds the taint

            await on.until("what was on its way there to be over", lambda: not on.claimed(SICK))
            before = len(on.rig.agents.ordered)
            await on.until("the burst to be served elsewhere", lambda: len(on.serving(WELL)) >= 2)
            resumed = {seat for verb, seat, _ in on.rig.agents.ordered[before:] if verb == "resume"}
            assert not resumed & on.on(SICK), on.rig.agents.ordered
            await on.eventually("the controllers to say so", said_of(on, (SICK, True, "Bad")))

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
            await client.canary([A], passed=True, proof="", deadline=Deadline.after(5.0))
            return bool((await on.caller.ask("/v1/health"))[1]["verdict"] == "Ok")

        try:
            await on.rig.until("proofs to clear the GPU", well)
        finally:
            await client.close()
        await on.until("the condition to be true again", lambda: on.healthy(SICK) == "True")
        await on.until("nothing to be kept any more", lambda: not on.kept(SICK))

        await on.eventually("an order without a reason to be refused", answered(on, "exclude", "", 400))
        await on.eventually("the node to be excluded by hand", answered(on, "exclude", "row 3", 200))
        assert on.taint(SICK) == "ExcludedByHand"
        await on.eventually("it to be readmitted", answered(on, "readmit", "it has power again", 200))
        await on.until("its taint to be gone", lambda: on.taint(SICK) is None)
        await on.eventually("the breaker to be told of", lambda: breaker(on))


@pytest.mark.long
async def test_who_shows_no_token_or_makes_no_sense_is_not_heard(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        await on.until("the node to be told of", lambda: on.healthy(SICK) == "True")
        sick = {"node": SICK, "pid": 1, "seq": 1, "at": 1.0, "health": {"verdict": "Bad"}}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for body, shown, status in ((sick, {}, 401), (sick, headers, 400), ([], headers, 400)):
            async with on.rig.session.post(f"{on.rig.a.url}/v1/nodes", json=body, headers=shown) as answer:
                assert answer.status == status
        health = (await on.caller.ask("/v1/health"))[1]
        asks = {"node": WELL, "pid": 1, "seq": 1, "at": 1.0, "health": {**health, "gpus": []}, "asks": True}
        for replica in on.rig.replicas:  # whoever stands by knows what is kept, too
            async with on.rig.session.post(f"{replica.url}/v1/nodes", json=asks, headers=headers) as answer:
                assert (answer.status, await answer.json()) == (200, {"kept": ""})
        async with on.rig.session.post(f"{on.rig.b.url}/v1/nodes/{SICK}/exclude", json={}) as answer:
            assert answer.status == 401
        await on.eventually(
            "the nodes to be well still", said_of(on, (SICK, False, "Ok"), (WELL, False, "Ok"))
        )
        assert on.taint(SICK) is None


def answered(on: Stage, verb: str, reason: str, wanted: int) -> Callable[[], Awaitable[bool]]:
    """Whether an order of a person is answered so, at the controller that stood by at first."""

    async def order() -> bool:
        async with on.rig.session.post(
            f"{on.rig.b.url}/v1/nodes/{SICK}/{verb}",
            json={"actor": "ada", "reason": reason},
            headers={"Authorization": f"Bearer {TOKEN}"},
        ) as answer:
            assert answer.status in {wanted, 502, 503}, await answer.text()  # nobody leads for the moment
            return answer.status == wanted

    return order
