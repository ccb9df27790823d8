"""Keeps what must outlive every controller in one ConfigMap a fleet."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import structlog

from scaler.cluster.kube.config_maps import KeptConfigMaps
from scaler.errors import ClusterError
from scaler.runtime.clock import Clock
from scaler.runtime.kept import Kept, NotKept
from scaler.runtime.kept_documents import OfFleet, Unreadable, from_text, to_text
from scaler.store.histories import History
from scaler.store.standing_orders import OfFleet as OrdersOfFleet
from warmpool.expectations import Recording
from warmpool.seats import FleetName, PolicyName

log = structlog.get_logger(__name__)

FILE: Final = "kept.json"
"""The key in a ConfigMap's data."""


class ConfigMapArchive:
    """The port `Archive` on ConfigMaps.

    Args:
        maps: reads and writes them.
        clock: time.
        homes: returns the fleet in whose ConfigMap each policy's expectations are kept; of policies that aren't in it none are.
    """

    def __init__(
        self, maps: KeptConfigMaps, clock: Clock, homes: Callable[[], Mapping[PolicyName, FleetName]]
    ) -> None:
        self._maps = maps
        self._clock = clock
        self._homes = homes
        self._turns: dict[FleetName, asyncio.Lock] = {}
        # of writes that nobody waits for, while they go on and have not been told to give way
        self._patience: dict[FleetName, asyncio.Timeout] = {}

    async def read(self) -> Kept:
        """See `Archive.read`."""
        try:
            found = await self._maps.read()
        except ClusterError as error:
            raise NotKept(f"ConfigMaps can't be read: {error}") from error
        now, wall = self._clock.monotonic(), self._clock.wall()
        learned: dict[FleetName, History] = {}
        agreed: dict[PolicyName, Sequence[Recording]] = {}
        ordered: dict[FleetName, OrdersOfFleet] = {}
        for fleet, config in sorted(found.items()):
            try:
                kept = from_text(config.data.get(FILE, ""), now, wall)
            except Unreadable as error:
                log.warning(
                    "what was kept of a fleet can't be read and begins anew",
                    fleet=fleet,
                    config_map=config.name,
                    error=str(error),
                )
                continue
            learned.update(kept.histories)
            agreed.update(kept.recordings)
            ordered.update(kept.orders)
        return Kept(histories=learned, recordings=agreed, orders=ordered)

    async def write(self, present: Callable[[], Kept], fleet: FleetName | None = None) -> None:
        """See `Archive.write`; what can't be written of one fleet keeps no other's from being written."""
        failed: list[str] = []
        for each in self._fleets(present()) if fleet is None else [fleet]:
            try:
                await self._write(present, each, awaited=fleet is not None)
            except ClusterError as error:
                failed.append(f"{each}: {error}")
        if failed:
            raise NotKept(f"ConfigMaps can't be written: {failed[0]}")

    async def _write(self, present: Callable[[], Kept], fleet: FleetName, *, awaited: bool) -> None:
        """Write what is worth keeping of one fleet, when nobody else does.

        One that is awaited takes the place of one that is not: that may wait for its turn for seconds, and would write no more.

        Raises:
            ClusterError: it can't be written.
        """
        if awaited and (patience := self._patience.pop(fleet, None)) is not None:
            patience.reschedule(asyncio.get_running_loop().time())
        async with self._turns.setdefault(fleet, asyncio.Lock()):
            of = self._of(present(), fleet)
            if of.worth_keeping:
                data = {FILE: to_text(of, self._clock.monotonic(), self._clock.wall())}
                if awaited:
                    await self._maps.write(fleet, data, awaited=True)
                else:
                    await self._write_or_give_way(fleet, data)

    async def _write_or_give_way(self, fleet: FleetName, data: Mapping[str, str]) -> None:
        """Write unless one comes that somebody waits for.

        Raises:
            ClusterError: it can't be written.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as self._patience[fleet]:
                try:
                    await self._maps.write(fleet, data)
                finally:
                    self._patience.pop(fleet, None)

    def _fleets(self, kept: Kept) -> Sequence[FleetName]:
        """Return the fleets of which anything may be worth keeping."""
        homes = self._homes()
        named = {homes[policy] for policy in kept.recordings if policy in homes}
        return sorted(kept.histories.keys() | kept.orders.keys() | named)

    def _of(self, kept: Kept, fleet: FleetName) -> OfFleet:
        homes = self._homes()
        return OfFleet(
            fleet=fleet,
            history=kept.histories.get(fleet),
            recordings={
                policy: each for policy, each in kept.recordings.items() if homes.get(policy) == fleet
            },
            orders=kept.orders.get(fleet),
        )
