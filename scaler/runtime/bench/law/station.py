"""One model's requests: they wait in one line for a free slot of a seat in rotation, as in the gateway.

First come, first served; the seat with the fewest requests takes the next (as the gateway has it), or, for comparison,
the seat that has been in rotation for longest and has room. What was sent to a seat stays there.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from scaler.runtime.bench.law.timeline import Timeline

MATERIAL_SHARE: Final = 0.1
"""A change of demand by this share of what was last told, by one request at least, is told of (`scaler.gateway.samples`)."""
RATE_SECONDS: Final = 3.0
"""Span over which arrivals and completions per second are taken, as for pushed samples."""


class Server:
    """A seat as a station sees it.

    Attributes:
        slots: requests that it may have in flight.
        in_flight: requests that it has.
        emptied: called when it is out of rotation and its last request has finished.
    """

    __slots__ = ("emptied", "in_flight", "slots")

    def __init__(self, slots: int, emptied: Callable[[], None]) -> None:
        self.slots = slots
        self.in_flight = 0
        self.emptied = emptied


class Station:
    """The line of one model.

    Attributes:
        queue: arrival time and service time of what waits.
        in_flight: requests that have been sent to seats and are not finished.
        peak: highest demand since `look` was last called.
        waits: seconds that each request waited, of those that arrived since measuring began.
        waited: called when a request has to wait: the first of a line, and then for each tenth that demand grows by, as
            gateways send samples.
    """

    def __init__(
        self, timeline: Timeline, requests: Iterable[tuple[float, float]], *, packed: bool = False
    ) -> None:
        """Take requests as (time, seconds of service), in order of time; `packed` fills one seat after the other."""
        self._timeline = timeline
        self._packed = packed
        self._coming: Iterator[tuple[float, float]] = iter(requests)
        self._open: list[Server] = []
        self._arrivals: deque[float] = deque()
        self._completions: deque[float] = deque()
        self._area = 0.0
        self._changed_at = timeline.now
        self.queue: deque[tuple[float, float]] = deque()
        self.in_flight = 0
        self.peak = 0
        self._looked = 0
        self.waits: list[float] = []
        self.waited: Callable[[], None] = _nobody
        self._expect()

    @property
    def demand(self) -> int:
        """Requests that wait or are in flight."""
        return len(self.queue) + self.in_flight

    @property
    def oldest_wait(self) -> float:
        """Seconds that the first in the line has waited."""
        return self._timeline.now - self.queue[0][0] if self.queue else 0.0

    @property
    def capacity(self) -> int:
        """Slots of the seats in rotation."""
        return sum(server.slots for server in self._open)

    @property
    def _material(self) -> float:
        return max(1.0, MATERIAL_SHARE * self._looked)

    def area(self) -> float:
        """Return the integral of demand over time until now, in request-seconds."""
        self._account()
        return self._area

    def look(self) -> tuple[int, float, float]:
        """Return the peak since the last look, and arrivals and completions per second."""
        peak, self.peak = max(self.peak, self.demand), self.demand
        self._looked = self.demand
        return peak, self._rate(self._arrivals), self._rate(self._completions)

    def open(self, server: Server) -> None:
        """Put a seat into rotation."""
        self._open.append(server)
        while self.queue and server.in_flight < server.slots:
            self._send(server, *self.queue.popleft())

    def close(self, server: Server) -> None:
        """Take a seat out of rotation; it keeps what it has."""
        self._open.remove(server)

    def leftover(self, since: float) -> list[float]:
        """Return how long those have waited that are still in the line and came after `since`."""
        return [self._timeline.now - at for at, _ in self.queue if at >= since]

    def _expect(self) -> None:
        following = next(self._coming, None)
        if following is not None:
            self._timeline.at(following[0], self._arrive, following)

    def _arrive(self, request: tuple[float, float]) -> None:
        self._account()
        self._arrivals.append(request[0])
        server = self._free() if not self.queue else None
        if server is not None:
            self._send(server, *request)
        else:
            self.queue.append(request)
        self.peak = max(self.peak, self.demand)
        if server is None and (len(self.queue) == 1 or self.demand - self._looked >= self._material):
            self.waited()
        self._expect()

    def _free(self) -> Server | None:
        best = None
        for server in self._open:
            if server.in_flight < server.slots and (best is None or server.in_flight < best.in_flight):
                best = server
                if self._packed:
                    break
        return best

    def _send(self, server: Server, at: float, seconds: float) -> None:
        now = self._timeline.now
        server.in_flight += 1
        self.in_flight += 1
        if at >= 0.0:
            self.waits.append(now - at)
        self._timeline.at(now + seconds, self._finish, server)

    def _finish(self, server: Server) -> None:
        self._account()
        server.in_flight -= 1
        self.in_flight -= 1
        self._completions.append(self._timeline.now)
        if server in self._open:
            if self.queue and server.in_flight < server.slots:
                self._send(server, *self.queue.popleft())
        elif not server.in_flight:
            server.emptied()

    def _account(self) -> None:
        now = self._timeline.now
        self._area += self.demand * (now - self._changed_at)
        self._changed_at = now

    def _rate(self, times: deque[float]) -> float:
        while times and times[0] <= self._timeline.now - RATE_SECONDS:
            times.popleft()
        return len(times) / RATE_SECONDS


def _nobody() -> None:
    """Do nothing: nobody asked to be told."""
