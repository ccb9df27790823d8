"""HTTP servers on sockets of ours: what clients do wrong is answered and not logged, a crowd holds up nobody, no answer names software.

aiohttp logs each request that is none with a traceback, so that whoever can connect can fill a log. And asyncio takes as many new
connections at one turn of the event loop as may wait in the system's queue, so that a thousand of them hold up everything else for a
tenth of a second.
"""

import logging
import socket
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

BACKLOG: Final = 1024
"""Connections that the system holds until we come to them."""
ACCEPTED_AT_ONCE: Final = 8
"""Connections that are taken at one turn of the event loop."""
SERVER: Final = "emberpool"
"""What stands in `Server`."""


class _OursAlone(logging.Filter):
    """Lets through what isn't about a request that is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError)


FAULTS: Final = logging.getLogger("emberpool.http")
"""What servers log to: our own faults."""
FAULTS.addFilter(_OursAlone())


def runner(app: web.Application, closing_seconds: float) -> web.AppRunner:
    """Return what runs an application.

    Args:
        app: the application.
        closing_seconds: time that handlers get to write their last words when it ends.
    """
    app.on_response_prepare.append(name_no_software)
    return web.AppRunner(app, access_log=None, logger=FAULTS, shutdown_timeout=closing_seconds)


async def name_no_software(_request: web.Request, response: web.StreamResponse) -> None:
    """Say in an answer's head who we are, and no more: for an application's `on_response_prepare`."""
    response.headers["Server"] = SERVER


async def start(made: web.BaseRunner, listener: socket.socket) -> None:
    """Take connections from a bound socket, a few at a time, whatever its own queue was."""
    await web.SockSite(made, listener, backlog=ACCEPTED_AT_ONCE).start()
    listener.listen(
        BACKLOG
    )  # asyncio takes one number for what the system holds and for what it takes at once
