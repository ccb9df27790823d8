"""The port to a cluster: what every adapter promises.

Reading is free and instant (a cache that a reflector keeps); writing is a compare-and-swap that has exactly one winner.
The contract suite in tests/contract runs on every adapter.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from warmpool.seats import Claim, FleetName, PolicyName, Seat, SeatName

Stock = Mapping[FleetName, Sequence[Seat]]
"""Seats per fleet."""


class Cluster(Protocol):
    """Seats of all fleets, as the leading controller and the gateways use them."""

    @property
    def synced(self) -> bool:
        """Whether the cache has seen everything at least once; decide nothing before."""

    @property
    def age(self) -> float:
        """Seconds since the cache was last known to be current."""

    def seats(self) -> Sequence[Seat]:
        """Return all seats from the cache. No I/O, never blocks, never raises."""

    def stock(self) -> Stock:
        """Return the seats per fleet, as `seats` does; fleets without any may be missing.

        A fleet's sequence is the same object as at the last call for as long as none of its seats has changed, so that a
        look at a large cluster costs no more than a look at each fleet.
        """

    def seat(self, name: SeatName) -> Seat | None:
        """Return one seat from the cache, as `seats` does, without a look at the others; None if there is none of this name."""

    def replicas(self, fleet: FleetName) -> int:
        """Return how many seats the fleet's workload is asked for at present, from the cache.

        Raises:
            NotFound: no such fleet.
        """

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change of the cache, in the event loop; the returned function ends that."""

    async def claim(self, seat: Seat, claim: Claim) -> Seat:
        """Give the seat to a claim, and take the resident that it sends away out of rotation in the same write.

        Exactly one of two that try with the same version wins. Returns the seat as written.

        Raises:
            Conflict: the seat has changed in claim, rotation or existence since `seat` was read, or the rules of
                `warmpool.claim` refuse it.
            NotFound: the seat is gone.
            Unreachable: no answer in time.
        """

    async def settle(self, name: SeatName, claim: Claim, *, serving: PolicyName | None) -> Seat:
        """End a claim: put `serving` into rotation (None: nobody) and clear the claim, in one write. Idempotent.

        Raises:
            Conflict: the seat holds another claim.
            NotFound: the seat is gone.
            Unreachable: no answer in time.
        """

    async def resize(self, fleet: FleetName, total: int) -> None:
        """Ask the fleet's workload for `total` seats. Which seats leave is told by their deletion cost. Idempotent.

        Raises:
            Conflict: it may not be written now, because somebody else writes it or a seat that serves could go; ask again.
            NotFound: no such fleet.
            Unreachable: no answer in time.
        """

    async def delete(self, seat: Seat, *, reason: str) -> None:
        """Delete one seat (this uid and no other); its workload makes another if its size asks for it. Idempotent.

        Raises:
            Unreachable: no answer in time.
        """
