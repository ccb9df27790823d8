"""What a replica that stands by answers to people, over real sockets."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from scaler.cluster.kube.lease import Record
from scaler.runtime.leaders_answers import LEADER_HEADER, LeadersAnswers


@dataclass
class Replica:
    """One replica's API."""

    name: str
    leads: bool = False
    leader: Record | None = None
    address: str = ""
    session: aiohttp.ClientSession = field(init=False)

    def lease(self, address: str | None = None) -> Record:
        return Record(
            holder=self.name, epoch=1, duration=6, address=self.address if address is None else address
        )

    async def fleets(self, request: web.Request) -> web.Response:
        return web.json_response({"from": self.name, "query": dict(request.query)}, status=200)

    async def orders(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "")
        return web.json_response({"from": self.name, "token": token, **await request.json()}, status=409)

    @asynccontextmanager
    async def served(self) -> AsyncIterator["Replica"]:
        async with aiohttp.ClientSession() as session:
            self.session = session
            app = web.Application()
            app.router.add_get("/v1/fleets", self.fleets)
            app.router.add_post("/v1/fleets", self.fleets)
            app.router.add_post("/v1/orders", self.orders)
            app.router.add_get("/v1/signals", self.fleets)
            passing = LeadersAnswers(session, lambda: self.leads, lambda: self.leader, self.name)
            passing.serve_on(app)
            runner = web.AppRunner(app, shutdown_timeout=0.2)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield self
            finally:
                await runner.cleanup()

    async def ask(self, path: str, method: str = "GET") -> tuple[int, dict[str, object], str]:
        async with self.session.request(method, self.address + path) as answer:
            found = json.loads(await answer.text())
            return answer.status, found, answer.headers.get(LEADER_HEADER, "")


async def test_the_leader_answers_itself() -> None:
    async with Replica("a", leads=True).served() as a:
        assert await a.ask("/v1/fleets") == (200, {"from": "a", "query": {}}, "")


async def test_who_stands_by_gives_the_leaders_answer() -> None:
    async with Replica("a", leads=True).served() as a, Replica("b").served() as b:
        b.leader = a.lease()
        assert await b.ask("/v1/fleets?watch=1") == (200, {"from": "a", "query": {"watch": "1"}}, "a")


async def test_an_order_goes_to_the_leader_with_its_token() -> None:
    async with Replica("a", leads=True).served() as a, Replica("b").served() as b:
        b.leader = a.lease()
        headers = {"Authorization": "Bearer t"}
        async with b.session.post(f"{b.address}/v1/orders", json={"id": "1"}, headers=headers) as answer:
            assert answer.status == 409  # the leader's own
            assert await answer.json() == {"from": "a", "token": "Bearer t", "id": "1"}


async def test_what_each_has_of_its_own_each_answers() -> None:
    async with Replica("a", leads=True).served() as a, Replica("b").served() as b:
        b.leader = a.lease()
        assert (await b.ask("/v1/signals"))[1]["from"] == "b"
        assert (await b.ask("/v1/fleets", "POST"))[1]["from"] == "b"


async def test_where_nobody_can_be_asked_it_says_why_and_what_to_do() -> None:
    async with Replica("a").served() as a, Replica("b").served() as b:
        gone = Record(holder="x", epoch=1, duration=6, address="http://127.0.0.1:9")
        for leader, why in (
            (None, "nobody leads"),
            (b.lease(), "nobody leads"),
            (a.lease(""), "doesn't say where it is"),
            (gone, "can't be asked"),
            (a.lease(), "knows b as the leader"),
        ):
            a.leader, b.leader = b.lease(), leader  # two that take each other for the leader
            status, found, _ = await b.ask("/v1/fleets")
            error = found["error"]
            assert isinstance(error, dict)
            assert (status, error["code"]) == (503, "NotLeading")
            assert why in error["message"]
            assert "ask again" in error["hint"]
