"""Agents without engines: one server for all seats, which speaks as an agent does at each seat's own address.

A seat is told by the address at which it was asked. What its residents do is `tests.fakes.memory_cluster`'s; what is said over
the network is an agent's: state, orders, errors, and pushes to controllers.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
from aiohttp import web

from scaler.cluster.objects import SeatObjects
from scaler.errors import NotFound
from tests.fakes.memory_cluster import Engines, MemoryAgents, S, Timing
from warmpool.agent.orders import OrderKind, parse_order
from warmpool.agent.server import describe
from warmpool.errors import BadOrder, EngineLost, WarmpoolError
from warmpool.seats import Claim, Operation, PolicyName, Resident, Seat, SeatName
from warmpool.wire import resident_to_json

HEARTBEAT_SECONDS = 2.0
COALESCE_SECONDS = 0.01


class ScriptedAgents:
    """Agents of many seats; see `scripted_agents`.

    Attributes:
        port: where all of them listen, each at its seat's address.
        engines: what their engines do.
        silent: seats whose agents answer nobody and push nothing.
        gpus: UUIDs of seats' GPUs; seats that are missing have none.
        ordered: the orders that were given, in their order: verb, seat, policy.
    """

    def __init__(self, token: str, timing: Timing) -> None:
        self.port = 0
        self._token = token
        self.objects = SeatObjects()
        self.engines = Engines(self.objects, time.time, timing)
        self.silent: set[SeatName] = set()
        self.gpus: dict[SeatName, list[str]] = {}
        self._orders = MemoryAgents(self.engines)
        self.ordered = self._orders.orders
        self._at: dict[str, SeatName] = {}
        self._sequences: dict[SeatName, int] = {}
        self._tasks: dict[SeatName, list[asyncio.Task[None]]] = {}
        self._session: aiohttp.ClientSession | None = None

    # ------------------------------------------------------------ seats come and go

    def begin(
        self, seat: Seat, address: str, policies: Sequence[PolicyName], controllers: Sequence[str]
    ) -> None:
        """An agent begins on a pod, and starts its residents one after the other."""
        agent = f"http://{address}:{self.port}"
        residents = tuple(
            Resident(
                policy=policy,
                state=S.STARTING,
                since=time.time(),
                address=f"http://{address}:{8001 + number}",
            )
            for number, policy in enumerate(policies)
        )
        self.objects.add(
            Seat(name=seat.name, uid=seat.uid, version="", fleet=seat.fleet, agent=agent, residents=residents)
        )
        self._at[address] = seat.name
        self._sequences[seat.name] = 0
        loop = asyncio.get_running_loop()
        self._tasks[seat.name] = [
            loop.create_task(self._live(seat.name, policies)),
            *(loop.create_task(self._push(seat.name, url)) for url in controllers),
        ]

    def end(self, name: SeatName) -> None:
        for task in self._tasks.pop(name, ()):
            task.cancel()
        self.objects.remove(name)
        self._at = {address: seat for address, seat in self._at.items() if seat != name}

    async def _live(self, name: SeatName, policies: Sequence[PolicyName]) -> None:
        for policy in policies:
            for state in (S.LOADING, S.WARMING, S.PROVING, S.PAUSED):
                await asyncio.sleep(self.engines.timing.start / 4)
                self.engines.move(name, policy, state)

    # ------------------------------------------------------------ what they say

    def state(self, name: SeatName) -> dict[str, Any]:
        seat = self.objects.get(name)
        self._sequences[name] += 1
        return {
            "seat": name,
            "fleet": seat.fleet,
            "uid": seat.uid,
            "agent": f"http://0.0.0.0:{self.port}",
            "pid": 1,
            "epoch": self.engines.epochs.get(name, 0),
            "seq": self._sequences[name],
            "at": time.time(),
            "gpus": self.gpus.get(name, []),
            "residents": [resident_to_json(resident) for resident in seat.residents],
        }

    async def _push(self, name: SeatName, controller: str) -> None:
        assert self._session is not None
        changed, told = asyncio.Event(), None
        unsubscribe = self.objects.subscribe(changed.set)
        try:
            while True:
                changed.clear()
                seat, due = self.objects.get(name), told is None
                if (due or seat != told) and name not in self.silent:
                    told = seat if await self._tell(name, controller) else None
                await asyncio.sleep(COALESCE_SECONDS if told else 0.1)
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        while told is not None and self.objects.get(name) is told:
                            await changed.wait()
                            changed.clear()
                except TimeoutError:
                    told = None
        except NotFound:
            return
        finally:
            unsubscribe()

    async def _tell(self, name: SeatName, controller: str) -> bool:
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=1.0)
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._session.post(
                f"{controller}/v1/agents", json=self.state(name), timeout=timeout
            ) as response:
                return response.status < 300
        return False

    # ------------------------------------------------------------ what they answer

    async def answer(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(await self._answer(request))
        except WarmpoolError as error:
            code, status = describe(error)
            return web.json_response({"error": {"code": code, "message": str(error)}}, status=status)

    async def _answer(self, request: web.Request) -> Mapping[str, Any]:
        if request.headers.get("Authorization") != f"Bearer {self._token}":
            raise BadOrder("the bearer token is missing or wrong")
        assert request.transport is not None
        name = self._at.get(request.transport.get_extra_info("sockname")[0])
        if name is None or name in self.silent:
            request.transport.abort()
            raise EngineLost("nobody is here")
        if request.method == "GET":
            return self.state(name)
        if request.path == "/v1/starts":
            return {}  # they start all at once
        return await self._carry_out(name, request.path.rpartition("/")[2], await request.json())

    async def _carry_out(self, name: SeatName, verb: str, body: object) -> Mapping[str, Any]:
        order = parse_order(OrderKind(verb), body)
        claim = Claim(
            id=order.claim,
            policy=PolicyName(order.policy),
            operation=Operation.PROMOTE,
            holder="",
            epoch=order.epoch,
            since=0.0,
            deadline=0.0,
        )
        carry_out: Callable[..., Any] = getattr(self._orders, verb)
        done = await carry_out(
            self.objects.get(name), claim, PolicyName(order.policy), deadline=order.deadline_seconds
        )
        return {"policy": order.policy, "phases": dict(done.phases), "aborted": done.aborted}


@asynccontextmanager
async def scripted_agents(token: str, timing: Timing | None = None) -> AsyncIterator[ScriptedAgents]:
    """Serve agents on one port of all this machine's addresses."""
    agents = ScriptedAgents(token, timing or Timing(start=0.1))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", agents.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "0.0.0.0", 0).start()
        agents.port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            agents._session = session
            yield agents
            for name in [seat.name for seat in agents.objects.all()]:
                agents.end(name)
    finally:
        await runner.cleanup()
