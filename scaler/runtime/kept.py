"""What must outlive every controller, and the port to where it is kept.

It is what fleets have learned, what residents have agreed on, and orders of people that stand: a day of learning each, expectations
without which a lone survivor could never be proven, and what somebody relies on who has gone home. It is small, and it is nobody's to wait for: whatever goes wrong with it costs the keeping alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from scaler.errors import ScalerError
from scaler.store.histories import History
from scaler.store.recordings import Recordings
from scaler.store.standing_orders import Standing
from warmpool.seats import FleetName


class NotKept(ScalerError):
    """It can't be read or written now; the message says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept.

    Attributes:
        histories: what each fleet has learned, in the time of the law's clock that runs now.
        recordings: per policy, what its residents have agreed on.
        orders: per fleet, the orders of people that stand.
    """

    histories: Mapping[FleetName, History] = field(default_factory=lambda: MappingProxyType({}))
    recordings: Recordings = field(default_factory=lambda: MappingProxyType({}))
    orders: Standing = field(default_factory=lambda: MappingProxyType({}))


class Archive(Protocol):
    """Where it is kept. The contract suite in tests/contract runs on every adapter."""

    async def read(self) -> Kept:
        """Return what was kept last; nothing where nothing was, or what is there can't be understood, which is told.

        Raises:
            NotKept: it can't be read now.
        """

    async def write(self, present: Callable[[], Kept], fleet: FleetName | None = None) -> None:
        """Keep what is present in place of what was kept before. What belongs to fleets and policies that aren't in it may stay.

        Of two writes at the same time neither puts what is older in the place of what is newer, and one of a single fleet doesn't
        wait for all others.

        Args:
            present: returns all that is to be kept at the moment; it is asked right before anything is written.
            fleet: what is kept of this one is enough, the orders that stand for it above all, and somebody waits for it; None: of all.

        Raises:
            NotKept: it can't be written now; what was kept before stays.
        """


class Nowhere:
    """Keeps nothing."""

    async def read(self) -> Kept:
        """See `Archive.read`."""
        return Kept()

    async def write(self, present: Callable[[], Kept], fleet: FleetName | None = None) -> None:
        """See `Archive.write`."""
