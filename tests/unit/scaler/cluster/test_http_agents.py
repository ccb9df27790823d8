"""Orders and questions over a real socket: what is sent, and what each answer becomes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from scaler.cluster.agents import Done, Told
from scaler.cluster.http_agents import HttpAgents
from warmpool.errors import (
    AgentBusy,
    AgentError,
    EngineError,
    EngineLost,
    GpuUnfit,
    NeedsWitness,
    NoRoom,
    StaleEpoch,
)
from warmpool.expectations import Answer, Ownership, Recording, Statement
from warmpool.seats import Claim, FleetName, Operation, PolicyName, Seat, SeatName
from warmpool.wire import recording_to_json, statement_to_json

CHAT, CODE = PolicyName("chat"), PolicyName("code")
CLAIM = Claim(
    id="c1",
    policy=CHAT,
    operation=Operation.UNPARK,
    holder="h",
    epoch=3,
    since=0.0,
    deadline=9.0,
    displace=(CODE,),
)
ANSWERS = (Answer(prompt="p", tokens=(1, 2)),)
RECORDING = Recording(ownership=Ownership(), answers=ANSWERS, witnesses=frozenset({"a", "b"}))
Said = tuple[str, str, Any, str]


@asynccontextmanager
async def agents(status: int = 200, body: Any = None) -> AsyncIterator[tuple[HttpAgents, Seat, list[Said]]]:
    """An agent that answers everything alike, and what it was sent."""
    said: list[Said] = []

    async def answer(request: web.Request) -> web.Response:
        sent = await request.json() if request.can_read_body else None
        said.append((request.method, request.path, sent, request.headers.get("Authorization", "")))
        return web.json_response({} if body is None else body, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    seat = Seat(name=SeatName("s"), uid="u", version="1", fleet=FleetName("f"), agent=f"http://{host}:{port}")
    try:
        async with aiohttp.ClientSession() as session:
            yield HttpAgents(session, "secret"), seat, said
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("verb", ["park", "unpark", "resume"])
async def test_who_may_be_parked_goes_with_the_order(verb: str) -> None:
    async with agents(body={"phases": {"unpark": 0.5}}) as (port, seat, said):
        done = await getattr(port, verb)(seat, CLAIM, CHAT, deadline=2.0)
        assert done == Done(phases={"unpark": 0.5})
        order = {"policy": "chat", "claim": "c1", "epoch": 3, "deadlineSeconds": 2.0, "displace": ["code"]}
        assert said == [("POST", f"/v1/{verb}", order, "Bearer secret")]


async def test_an_order_says_that_a_fleet_only_observes_the_health_of_gpus() -> None:
    async with agents() as (port, seat, said):
        await port.resume(replace(seat, health_observed=True), CLAIM, CHAT, deadline=2.0)
        await port.resume(seat, CLAIM, CHAT, deadline=2.0)
        assert [each[2].get("gpuHealth") for each in said] == ["Observe", None]


async def test_a_claim_that_leaves_the_choice_to_the_agent_names_nobody() -> None:
    async with agents() as (port, seat, said):
        await port.drain(seat, replace(CLAIM, displace=None), CHAT, deadline=2.0)
        assert "displace" not in said[0][2]


async def test_a_resident_is_asked_what_it_answers() -> None:
    statement = Statement(uid="u", ownership=Ownership(engine_version="1"), answers=ANSWERS)
    body = {"statement": statement_to_json(statement), "recording": None, "missing": "NeedsWitness: nobody"}
    async with agents(body=body) as (port, seat, said):
        assert await port.ask(seat, CHAT, deadline=2.0) == Told(
            statement=statement, missing="NeedsWitness: nobody"
        )
        assert said[0][:3] == ("GET", "/v1/proof/chat", None)


async def test_and_told_what_it_is_compared_with() -> None:
    async with agents(body={"recording": recording_to_json(RECORDING)}) as (port, seat, said):
        assert await port.tell(seat, CHAT, RECORDING, epoch=5, deadline=2.0) == Told(recording=RECORDING)
        assert said[0][:3] == ("PUT", "/v1/proof/chat", {**recording_to_json(RECORDING), "epoch": 5})


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (507, "NoRoom", NoRoom),
        (409, "NeedsWitness", NeedsWitness),
        (409, "GpuUnfit", GpuUnfit),
        (409, "StaleEpoch", StaleEpoch),
        (409, "Busy", AgentError),
        (503, AgentBusy.code, AgentBusy),
        (502, "EngineFailed", EngineError),
        (404, "", AgentError),
    ],
)
async def test_each_refusal_has_its_kind(status: int, code: str, error: type[Exception]) -> None:
    async with agents(status, {"error": {"code": code, "message": "why"}}) as (port, seat, _):
        with pytest.raises(error, match=r"unpark chat on s: (why|status 404)"):
            await port.unpark(seat, CLAIM, CHAT, deadline=2.0)


@pytest.mark.parametrize(
    "call", [lambda p, s: p.ask(s, CHAT, deadline=1.0), lambda p, s: p.park(s, CLAIM, CHAT, deadline=1.0)]
)
async def test_an_agent_that_nobody_hears_is_lost(call: Callable[[HttpAgents, Seat], Any]) -> None:
    async with agents() as (port, seat, _):
        with pytest.raises(EngineLost, match="has not told its agent's address"):
            await call(port, replace(seat, agent=""))
        with pytest.raises(EngineLost, match="can't be reached"):
            await call(port, replace(seat, agent="http://127.0.0.1:1"))


async def test_an_error_of_somebody_in_between_is_a_refusal_too() -> None:
    async with agents(404, {"error": "no such backend"}) as (port, seat, _):
        with pytest.raises(AgentError, match="unpark chat on s: status 404"):
            await port.unpark(seat, CLAIM, CHAT, deadline=2.0)


async def test_an_answer_that_is_none_is_said() -> None:
    async with agents(body={"statement": {"uid": 1}}) as (port, seat, _):
        with pytest.raises(AgentError, match="not a statement"):
            await port.ask(seat, CHAT, deadline=1.0)
    async with agents(body=["x"]) as (port, seat, _):
        with pytest.raises(AgentError, match="without a JSON object"):
            await port.ask(seat, CHAT, deadline=1.0)
