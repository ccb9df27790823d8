"""`emberpool local`: controller, gateway and seats on one machine, until Ctrl-C, which drains.

One process holds controller and gateway; every seat is an agent process with its engines. It is the product on one
machine, not a model of it: the same controller, gateway and agent code through another cluster adapter.
"""

import asyncio
import json
import os
import secrets
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.cluster.http_agents import HttpAgents
from scaler.cluster.local.cluster import LocalCluster
from scaler.cluster.local.gpus import find_gpus
from scaler.cluster.local.zygote import zygote
from scaler.errors import UserError
from scaler.gateway.observe import Outcome
from scaler.gateway.proxy import Gateway
from scaler.gateway.routes import Endpoint
from scaler.gateway.settings import GatewaySettings
from scaler.policy.compile import PolicySet
from scaler.runtime import logs
from scaler.runtime.actuator import Actuator, Ports
from scaler.runtime.agreement import Agreement
from scaler.runtime.api import Api, Intake, waiting_for
from scaler.runtime.clock import SystemClock
from scaler.runtime.controller import Controller, PolicyTable, Tick, Wiring, heartbeat
from scaler.runtime.direct_routes import DirectRoutes
from scaler.runtime.events import EventLog
from scaler.runtime.garbage import keep_garbage_quiet
from scaler.runtime.gateway_files import GatewayFiles
from scaler.runtime.gateway_options import assumptions
from scaler.runtime.hang_up import reload_on_hang_up
from scaler.runtime.keda_answers import KedaAnswers
from scaler.runtime.keeping import Keeping
from scaler.runtime.kept_files import FileArchive
from scaler.runtime.lifetime import Stopped, first_error, or_stop, stop_on_signals
from scaler.runtime.local_options import LocalOptions
from scaler.runtime.local_plan import LocalPlan, describe, make_plan, templates
from scaler.runtime.local_policies import LocalPolicies, table
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.metrics import ControllerMetrics
from scaler.runtime.orders_api import OrdersApi
from scaler.runtime.policy_process import PolicyReader
from scaler.runtime.proofs import expectations
from scaler.runtime.push_tokens import PushTokens
from scaler.runtime.reload import Cause, Followed, Force, Reloader, Told
from scaler.runtime.reload_api import ReloadApi
from scaler.runtime.remembering import remembering
from scaler.runtime.signal_api import SignalApi
from scaler.runtime.signal_factories import factories, listeners
from scaler.runtime.signals import PolicySignals
from scaler.runtime.sockets import listen, port_taken
from scaler.runtime.start_orders import StartOrders
from scaler.signals.pushed_redis import RedisSamples
from scaler.state_directory import state_directory
from scaler.store.journal import Journal
from warmpool import listening
from warmpool.claim import Term
from warmpool.lifeline import follow_parent
from warmpool.metric_families import expose_declared_only
from warmpool.nodehealth.local import local_node_agent
from warmpool.seats import PolicyName, Resident, Seat
from warmpool.standins import VARIABLE as ZYGOTE_VARIABLE
from warmpool.states import ResidentState

_GATEWAY_DRAIN_SECONDS = 20.0
"""How long requests in flight may take to finish after Ctrl-C."""
_REFUSALS = 3
"""So many pre-flights in a row find something, and whoever started this is told, if no engine of the policy has come up yet."""
_HEARTBEAT_SECONDS = 30.0
"""A loop that hasn't ticked for this long is stuck."""


def run(options: LocalOptions, began: float) -> int:
    """Run until SIGINT or SIGTERM.

    Args:
        options: what was asked for.
        began: when the command was given (`time.monotonic`); what is said of the start counts from then.

    Returns:
        The exit code: 0 after an orderly end, 2 for input that can't be used (already said on stderr), 1 otherwise.
    """
    logs.configure()
    expose_declared_only()
    follow_parent(os.environ)
    return asyncio.run(_main(options, _Progress(began)))


@dataclass(frozen=True, slots=True)
class _Progress:
    """Says on stderr how far the start is, with the seconds since the command was given."""

    began: float

    def say(self, text: str) -> None:
        _say(f"[{time.monotonic() - self.began:5.1f} s] {text}")


async def _main(options: LocalOptions, progress: _Progress) -> int:
    GatewayFiles(options.gateway_files).read()  # before seconds of start-up, and not after
    plan = make_plan(options, await find_gpus() if options.device != "cpu" else ())
    if options.dry_run:
        sys.stdout.write(describe(plan) + "\n")
        return 0
    async with AsyncExitStack() as stack:
        directory = options.state_dir or stack.enter_context(state_directory("local", _say))
        await asyncio.to_thread((directory / "logs").mkdir, parents=True, exist_ok=True)
        stop = stop_on_signals(stack)
        signals = _Signals(stop=stop, reload=reload_on_hang_up(stack, stop))
        try:
            await _serve(options, plan, directory, signals, progress)
        except* Stopped:
            pass
        except* UserError as group:
            raise first_error(group) from None
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signals:
    """What signals ask for."""

    stop: asyncio.Event
    reload: asyncio.Event


# ------------------------------------------------------------------ one machine


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """Everything that runs here, wired up."""

    cluster: LocalCluster
    actuator: Actuator
    controller: Controller
    keeping: Keeping
    agreement: Agreement
    starts: StartOrders
    term: Term
    gateway: Gateway
    signals: PolicySignals
    listeners: Sequence[RedisSamples]
    reloader: Reloader | None
    files: GatewayFiles
    gateway_url: str
    controller_url: str


async def _serve(
    options: LocalOptions, plan: LocalPlan, directory: Path, signals: _Signals, progress: _Progress
) -> None:
    _say(describe(plan))
    with listen("127.0.0.1", options.controller_port, "--controller-port") as listener:
        _check_free(options.gateway_host, options.gateway_port)
        async with AsyncExitStack() as stack:
            options = await _with_zygote(stack, options, directory)
            made = expectations(plan.served, directory, options.environment, progress.say)
            proofs = await or_stop(signals.stop, made)
            token = options.token or secrets.token_urlsafe(24)
            controller_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            seats = templates(options, plan, proofs, token, await _node_agent(stack, plan, directory))
            cluster = LocalCluster(seats, directory, [controller_url])
            door = _Door(listener, controller_url, token)
            machine = await stack.enter_async_context(_machine(options, plan, directory, cluster, door))
            await asyncio.to_thread(_write_state, directory, machine)
            await _run_until(signals, machine, progress)


async def _with_zygote(stack: AsyncExitStack, options: LocalOptions, directory: Path) -> LocalOptions:
    """Start what engines are forked from, if they are to be; return the options with its address in their environment."""
    if not options.zygote:
        return replace(options, environment={**options.environment, ZYGOTE_VARIABLE: ""})
    socket_path = (directory / "zygote.sock").absolute()
    await stack.enter_async_context(zygote(socket_path, directory / "logs" / "zygote.log"))
    return replace(options, environment={**options.environment, ZYGOTE_VARIABLE: str(socket_path)})


async def _node_agent(stack: AsyncExitStack, plan: LocalPlan, directory: Path) -> str:
    """Start what tells agents who holds the GPUs' memory; return its address, or nothing on a machine without GPUs."""
    if not plan.on_gpus:
        return ""
    return await stack.enter_async_context(local_node_agent(directory))


@dataclass(frozen=True, slots=True)
class _Door:
    """Where the controller listens, and what agents must show."""

    listener: socket.socket
    url: str
    token: str


@asynccontextmanager
async def _machine(
    options: LocalOptions, plan: LocalPlan, directory: Path, cluster: LocalCluster, door: _Door
) -> AsyncIterator[_Machine]:
    """Wire controller, gateway and API together; on leaving everything has ended, the seats' processes included."""
    clock, mailbox, registry = SystemClock(), Mailbox(), CollectorRegistry()
    metrics = ControllerMetrics(registry)
    plain = {"EMBERPOOL_AGENT_TOKEN": door.token, "EMBERPOOL_SIGNAL_TOKEN": options.signals.token}
    tokens = PushTokens(plain, options.signals.tokens)
    read = factories(cluster, options.signals)
    signals = PolicySignals(plan.set, mailbox, clock, metrics, read, lambda: tokens.names)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        events = EventLog(_journal(stack, directory / "events.jsonl").append, clock)
        agents, term = HttpAgents(session, door.token), Term(holder=f"local-{os.getpid()}", epoch=1)
        ports = Ports(cluster=cluster, agents=agents, clock=clock, events=events)
        actuator = Actuator(ports, term, mailbox.ended)
        keda, starts = KedaAnswers(plan.set, clock, options.keda, registry), StartOrders(agents)

        def published(tick: Tick) -> None:
            keda.published(tick)
            direct.ticked(tick)
            starts.published(tick)

        wiring = Wiring(
            cluster=cluster,
            signals=signals,
            actuator=actuator,
            events=events,
            clock=clock,
            metrics=metrics,
            ledger=_journal(stack, directory / "decisions.jsonl").append,
            published=published,
        )
        begun = table(plan.set, plan.set, options.seat_budget)
        cluster.observe_health(begun.health_observed)
        controller = Controller(begun, wiring, mailbox)
        agreement, keeping = remembering(controller, cluster, agents, FileArchive(directory, clock))
        await keeping.read()
        settings = replace(
            options.gateway, instance=f"gateway-{os.getpid()}", controllers=(door.url,), token=door.token
        )
        gateway = Gateway(settings, _FirstTokens(actuator), registry)
        files = GatewayFiles(options.gateway_files)
        files.read()
        files.guard(gateway)
        ports.queued = lambda policy: gateway.stats(policy).queued
        direct = DirectRoutes(gateway, cluster, controller, clock)

        def adopt(table: PolicyTable) -> None:
            direct.adopt(table)
            cluster.observe_health(table.health_observed)

        force = keda.following(Followed(LocalPolicies(plan.set, options.seat_budget, adopt), signals.follow))
        told = Told(metrics=metrics.reloads, events=events, clock=clock)
        reloader = _reloader(stack, options.policies, force, plan.set, told)
        intake = Intake(report=cluster.report, token=door.token, tokens=tokens)
        app = Api(controller, intake, registry, agreement).application()
        app.add_routes(ReloadApi(controller, reloader, door.token).routes())
        app.add_routes(OrdersApi(controller, door.token).routes())
        app.add_routes(SignalApi(signals, tokens).routes())
        app.add_routes(keda.routes())
        app.router.add_get("/v1/gateway", partial(_shown, gateway, options.gateway))
        await stack.enter_async_context(keda.serve())
        await _serve_api(stack, app, door)
        gateway_url = await _serve_gateway(stack, gateway, options, files.tls)
        stack.callback(cluster.subscribe(direct.look))
        direct.look()
        yield _Machine(
            cluster=cluster,
            actuator=actuator,
            controller=controller,
            keeping=keeping,
            agreement=agreement,
            starts=starts,
            term=term,
            gateway=gateway,
            signals=signals,
            listeners=listeners(signals, options.signals),
            reloader=reloader,
            files=files,
            gateway_url=gateway_url,
            controller_url=door.url,
        )


async def _shown(gateway: Gateway, settings: GatewaySettings, _: web.Request) -> web.Response:
    told = assumptions(settings, _GATEWAY_DRAIN_SECONDS)
    return web.json_response({**gateway.state(), "assumptions": told})


def _reloader(
    stack: AsyncExitStack, paths: Sequence[Path], force: Force, begun: PolicySet, told: Told
) -> Reloader | None:
    """Return what reloads the policy files; None where the policies were made up."""
    if not paths:
        return None
    reader = PolicyReader(paths)
    stack.push_async_callback(reader.close)
    return Reloader(reader, force, begun, told)


def _journal(stack: AsyncExitStack, path: Path) -> Journal:
    journal = Journal(path)
    stack.callback(journal.close)
    return journal


async def _serve_api(stack: AsyncExitStack, app: web.Application, door: _Door) -> None:
    runner = listening.runner(app, closing_seconds=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await listening.start(runner, door.listener)


async def _serve_gateway(
    stack: AsyncExitStack, gateway: Gateway, options: LocalOptions, tls: ssl.SSLContext | None
) -> str:
    try:
        return await stack.enter_async_context(
            gateway.serve(options.gateway_host, options.gateway_port, tls=tls)
        )
    except OSError as error:
        raise port_taken(options.gateway_host, options.gateway_port, "--gateway-port", error) from error


async def _run_until(signals: _Signals, machine: _Machine, progress: _Progress) -> None:
    stop = signals.stop
    async with asyncio.TaskGroup() as tasks:
        parts = [
            tasks.create_task(part)
            for part in (
                machine.cluster.run(),
                machine.actuator.run(),
                machine.controller.run(),
                heartbeat(machine.controller, _HEARTBEAT_SECONDS),
                machine.keeping.run(),
                machine.agreement.run(machine.term),
                machine.starts.run(machine.term),
                keep_garbage_quiet(machine.controller),
                _announce(machine, progress),
                _watch_failures(machine.cluster),
                _reload(machine, signals.reload),
                machine.signals.run(),
                *(each.run() for each in machine.listeners),
            )
        ]
        await stop.wait()
        stop.clear()
        _say("draining: what is in flight finishes first; Ctrl-C again ends it at once")
        impatience = tasks.create_task(_kill_on_second_signal(stop, machine.cluster))
        await machine.gateway.drain(_GATEWAY_DRAIN_SECONDS)
        for part in parts:
            part.cancel()
        await asyncio.wait(parts)  # the cluster's own end stops every seat
        impatience.cancel()


async def _reload(machine: _Machine, asked: asyncio.Event) -> None:
    """Follow the policy files, and read them and the gateway's files again at each SIGHUP, or say that there are none."""
    async with asyncio.TaskGroup() as tasks:
        if machine.reloader is not None:
            tasks.create_task(machine.reloader.run())
        while True:
            await asked.wait()
            asked.clear()
            if machine.files.named:
                machine.files.read_again()
            if machine.reloader is not None:
                machine.reloader.request(Cause.SIGNAL)
            elif not machine.files.named:
                _say("SIGHUP: nothing to reload, for no --policy was given")


async def _kill_on_second_signal(stop: asyncio.Event, cluster: LocalCluster) -> None:
    await stop.wait()
    cluster.kill_all()
    raise Stopped


# ------------------------------------------------------------------ sockets


def _check_free(host: str, port: int) -> None:
    """Find out early that the gateway's port is taken: before seconds of start-up, not after."""
    if port:
        listen(host, port, "--gateway-port").close()


# ------------------------------------------------------------------ glue


class _FirstTokens:
    """Tells the actuator when a resident that it promoted has sent its first content."""

    def __init__(self, actuator: Actuator) -> None:
        self._actuator = actuator

    def first_content(
        self, policy: PolicyName, endpoint: Endpoint, dispatched_at: float, at: float, queued_before: float
    ) -> None:
        """See `GatewayObserver.first_content`."""
        self._actuator.first_content(policy, endpoint.seat, dispatched_at, dispatched_at - queued_before, at)

    def finished(
        self, policy: PolicyName, outcome: Outcome, *, endpoint: Endpoint | None, at: float, seconds: float
    ) -> None:
        """See `GatewayObserver.finished`: nothing to do."""


async def _watch_failures(cluster: LocalCluster) -> None:
    """End everything with the reason when a policy's residents have been given up on and none was ever proven."""
    changed = asyncio.Event()
    unsubscribe = cluster.subscribe(changed.set)
    proven: set[PolicyName] = set()
    try:
        while True:
            await changed.wait()
            changed.clear()
            proven |= {
                r.policy for seat in cluster.seats() for r in seat.residents if r.proven_at is not None
            }
            hopeless = _hopeless(cluster.seats(), proven)
            if hopeless is not None:
                raise UserError(
                    hopeless,
                    hint="the engine's log has more; `python -m loader verify DIR` checks a checkpoint",
                )
    finally:
        unsubscribe()


def _hopeless(seats: Sequence[Seat], proven: set[PolicyName]) -> str | None:
    for seat in seats:
        for resident in seat.residents:
            if resident.policy not in proven and _gets_nowhere(resident):
                return f"{resident.policy} can't be started on seat {seat.name}: {resident.failure}"
    return None


def _gets_nowhere(resident: Resident) -> bool:
    """Whether a resident was given up, or a pre-flight has kept its engine from starting time and again."""
    if resident.state is not ResidentState.FAILED:
        return False
    refused = resident.refused and resident.restarts >= _REFUSALS - 1
    return refused or resident.failure.startswith("given up")


async def _announce(machine: _Machine, progress: _Progress) -> None:
    """Say on stderr what is still missing while the fleets warm up, and then where to send requests."""
    said = ""
    while waiting := waiting_for(machine.controller):
        if waiting[-1] != said:
            said = waiting[-1]
            progress.say(f"waiting for {said}")
        await asyncio.sleep(0.25)
    if not any(fleet.spare_target for fleet in machine.controller.table.fleets):
        _say(
            "note: no seat is spare, so a burst finds nothing to promote; raise --seats, or spare.min and maxSeats"
        )
    models = ", ".join(machine.gateway.routes.models)
    progress.say(f"ready: {machine.gateway_url}/v1 serves {models}")
    _say(f"look inside: emberpool seat get --server {machine.controller_url}")


def _write_state(directory: Path, machine: _Machine) -> None:
    """Leave local.json for those who look for a running instance."""
    state = {
        "pid": os.getpid(),
        "gateway": machine.gateway_url,
        "controller": machine.controller_url,
        "startedAt": time.time(),
    }
    temporary = directory / "local.json.partial"
    temporary.write_text(json.dumps(state, indent=1), "utf-8")
    temporary.replace(directory / "local.json")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
