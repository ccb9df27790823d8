"""What `emberpool local` makes of a policy set that changes while it runs.

Its engines were started from the set that it began with. What the law reads takes effect at once; what an engine was
started with does not, and is said; what would need a fleet or a resident that isn't there is refused.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from scaler.core.model import PolicySpec
from scaler.errors import PolicyFault
from scaler.policy.compile import PolicySet
from scaler.policy.reading import Reading
from scaler.runtime.controller import PolicyTable
from scaler.runtime.policy_tables import table_of
from warmpool.seats import FleetName, PolicyName

_RESTART = "restart `emberpool local` to apply it"


class LocalPolicies:
    """Puts sets in force for the seats of this machine.

    Args:
        begun: the set that engines were started from.
        seat_budget: seats that all fleets together may have; None for no such limit.
        adopt: takes the table of a new set.
    """

    def __init__(
        self, begun: PolicySet, seat_budget: int | None, adopt: Callable[[PolicyTable], None]
    ) -> None:
        self._begun = begun
        self._seat_budget = seat_budget
        self._adopt = adopt

    async def refuse(self, reading: Reading) -> Sequence[PolicyFault]:
        """See `Force.refuse`."""
        return [*_new_fleets(self._begun, reading), *_new_policies(self._begun, reading)]

    def adopt(self, policies: PolicySet) -> Sequence[str]:
        """See `Force.adopt`."""
        self._adopt(table(self._begun, policies, self._seat_budget))
        return list(not_changed(self._begun, policies))


def table(begun: PolicySet, policies: PolicySet, seat_budget: int | None) -> PolicyTable:
    """Return the table of a set, as far as the seats that were begun can follow it.

    Args:
        begun: the set that engines were started from.
        policies: the set; it has no fleet and no policy that `begun` lacks.
        seat_budget: seats that all fleets together may have; None for no such limit.
    """
    fleets = (
        replace(spec, max_seats=min(spec.max_seats, begun.fleet_specs[name].max_seats))
        for name, spec in policies.fleet_specs.items()
    )
    return replace(
        table_of(policies, fleets),
        policies=tuple(_resident(begun, spec) for spec in policies.policy_specs.values()),
        models={name: begun.policies[name].models for name in policies.policies},
        seat_budget=seat_budget,
    )


def _resident(begun: PolicySet, spec: PolicySpec) -> PolicySpec:
    """Keep of a policy's fleets those on whose seats it has an engine: on others it would ask for seats in vain."""
    there = _fleets(begun, spec.name)
    return replace(spec, fleets=tuple(share for share in spec.fleets if share.fleet in there))


def _fleets(policies: PolicySet, policy: PolicyName) -> set[FleetName]:
    return {share.fleet for share in policies.policy_specs[policy].fleets}


# ------------------------------------------------------------------ what is refused


def _new_fleets(begun: PolicySet, reading: Reading) -> Iterator[PolicyFault]:
    for name in reading.set.fleets.keys() - begun.fleets.keys():
        message = f"fleet {name} can't be added while `emberpool local` runs: it has no seats"
        yield reading.fault("Fleet", name, message, _RESTART)


def _new_policies(begun: PolicySet, reading: Reading) -> Iterator[PolicyFault]:
    for name in reading.set.policies:
        if name not in begun.policies:
            message = (
                f"policy {name} can't be added while `emberpool local` runs: no engine was started for it"
            )
            hint = f"restart it with --checkpoint {name}=DIR"
        elif not _fleets(begun, name) & _fleets(reading.set, name):
            message = f"policy {name} has its engines on none of the fleets that it names now"
            hint = _RESTART
        else:
            continue
        yield reading.fault("ScalingPolicy", name, message, hint)


# ------------------------------------------------------------------ what is not changed


def not_changed(begun: PolicySet, policies: PolicySet) -> Iterator[str]:
    """Yield what of a set can't take effect on seats that are there already, as sentences."""
    yield from _fleets_not_changed(begun, policies)
    yield from _policies_not_changed(begun, policies)
    for gone in sorted(begun.policies.keys() - policies.policies.keys()):
        yield f"policy {gone} is in no policy file: its engines are left as they are"
    for gone_fleet in sorted(begun.fleets.keys() - policies.fleets.keys()):
        yield f"fleet {gone_fleet} is in no policy file: its seats are left as they are"


def _fleets_not_changed(begun: PolicySet, policies: PolicySet) -> Iterator[str]:
    for fleet, now in policies.fleets.items():
        before = begun.fleets[fleet]
        if now.spec.seat != before.spec.seat:
            yield f"fleet {fleet}: spec.seat is not what its seats were started with; {_RESTART}"
        if now.spec.spare.parked != before.spec.spare.parked:
            yield f"fleet {fleet}: spec.spare.parked is not what its seats were started with; {_RESTART}"
        if now.spec.max_seats > before.spec.max_seats:
            yield f"fleet {fleet}: spec.maxSeats stays {before.spec.max_seats}, what there is room for; {_RESTART}"


def _policies_not_changed(begun: PolicySet, policies: PolicySet) -> Iterator[str]:
    for policy, written in policies.policies.items():
        was = begun.policies[policy]
        if written.spec.engine != was.spec.engine:
            yield f"policy {policy}: spec.engine is not what its engines were started with; {_RESTART}"
        if written.models != was.models:
            yield f"policy {policy}: spec.models stays {', '.join(was.models)}, what its engines answer to; {_RESTART}"
        for added in sorted(_fleets(policies, policy) - _fleets(begun, policy)):
            yield f"policy {policy}: it has no engine on fleet {added}, and doesn't serve there; {_RESTART}"
