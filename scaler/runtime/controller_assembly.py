"""Puts a controller together: what every process of it has in common, around the seats that it was given."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from scaler.errors import SampleRejected, UserError
from scaler.gateway.routes import PolicyRoutes
from scaler.runtime import first_tokens
from scaler.runtime.actuator import Ports
from scaler.runtime.agreement import Agreement
from scaler.runtime.api import Api, Intake, unauthorized
from scaler.runtime.clock import Clock
from scaler.runtime.coming import Coming
from scaler.runtime.controller import Controller, PolicyTable, Tick, Wiring
from scaler.runtime.controller_wiring import Begin, Parts, Record, Seats
from scaler.runtime.events import EventLog
from scaler.runtime.keda_answers import KedaAnswers
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.metrics import ControllerMetrics
from scaler.runtime.orders_api import OrdersApi
from scaler.runtime.policy_process import PolicyReader
from scaler.runtime.push_tokens import WANTED, PushTokens
from scaler.runtime.recent_events import PATH as EVENTS_PATH
from scaler.runtime.recent_events import RecentEvents
from scaler.runtime.reload import Followed, Reloader, Told
from scaler.runtime.reload_api import ReloadApi
from scaler.runtime.remembering import remembering
from scaler.runtime.route_publisher import RoutePublisher
from scaler.runtime.routing import routes
from scaler.runtime.signal_api import SignalApi
from scaler.runtime.signal_factories import factories
from scaler.runtime.signals import PolicySignals
from scaler.runtime.stage_orders import StageOrders
from scaler.runtime.start_orders import StartOrders
from scaler.store.journal import Journal
from warmpool.seats import PolicyName, Seat


def assemble(stack: AsyncExitStack, begin: Begin, seats: Seats) -> Parts:
    """Put a controller together.

    Args:
        stack: what has to be closed goes onto it.
        begin: what the process begins with.
        seats: its seats.

    Raises:
        UserError: an option can't be used.
    """
    put = _Assembly(stack, begin, seats)
    controller = put.controller()
    agreement, keeping = remembering(controller, seats.cluster, seats.agents, seats.archive)
    publisher = put.publisher(controller)
    reloader = put.reloader(controller, publisher)
    app = put.application(controller, agreement, reloader)
    app.router.add_get("/v1/routes", publisher.stream)
    return Parts(
        begin=begin,
        cluster=seats.cluster,
        ports=Ports(
            cluster=seats.cluster,
            agents=seats.agents,
            clock=begin.clock,
            events=put.events,
            queued=put.signals.queued,
        ),
        mailbox=put.mailbox,
        signals=put.signals,
        controller=controller,
        agreement=agreement,
        starts=put.starts,
        staging=put.staging,
        keeping=keeping,
        publisher=publisher,
        keda=put.keda,
        reloader=reloader,
        app=app,
    )


class _Assembly:
    """The steps, and what they share."""

    def __init__(self, stack: AsyncExitStack, begin: Begin, seats: Seats) -> None:
        options, clock = begin.options, begin.clock
        self._stack, self._begin, self._seats = stack, begin, seats
        self._kept = record(stack, options.state_dir, "events.jsonl")
        self._recent = RecentEvents()
        self._metrics = ControllerMetrics(begin.registry)
        self._coming = Coming()
        self.starts = StartOrders(seats.agents)
        self.staging = StageOrders(seats.agents)
        plain = {"EMBERPOOL_AGENT_TOKEN": options.token, "EMBERPOOL_SIGNAL_TOKEN": options.signals.token}
        self._tokens = PushTokens(plain, options.signals.tokens)
        self.mailbox = Mailbox()
        self.events = EventLog(self._told, clock)
        self.signals = PolicySignals(
            begin.policies,
            self.mailbox,
            clock,
            self._metrics,
            factories(seats.cluster, options.signals),
            lambda: self._tokens.names,
        )
        self.keda = KedaAnswers(begin.policies, clock, options.keda, begin.registry, seats.lowering_refused)

    def _told(self, event: Mapping[str, Any]) -> None:
        self._kept(event)
        self._recent.add(event)
        self._seats.events(event)

    def _published(self, tick: Tick) -> None:
        self.keda.published(tick)
        self._coming.take(tick)
        self.starts.published(tick)
        self.staging.published(tick)
        self._seats.ticked(tick)

    def controller(self) -> Controller:
        """Make the loop, standing by."""
        self._seats.cluster.observe_health(self._seats.table.health_observed)
        wiring = Wiring(
            cluster=self._seats.cluster,
            signals=self.signals,
            events=self.events,
            clock=self._begin.clock,
            metrics=self._metrics,
            ledger=record(self._stack, self._begin.options.state_dir, "decisions.jsonl"),
            published=self._published,
            pinned=self._seats.pinned,
        )
        return Controller(self._seats.table, wiring, self.mailbox)

    def publisher(self, controller: Controller) -> RoutePublisher:
        """Make what tells gateways where to send what, standing by."""
        clock, coming = self._begin.clock, self._coming

        def table_of(seats: Sequence[Seat]) -> Mapping[PolicyName, PolicyRoutes]:
            table = controller.coming
            return routes(table.policies, table.models, seats, table.queues)

        return RoutePublisher(
            self._seats.cluster, table_of, self.signals.gateways, None, lambda: coming.steps(clock.wall())
        )

    def reloader(self, controller: Controller, publisher: RoutePublisher) -> Reloader:
        """Make what follows the policies, and puts what changes in force everywhere."""

        def adopt(table: PolicyTable) -> None:
            controller.adopt(table)
            self._seats.cluster.observe_health(table.health_observed)
            publisher.refresh()

        reader = self._seats.reader or PolicyReader(self._begin.options.policies)
        self._stack.push_async_callback(reader.close)
        force = self.keda.following(Followed(self._seats.force(adopt), self.signals.follow))
        told = Told(metrics=self._metrics.reloads, events=self.events, clock=self._begin.clock)
        return Reloader(reader, force, self._begin.policies, told)

    def application(
        self, controller: Controller, agreement: Agreement, reloader: Reloader
    ) -> web.Application:
        """Make the API."""
        token, clock = self._begin.options.token, self._begin.clock
        intake = Intake(report=self._seats.cluster.report, token=token, tokens=self._tokens)
        app = Api(controller, intake, self._begin.registry, agreement, self._seats.unready).application()
        app.add_routes(ReloadApi(controller, reloader, token, self._seats.conditions).routes())
        app.add_routes(OrdersApi(controller, token).routes())
        app.add_routes(SignalApi(self.signals, self._tokens).routes())
        app.add_routes(self.keda.routes())
        app.router.add_get(EVENTS_PATH, self._recent.handle)
        app.router.add_post("/v1/first-tokens", partial(_first_tokens, controller, clock, self._tokens))
        return app


async def _first_tokens(
    controller: Controller, clock: Clock, pushers: PushTokens, request: web.Request
) -> web.Response:
    pusher = pushers.shown_by(request)
    if pusher is None or not pusher.first_tokens:
        return unauthorized(WANTED)
    try:
        tokens = first_tokens.parse(await request.read(), clock.wall())
    except SampleRejected as error:
        return web.json_response({"error": {"code": "SampleRejected", "message": str(error)}}, status=400)
    actuator = controller.actuator
    if actuator is None:
        return web.Response(status=204)  # the leader is told, too
    for each in tokens:
        actuator.first_content(
            each.policy, each.seat, each.dispatched, each.dispatched - each.queued_seconds, each.at
        )
    return web.Response(status=204)


def record(stack: AsyncExitStack, directory: Path | None, name: str) -> Record:
    """Open a journal; without a directory records are dropped.

    Raises:
        UserError: it can't be written there.
    """
    if directory is None:
        return lambda _record: None
    try:
        journal = Journal(directory / name)
    except OSError as error:
        raise UserError(
            f"can't write to {directory}: {error.strerror or error}", hint="choose another --state-dir"
        ) from error
    stack.callback(journal.close)
    return journal.append
