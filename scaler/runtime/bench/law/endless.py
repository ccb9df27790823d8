"""Batch work: it can wait, never ends, and fills whatever seat it is lent."""

from scaler.runtime.bench.law.station import Server
from scaler.runtime.bench.law.timeline import Timeline


class Endless:
    """Work that can wait and never ends: it fills whatever seat it is lent. A `Line`."""

    def __init__(self, timeline: Timeline, seconds: float) -> None:
        """Each of its requests takes so many seconds."""
        self._timeline = timeline
        self._seconds = seconds
        self._open: set[Server] = set()

    def open(self, server: Server) -> None:
        """Fill the seat."""
        server.in_flight = server.slots
        self._open.add(server)

    def close(self, server: Server) -> None:
        """Finish what is in flight; the last of it has just begun."""
        self._open.discard(server)
        self._timeline.at(self._timeline.now + self._seconds, self._finish, server)

    def _finish(self, server: Server) -> None:
        if server.in_flight and server not in self._open:
            server.in_flight = 0
            server.emptied()
