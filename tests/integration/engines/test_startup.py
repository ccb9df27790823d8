"""What an engine tells of its start is read as far as it is told as it should be, from a real socket."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from warmpool.engines.deadline import Deadline
from warmpool.engines.reference import ReferenceEngine
from warmpool.timeline import TIERS, PassedOver, WeightLoad

ATTACHED = {"tier": "Attached", "code": "NotHeld", "reason": "no copy is held"}


class Telling:
    """An engine that is ready, and tells what it is given."""

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def startup(self, _request: web.Request) -> web.Response:
        return web.json_response({"pid": 1, "phases": {"weights": {"seconds": 2.0, **self.weights}}})


@pytest.fixture
def telling() -> Telling:
    return Telling()


@pytest.fixture
async def engine(telling: Telling) -> AsyncIterator[ReferenceEngine]:
    app = web.Application()
    app.add_routes(
        [web.get("/health", telling.health), web.get("/emberpool/startup", telling.startup)],
    )
    async with (
        TestServer(app) as server,
        ReferenceEngine(str(server.make_url("")).rstrip("/"), model="m") as adapter,
    ):
        yield adapter


@pytest.mark.parametrize(
    ("passed_over", "read"),
    [
        pytest.param(None, (), id="an-older-engine"),
        pytest.param([], (), id="none"),
        pytest.param(
            [ATTACHED, {"tier": "Staged", "code": 3}, "Staged"],
            (PassedOver(tier="Attached", code="NotHeld", reason="no copy is held"),),
            id="some-are-no-tiers",
        ),
        pytest.param("Attached", (), id="no-list"),
        pytest.param(
            [{"tier": "T" * 99, "code": "C" * 99, "reason": "r" * 999}],
            (PassedOver(tier="T" * 64, code="C" * 64, reason="r" * 400),),
            id="wordy",
        ),
        pytest.param(
            [ATTACHED] * 99,
            (PassedOver(tier="Attached", code="NotHeld", reason="no copy is held"),) * len(TIERS),
            id="more-than-there-are-tiers",
        ),
    ],
)
async def test_an_engine_tells_which_tiers_it_tried_in_vain(
    telling: Telling, engine: ReferenceEngine, passed_over: object, read: tuple[PassedOver, ...]
) -> None:
    told = {} if passed_over is None else {"passedOver": passed_over}
    telling.weights = {"tier": "Disk", "bytes": 8, "loadSeconds": 0.5, **told}
    startup = await engine.startup(deadline=Deadline.after(5.0))
    assert startup.load == WeightLoad(tier="Disk", nbytes=8, seconds=0.5, passed_over=read)
