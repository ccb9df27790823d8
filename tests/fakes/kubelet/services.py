"""A stand-in for kube-proxy: each Service has an address, and a connection to it goes to one of the endpoints that are ready.

As documented of virtual IPs: the endpoint is drawn for each connection, one that is open stays where it is, a Service without
endpoints refuses, and where all that is left is on its way out, that still serves. A real cluster has its own.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog

from scaler.cluster.kube.reflector import Reflector
from scaler.cluster.kube.resources import Kind
from scaler.errors import ClusterError
from tests.fakes.kube_api.service_proxy import SERVICE_NAME
from tests.fakes.kube_calls import ENDPOINT_SLICE, SERVICE, Calls, Object, key_of, reflected
from tests.fakes.kubelet.network import Network

log = structlog.get_logger(__name__)
_CONNECT_SECONDS = 3.0
_CHUNK = 2**16
_RETRY_SECONDS = 0.2
Address = tuple[str, int]


def takers(slices: Sequence[Object], port: str) -> list[Address]:
    """Return who takes a new connection to a port of a Service. PURE."""
    ready: list[Address] = []
    leaving: list[Address] = []
    for each in slices:
        number = next((one["port"] for one in each.get("ports") or () if one.get("name", "") == port), None)
        if number is None:
            continue
        for endpoint in each.get("endpoints") or ():
            said, address = endpoint.get("conditions") or {}, (endpoint["addresses"][0], int(number))
            if said.get("ready", True):
                ready.append(address)
            elif said.get("serving") and said.get("terminating"):
                leaving.append(address)
    return ready or leaving


class _Port:
    """One port of one Service."""

    def __init__(self, tasks: asyncio.TaskGroup, connections: set[asyncio.Task[None]]) -> None:
        self.takers: Sequence[Address] = ()
        self._tasks = tasks
        self._open = connections
        self._server: asyncio.Server | None = None

    async def serve(self, address: Address) -> None:
        """Listen while there is somebody to connect to."""
        if self.takers and self._server is None:
            self._server = await asyncio.start_server(self._connected, *address)
        elif not self.takers and self._server is not None:
            self.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        joined = self._tasks.create_task(self._join(reader, writer))
        self._open.add(joined)
        joined.add_done_callback(self._open.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            if not self.takers:
                return
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    theirs, ours = await asyncio.open_connection(*random.choice(self.takers))
            except (OSError, TimeoutError):
                return
            with contextlib.closing(ours):
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(_copy(reader, ours))
                    ways.create_task(_copy(theirs, writer))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass on what comes until one end has enough."""
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            target.write(data)
            await target.drain()
        target.write_eof()


class Proxy:
    """The addresses of all Services; make it with `proxying`."""

    def __init__(self, calls: Calls, network: Network, tasks: asyncio.TaskGroup) -> None:
        self._calls = calls
        self._network = network
        self._tasks = tasks
        self._ports: dict[tuple[str, str, int], _Port] = {}
        self._open = set[asyncio.Task[None]]()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def run(self, held: dict[Kind, Reflector[Object]]) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._sync(held[SERVICE].values(), held[ENDPOINT_SLICE].values())
            except ClusterError as error:
                log.info("Services are looked at again", error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                self.wake()

    async def _sync(self, services: Sequence[Object], slices: Sequence[Object]) -> None:
        there = set[tuple[str, str, int]]()
        for service in services:
            spec, (namespace, name) = service["spec"], key_of(service)
            if spec.get("clusterIP") == "None" or spec.get("type") == "ExternalName":
                continue
            address = await self._network.virtual(f"{namespace}/{name}")
            if not spec.get("clusterIP"):
                given = {"clusterIP": address, "clusterIPs": [address], "type": "ClusterIP"}
                await self._calls.merge(SERVICE, namespace, name, {"spec": given})
            own = [
                each
                for each in slices
                if each["metadata"]["namespace"] == namespace
                and (each["metadata"].get("labels") or {}).get(SERVICE_NAME) == name
            ]
            for port in spec.get("ports") or ():
                key = (namespace, name, int(port["port"]))
                there.add(key)
                listener = self._ports.setdefault(key, _Port(self._tasks, self._open))
                listener.takers = takers(own, port.get("name", ""))
                await listener.serve((address, key[2]))
        for key in self._ports.keys() - there:
            self._ports.pop(key).close()

    def close(self) -> None:
        """Listen no more, and cut what is open."""
        for port in self._ports.values():
            port.close()
        for joined in tuple(self._open):
            joined.cancel()


@asynccontextmanager
async def proxying(calls: Calls, network: Network) -> AsyncIterator[None]:
    """Give Services addresses and pass connections on, until the context is left."""
    async with asyncio.TaskGroup() as tasks:
        proxy = Proxy(calls, network, tasks)
        async with reflected(calls, {SERVICE: proxy.wake, ENDPOINT_SLICE: proxy.wake}) as held:
            proxy.wake()
            running = tasks.create_task(proxy.run(held))
            try:
                yield
            finally:
                running.cancel()
                proxy.close()
