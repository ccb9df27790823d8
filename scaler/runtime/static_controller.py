"""The controller over a list of agents: one works with them at a time, and its end leaves residents as they are.

What serves goes on serving, gateways keep their routes, and the next controller reads rotation off the agents.
"""

import asyncio
import secrets
import socket
import time
from contextlib import AsyncExitStack

import aiohttp
import structlog

from scaler.cluster.http_agents import HttpAgents
from scaler.cluster.static.asking import StateReader
from scaler.cluster.static.cluster import StaticCluster
from scaler.cluster.static.listing import AgentList, load_agents
from scaler.errors import PolicyError
from scaler.policy.reading import Reading
from scaler.runtime.controller_assembly import assemble
from scaler.runtime.controller_wiring import Begin, Parts, Seats, give_up_when_superseded
from scaler.runtime.kept import Nowhere
from scaler.runtime.kept_files import FileArchive
from scaler.runtime.lifetime import or_stop
from scaler.runtime.listed_policies import ListedPolicies, sizes, table, unlisted_fleets
from scaler.runtime.sockets import url_of
from warmpool.claim import Term

log = structlog.get_logger(__name__)


def listed_agents(begin: Begin, policies: Reading) -> AgentList:
    """Read the list, and refuse fleets without seats.

    A list may have seats of fleets that no policy file has, and they are left as they are.

    Raises:
        PolicyError: the list can't be used, or there is such a fleet.
    """
    assert begin.options.agents is not None
    listed = load_agents(begin.options.agents)
    known = sizes(listed)
    if faults := unlisted_fleets(policies, known):
        raise PolicyError(tuple(faults))
    for name in sorted(known.keys() - policies.set.fleets.keys()):
        log.warning(
            "the list of agents has a fleet that no policy file has; its seats are left alone", fleet=name
        )
    return listed


async def serve(stack: AsyncExitStack, begin: Begin, policies: Reading) -> None:
    """Run until a signal asks for the end.

    Raises:
        PolicyError: policies and list don't go together.
        UserError: an option can't be used.
        LeadershipLost: in an exception group; another controller works with the same agents.
        Stopped: in an exception group; the signal came before the agents had been asked.
    """
    options, listed = begin.options, listed_agents(begin, policies)
    session = await stack.enter_async_context(aiohttp.ClientSession())
    cluster = StaticCluster(listed, StateReader(session, options.token))
    await or_stop(begin.stop, cluster.discover())
    term = _term(cluster.highest_epoch)
    directory = options.state_dir
    seats = Seats(
        cluster=cluster,
        agents=HttpAgents(session, options.token),
        table=table(policies.set, sizes(listed)),
        force=lambda adopt: ListedPolicies(listed, adopt),
        archive=Nowhere() if directory is None else FileArchive(directory, begin.clock),
    )
    parts = assemble(stack, begin, seats)
    await parts.keeping.read()
    await stack.enter_async_context(parts.listening())
    log.info(
        "controller listens",
        url=url_of(begin.listener),
        term=term.epoch,
        policies=policies.set.short_hash,
    )
    await _run_until(parts, cluster, term)


def _term(seen: int) -> Term:
    """Begin a term above all that agents have seen.

    The time of the start is a part of it, because an agent that doesn't answer just now may have seen more than the
    others; the holder's random part keeps claims of two terms of one number apart.
    """
    return Term(
        holder=f"{socket.gethostname()}-{secrets.token_hex(3)}", epoch=max(seen + 1, int(time.time()))
    )


async def _run_until(parts: Parts, cluster: StaticCluster, term: Term) -> None:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(part) for part in parts.standing()]
        running.append(tasks.create_task(parts.lead(term, parts.ports)))
        running.append(tasks.create_task(give_up_when_superseded(cluster, term)))
        await parts.begin.stop.wait()
        log.info("controller ends; residents stay as they are")
        await parts.end_actions(term.holder)
        for task in running:
            task.cancel()
