"""An engine whose parked weights are gone for good says so, and is replaced instead of being tried again and again."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from warmpool.engines.deadline import Deadline
from warmpool.engines.reference import ReferenceEngine
from warmpool.errors import EngineRejected, EngineUnfit
from warmpool.reference.control import Control
from warmpool.reference.errors import NotEnoughMemory, ReferenceEngineError, WeightsDamaged, WrongEngineState
from warmpool.reference.server import Service


class Parked:
    """Answers as an engine with parked weights that can't be brought back."""

    def __init__(self, status: int) -> None:
        self.status = status

    async def memory(self, _request: web.Request) -> web.Response:
        return web.json_response({"weights": "Parked", "weightsTakenBytes": 0, "kvTakenBytes": 0})

    async def wake_up(self, _request: web.Request) -> web.Response:
        return web.json_response({"error": "can't be attached to again"}, status=self.status)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        pytest.param(410, EngineUnfit, id="gone"),
        pytest.param(500, EngineRejected, id="not-now"),
    ],
)
async def test_weights_that_are_gone_are_told_from_those_that_have_no_room_now(
    status: int, error: type[Exception]
) -> None:
    parked = Parked(status)
    app = web.Application()
    app.add_routes([web.get("/emberpool/memory", parked.memory), web.post("/wake_up", parked.wake_up)])
    async with (
        TestServer(app) as server,
        ReferenceEngine(str(server.make_url("")).rstrip("/"), model="m") as engine,
    ):
        engine.assume(kv_released=True, parked=True)
        with pytest.raises(error, match="can't be attached to again"):
            await engine.unpark(deadline=Deadline.after(5.0))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WeightsDamaged("the copy is gone"), 410),
        (WrongEngineState("they are on their way"), 500),
        (NotEnoughMemory("no room", hint="free some"), 500),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_the_reference_engine_answers_so(error: ReferenceEngineError, status: int) -> None:
    order: Future[None] = Future()
    order.set_exception(error)
    service = SimpleNamespace(engine=SimpleNamespace(unpark=lambda: order))
    app = web.Application()
    app.router.add_post("/wake_up", Control(cast("Service", service)).wake_up)
    async with TestClient(TestServer(app)) as client:
        answer = await client.post("/wake_up?tags=weights")
        assert (answer.status, str(error) in await answer.text()) == (status, True)
