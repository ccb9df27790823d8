"""Addresses of pods: one of its own for each, with all its ports.

`Loopback` takes addresses of 127.0.0.0/8: any user may, and a real API server's EndpointSlices refuse them. `Namespaces` gives each
pod a network namespace and an address that everybody takes, and wants root.
"""

import asyncio
import contextlib
import random
import re
import shutil
import socket
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from scaler.errors import UserError

_SECONDS = 10.0


@dataclass(frozen=True)
class Place:
    """Where a pod's processes run.

    Attributes:
        ip: its address.
        before: what stands in front of each command that runs there.
        shared: all pods share the network, so that neither all addresses nor loopback are a pod's own: where its spec names
            them, its address is put in their place.
    """

    ip: str
    before: tuple[str, ...] = ()
    shared: bool = False

    def translated(self, text: str) -> str:
        """Put the pod's address where a spec says "all addresses" or "loopback"."""
        return _OWN.sub(self.ip, text) if self.shared else text


_OWN = re.compile(r"(?<![\d.])(?:0\.0\.0\.0|127\.0\.0\.1)(?![\d.])")


class Network(Protocol):
    """Gives pods their addresses.

    Attributes:
        host_ip: address of the nodes.
    """

    host_ip: str

    async def attach(self, pod: str) -> Place:
        """Make the place of a pod, by `namespace/name`."""

    async def detach(self, pod: str) -> None:
        """Give it back; nothing runs there any more."""

    def address_of(self, pod: str) -> str:
        """Return the address that a pod has or will have, whenever it comes: what a name of a headless Service means."""

    async def virtual(self, service: str) -> str:
        """Return the address of a Service, by `namespace/name`; this machine listens there."""


class _Numbers:
    """The last parts of addresses: each pod's own, and kept for a pod that somebody has asked for by name.

    Args:
        first: the lowest one that there is.
    """

    def __init__(self, first: int) -> None:
        self._free = deque(range(first, 255))
        self._given: dict[str, int] = {}
        self._kept: set[str] = set()

    def give(self, pod: str) -> int:
        if pod not in self._given:
            if not self._free:
                raise UserError(
                    f"{len(self._given)} pods have addresses already", hint="start another stand-in"
                )
            self._given[pod] = self._free.popleft()
        return self._given[pod]

    def keep(self, pod: str) -> int:
        self._kept.add(pod)
        return self.give(pod)

    def take_back(self, pod: str) -> None:
        if pod in self._given and pod not in self._kept:
            self._free.append(self._given.pop(pod))  # the one that is free longest goes first


class Loopback:
    """Addresses of one block 127.x.y.0/24 that no other process on this machine has; make it with `loopback`."""

    def __init__(self, prefix: str) -> None:
        self.host_ip = "127.0.0.1"
        self._prefix = prefix
        self._numbers = _Numbers(1)

    async def attach(self, pod: str) -> Place:
        return Place(f"{self._prefix}.{self._numbers.give(pod)}", shared=True)

    async def detach(self, pod: str) -> None:
        self._numbers.take_back(pod)

    def address_of(self, pod: str) -> str:
        return f"{self._prefix}.{self._numbers.keep(pod)}"

    async def virtual(self, service: str) -> str:
        return self.address_of(f"service {service}")


@contextlib.contextmanager
def _block(first: int, last: int, name: str) -> Iterator[tuple[int, int]]:
    """Reserve two numbers by a socket name that only one process of this machine can have."""
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        for _ in range(200):
            pair = random.randint(first, last), random.randint(0, 255)
            with contextlib.suppress(OSError):
                holder.bind(f"\0emberpool-{name}-{pair[0]}.{pair[1]}")
                yield pair
                return
        raise UserError("all addresses for pods are taken on this machine", hint="end what else runs here")


@asynccontextmanager
async def loopback() -> AsyncIterator[Network]:
    """Take a block of loopback addresses until the context is left."""
    with _block(16, 250, "loopback") as (second, third):
        yield Loopback(f"127.{second}.{third}")


# ---------------------------------------------------------------- namespaces


async def _ip(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "ip", *arguments, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_SECONDS):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:  # a loop that ends before its children leaves them behind
            process.kill()
            async with asyncio.timeout(_SECONDS):
                await process.wait()
    if process.returncode:
        raise UserError(
            f"ip {' '.join(arguments)}: {said.decode(errors='replace').strip()}",
            hint="network namespaces want root and iproute2; without them take loopback addresses",
        )


class Namespaces:
    """A bridge, and for each pod a network namespace that a pair of virtual interfaces joins to it; made by `namespaces`."""

    def __init__(self, prefix: str, bridge: str) -> None:
        self.host_ip = f"{prefix}.1"
        self._prefix = prefix
        self._bridge = bridge
        self._numbers = _Numbers(2)
        self._there: set[str] = set()
        self._virtual: set[str] = set()

    def _name(self, pod: str) -> str:
        return f"{self._bridge}-{self._numbers.give(pod)}"

    def address_of(self, pod: str) -> str:
        return f"{self._prefix}.{self._numbers.keep(pod)}"

    async def virtual(self, service: str) -> str:
        address = self.address_of(f"service {service}")
        if address not in self._virtual:
            self._virtual.add(address)
            await _ip("address", "add", f"{address}/32", "dev", self._bridge)
        return address

    async def attach(self, pod: str) -> Place:
        name, ip = self._name(pod), f"{self._prefix}.{self._numbers.give(pod)}"
        await _ip("netns", "add", name)
        self._there.add(pod)
        await _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        await _ip("link", "set", name, "master", self._bridge, "up")
        await _ip("-n", name, "address", "add", f"{ip}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            await _ip("-n", name, "link", "set", device, "up")
        await _ip("-n", name, "route", "add", "default", "via", self.host_ip)
        return Place(ip, ("ip", "netns", "exec", name))

    async def detach(self, pod: str) -> None:
        if pod in self._there:
            self._there.discard(pod)
            await _ip("netns", "delete", self._name(pod))
            self._numbers.take_back(pod)

    async def close(self) -> None:
        for pod in list(self._there):
            with contextlib.suppress(UserError):
                await self.detach(pod)


def missing_for_namespaces() -> Sequence[str]:
    """Name the programs that `namespaces` lacks here."""
    return [program for program in ("ip",) if shutil.which(program) is None]


@asynccontextmanager
async def namespaces() -> AsyncIterator[Network]:
    """Make a bridge with a block 10.x.y.0/24 until the context is left.

    Raises:
        UserError: nobody but root may, or iproute2 is missing.
    """
    if missing := missing_for_namespaces():
        raise UserError(f"there is no {missing[0]} here", hint="install iproute2, or take loopback addresses")
    with _block(200, 250, "namespaces") as (second, third):
        bridge = f"ep{second}{third:03}"
        network = Namespaces(f"10.{second}.{third}", bridge)
        await _ip("link", "add", bridge, "type", "bridge")
        try:
            await _ip("address", "add", f"{network.host_ip}/24", "dev", bridge)
            await _ip("link", "set", bridge, "up")
            yield network
        finally:
            await network.close()
            await _ip("link", "delete", bridge)
