"""Replicas of one model as a Deployment keeps them: they start, serve once they are ready, and drain when they go."""

from collections.abc import Callable
from typing import Final

from scaler.runtime.bench.law.station import Server, Station
from scaler.runtime.bench.law.timeline import Meter, Timeline

STARTING: Final = "starting"
SERVING: Final = "serving"
LEAVING: Final = "draining"


class _Replica:
    """One pod."""

    __slots__ = ("created_at", "leaving", "meter", "ready", "server")

    def __init__(self, slots: int, meter: Meter, now: float) -> None:
        self.server = Server(slots, self._gone)
        self.meter = meter
        self.created_at = now
        self.ready = False
        self.leaving = False
        meter.move(None, STARTING)

    def _gone(self) -> None:
        self.meter.move(LEAVING, None)


class Replicas:
    """The replicas of one model, each with a GPU of its own.

    Attributes:
        wanted: what was last asked for.
        started: replicas that became ready.
        start_seconds: seconds that the last of them took; 0 before the first.
        stopped: ready replicas that were removed.
        resized: called with what is asked for, whenever that changes.
    """

    def __init__(
        self,
        timeline: Timeline,
        meter: Meter,
        station: Station,
        slots: int,
        start: Callable[[float], float],
    ) -> None:
        """Begin with none; each has so many slots, and `start` says how long one takes that begins at a time."""
        self._timeline = timeline
        self._meter = meter
        self._station = station
        self._slots = slots
        self._start = start
        self._replicas: list[_Replica] = []
        self.wanted = 0
        self.started = 0
        self.start_seconds = 0.0
        self.stopped = 0
        self.resized: Callable[[int], None] = _nobody

    @property
    def ready(self) -> int:
        """Replicas that serve."""
        return sum(replica.ready for replica in self._replicas)

    @property
    def starting(self) -> int:
        """Replicas that are not ready yet."""
        return len(self._replicas) - self.ready

    def fill(self, number: int) -> None:
        """Begin with so many that are ready."""
        self.wanted = number
        for _ in range(number):
            self._ready(self._create())
        self.started, self.start_seconds = 0, 0.0

    def resize(self, number: int) -> None:
        """Ask for so many: those that are not ready go first, then the youngest, as a ReplicaSet has it."""
        self.wanted = number
        self.resized(number)
        while len(self._replicas) < number:
            self._timeline.at(
                self._timeline.now + self._start(self._timeline.now), self._ready, self._create()
            )
        while len(self._replicas) > number:
            unready = [replica for replica in self._replicas if not replica.ready]
            self._remove(unready[-1] if unready else self._replicas[-1])

    def _create(self) -> _Replica:
        replica = _Replica(self._slots, self._meter, self._timeline.now)
        self._replicas.append(replica)
        return replica

    def _ready(self, replica: _Replica) -> None:
        if replica.leaving:
            return
        replica.ready = True
        self.started += 1
        self.start_seconds = self._timeline.now - replica.created_at
        self._meter.move(STARTING, SERVING)
        self._station.open(replica.server)

    def _remove(self, replica: _Replica) -> None:
        self._replicas.remove(replica)
        replica.leaving = True
        if not replica.ready:
            self._meter.move(STARTING, None)
            return
        self.stopped += 1
        self._station.close(replica.server)
        if replica.server.in_flight:
            self._meter.move(SERVING, LEAVING)
        else:
            self._meter.move(SERVING, None)


def _nobody(number: int) -> None:
    """Do nothing: nobody asked to be told."""
    del number
