"""A network without sockets: connections of bytes between processes, in virtual time, which can be held up, cut and refused.

What runs over it are aiohttp's own clients and servers. As with TCP, bytes that can't be delivered now are delivered later, even if
the sender has given up and closed meanwhile; and the kernel closes the connections of a process that was killed.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from aiohttp.client_proto import ResponseHandler

from scaler.cluster.kube.client import KubeClient
from tests.sim.fault_schedules.processes import Process, State, owner

_END, _RESET = object(), object()
_RESOLUTION = 1e-6
"""A timer may fire so many seconds early, for how numbers are rounded."""


@dataclass(frozen=True)
class Listener:
    """Who takes connections at an address."""

    owner: Process | None
    context: Context
    factory: Callable[[], asyncio.Protocol]


class Wire(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, network: "Network", context: Context, who: Process | None, names: tuple[str, str]
    ) -> None:
        super().__init__()
        self.owner = who
        self.number = next(network.numbers)
        self.peer: Wire
        self.protocol: asyncio.Protocol
        self.address = names[0]
        self._network = network
        self.context = context
        self._names = names
        self._incoming: deque[tuple[float, object]] = deque()
        self._pumping = False
        self._paused = False
        self._closing = False
        self._lost = False

    # ------------------------------------------------------------ asyncio's

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        mine, theirs = self._names
        return {"sockname": (mine, 0), "peername": (theirs, 0)}.get(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._closing:
            self.peer.comes(bytes(data))

    def close(self) -> None:
        self._close(_END, None)

    def abort(self) -> None:
        self._close(_RESET, None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self.pump()

    def is_reading(self) -> bool:
        return not self._paused

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Whatever is written is on its way."""

    # ------------------------------------------------------------ bytes on their way

    def comes(self, what: object) -> None:
        """Take what the other end sends."""
        due = self._network.due()
        if self._incoming:
            due = max(due, self._incoming[-1][0])
        self._incoming.append((due, what))
        self.pump()

    def pump(self) -> None:
        """See to it that what has come is read, if it gets through."""
        if self._pumping or self._paused or self._lost or not self._incoming:
            return
        if self._network.blocked(self.peer.owner, self.owner):
            return
        self._pumping = True
        asyncio.get_running_loop().call_at(self._incoming[0][0], self._read, context=self.context)

    def _read(self) -> None:
        self._pumping = False
        now = asyncio.get_running_loop().time() + _RESOLUTION
        while self._incoming and self._incoming[0][0] <= now and not self._paused and not self._lost:
            if self._network.blocked(self.peer.owner, self.owner):
                return
            _, what = self._incoming.popleft()
            if isinstance(what, bytes):
                if not self._closing:
                    self.protocol.data_received(what)
            elif what is _RESET:
                self._lose(ConnectionResetError("the connection was reset"))
            else:
                self.protocol.eof_received()
                self.close()
        self.pump()

    def _close(self, how: object, error: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        self.peer.comes(how)
        asyncio.get_running_loop().call_soon(self._lose, error, context=self.context)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._network.wires.discard(self)
        self.protocol.connection_lost(error)

    def vanish(self) -> None:
        """The process is gone, and its kernel says so."""
        self._network.wires.discard(self)
        self._network.left.append(self)
        if not self._closing:
            self._closing = True
            self.peer.comes(_RESET)

    def lose(self) -> None:
        """Tell who had it that it is gone."""
        asyncio.get_running_loop().call_soon(self._lose, None, context=self.context)


@dataclass(eq=False)
class Network:
    """All connections.

    Attributes:
        latency: seconds that the next bytes take.
        wires: ends of connections that are open.
        refused: addresses at which connections are refused at present.
        left: ends that processes which were killed have left behind.
        numbers: of ends, in the order in which they came.
    """

    latency: Callable[[], float]
    wires: set[Wire] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    left: list[Wire] = field(default_factory=list)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _listeners: dict[tuple[str, int], Listener] = field(default_factory=dict)
    _cuts: list[Callable[[str, str], bool]] = field(default_factory=list)
    _healed: asyncio.Event = field(default_factory=asyncio.Event)

    def due(self) -> float:
        return asyncio.get_running_loop().time() + self.latency()

    # ------------------------------------------------------------ faults

    def cut(self, between: Callable[[str, str], bool]) -> Callable[[], None]:
        """Let nothing through from one process to another where `between` says so of their names; the returned function heals it."""
        self._cuts.append(between)

        def heal() -> None:
            if between in self._cuts:
                self._cuts.remove(between)
                healed, self._healed = self._healed, asyncio.Event()
                healed.set()
                for wire in self._in_order():
                    wire.pump()

        return heal

    def blocked(self, one: Process | None, other: Process | None) -> bool:
        if not self._cuts:
            return False
        first, second = (each.name if each else "" for each in (one, other))
        return any(cut(first, second) for cut in self._cuts)

    def reset(self, address: str) -> None:
        """Cut the connections that an address has taken."""
        for wire in self._in_order():
            if wire.address == address:
                wire.abort()

    def gone(self, process: Process) -> None:
        """Close what a process had open, as its kernel does when it was killed."""
        self._listeners = {at: each for at, each in self._listeners.items() if each.owner is not process}
        for wire in self._in_order():
            if wire.owner is process:
                wire.vanish()

    def _in_order(self) -> Iterator[Wire]:
        return iter(sorted(self.wires, key=lambda wire: wire.number))

    def end(self) -> None:
        """Reach nobody any more."""
        self._listeners.clear()
        for wire in self._in_order():
            wire.abort()
        for wire in self.left:
            wire.lose()

    # ------------------------------------------------------------ connecting

    def listen(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> None:
        """Take connections at an address; the host `*` stands for all that nobody else has."""
        self._listeners[host, port] = Listener(owner(), copy_context(), factory)

    async def connect(self, host: str, port: int, factory: Callable[[], ResponseHandler]) -> ResponseHandler:
        """Connect.

        Raises:
            ConnectionRefusedError: nobody is there.
        """
        await asyncio.sleep(self.latency())
        listener = self._listeners.get((host, port)) or self._listeners.get(("*", port))
        if listener is None or host in self.refused:
            raise ConnectionRefusedError(f"{host}:{port} refuses connections")
        if listener.owner is not None and listener.owner.state is State.KILLED:
            raise ConnectionRefusedError(f"{host}:{port} refuses connections")
        me = owner()
        while self.blocked(me, listener.owner) or self.blocked(listener.owner, me):
            await self._healed.wait()
        mine = Wire(self, copy_context(), me, (me.name if me else "", host))
        theirs = Wire(self, listener.context.copy(), listener.owner, (host, mine.address))
        mine.peer, theirs.peer = theirs, mine
        mine.protocol, theirs.protocol = factory(), listener.factory()
        self.wires |= {mine, theirs}
        theirs.context.run(theirs.protocol.connection_made, theirs)
        mine.protocol.connection_made(mine)
        return mine.protocol


class WireConnector(aiohttp.BaseConnector):
    """Makes aiohttp's connections over a network."""

    def __init__(self, network: Network) -> None:
        super().__init__(limit=0, keepalive_timeout=60)
        self._network = network

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: Any,  # noqa: ARG002 - aiohttp's own signature
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own signature
    ) -> ResponseHandler:
        host, port = req.url.host, req.url.port
        assert host is not None
        assert port is not None
        try:
            async with asyncio.timeout(timeout.sock_connect):
                return await self._network.connect(host, port, self._factory)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"no connection to {host}:{port}") from error
        except OSError as error:
            raise aiohttp.ClientConnectionError(str(error)) from error


class WiredClient(KubeClient):
    """The client of an API server, over a network."""

    network: Network

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=WireConnector(self.network), cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=2**18
        )
        return self
