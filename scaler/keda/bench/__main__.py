"""What answering KEDA costs, and how long it takes, with as many ScaledObjects as an operator has.

    python -m scaler.keda.bench
    python -m scaler.keda.bench --objects 1000 --seconds 10 --ceiling 4000
    python -m scaler.keda.bench --hostile

The server is a process of its own with one core, where the machine has more than one; this process is the operator, with one
connection and one open stream for each ScaledObject. Calls leave when they are due, whatever has come back (an open loop), and
times go from the moment at which a call was due to the end of its stream; how late calls left themselves is printed beside
them, for that is this process's part. A burst is the call sequence of all objects at one instant, in both forms in which it can
come: all three calls of each at once, or each after the one before. In its midst one fleet becomes active or stops being so,
and the push is timed from the order to its arrival here, which includes the server's own wait before it takes the order.

In the end the same calls go to a bare server of grpcio's, which looks at nothing: what that takes is the limit of every server on it.

With `--hostile` a third process calls as no operator does, in one way after the other, while the operator makes 200 calls a second;
that one's times are printed beside those without anybody hostile.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda.bench.hostile import KINDS
from scaler.keda.bench.http2 import Connection, Stream, connect
from scaler.keda.bench.server import fleet
from scaler.keda.server import SERVICE

_TARGET_SECONDS = 0.005
_LEAD_SECONDS = 0.05
"""Between a burst's begin and the edge in its midst."""
_QUIET_RATE = 200.0
_ANSWER_SECONDS = 20.0
"""What isn't answered then never is."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the server's process has used.

    Attributes:
        cpu: processor seconds.
        mib: the most memory that it has held.
        waited: seconds that it was ready to run and had no core.
    """

    cpu: float
    mib: float
    waited: float

    def __sub__(self, before: "Usage") -> "Usage":
        return Usage(self.cpu - before.cpu, self.mib, self.waited - before.waited)


class Server:
    """The process that is measured."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.port = port

    async def usage(self) -> Usage:
        """Ask for its usage."""
        cpu, mib, waited = (await self._ask("usage")).split()
        return Usage(float(cpu), float(mib), float(waited))

    async def edge(self, number: int) -> float:
        """Change whether a fleet is active; returns when that was published."""
        return float(await self._ask(f"edge {number}"))

    async def settle(self) -> None:
        """Let it do what the controller does once it has begun."""
        await self._ask("settle")

    async def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n".encode())
        return (await self._process.stdout.readline()).decode()


@asynccontextmanager
async def _started(core: int | None, *module: str) -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *module, stdin=-1, stdout=-1)
    assert process.stdout is not None
    assert process.stdin is not None
    if core is not None:
        os.sched_setaffinity(process.pid, {core})
    try:
        yield Server(process, int(await process.stdout.readline()))
    finally:
        process.stdin.close()
        await process.wait()


class Operator:
    """The client: one connection, one ScaledObject for each fleet."""

    def __init__(self, connection: Connection, objects: int) -> None:
        refs = [
            pb.ScaledObjectRef(
                name=fleet(number),
                namespace="serving",
                scalerMetadata={
                    "fleet": fleet(number),
                    "scalerAddress": "emberpool-keda.emberpool:6000",
                },
            )
            for number in range(objects)
        ]
        self._connection = connection
        self.refs = [ref.SerializeToString() for ref in refs]
        self.metrics = [
            pb.GetMetricsRequest(
                scaledObjectRef=ref, metricName=f"emberpool-fleet-{ref.name}-total"
            ).SerializeToString()
            for ref in refs
        ]

    def call(self, name: str, message: bytes, told: Callable[[Stream], None]) -> Stream:
        """Send a call."""
        return self._connection.call(f"/{SERVICE}/{name}", message, told)

    async def streams(self) -> list[asyncio.Queue[float]]:
        """Open a stream for each object and wait for the first message of each; then each puts up when messages come."""
        arrivals: list[asyncio.Queue[float]] = [asyncio.Queue() for _ in self.refs]
        for ref, queue in zip(self.refs, arrivals, strict=True):
            self.call("StreamIsActive", ref, partial(_arrived, queue))
        for queue in arrivals:
            await queue.get()
        return arrivals


def _arrived(queue: asyncio.Queue[float], stream: Stream) -> None:
    del stream
    queue.put_nowait(time.monotonic())


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """Calls at a rate.

    Attributes:
        seconds: from due to the end of each, sorted.
        since_left: from when each left to its end, sorted.
        late: how late each left, sorted.
        failed: those without an answer.
        used: what the server used.
        wall: how long it took.
    """

    seconds: Sequence[float]
    since_left: Sequence[float]
    late: Sequence[float]
    failed: int
    used: Usage
    wall: float


async def _paced(operator: Operator, server: Server, rate: float, seconds: float) -> Paced:
    calls, ended = int(rate * seconds), asyncio.Event()
    took: list[float] = []
    since_left: list[float] = []
    late: list[float] = []
    failed = 0

    def told(due: float, stream: Stream) -> None:
        nonlocal failed
        if stream.ended is None:
            return
        took.append(stream.ended - due)
        since_left.append(stream.ended - stream.began)
        failed += not (stream.answered and stream.messages[0])
        if len(took) == calls:
            ended.set()

    before, began = await server.usage(), time.perf_counter()
    for number in range(calls):
        due = began + number / rate
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        late.append(time.perf_counter() - due)
        message = operator.metrics[number % len(operator.metrics)]
        operator.call("GetMetrics", message, partial(told, due))
    async with asyncio.timeout(_ANSWER_SECONDS):
        await ended.wait()
    wall = time.perf_counter() - began
    used = (await server.usage()) - before
    return Paced(
        seconds=sorted(took),
        since_left=sorted(since_left),
        late=sorted(late),
        failed=failed,
        used=used,
        wall=wall,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """All objects' calls at one instant.

    Attributes:
        calls: how many.
        answered: how many of them.
        seconds: until the last was.
        push: from the order to change a fleet, in its midst, to the arrival of the push, in seconds; 0 where there was none.
        used: what the server used.
    """

    calls: int
    answered: int
    seconds: float
    push: float
    used: "Usage"


_SEQUENCE = ("GetMetricSpec", "GetMetrics", "IsActive")


class _Burst:
    """One burst under way."""

    def __init__(self, operator: Operator, *, at_once: bool) -> None:
        self._operator = operator
        self._at_once = at_once
        self.calls = len(_SEQUENCE) * len(operator.refs)
        self.ended = asyncio.Event()
        self.done = self.answered = 0
        self.last = 0.0

    def start(self) -> None:
        """Send everything that doesn't wait for something else."""
        for number in range(len(self._operator.refs)):
            for step in range(len(_SEQUENCE) if self._at_once else 1):
                self._send(number, step)

    def _send(self, number: int, step: int) -> None:
        name = _SEQUENCE[step]
        messages = self._operator.metrics if name == "GetMetrics" else self._operator.refs
        self._operator.call(name, messages[number], lambda stream: self._told(stream, number, step))

    def _told(self, stream: Stream, number: int, step: int) -> None:
        if stream.ended is None:
            return
        self.done += 1
        # a refusal comes with an empty message, and so does the answer that a fleet isn't active
        self.answered += stream.answered and (bool(stream.messages[0]) or step == _SEQUENCE.index("IsActive"))
        self.last = stream.ended
        if not self._at_once and step + 1 < len(_SEQUENCE):
            self._send(number, step + 1)
        if self.done == self.calls:
            self.ended.set()


async def _burst(
    operator: Operator, server: Server, arrivals: list[asyncio.Queue[float]], *, at_once: bool
) -> Burst:
    """Make a burst; without `arrivals` nobody becomes active in its midst."""
    burst, before, began = _Burst(operator, at_once=at_once), await server.usage(), time.perf_counter()
    burst.start()
    await asyncio.sleep(_LEAD_SECONDS)
    push = await _pushed(server, arrivals) if arrivals else 0.0
    async with asyncio.timeout(_ANSWER_SECONDS):
        await burst.ended.wait()
    used = (await server.usage()) - before
    return Burst(
        calls=burst.calls,
        answered=burst.answered,
        seconds=burst.last - began,
        push=push,
        used=used,
    )


async def _pushed(server: Server, arrivals: list[asyncio.Queue[float]]) -> float:
    """Change whether a fleet is active, and return the seconds from the order to the push."""
    chosen = len(arrivals) // 2
    while not arrivals[chosen].empty():  # heartbeats of before
        arrivals[chosen].get_nowait()
    ordered = time.monotonic()
    published = await server.edge(chosen)
    arrived = await arrivals[chosen].get()
    while arrived < published:
        arrived = await arrivals[chosen].get()
    return arrived - ordered


def _at(values: Sequence[float], percent: float) -> float:
    return values[min(len(values) - 1, int(len(values) * percent / 100))] * 1000


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _say_paced(rate: float, paced: Paced) -> None:
    calls, used = len(paced.seconds), paced.used
    _say(
        f"GetMetrics at {rate:5.0f}/s: p50 {_at(paced.seconds, 50):5.2f}  p99 {_at(paced.seconds, 99):6.2f}"
        f"  max {paced.seconds[-1] * 1000:6.2f} ms; since it left p99 {_at(paced.since_left, 99):5.2f} ms; left late p99 {_at(paced.late, 99):5.2f} ms; server: CPU"
        f" {used.cpu / paced.wall * 100:3.0f} %, {used.cpu / calls * 1e6:4.0f} µs a call, waited for a core"
        f" {used.waited / paced.wall * 100:4.1f} %; failed {paced.failed} of {calls}"
    )


async def _measure(given: argparse.Namespace) -> None:
    cores = sorted(os.sched_getaffinity(0))
    core = cores[-1] if len(cores) > 1 else None
    if core is not None:
        os.sched_setaffinity(0, set(cores) - {core})
    async with _started(core, "scaler.keda.bench.server", str(given.objects)) as server:
        connection = await connect("127.0.0.1", server.port)
        operator = Operator(connection, given.objects)
        arrivals = await operator.streams()
        _say(f"{given.objects} ScaledObjects, {given.objects} open streams, one connection")
        await server.settle()
        if given.hostile:
            await _beside_hostile(operator, server, given.seconds)
            connection.close()
            return
        await _paced_and_bursts(operator, server, arrivals, given)
        await _highest(operator, server, given)
        _say(f"server's memory at most: {(await server.usage()).mib:.0f} MiB")
        connection.close()
    _say("\nthe limit: a bare server of grpcio's, which answers without a look at what is asked")
    async with _started(core, "scaler.keda.bench.bare") as server:
        connection = await connect("127.0.0.1", server.port)
        operator = Operator(connection, given.objects)
        await operator.streams()
        await server.settle()
        await _paced_and_bursts(operator, server, [], given)
        connection.close()


async def _paced_and_bursts(
    operator: Operator,
    server: Server,
    arrivals: list[asyncio.Queue[float]],
    given: argparse.Namespace,
) -> None:
    await _paced(operator, server, 500.0, 2.0)  # caches are warm, and lists have their size
    _say_paced(1000.0, await _paced(operator, server, 1000.0, given.seconds))
    for at_once in (True, False):
        for _ in range(given.bursts):
            _say_burst(await _burst(operator, server, arrivals, at_once=at_once), at_once=at_once)


def _say_burst(burst: Burst, *, at_once: bool) -> None:
    form = "all at once      " if at_once else "in each's order  "
    push = f", push in its midst after {burst.push * 1000:4.0f} ms" if burst.push else ""
    _say(
        f"burst, {form}: {burst.answered} of {burst.calls} answered in {burst.seconds * 1000:5.0f} ms{push};"
        f" server: CPU {burst.used.cpu * 1000:4.0f} ms, {burst.used.cpu / burst.calls * 1e6:4.0f} µs a call,"
        f" waited for a core {burst.used.waited * 1000:4.0f} ms"
    )


async def _beside_hostile(operator: Operator, server: Server, seconds: float) -> None:
    """Ask with nobody hostile beside, and with each kind of it."""
    await _paced(operator, server, _QUIET_RATE, 2.0)
    for kind in ("", *KINDS):
        if not kind:
            paced = await _paced(operator, server, _QUIET_RATE, seconds)
        else:
            hostile = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "scaler.keda.bench.hostile", str(server.port), kind
            )
            try:
                await asyncio.sleep(1.0)
                paced = await _paced(operator, server, _QUIET_RATE, seconds)
            finally:
                with suppress(ProcessLookupError):
                    hostile.kill()
                await hostile.wait()
        _say(f"{kind or 'nobody hostile':15}" + _row(paced))


def _row(paced: Paced) -> str:
    return (
        f" since it left p50 {_at(paced.since_left, 50):5.2f}  p99 {_at(paced.since_left, 99):6.2f} ms; left late p99"
        f" {_at(paced.late, 99):5.2f} ms; server: CPU {paced.used.cpu / paced.wall * 100:3.0f} %, memory at most"
        f" {paced.used.mib:.0f} MiB; failed {paced.failed} of {len(paced.seconds)}"
    )


async def _highest(operator: Operator, server: Server, given: argparse.Namespace) -> None:
    """Raise the rate until it isn't held."""
    held = 0.0
    for rate in range(1500, given.ceiling + 1, 500):
        paced = await _paced(operator, server, float(rate), given.seconds / 2)
        _say_paced(float(rate), paced)
        if _at(paced.seconds, 99) > _TARGET_SECONDS * 1000 or paced.failed:
            break
        held = float(rate)
    _say(
        f"highest rate with p99 ≤ {_TARGET_SECONDS * 1000:.0f} ms: {held:.0f}/s"
        if held
        else "no higher rate was held"
    )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objects", type=int, default=1000, help="ScaledObjects")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of calls at 1,000/s; half of that for each other rate"
    )
    parser.add_argument("--hostile", action="store_true", help="measure beside hostile callers")
    parser.add_argument("--bursts", type=int, default=5, help="of each form")
    parser.add_argument("--ceiling", type=int, default=6000, help="the highest rate that is tried")
    asyncio.run(_measure(parser.parse_args()))


if __name__ == "__main__":
    main()
