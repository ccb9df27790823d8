"""`emberpool controller`: the controller as a process of its own, over a list of agents.

Its end leaves residents as they are: what serves goes on serving, gateways keep their routes, and the next controller
reads rotation off the agents.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
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
from scaler.errors import LeadershipLost, SampleRejected, UserError
from scaler.policy.compile import PolicySet, load_policies
from scaler.runtime import first_tokens, logs
from scaler.runtime.actuator import Actuator, Ports
from scaler.runtime.api import Api, Intake
from scaler.runtime.clock import Clock, SystemClock
from scaler.runtime.controller import Controller, PolicyTable, Wiring, heartbeat
from scaler.runtime.controller_options import ControllerOptions
from scaler.runtime.events import EventLog
from scaler.runtime.lifetime import Stopped, first_error, or_stop, stop_on_signals
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.metrics import ControllerMetrics
from scaler.runtime.pushed_signals import PushedSignals
from scaler.runtime.route_publisher import RoutePublisher
from scaler.runtime.routing import routes
from scaler.runtime.sockets import listen, url_of
from scaler.store.journal import Journal
from warmpool.claim import Term
from warmpool.seats import FleetName, PolicyName

log = structlog.get_logger(__name__)

_FINISH_SECONDS = 5.0
"""How long actions under way may take after SIGTERM; what is cut off then, the next controller resolves."""
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
    return asyncio.run(_main(options))


async def _main(options: ControllerOptions) -> int:
    policies, listed = load_policies(options.policies), load_agents(options.agents)
    _check_fleets(policies, listed)
    async with AsyncExitStack() as stack:
        stop = stop_on_signals(stack)
        try:
            await _serve(options, policies, listed, stop)
        except* Stopped:
            pass
        except* (UserError, LeadershipLost) as group:
            raise first_error(group) from None
    return 0


def _check_fleets(policies: PolicySet, listed: AgentList) -> None:
    """Refuse fleets that only one of policies and list knows.

    Raises:
        UserError: there is one.
    """
    names = {FleetName(fleet.name) for fleet in listed.spec.fleets}
    for name in sorted(names - policies.fleets.keys()):
        raise UserError(
            f"the list of agents has a fleet {name}, and no policy file has",
            hint=f"write a Fleet document called {name}, or mend the name in the list",
        )
    for name in sorted(policies.fleets.keys() - names):
        raise UserError(
            f"fleet {name} has no seat in the list of agents",
            hint=f"list its agents under `- name: {name}`, or take the Fleet out of the policies",
        )


def _table(policies: PolicySet, listed: AgentList) -> PolicyTable:
    """Return the policies with each fleet no larger than its list: the law must not count on seats that can't come."""
    sizes = {FleetName(fleet.name): len(fleet.seats) for fleet in listed.spec.fleets}
    fleets = []
    for name, spec in policies.fleet_specs.items():
        if spec.max_seats != sizes[name]:
            log.warning(
                "maxSeats differs from the list of agents",
                fleet=name,
                maxSeats=spec.max_seats,
                listed=sizes[name],
            )
        fleets.append(replace(spec, max_seats=min(spec.max_seats, sizes[name])))
    return PolicyTable(
        policies=tuple(policies.policy_specs.values()), fleets=tuple(fleets), hash=policies.short_hash
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What the loop works from.

    Attributes:
        table: the policies in force.
        models: model names of each policy.
        ledger: takes decisions.
        metrics: counts ticks.
    """

    table: PolicyTable
    models: Mapping[PolicyName, tuple[str, ...]]
    ledger: Record
    metrics: ControllerMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What runs together."""

    cluster: StaticCluster
    signals: PushedSignals
    actuator: Actuator
    controller: Controller
    publisher: RoutePublisher
    term: Term


async def _serve(
    options: ControllerOptions, policies: PolicySet, listed: AgentList, stop: asyncio.Event
) -> None:
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(listen(options.host, options.port, "--port"))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        cluster = StaticCluster(listed, StateReader(session, options.token))
        await or_stop(stop, cluster.discover())
        term = _term(cluster.highest_epoch)
        registry, clock = CollectorRegistry(), SystemClock()
        agents = HttpAgents(session, options.token)
        events = EventLog(_record(stack, options.state_dir, "events.jsonl"), clock)
        ports = Ports(cluster=cluster, agents=agents, clock=clock, events=events)
        given = _Given(
            table=_table(policies, listed),
            models={name: policy.models for name, policy in policies.policies.items()},
            ledger=_record(stack, options.state_dir, "decisions.jsonl"),
            metrics=ControllerMetrics(registry),
        )
        parts = _wire(given, ports, cluster, term)
        intake = Intake(
            sample=parts.signals.ingest, report=cluster.report, models=given.models, token=options.token
        )
        app = Api(parts.controller, intake, registry).application()
        app.add_routes(
            [
                web.get("/v1/routes", parts.publisher.stream),
                web.post("/v1/first-tokens", partial(_first_tokens, parts.actuator, clock)),
            ]
        )
        await stack.enter_async_context(_listening(app, listener, parts.publisher))
        log.info("controller listens", url=url_of(listener), term=term.epoch, policies=policies.short_hash)
        await _run_until(stop, parts)


def _wire(given: _Given, ports: Ports, cluster: StaticCluster, term: Term) -> _Parts:
    mailbox = Mailbox()
    signals = PushedSignals(mailbox, ports.clock)
    ports.queued = lambda policy: int(signals.load(policy, 0.0).queued.value)
    actuator = Actuator(ports, term, partial(mailbox.wake, urgent=True))
    wiring = Wiring(
        cluster=cluster,
        signals=signals,
        actuator=actuator,
        events=ports.events,
        clock=ports.clock,
        metrics=given.metrics,
        ledger=given.ledger,
    )
    table_of = partial(routes, given.table.policies, given.models)
    publisher = RoutePublisher(cluster, table_of, signals.gateways, term.epoch)
    return _Parts(
        cluster=cluster,
        signals=signals,
        actuator=actuator,
        controller=Controller(given.table, wiring, mailbox),
        publisher=publisher,
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


async def _run_until(stop: asyncio.Event, parts: _Parts) -> None:
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
                _watch_term(parts.cluster, parts.term.epoch),
            )
        ]
        await stop.wait()
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
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield
    finally:
        publisher.close()
        await runner.cleanup()


async def _first_tokens(actuator: Actuator, clock: Clock, request: web.Request) -> web.Response:
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
