"""Which guard stands in front of a resident's engine, and how the agent reaches it.

An engine that takes the middleware has its guard inside: requests in flight then outlive the agent, and every route of the engine is
on the guard's control side. Any other engine gets a forwarding port, which lives and dies with the agent. The reference engine's
guard is its own.
"""

import os
from urllib.parse import quote

from warmpool.agent.config import GuardForm, ResidentConfig
from warmpool.agent.forwarding import ForwardingPort
from warmpool.agent.processes import Ports
from warmpool.engines.guards import Guard, OwnGuard
from warmpool.engines.kinds import EngineKind, connect
from warmpool.engines.port import Engine
from warmpool.engines.transport import Transport
from warmpool.errors import StartFailed
from warmpool.guard_middleware import Misconfigured, read_token


class MiddlewareGuard(OwnGuard):
    """The guard inside an engine, over connections of its own.

    Args:
        control: URL of its control side, with the token as its password.
    """

    def __init__(self, control: str) -> None:
        self._connections = Transport(control)
        super().__init__(self._connections)

    async def disconnect(self) -> None:
        """Close the connections. The guard stays as it is."""
        await self._connections.close()


def connect_guarded(resident: ResidentConfig, ports: Ports) -> Engine:
    """Return the adapter for a resident's engine, with the guard that it is configured to have. Nothing is sent yet.

    Args:
        resident: the resident.
        ports: where its engine listens, or is to listen.

    Raises:
        StartFailed: its guard wants a token, and there is none to show.
    """
    control = control_url(resident, ports)
    return connect(
        resident.type, control, model=resident.model, guard=_guard_before(resident, ports, control)
    )


def _guard_before(resident: ResidentConfig, ports: Ports, control: str) -> Guard | None:
    """Return what stands in front of an engine; None where it has a guard of its own."""
    if resident.type is EngineKind.REFERENCE:
        return None
    if resident.guard is GuardForm.MIDDLEWARE:
        return MiddlewareGuard(control)
    return ForwardingPort(ports.host, ports.public, control)


def control_url(resident: ResidentConfig, ports: Ports) -> str:
    """Return the URL of an engine's control listener: its own, or its guard's, which wants a token.

    The token is what the resident's environment tells the guard, so that both have the same one, and a later agent has it too.

    Raises:
        StartFailed: there is no token.
    """
    if resident.guard is not GuardForm.MIDDLEWARE:
        return ports.control_url
    try:
        token = read_token({**os.environ, **resident.environment})
    except Misconfigured as error:
        raise StartFailed(f"environment: {error}") from error
    if not token:
        raise StartFailed(
            "environment: guard Middleware wants EMBERPOOL_GUARD_TOKEN_FILE or EMBERPOOL_GUARD_TOKEN, as the engine's guard does"
        )
    return f"http://agent:{quote(token, safe='')}@127.0.0.1:{ports.control}"
