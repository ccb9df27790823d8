"""The external scaler over real sockets, in this process."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from scaler.keda.client import KedaClient, ScaledObject, Tls, connected
from scaler.keda.published import Board, FleetFigures, PolicyFigures
from scaler.keda.server import KedaServer
from scaler.keda.settings import KedaSettings


@dataclass
class Desk:
    """A server, what it answers from, and a client."""

    server: KedaServer
    board: Board
    port: int
    client: KedaClient

    def publish(self, total: int, name: str = "spares") -> None:
        figures = FleetFigures(at=time.monotonic(), total=total, serving=total, spare=0)
        self.board.publish({name: figures}, {})

    def forget(self, name: str = "spares") -> None:
        """Let what was published be of long ago."""
        figures = FleetFigures(at=time.monotonic() - 3600, total=9, serving=9, spare=0)
        self.board.publish({name: figures}, {})


def asker(**metadata: str) -> ScaledObject:
    return ScaledObject("spares", "serving", metadata or {"fleet": "spares"})


def board(names: Mapping[str, str] | None = None) -> Board:
    found = Board()
    found.follow(names or {"spares": "serving"}, {"chat": "serving"})
    policy = PolicyFigures(at=time.monotonic(), serving=2, promoting=1, queued=7.0, oldest_wait=0.4)
    found.publish({}, {"chat": policy})
    return found


@asynccontextmanager
async def serving(
    settings: KedaSettings | None = None,
    on: Board | None = None,
    tls: Tls | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Desk]:
    on = on or board()
    server = KedaServer(on, clock, time.time, settings or KedaSettings(port=0))
    async with server.serve() as port, connected(f"127.0.0.1:{port}", tls) as client:
        yield Desk(server, on, port, client)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with serving() as found:
        found.publish(3)
        yield found
