"""The agent's process: from a config to a seat that listens, tells its state, and ends when told to."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence

import aiohttp

from warmpool import listening
from warmpool.agent.caches import read_machine, with_caches
from warmpool.agent.config import AgentConfig
from warmpool.agent.equipment import Equipment, node_memory
from warmpool.agent.guarding import connect_guarded
from warmpool.agent.launchers import Hears, Launchers
from warmpool.agent.life import Engines
from warmpool.agent.processes import OwnChildren, Starter
from warmpool.agent.push import Pusher
from warmpool.agent.seat import LiveSeat
from warmpool.agent.server import make_app
from warmpool.errors import StartFailed
from warmpool.launcher import SECRET_VARIABLE
from warmpool.lifeline import follow_parent
from warmpool.metric_families import expose_declared_only

_LOG = logging.getLogger(__name__)

TOKEN_VARIABLE = "EMBERPOOL_AGENT_TOKEN"  # noqa: S105 (a variable's name)
"""Environment variable that holds the bearer token of the agent's API."""
_CLOSE_SECONDS = 2.0
_SUPERSEDED_STATUS = 3


def run(config: AgentConfig) -> int:
    """Run the agent of one seat until SIGTERM or SIGINT.

    Returns:
        The process's exit status: 0.

    Raises:
        StartFailed: the token is missing, or the agent can't listen where it should.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise StartFailed(
            f"{TOKEN_VARIABLE} is not set: without a token anyone could pause and resume the engines of this seat"
        )
    expose_declared_only()
    follow_parent(os.environ)
    asyncio.run(serve(config, token))
    return 0


async def serve(config: AgentConfig, token: str) -> None:
    """Run one seat in the running event loop until SIGTERM or SIGINT.

    Raises:
        StartFailed: the agent can't listen where it should.
    """
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    try:
        await serve_until(config, token, ending)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def serve_until(config: AgentConfig, token: str, ending: asyncio.Event) -> None:
    """Run one seat until `ending` is set or its launcher ends; then drain, stop all engines, and tell the controllers once more.

    If anything else ends it, engines whose parent is a launcher go on, and all others are killed.

    Raises:
        StartFailed: the agent can't listen where it should.
    """
    headers = {"Authorization": f"Bearer {token}"}
    if config.compile_cache is not None:
        config = with_caches(config, await asyncio.to_thread(read_machine, config.gpus))
    listener = _bind(config)
    async with aiohttp.ClientSession(headers=headers) as session, asyncio.TaskGroup() as tasks:
        seat: LiveSeat

        def leave(policies: Sequence[str], seconds: float) -> None:
            seat.leave(policies, seconds)

        def end(policies: Sequence[str], seconds: float) -> None:
            seat.drain_within(policies, seconds)
            ending.set()

        equipment = Equipment.of(config, node_memory(config))
        hears = Hears(
            leaving=leave,
            ending=end,
            superseded=_cease,
            changed=equipment.board.touch,
        )
        seat = LiveSeat(equipment, Engines(_starter(config, hears), connect_guarded), tasks)
        runner = listening.runner(make_app(seat, token), _CLOSE_SECONDS)
        await runner.setup()
        try:
            await listening.start(runner, listener)
            host, port = listener.getsockname()[:2]
            seat.address = f"http://{host}:{port}"
            _LOG.info("agent of seat %s listens on %s", config.seat, seat.address)
            pusher = Pusher(seat.board, seat.state, session)
            tellers = [
                tasks.create_task(pusher.keep_telling(controller)) for controller in config.controllers
            ]
            await equipment.reader.read()  # how much device memory there is, before anything is started
            seat.start()
            await ending.wait()
            _LOG.info("agent of seat %s is ending", config.seat)
            await seat.shut_down()
            for teller in tellers:
                teller.cancel()
            await _tell_the_end(pusher, config.controllers)
        finally:
            await seat.abandon()
            await runner.cleanup()


def _starter(config: AgentConfig, hears: Hears) -> Starter:
    sockets = {each.policy: config.socket_of(each) for each in config.residents}
    launched = {policy: path for policy, path in sockets.items() if path is not None}
    if launched:
        return Launchers(launched, secret=os.environ.get(SECRET_VARIABLE, ""), hears=hears)
    assert config.log_directory is not None
    return OwnChildren(config.log_directory, config.seat)


def _cease() -> None:
    """End at once and leave everything as it is: it is another agent's now, and ending in order would stop its engines."""
    _LOG.critical("an agent that has started later has the launcher now; this one ends")
    os._exit(_SUPERSEDED_STATUS)


def _bind(config: AgentConfig) -> socket.socket:
    try:
        return socket.create_server((config.host, config.port))
    except OSError as error:
        raise StartFailed(
            f"host, port: {config.host}:{config.port} can't be listened on: {error.strerror or error}"
        ) from error


async def _tell_the_end(pusher: Pusher, controllers: Sequence[str]) -> None:
    async with asyncio.TaskGroup() as last:
        for controller in controllers:
            last.create_task(pusher.tell(controller))


def complain(error: StartFailed) -> int:
    """Print why the agent can't start; return the exit status for that."""
    sys.stderr.write(f"error: {error}\n")
    return 2
