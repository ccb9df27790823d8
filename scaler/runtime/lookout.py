"""Which islands to look at now: those that something happened on, and those whose time has come.

A look at every policy of a large controller takes long enough for a burst to feel it. So a tick looks at the islands
(`scaler.core.islands`) that its wake-up is about at once, and at as many others as are due and fit into a short stretch.
Nothing depends on events alone: whatever they fail to tell is seen within `LONGEST_SECONDS`, when each island is looked at
again.

A budget over all fleets can be shared out only when all are looked at. With one, islands that are due are not looked at
without the others; one that something happened on still is, and its seats that exist are handed out at once.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, repeat
from operator import attrgetter, is_not, ne

from scaler.core.islands import Island
from scaler.runtime.mailbox import Wake
from warmpool.seats import FleetName, PolicyName, Seat

LONGEST_SECONDS = 1.0
"""Ages are looked at this often even if nothing happens: a signal that goes silent sends no event."""
_STRETCH = 50
"""Policies of islands that are merely due that one tick looks at: a few milliseconds."""


@dataclass(slots=True, eq=False)
class Watched:
    """An island as the loop last saw it.

    Attributes:
        island: the island.
        due_at: monotonic seconds at which it is looked at again if nothing happens.
    """

    island: Island
    due_at: float = -math.inf

    def looked(self, now: float, next_wakeup: float | None) -> None:
        """Note that it was looked at, and when its answer may change by time alone (None: never)."""
        latest = now + LONGEST_SECONDS
        self.due_at = latest if next_wakeup is None else min(latest, next_wakeup)


class Lookout:
    """The islands of one table of policies.

    Args:
        found: the islands.
        together: a budget couples them.

    Attributes:
        together: a budget couples them.
    """

    def __init__(self, found: Sequence[Island], *, together: bool) -> None:
        self._watched = [Watched(island) for island in found]
        self.together = together
        self._order = {each: place for place, each in enumerate(self._watched)}
        self._of_policy = {spec.name: each for each in self._watched for spec in each.island.policies}
        self._of_fleet = {spec.name: each for each in self._watched for spec in each.island.fleets}
        self._seats: dict[FleetName, Sequence[Seat] | None] = dict.fromkeys(self._of_fleet)
        self._replicas: dict[FleetName, int | None] = dict.fromkeys(self._of_fleet)

    @property
    def has_islands(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self._watched)

    @property
    def due_at(self) -> float:
        """When something is due next; infinity where there is nothing to look at."""
        return min(map(_due_at, self._watched), default=math.inf)

    def saw(self, seats: Mapping[FleetName, Sequence[Seat]], replicas: Mapping[FleetName, int]) -> None:
        """Note what was seen of fleets: the seats as the cluster's cache gave them, and what the workloads are asked for."""
        self._seats |= seats
        self._replicas |= replicas

    def pick(
        self,
        wake: Wake,
        stock: Mapping[FleetName, Sequence[Seat]],
        replicas: Callable[[FleetName], int],
        now: float,
    ) -> Sequence[Watched]:
        """Return the islands to look at, in their order.

        Args:
            wake: what has woken the loop.
            stock: the seats per fleet.
            replicas: what each fleet's workload is asked for.
            now: monotonic seconds.
        """
        due = [each for each in self._watched if each.due_at <= now]
        if wake.everything or (due and self.together):
            return self._watched
        happened = set(self._told(wake.policies, wake.fleets))
        if "cluster" in wake.causes:
            happened.update(self._changed(stock, replicas))
        room = _STRETCH
        for each in sorted(due, key=_due_at):
            if room <= 0 and each.due_at > -math.inf:
                break
            if each not in happened:
                happened.add(each)
                room -= max(1, len(each.island.policies))
        return sorted(happened, key=self._order.__getitem__)

    def _changed(
        self, stock: Mapping[FleetName, Sequence[Seat]], replicas: Callable[[FleetName], int]
    ) -> Iterator[Watched]:
        """Yield the islands whose seats, or the replicas they are asked for, aren't those of their last look.

        Of hundreds of fleets hardly any has changed. So they are compared by what needs no line of Python for each: in a loop it was
        a tenth of a tick that one policy has woken.
        """
        seats, asked = self._seats, self._replicas
        moved = map(is_not, map(stock.get, seats, repeat(())), seats.values())
        resized = map(ne, map(replicas, asked), asked.values())
        return map(self._of_fleet.__getitem__, chain(compress(seats, moved), compress(asked, resized)))

    def partial(self, picked: Sequence[Watched]) -> bool:
        """Whether there is anything beside what was picked."""
        return len(picked) < len(self._watched)

    def _told(self, policies: Iterable[PolicyName], fleets: Iterable[FleetName]) -> Iterable[Watched]:
        for policy in policies:
            if policy in self._of_policy:
                yield self._of_policy[policy]
        for fleet in fleets:
            if fleet in self._of_fleet:
                yield self._of_fleet[fleet]


_due_at: Callable[[Watched], float] = attrgetter("due_at")
