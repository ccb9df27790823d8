"""Keeps what must outlive every controller in one ConfigMap a fleet."""

from collections.abc import Callable, Iterator, Sequence
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
        home: returns the fleet in whose ConfigMap a policy's expectations are kept; None where there is none.
    """

    def __init__(
        self, maps: KeptConfigMaps, clock: Clock, home: Callable[[PolicyName], FleetName | None]
    ) -> None:
        self._maps = maps
        self._clock = clock
        self._home = home

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

    async def write(self, kept: Kept, fleet: FleetName | None = None) -> None:
        """See `Archive.write`; what can't be written of one fleet keeps no other's from being written."""
        failed: list[str] = []
        for each in self._of_fleets(kept):
            if fleet not in {None, each.fleet}:
                continue
            text = to_text(each, self._clock.monotonic(), self._clock.wall())
            try:
                await self._maps.write(each.fleet, {FILE: text})
            except ClusterError as error:
                failed.append(f"{each.fleet}: {error}")
        if failed:
            raise NotKept(f"ConfigMaps can't be written: {failed[0]}")

    def _of_fleets(self, kept: Kept) -> Iterator[OfFleet]:
        """Yield what is worth keeping, per fleet."""
        homes = {policy: self._home(policy) for policy in kept.recordings}
        named = {fleet for fleet in homes.values() if fleet is not None}
        fleets = kept.histories.keys() | kept.orders.keys() | named
        for fleet in sorted(fleets):
            of = OfFleet(
                fleet=fleet,
                history=kept.histories.get(fleet),
                recordings={
                    policy: each for policy, each in kept.recordings.items() if homes[policy] == fleet
                },
                orders=kept.orders.get(fleet),
            )
            if of.worth_keeping:
                yield of
