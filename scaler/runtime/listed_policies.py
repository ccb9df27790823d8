"""What a controller over a list of agents makes of a policy set: the list says which fleets there are, and how large."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from scaler.cluster.static.listing import AgentList
from scaler.errors import PolicyFault
from scaler.policy.compile import PolicySet
from scaler.policy.reading import Reading
from scaler.runtime.controller import PolicyTable
from scaler.runtime.policy_tables import table_of
from warmpool.seats import FleetName

log = structlog.get_logger(__name__)


class ListedPolicies:
    """Puts sets in force for the seats of a list.

    Args:
        listed: the list.
        adopt: takes the table of a new set.
    """

    def __init__(self, listed: AgentList, adopt: Callable[[PolicyTable], None]) -> None:
        self._sizes = sizes(listed)
        self._adopt = adopt

    async def refuse(self, reading: Reading) -> Sequence[PolicyFault]:
        """See `Force.refuse`."""
        return unlisted_fleets(reading, self._sizes)

    def adopt(self, policies: PolicySet) -> Sequence[str]:
        """See `Force.adopt`."""
        self._adopt(table(policies, self._sizes))
        return [
            f"fleet {name} is in no policy file: its {count} seats are left as they are"
            for name, count in sorted(self._sizes.items())
            if name not in policies.fleets
        ]


def sizes(listed: AgentList) -> Mapping[FleetName, int]:
    """Return how many seats each fleet of a list has."""
    return {FleetName(fleet.name): len(fleet.seats) for fleet in listed.spec.fleets}


def unlisted_fleets(reading: Reading, listed: Mapping[FleetName, int]) -> list[PolicyFault]:
    """Find fleets without any seat: what is to serve on them never could."""
    return [
        reading.fault(
            "Fleet",
            name,
            f"fleet {name} has no seat in the list of agents",
            f"list its agents under `- name: {name}`, or take the Fleet out of the policies",
        )
        for name in reading.set.fleets
        if name not in listed
    ]


def table(policies: PolicySet, listed: Mapping[FleetName, int]) -> PolicyTable:
    """Return a set's table with each fleet no larger than its list: the law must not count on seats that can't come."""
    fleets = []
    for name, spec in policies.fleet_specs.items():
        count = listed[name]
        if spec.max_seats != count:
            log.warning(
                "maxSeats differs from the list of agents", fleet=name, maxSeats=spec.max_seats, listed=count
            )
        fleets.append(replace(spec, max_seats=min(spec.max_seats, count)))
    return table_of(policies, fleets)
