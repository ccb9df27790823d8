"""Seat objects in memory, with compare-and-swap: the authority on claim and rotation where there is no API server.

`cluster.local` keeps its seats here, and the simulated cluster of the tests too. Writes bump the object's version; what
agents report doesn't, so that an engine's heartbeat never makes a claim conflict.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scaler.cluster.shelf import Shelf
from scaler.cluster.subscribers import Subscribers
from scaler.errors import Conflict, NotFound
from warmpool.claim import apply_claim, apply_settlement, holds, refusal
from warmpool.seats import (
    Claim,
    FleetName,
    GpuWord,
    PolicyName,
    Resident,
    Seat,
    SeatName,
    Verdict,
    worst_of,
)
from warmpool.states import ResidentState
from warmpool.tiers import Budget

_GIVEN_UP = frozenset({ResidentState.QUARANTINED, ResidentState.TERMINATING})


def proven(residents: Sequence[Resident]) -> bool:
    """Whether all are proven or given up; one that waits for room keeps nobody waiting but those who wait like it."""
    settled = all(r.proven_at is not None or r.state in _GIVEN_UP or r.waiting for r in residents)
    return settled and not all(r.waiting for r in residents)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldSeat:
    """What an agent tells of its seat beside its residents, and what is made of it.

    Attributes:
        memory: what the residents take of its memory; None where it isn't told.
        words: what is said of each of its GPUs.
        observed: it is shown and not acted on.
        verdict: what is acted on beside.
    """

    memory: Budget | None = None
    words: tuple[GpuWord, ...] = ()
    observed: bool = False
    verdict: Verdict = Verdict.OK

    def put_on(self, seat: Seat) -> Seat:
        """Return a seat with it."""
        said = Verdict.OK if self.observed else worst_of(self.words)
        verdict = self.verdict if said is Verdict.OK else said
        return replace(
            seat, memory=self.memory, gpu_words=self.words, health_observed=self.observed, verdict=verdict
        )


class SeatObjects:
    """All seats of one machine, by name.

    Args:
        wall: the clock that claims' deadlines are read with; Unix seconds.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._shelf = Shelf()
        self._reported: dict[SeatName, tuple[int, float]] = {}
        self._versions = itertools.count(1)
        self._subscribers = Subscribers()

    def all(self) -> Sequence[Seat]:
        """Return every seat, oldest first."""
        return tuple(self._shelf)

    def stock(self) -> Mapping[FleetName, Sequence[Seat]]:
        """See `scaler.cluster.port.Cluster.stock`."""
        return self._shelf.stock()

    def get(self, name: SeatName) -> Seat:
        """Return one seat.

        Raises:
            NotFound: there is none of this name.
        """
        seat = self.find(name)
        if seat is None:
            raise NotFound(f"seat {name} is gone")
        return seat

    def find(self, name: SeatName) -> Seat | None:
        """See `scaler.cluster.port.Cluster.seat`."""
        return self._shelf.get(name)

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change; the returned function ends that."""
        return self._subscribers.add(changed)

    # -------------------------------------------------------------- the workload's side

    def add(self, seat: Seat) -> Seat:
        """Create a seat; its version is set here."""
        return self._write(seat)

    def mark_terminating(self, name: SeatName) -> None:
        """Set the deletion timestamp's equivalent, and take the seat out of rotation."""
        seat = self._shelf.get(name)
        if seat is not None and not seat.terminating:
            self._write(replace(seat, terminating=True, serving=frozenset()))

    def remove(self, name: SeatName) -> None:
        """Forget a seat whose processes are gone. Idempotent."""
        if self._shelf.remove(name):
            self._reported.pop(name, None)
            self._subscribers.tell()

    # -------------------------------------------------------------- the agent's side

    def report(
        self,
        name: SeatName,
        uid: str,
        sequence: int,
        agent: str,
        residents: Sequence[Resident],
        told: ToldSeat | None = None,
    ) -> bool:
        """Take over what an agent says of its residents; an older report than the last is ignored.

        What it says of memory and GPUs stays as it was where it says nothing.

        Returns:
            Whether anything but the report's time changed.
        """
        seat = self._shelf.get(name)
        if seat is None or seat.uid != uid:
            return False
        last, _ = self._reported.get(name, (-1, 0.0))
        if sequence < last:
            return False
        self._reported[name] = (sequence, self._wall())
        all_proven = proven(residents)
        following = replace(
            seat if told is None else told.put_on(seat),
            agent=agent,
            residents=tuple(residents),
            reachable=True,
            admitted=seat.admitted or all_proven or bool(seat.serving),
            ready=seat.admitted or all_proven or bool(seat.serving),
        )
        if following == seat:
            return False
        self._shelf.put(following)
        self._subscribers.tell()
        return True

    def expire_reports(self, max_age: float) -> None:
        """Mark seats whose agent hasn't reported for `max_age` seconds as unreachable."""
        now = self._wall()
        changed = False
        for name, (_, at) in self._reported.items():
            seat = self.get(name)
            if seat.reachable and now - at > max_age:
                self._shelf.put(replace(seat, reachable=False))
                changed = True
        if changed:
            self._subscribers.tell()

    # -------------------------------------------------------------- the controller's side

    def claim(self, seat: Seat, claim: Claim) -> Seat:
        """See `scaler.cluster.port.Cluster.claim`."""
        current = self.get(seat.name)
        if current.uid != seat.uid:
            raise NotFound(f"seat {seat.name} was replaced by another of the same name")
        if current.version != seat.version:
            raise Conflict(f"seat {seat.name} has changed since it was read")
        if (why := refusal(current, claim, self._wall())) is not None:
            raise Conflict(why)
        return self._write(apply_claim(current, claim))

    def settle(self, name: SeatName, claim: Claim, serving: PolicyName | None) -> Seat:
        """See `scaler.cluster.port.Cluster.settle`."""
        current = self.get(name)
        if not holds(current, claim):
            if current.claim is None and (serving is None or serving in current.serving):
                return current  # settled before: the answer to the first write was lost
            raise Conflict(f"seat {name} is no longer held by claim {claim.id}")
        settled = apply_settlement(current, claim, serving)
        admitted = settled.admitted or serving is not None
        return self._write(replace(settled, admitted=admitted, ready=settled.ready or admitted))

    def _write(self, seat: Seat) -> Seat:
        written = replace(seat, version=self._next_version())
        self._shelf.put(written)
        self._subscribers.tell()
        return written

    def _next_version(self) -> str:
        return str(next(self._versions))
