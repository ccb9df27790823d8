"""What every controller process is made of, whatever its seats are: signals, the loop, routes, answers to KEDA, the API.

Most of it runs for as long as the process does, whoever leads. What acts runs for one term: `Parts.lead`.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.cluster.http_agents import HttpAgents
from scaler.cluster.port import Cluster
from scaler.core.model import OneWay
from scaler.errors import LeadershipLost
from scaler.policy.compile import PolicySet
from scaler.runtime.actuator import Actuator, Ports
from scaler.runtime.agreement import Agreement
from scaler.runtime.clock import Clock
from scaler.runtime.controller import Controller, PolicyTable, Tick, heartbeat
from scaler.runtime.controller_options import ControllerOptions
from scaler.runtime.garbage import keep_garbage_quiet
from scaler.runtime.keda_answers import KedaAnswers, LoweringRefused, never
from scaler.runtime.keeping import Keeping
from scaler.runtime.kept import Archive
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.reload import Force, Reader, Reloader
from scaler.runtime.reload_api import Conditions
from scaler.runtime.route_publisher import RoutePublisher
from scaler.runtime.signal_factories import listeners
from scaler.runtime.signals import PolicySignals
from scaler.runtime.stage_orders import StageOrders
from scaler.runtime.start_orders import StartOrders
from warmpool import listening
from warmpool.claim import Term
from warmpool.seats import FleetName

log = structlog.get_logger(__name__)

_FINISH_SECONDS: Final = 5.0
"""How long actions under way may take after SIGTERM; what is cut off then, the next term resolves."""
_CLOSING_SECONDS: Final = 1.0
"""What handlers get to write their last words."""
_HEARTBEAT_SECONDS: Final = 30.0
"""A loop that hasn't gone on for this long is stuck."""
_TAKE_UP_SECONDS: Final = 2.0
"""How long a term's first tick waits for what was kept."""

Record = Callable[[Mapping[str, Any]], None]
"""Takes one record; must not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """What a controller process begins with.

    Attributes:
        options: what it was told.
        policies: the policies in force at first.
        stop: set by SIGINT and SIGTERM.
        reload: set by SIGHUP.
        listener: what its API listens on.
        clock: time.
        registry: what its metrics page shows.
    """

    options: ControllerOptions
    policies: PolicySet
    stop: asyncio.Event
    reload: asyncio.Event
    listener: socket.socket
    clock: Clock
    registry: CollectorRegistry


class ReportedCluster(Cluster, Protocol):
    """A cluster whose agents report."""

    def report(self, body: Mapping[str, Any]) -> None:
        """Take what an agent tells of its seat.

        Raises:
            BadOrder: it is no report.
        """

    def observe_health(self, fleets: Collection[FleetName]) -> None:
        """Take the fleets for which what is said of GPUs is shown and not acted on; the others' seats act on it."""

    async def superseded(self, epoch: int) -> int:
        """Wait until an agent tells of a later term than `epoch`, and return that."""

    async def run(self) -> None:
        """Follow the cluster until cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seats:
    """What differs from one kind of cluster to another.

    Attributes:
        cluster: the seats.
        agents: their agents.
        table: what the loop makes of the first policies.
        force: makes what puts policies in force, of what takes their tables.
        archive: where what must outlive the process is kept.
        events: takes each event, beside the file.
        ticked: takes each tick of the leader once its actions have begun.
        unready: says why this process can't answer yet though it has decided; empty if it can.
        pinned: returns the fleets whose size stays as it is at present, each with the direction in which it may change all the same.
        conditions: returns what is to be known of fleets beside their numbers.
        lowering_refused: says why a fleet had better not be asked for so few seats now.
        reader: reads the policies; None: they are in the files that the options name.
    """

    cluster: ReportedCluster
    agents: HttpAgents
    table: PolicyTable
    force: Callable[[Callable[[PolicyTable], None]], Force]
    archive: Archive
    events: Record = lambda _record: None
    ticked: Callable[[Tick], None] = lambda _tick: None
    unready: Callable[[], str] = lambda: ""
    pinned: Callable[[], Mapping[FleetName, OneWay | None]] = dict
    conditions: Conditions = tuple
    lowering_refused: LoweringRefused = never
    reader: Reader | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What runs together."""

    begin: Begin
    cluster: ReportedCluster
    ports: Ports
    mailbox: Mailbox
    signals: PolicySignals
    controller: Controller
    agreement: Agreement
    starts: StartOrders
    staging: StageOrders
    keeping: Keeping
    publisher: RoutePublisher
    keda: KedaAnswers
    reloader: Reloader
    app: web.Application

    def standing(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what runs for as long as the process does, whoever leads."""
        yield self.cluster.run()
        yield self.controller.run()
        yield heartbeat(self.controller, _HEARTBEAT_SECONDS)
        yield self.publisher.run()
        yield keep_garbage_quiet(self.controller)
        yield self.signals.run()
        yield from (each.run() for each in listeners(self.signals, self.begin.options.signals))
        yield self.reloader.run()
        yield self.reloader.follow(self.begin.reload)

    async def lead(self, term: Term, ports: Ports) -> None:
        """Act, for one term, until cancelled.

        Args:
            term: in whose name.
            ports: what is acted with.

        Raises:
            LeadershipLost: in an exception group; an agent has taken orders of a later term.
        """
        actuator = Actuator(ports, term, self.mailbox.ended)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(actuator.run())
                await self._take_up()
                tasks.create_task(self.keeping.run())
                tasks.create_task(self.agreement.run(term))
                tasks.create_task(self.starts.run(term))
                tasks.create_task(self.staging.run(term))
                self.publisher.lead(term.epoch)
                self.controller.lead(actuator)
        finally:
            self.controller.stand_by()
            self.publisher.stand_by()

    async def _take_up(self) -> None:
        """Take up what was kept before anything is done: what people have frozen and drained, and what residents are compared with.

        What can't be read in a moment is read later: promotions don't wait for it.
        """
        self.controller.orders.lead()
        with suppress(TimeoutError):
            async with asyncio.timeout(_TAKE_UP_SECONDS):
                await self.keeping.read()

    async def end_actions(self, holder: str) -> None:
        """Begin nothing more, and wait within bounds until no seat is held by a claim of `holder`."""
        self.controller.stand_by()
        changed = asyncio.Event()
        unsubscribe = self.cluster.subscribe(changed.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FINISH_SECONDS):
                    while any(seat.claim and seat.claim.holder == holder for seat in self.cluster.seats()):
                        await changed.wait()
                        changed.clear()
        finally:
            unsubscribe()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Answer KEDA and everybody else for as long as the context lasts.

        Raises:
            UserError: KEDA's port is taken, or its certificates can't be used.
        """
        runner = listening.runner(self.app, _CLOSING_SECONDS)
        await runner.setup()
        try:
            async with self.keda.serve():
                await listening.start(runner, self.begin.listener)
                yield
        finally:
            self.publisher.close()
            await runner.cleanup()


async def give_up_when_superseded(cluster: ReportedCluster, term: Term) -> None:
    """Give a term up as soon as an agent has taken orders of a later one.

    Another works with the same agents: where there is a Lease, that was deleted or set back.

    Raises:
        LeadershipLost: it has.
    """
    later = await cluster.superseded(term.epoch)
    raise LeadershipLost(
        f"an agent has seen term {later}, and ours is {term.epoch}: another controller works with these agents"
    )
