"""`emberpool controller`: the controller as a process of its own, over a list of agents.

Its end leaves residents as they are: what serves goes on serving, gateways keep their routes, and the next controller
reads rotation off the agents.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.cluster.http_agents import HttpAgents
from scaler.cluster.static.asking import StateReader
from scaler.cluster.static.cluster import StaticCluster
from scaler.cluster.static.listing import AgentList, load_agents
from scaler.errors import LeadershipLost, PolicyError, SampleRejected, UserError
from scaler.gateway.routes import PolicyRoutes
from scaler.policy.compile import PolicySet
from scaler.policy.reading import PolicyFiles, Reading
from scaler.runtime import first_tokens, logs
from scaler.runtime.actuator import Actuator, Ports
from scaler.runtime.agreement import Agreement
from scaler.runtime.api import Api, Intake, unauthorized
from scaler.runtime.clock import Clock, SystemClock
from scaler.runtime.coming import Coming
from scaler.runtime.controller import Controller, PolicyTable, Tick, Wiring, heartbeat
from scaler.runtime.controller_options import ControllerOptions
from scaler.runtime.events import EventLog
from scaler.runtime.garbage import keep_garbage_quiet
from scaler.runtime.hang_up import reload_on_hang_up
from scaler.runtime.keda_answers import KedaAnswers
from scaler.runtime.learning import Learned, Learning
from scaler.runtime.lifetime import Stopped, first_error, or_stop, stop_on_signals
from scaler.runtime.listed_policies import ListedPolicies, sizes, table, unlisted_fleets
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.metrics import ControllerMetrics
from scaler.runtime.policy_process import PolicyReader
from scaler.runtime.push_tokens import PushTokens
from scaler.runtime.reload import Reloader, Told
from scaler.runtime.reload_api import ReloadApi
from scaler.runtime.route_publisher import RoutePublisher
from scaler.runtime.routing import routes
from scaler.runtime.signal_api import SignalApi
from scaler.runtime.signal_factories import factories, listeners
from scaler.runtime.signal_options import SignalOptions
from scaler.runtime.signals import PolicySignals, SignalsFollow
from scaler.runtime.sockets import listen, url_of
from scaler.store.journal import Journal
from warmpool import listening
from warmpool.claim import Term
from warmpool.metric_families import expose_declared_only
from warmpool.seats import PolicyName, Seat

log = structlog.get_logger(__name__)

_FINISH_SECONDS = 5.0
"""How long actions under way may take after SIGTERM; what is cut off then, the next controller resolves."""
_CLOSING_SECONDS = 1.0
"""What handlers get to write their last words."""
_HEARTBEAT_SECONDS = 30.0
"""A loop that hasn't ticked for this long is stuck."""

Record = Callable[[Mapping[str, Any]], None]


def run(options: ControllerOptions) -> int:
    """Run until SIGINT or SIGTERM.

    Returns:
        The exit code: 0.

    Raises:
        UserError: policies, the list of agents or the address can't be used.
        LeadershipLost: another controller works with the same agents.
    """
    logs.configure()
    expose_declared_only()
    return asyncio.run(_main(options))


async def _main(options: ControllerOptions) -> int:
    policies, listed = PolicyFiles(options.policies).read(), load_agents(options.agents)
    _check_fleets(policies, listed)
    async with AsyncExitStack() as stack:
        stop = stop_on_signals(stack)
        signals = _Signals(stop=stop, reload=reload_on_hang_up(stack, stop))
        try:
            await _serve(options, policies.set, listed, signals)
        except* Stopped:
            pass
        except* (UserError, LeadershipLost) as group:
            raise first_error(group) from None
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signals:
    """What signals ask for."""

    stop: asyncio.Event
    reload: asyncio.Event


def _check_fleets(policies: Reading, listed: AgentList) -> None:
    """Refuse fleets without seats; a list may have seats of fleets that no policy file has, and they are left as they are.

    Raises:
        PolicyError: there is one.
    """
    known = sizes(listed)
    if faults := unlisted_fleets(policies, known):
        raise PolicyError(tuple(faults))
    for name in sorted(known.keys() - policies.set.fleets.keys()):
        log.warning(
            "the list of agents has a fleet that no policy file has; its seats are left alone", fleet=name
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What the loop works from.

    Attributes:
        policies: the policies in force.
        table: what the loop makes of them.
        signals: where signals come from.
        tokens: who may push.
        ledger: takes decisions.
        metrics: counts ticks.
        learning: keeps what fleets learn.
        learned: what they had learned before.
        keda: puts decisions up for KEDA.
    """

    policies: PolicySet
    table: PolicyTable
    signals: SignalOptions
    tokens: PushTokens
    ledger: Record
    metrics: ControllerMetrics
    learning: Learning
    learned: Learned
    keda: KedaAnswers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What runs together."""

    cluster: StaticCluster
    signals: PolicySignals
    actuator: Actuator
    controller: Controller
    learning: Learning
    agreement: Agreement
    publisher: RoutePublisher
    term: Term

    def adopt(self, table: PolicyTable) -> None:
        """Put other policies in force, here and at the gateways."""
        self.controller.adopt(table)
        self.publisher.refresh()


async def _serve(
    options: ControllerOptions, policies: PolicySet, listed: AgentList, signals: _Signals
) -> None:
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(listen(options.host, options.port, "--port"))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        cluster = StaticCluster(listed, StateReader(session, options.token))
        await or_stop(signals.stop, cluster.discover())
        term = _term(cluster.highest_epoch)
        registry, clock = CollectorRegistry(), SystemClock()
        agents = HttpAgents(session, options.token)
        events = EventLog(_record(stack, options.state_dir, "events.jsonl"), clock)
        ports = Ports(cluster=cluster, agents=agents, clock=clock, events=events)
        learning = Learning(options.state_dir, clock)
        plain = {"EMBERPOOL_AGENT_TOKEN": options.token, "EMBERPOOL_SIGNAL_TOKEN": options.signals.token}
        tokens = PushTokens(plain, options.signals.tokens)
        given = _Given(
            policies=policies,
            table=table(policies, sizes(listed)),
            signals=options.signals,
            tokens=tokens,
            ledger=_record(stack, options.state_dir, "decisions.jsonl"),
            metrics=ControllerMetrics(registry),
            learning=learning,
            learned=await learning.read(),
            keda=KedaAnswers(policies, clock, options.keda),
        )
        agreement = Agreement(cluster, agents, term, options.state_dir)
        parts = _wire(given, ports, agreement, cluster, term)
        reader = PolicyReader(options.policies)
        stack.push_async_callback(reader.close)
        told = Told(metrics=given.metrics, events=events, clock=clock)
        force = given.keda.following(SignalsFollow(ListedPolicies(listed, parts.adopt), parts.signals))
        reloader = Reloader(reader, force, policies, told)
        intake = Intake(report=cluster.report, token=options.token, tokens=tokens)
        app = Api(parts.controller, intake, registry, agreement).application()
        app.add_routes(ReloadApi(parts.controller, reloader, options.token).routes())
        app.add_routes(SignalApi(parts.signals, tokens).routes())
        app.add_routes(given.keda.routes())
        app.add_routes(
            [
                web.get("/v1/routes", parts.publisher.stream),
                web.post("/v1/first-tokens", partial(_first_tokens, parts.actuator, clock, tokens)),
            ]
        )
        await stack.enter_async_context(given.keda.serve())
        await stack.enter_async_context(_listening(app, listener, parts.publisher))
        log.info("controller listens", url=url_of(listener), term=term.epoch, policies=policies.short_hash)
        await _run_until(options.signals, signals, parts, reloader)


def _wire(given: _Given, ports: Ports, agreement: Agreement, cluster: StaticCluster, term: Term) -> _Parts:
    mailbox = Mailbox()
    read = factories(cluster, given.signals)
    signals = PolicySignals(
        given.policies, mailbox, ports.clock, given.metrics, read, lambda: given.tokens.names
    )
    ports.queued = signals.queued
    actuator = Actuator(ports, term, mailbox.ended)
    coming = Coming()

    def published(tick: Tick) -> None:
        given.keda.published(tick)
        coming.take(tick)

    wiring = Wiring(
        cluster=cluster,
        signals=signals,
        actuator=actuator,
        events=ports.events,
        clock=ports.clock,
        metrics=given.metrics,
        ledger=given.ledger,
        published=published,
    )
    controller = Controller(given.table, wiring, mailbox, learned=given.learned)

    def table_of(seats: Sequence[Seat]) -> Mapping[PolicyName, PolicyRoutes]:
        table = controller.coming
        return routes(table.policies, table.models, seats, table.queues)

    return _Parts(
        cluster=cluster,
        signals=signals,
        actuator=actuator,
        controller=controller,
        learning=given.learning,
        agreement=agreement,
        publisher=RoutePublisher(
            cluster, table_of, signals.gateways, term.epoch, lambda: coming.steps(ports.clock.wall())
        ),
        term=term,
    )


def _term(seen: int) -> Term:
    """Begin a term above all that agents have seen.

    The time of the start is a part of it, because an agent that doesn't answer just now may have seen more than the
    others; the holder's random part keeps claims of two terms of one number apart.
    """
    return Term(
        holder=f"{socket.gethostname()}-{secrets.token_hex(3)}", epoch=max(seen + 1, int(time.time()))
    )


async def _run_until(options: SignalOptions, signals: _Signals, parts: _Parts, reloader: Reloader) -> None:
    async with asyncio.TaskGroup() as tasks:
        deciding = [
            tasks.create_task(parts.controller.run()),
            tasks.create_task(heartbeat(parts.controller, _HEARTBEAT_SECONDS)),
        ]
        rest = [
            tasks.create_task(part)
            for part in (
                parts.cluster.run(),
                parts.actuator.run(),
                parts.publisher.run(),
                parts.learning.keep(lambda: parts.controller.learned),
                parts.agreement.run(),
                keep_garbage_quiet(parts.controller),
                parts.signals.run(),
                *(each.run() for each in listeners(parts.signals, options)),
                _watch_term(parts.cluster, parts.term.epoch),
                reloader.run(),
                reloader.follow(signals.reload),
            )
        ]
        await signals.stop.wait()
        log.info("controller ends; residents stay as they are")
        for task in deciding:
            task.cancel()
        await _actions_ended(parts)
        for task in rest:
            task.cancel()


async def _actions_ended(parts: _Parts) -> None:
    """Wait, within bounds, until no seat is held by a claim of ours."""
    changed = asyncio.Event()
    unsubscribe = parts.cluster.subscribe(changed.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FINISH_SECONDS):
                while any(s.claim and s.claim.holder == parts.term.holder for s in parts.cluster.seats()):
                    await changed.wait()
                    changed.clear()
    finally:
        unsubscribe()


async def _watch_term(cluster: StaticCluster, epoch: int) -> None:
    """Stop acting as soon as an agent has taken orders of a later term.

    Raises:
        LeadershipLost: it has.
    """
    later = await cluster.superseded(epoch)
    raise LeadershipLost(
        f"an agent has seen term {later}, and ours is {epoch}: another controller works with these agents"
    )


@asynccontextmanager
async def _listening(
    app: web.Application, listener: socket.socket, publisher: RoutePublisher
) -> AsyncIterator[None]:
    runner = listening.runner(app, _CLOSING_SECONDS)
    await runner.setup()
    try:
        await listening.start(runner, listener)
        yield
    finally:
        publisher.close()
        await runner.cleanup()


async def _first_tokens(
    actuator: Actuator, clock: Clock, pushers: PushTokens, request: web.Request
) -> web.Response:
    pusher = pushers.shown_by(request)
    if pusher is None or not pusher.first_tokens:
        return unauthorized()
    try:
        tokens = first_tokens.parse(await request.read(), clock.wall())
    except SampleRejected as error:
        return web.json_response({"error": {"code": "SampleRejected", "message": str(error)}}, status=400)
    for each in tokens:
        actuator.first_content(
            each.policy, each.seat, each.dispatched, each.dispatched - each.queued_seconds, each.at
        )
    return web.Response(status=204)


def _record(stack: AsyncExitStack, directory: Path | None, name: str) -> Record:
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
