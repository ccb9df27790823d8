"""A long run in which everything goes wrong that may: engines die, come and go, and clients hang up, dawdle and stall.

    python -m scaler.gateway.bench.soak --minutes 10

Whatever happens, a request ends in one of few ways: with exactly what its engine gives; with a beginning of that and an error event,
if its engine died; or with a status, if there was no room or engines failed it three times. No request is answered by two engines, not
even in part.
At the end nothing is left: no request, slot, byte, task, socket, or memory.
"""

import argparse
import asyncio
import gc
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import psutil
from prometheus_client import CollectorRegistry

from scaler.gateway.bench.client import body_of, request
from scaler.gateway.bench.engine import Engine, answer
from scaler.gateway.messages import GUARD_CODES
from scaler.gateway.observe import SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.routes import Endpoint, PolicyLimits, PolicyRoutes
from scaler.gateway.settings import GatewaySettings
from warmpool.seats import PolicyName, SeatName

_POLICY: Final = PolicyName("chat")
_SEATS: Final = 4
_SLOTS: Final = 8
_CLIENTS: Final = 48
_TOKENS: Final = (1, 4, 16, 40)
_EVENT_SECONDS: Final = 0.05
"""Mean time between events that happen to seats."""
_MORE_SECONDS: Final = 0.005
"""How long a client looks whether anything follows its answer."""
_BEGIN_SECONDS: Final = 0.1
"""What the gateway does at its start is done by then."""
_LEFT_SECONDS: Final = 5.0
"""How long the last connections may take to be gone."""
_MOST_GROWTH: Final = 1.1
"""Memory at the end, of that after the first fifth."""
_GUARD: Final = next(iter(GUARD_CODES))
_CLOSED: Final = b'{"error":{"message":"","type":"server_error","code":"%s"}}' % _GUARD.encode()
_CLOSED_ANSWER: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    % (len(_CLOSED), _CLOSED)
)


@dataclass(slots=True)
class Tally:
    """What became of requests.

    Attributes:
        ends: how many ended in which way.
        begun: per request how many engines gave it first content: what was written reaches the gateway before the news of a death.
        wrong: what should never be, in words.
    """

    ends: Counter[str] = field(default_factory=Counter)
    begun: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class _Seat:
    """A seat with one engine: in rotation or not, and alive or not."""

    def __init__(self, number: int, tally: Tally) -> None:
        self.number = number
        self.generation = 0
        self.listed = False
        self.connections: set[_Connection] = set()
        self.tally = tally
        self._server: asyncio.Server | None = None
        self.url = ""

    @property
    def alive(self) -> bool:
        return self._server is not None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.generation += 1

    def kill(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self.connections):
            connection.abort()

    def endpoint(self) -> Endpoint:
        return Endpoint(
            seat=SeatName(f"seat-{self.number}"),
            uid=f"{self.number}/{self.generation}",
            policy=_POLICY,
            url=self.url,
            slots=_SLOTS,
        )


class _Connection(Engine):
    """A connection to a seat's engine, which answers while its seat is in rotation."""

    def __init__(self, seat: _Seat) -> None:
        super().__init__()
        self._seat = seat

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._seat.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._seat.connections.discard(self)

    def answer(self, seed: int, tokens: int) -> None:
        if self._seat.listed:
            super().answer(seed, tokens)
        else:
            self.write(_CLOSED_ANSWER)

    def began(self, seed: int) -> None:
        # the timer of one that has just died may be due before it hears of its death
        self._seat.tally.begun[seed] += self.connected


class Soak:
    """One run.

    Args:
        seconds: how long.
        seed: of everything that happens.
    """

    def __init__(self, seconds: float, seed: int) -> None:
        self.tally = Tally()
        self._seconds = seconds
        self._chance = random.Random(seed)
        self._seats = [_Seat(number, self.tally) for number in range(_SEATS)]
        self._requests = 0
        self._port = 0

    async def run(self) -> Tally:
        """Run, and return what became of all requests."""
        process = psutil.Process()
        settings = GatewaySettings(deadline_seconds=10.0, client_stall_seconds=2.0)
        gateway = Gateway(settings, SilentObserver(), CollectorRegistry())
        async with gateway.serve("127.0.0.1", 0) as url:
            self._port = int(url.rpartition(":")[2])
            await asyncio.sleep(_BEGIN_SECONDS)
            before = _Left.of(process)
            memory: list[int] = []
            async with asyncio.TaskGroup() as tasks:
                end = time.monotonic() + self._seconds
                for _ in range(_CLIENTS):
                    tasks.create_task(self._client(end))
                tasks.create_task(self._disturb(gateway, end))
                tasks.create_task(_remember(process, memory, end, self._seconds))
            await self._settle(gateway, process, before)
        self._judge(memory)
        return self.tally

    # -------------------------------------------------------------- seats

    async def _disturb(self, gateway: Gateway, end: float) -> None:
        """Promote, demote, kill and restart seats at random; at the end all serve, so that what waits gets done."""
        while time.monotonic() < end:
            seat = self._chance.choice(self._seats)
            match self._chance.choices(["promote", "demote", "kill"], [6, 3, 2])[0]:
                case "promote":
                    await self._promote(gateway, seat)
                case "demote":
                    await self._demote(gateway, seat)
                case _:
                    seat.kill()  # the table learns of it a little later, and a new engine takes its place later still
                    await asyncio.sleep(self._chance.expovariate(1 / _EVENT_SECONDS))
                    seat.listed = False
                    self._route(gateway)
            await asyncio.sleep(self._chance.expovariate(1 / _EVENT_SECONDS))
        for seat in self._seats:
            await self._promote(gateway, seat)

    async def _promote(self, gateway: Gateway, seat: _Seat) -> None:
        if not seat.alive:
            await seat.start()
        seat.listed = True
        self._route(gateway)

    async def _demote(self, gateway: Gateway, seat: _Seat) -> None:
        """Close the guard before or after the routes follow, as it may happen."""
        if self._chance.random() < 0.5:  # noqa: PLR2004 - a coin
            seat.listed = False
            await asyncio.sleep(self._chance.expovariate(1 / _EVENT_SECONDS))
        seat.listed = False
        self._route(gateway)

    def _route(self, gateway: Gateway) -> None:
        endpoints = tuple(seat.endpoint() for seat in self._seats if seat.listed)
        limits = PolicyLimits(max_requests=_CLIENTS, max_age_seconds=5.0)
        gateway.routes.replace({_POLICY: PolicyRoutes(models=("m",), endpoints=endpoints, limits=limits)})

    # -------------------------------------------------------------- clients

    async def _client(self, end: float) -> None:
        kinds = [self._ordinary, self._slow_writer, self._slow_reader, self._hangs_up, self._half]
        while time.monotonic() < end:
            self._requests += 1
            kind = self._chance.choices(kinds, [12, 2, 2, 3, 1])[0]
            async with asyncio.timeout(60.0):
                await kind(self._requests, self._chance.choice(_TOKENS))

    async def _ordinary(self, seed: int, tokens: int) -> None:
        async with self._connected() as (reader, writer):
            writer.write(request(seed, tokens))
            self._take(seed, tokens, await _answer(reader))

    async def _slow_writer(self, seed: int, tokens: int) -> None:
        sent = request(seed, tokens)
        async with self._connected() as (reader, writer):
            for at in range(0, len(sent), 200):
                writer.write(sent[at : at + 200])
                await asyncio.sleep(0.005)
            self._take(seed, tokens, await _answer(reader))

    async def _slow_reader(self, seed: int, tokens: int) -> None:
        async with self._connected() as (reader, writer):
            writer.write(request(seed, tokens))
            self._take(seed, tokens, await _answer(reader, pause=0.003, piece=64))

    async def _hangs_up(self, seed: int, tokens: int) -> None:
        async with self._connected() as (reader, writer):
            writer.write(request(seed, tokens))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._chance.expovariate(1 / 0.05)):
                    await _answer(reader)
            if self._chance.random() < 0.5:  # noqa: PLR2004 - a coin
                writer.transport.abort()
        self.tally.ends["hung up"] += 1

    async def _half(self, seed: int, tokens: int) -> None:
        async with self._connected() as (_, writer):
            sent = request(seed, tokens)
            writer.write(sent[: self._chance.randrange(len(sent))])
            await asyncio.sleep(0.02)
        self.tally.ends["half a request"] += 1

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    # -------------------------------------------------------------- verdicts

    def _take(self, seed: int, tokens: int, raw: bytes) -> None:
        """Judge an answer."""
        head, _, _ = raw.partition(b"\r\n\r\n")
        status = head[9:12].decode("latin-1")
        expected, body = answer(seed, tokens), body_of(raw)
        if status != "200":
            self.tally.ends[f"status {status}"] += 1
            if status not in {"502", "503"} or body_of(raw).count(b'"error"') != 1:
                self.tally.wrong.append(f"{seed}: {raw[:200]!r}")
        elif body == expected:
            self.tally.ends["whole"] += 1
        else:
            self.tally.ends["cut"] += 1
            begun, found, _ = body.partition(b'data: {"error":')
            if not found or not expected.startswith(begun) or b"StreamCut" not in body or not begun:
                self.tally.wrong.append(f"{seed}: {body!r} of {expected!r}")

    async def _settle(self, gateway: Gateway, process: psutil.Process, before: "_Left") -> None:
        """Wait until nothing is left, and say what is if something stays."""
        for seat in self._seats:
            seat.kill()
        left: _Left | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEFT_SECONDS):
                while (left := _Left.of(process)) != before or not gateway.idle:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.05)
        stats, state = gateway.stats(_POLICY), gateway.state()
        if left != before:
            self.tally.wrong.append(f"left at the end: {left}, before: {before}")
        if stats.demand or state["heldBytes"] or state["connections"] or not gateway.idle:
            self.tally.wrong.append(f"held at the end: {stats}, {state['heldBytes']} bytes")

    def _judge(self, memory: list[int]) -> None:
        twice = [seed for seed, count in self.tally.begun.items() if count > 1]
        if twice:
            self.tally.wrong.append(f"answered by two engines: {twice[:10]}")
        if len(memory) > 10 and memory[-1] > _MOST_GROWTH * memory[len(memory) // 5]:  # noqa: PLR2004 - enough to tell
            self.tally.wrong.append(f"memory has grown: {[each // 2**20 for each in memory]} MiB")


@dataclass(frozen=True, slots=True)
class _Left:
    """What a process holds."""

    sockets: int
    tasks: int

    @classmethod
    def of(cls, process: psutil.Process) -> "_Left":
        return cls(len(process.net_connections(kind="inet")), len(asyncio.all_tasks()))


async def _remember(process: psutil.Process, memory: list[int], end: float, seconds: float) -> None:
    while time.monotonic() < end:
        await asyncio.sleep(min(end - time.monotonic() + 0.01, max(1.0, seconds / 50)))
        gc.collect()
        memory.append(process.memory_info().rss)


async def _answer(reader: asyncio.StreamReader, *, pause: float = 0.0, piece: int = 65_536) -> bytes:
    """Read one answer; the connection's end ends it, too."""
    read = bytearray()
    with suppress(ConnectionError):
        while not _whole(read) and (part := await reader.read(piece)):
            read += part
            if pause:
                await asyncio.sleep(pause)
        with suppress(TimeoutError):
            async with asyncio.timeout(_MORE_SECONDS):
                read += await reader.read(piece)  # a second answer would be wrong
    return bytes(read)


def _whole(raw: bytearray) -> bool:
    head, found, body = raw.partition(b"\r\n\r\n")
    if not found:
        return False
    if b"chunked" in head:
        return raw.endswith(b"0\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return len(body) >= int(length or 0)


def main() -> None:
    """Run. Exits with 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description="A long run in which everything goes wrong that may.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    tally = asyncio.run(Soak(60.0 * arguments.minutes, arguments.seed).run())
    for end, count in tally.ends.most_common():
        _say(f"{count:8} {end}")
    for each in tally.wrong[:20]:
        _say(each)
    _say(f"{len(tally.wrong)} wrong")
    sys.exit(1 if tally.wrong else 0)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
