"""A drill against what is up already: which records it reads, and what it refuses."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from scaler.drill import ArmName, DrillOptions, Endpoints
from scaler.drill.cluster import ClusterFailed, Records, ready
from scaler.drill.collect import Evidence
from scaler.drill.run import drill
from scaler.errors import UserError
from scaler.runtime.recent_events import PATH, RecentEvents

Scenario = Callable[..., Path]
ONE_STAGE = "\n  stages: [{name: only, kind: Baseline, seconds: 1}]\n"
FITTED = "\n  fit: {}\n  stages: [{name: only, kind: Hold, seconds: 1}]\n"


class Controllers:
    """Two replicas behind one address, of which one answers."""

    def __init__(self) -> None:
        self.replicas = [RecentEvents("a"), RecentEvents("b")]
        self.answering = self.replicas[0]
        self.asked = asyncio.Event()
        self.ready = True
        self.refusals = 0
        self.policies = ["chat", "code"]
        self.url = ""

    async def events(self, request: web.Request) -> web.Response:
        self.asked.set()
        if self.refusals:
            self.refusals -= 1
            raise web.HTTPServiceUnavailable
        return await self.answering.handle(request)

    async def status(self, _: web.Request) -> web.Response:
        waiting = [] if self.ready else ["fleet spares: 0 of 2 spare seats are warm"]
        return web.json_response({"ready": self.ready, "waitingFor": waiting})

    async def listed(self, _: web.Request) -> web.Response:
        return web.json_response({"items": [{"name": name} for name in self.policies]})


@pytest.fixture
async def controllers() -> AsyncIterator[Controllers]:
    made, app = Controllers(), web.Application()
    app.add_routes(
        [web.get(PATH, made.events), web.get("/v1/status", made.status), web.get("/v1/policies", made.listed)]
    )
    async with TestServer(app) as server:
        made.url = str(server.make_url("")).rstrip("/")
        yield made


def at(number: float) -> dict[str, Any]:
    return {"kind": "seat", "at": number}


async def test_records_of_another_leader_are_put_to_those_before(controllers: Controllers) -> None:
    first, second = controllers.replicas
    for number in (1.0, 2.0, 4.0):
        first.add(at(number))
    for number in (3.0, 5.0):
        second.add(at(number))
    records, evidence = Records(controllers.url), Evidence()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(records.follow())
        await controllers.asked.wait()
        while len(records.events) < 3:
            await asyncio.sleep(0)
        controllers.answering = second
        while len(records.events) < 5:
            await asyncio.sleep(0)
        following.cancel()
    second.add(at(6.0))
    await records.finish(evidence)
    assert [event["at"] for event in evidence.events] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


async def test_last_records_that_nobody_gives_for_a_moment_are_asked_for_again(
    controllers: Controllers,
) -> None:
    controllers.answering.add(at(1.0))
    controllers.refusals = 2
    evidence = Evidence()
    await Records(controllers.url).finish(evidence)
    assert [event["at"] for event in evidence.events] == [1.0]


async def test_a_cluster_that_is_not_warm_is_named_with_what_it_waits_for(controllers: Controllers) -> None:
    controllers.ready = False
    said: list[str] = []
    with pytest.raises(ClusterFailed, match="0 of 2 spare seats"):
        await ready(Endpoints(gateway="", controller=controllers.url), ["chat"], 0.5, said.append)
    assert said[-1] == "fleet spares: 0 of 2 spare seats are warm"


async def test_a_policy_that_the_cluster_lacks_is_refused(controllers: Controllers) -> None:
    endpoints = Endpoints(gateway="", controller=controllers.url)
    await ready(endpoints, ["chat"], 10, lambda _: None)
    with pytest.raises(UserError, match="no policy draft") as refused:
        await ready(endpoints, ["chat", "draft"], 10, lambda _: None)
    assert refused.value.hint is not None
    assert "it has: chat, code" in refused.value.hint


@pytest.mark.parametrize(
    ("stages", "arms", "words"),
    [
        (ONE_STAGE, (ArmName.WARM, ArmName.COLD), "no other arm than warm"),
        (
            ONE_STAGE + "  faults: [{type: KillEngine, atSeconds: 0, policy: chat}]\n",
            (ArmName.WARM,),
            "breaks nothing in a cluster",
        ),
        (FITTED, (ArmName.WARM,), "the processors of a cluster aren't measured"),
    ],
)
async def test_what_can_not_be_had_of_a_cluster(
    options: Callable[..., DrillOptions], short: Scenario, stages: str, arms: tuple[ArmName, ...], words: str
) -> None:
    nowhere = Endpoints(gateway="http://127.0.0.1:9", controller="http://127.0.0.1:9")
    with pytest.raises(UserError, match=words):
        await drill(
            options(
                scenario=short(stages=stages, thresholds="  thresholds: {}\n"), arms=arms, cluster=nowhere
            )
        )
