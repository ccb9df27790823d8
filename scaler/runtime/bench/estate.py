"""A large estate to measure with: policies, fleets and seats as a controller of that size would have them.

Four in five seats are in a fleet of their policy's own, half of them serving. The others are spares in shared fleets, each
with the models of five policies on every seat, as HBM allows it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scaler.cluster.port import Stock
from scaler.core.model import FleetShare, FleetSpec, PolicySpec
from scaler.runtime.actuator import Actuator
from scaler.runtime.controller import PolicyTable
from scaler.runtime.events import Trigger
from warmpool.plan import Action
from warmpool.seats import Claim, FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

POLICIES_A_SHARED_FLEET = 5
_TARGET_IN_FLIGHT = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the controller is."""

    policies: int
    seats: int


def table(shape: Shape) -> PolicyTable:
    """Return policies with a fleet of their own and a shared one."""
    own = shape.seats * 4 // 5 // shape.policies
    shared = -(-shape.policies // POLICIES_A_SHARED_FLEET)
    each = (shape.seats - own * shape.policies) // shared
    policies, fleets = [], []
    for number in range(shape.policies):
        name = f"model-{number:04d}"
        spares = FleetName(f"spares-{number // POLICIES_A_SHARED_FLEET:03d}")
        places = (
            FleetShare(fleet=FleetName(name), target_in_flight=_TARGET_IN_FLIGHT),
            FleetShare(fleet=spares, target_in_flight=_TARGET_IN_FLIGHT),
        )
        policies.append(PolicySpec(name=PolicyName(name), fleets=places, serving_min=1, serving_max=64))
        fleets.append(FleetSpec(name=FleetName(name), max_seats=own))
    fleets += [
        FleetSpec(name=FleetName(f"spares-{number:03d}"), max_seats=each, spare_target=each // 2)
        for number in range(shared)
    ]
    return PolicyTable(policies=policies, fleets=fleets, hash="bench")


def stock(of: PolicyTable, proven_at: float) -> Stock:
    """Return the seats of all fleets: of the own ones half serve, of the shared ones none.

    Args:
        of: what there is.
        proven_at: Unix time of everybody's last proof. Were it long ago each fleet would want one at every tick, for nobody makes any.
    """
    named: dict[FleetName, list[PolicyName]] = {fleet.name: [] for fleet in of.fleets}
    for policy in of.policies:
        for share in policy.fleets:
            named[share.fleet].append(policy.name)
    return {
        fleet.name: tuple(
            _seat(fleet.name, number, named[fleet.name], proven_at) for number in range(fleet.max_seats)
        )
        for fleet in of.fleets
    }


def _seat(fleet: FleetName, number: int, policies: Sequence[PolicyName], proven_at: float) -> Seat:
    serves = len(policies) == 1 and number % 2 == 0
    state = ResidentState.SERVING if serves else ResidentState.PAUSED
    return Seat(
        name=SeatName(f"{fleet}-{number}"),
        uid=f"{fleet}-{number}",
        version="1",
        fleet=fleet,
        gpus=("0",),
        residents=tuple(
            Resident(policy=name, state=state, since=0.0, proven_at=proven_at) for name in policies
        ),
        serving=frozenset(policies) if serves else frozenset(),
        admitted=True,
        ready=True,
    )


class Standing:
    """Seats that change only when the bench says so, as a `Cluster`."""

    synced = True
    age = 0.0

    def __init__(self, of: Stock) -> None:
        self._stock = dict(of)

    def stock(self) -> Stock:
        """See `Cluster.stock`."""
        return self._stock

    def seats(self) -> Sequence[Seat]:
        """See `Cluster.seats`."""
        return [seat for seats in self._stock.values() for seat in seats]

    def seat(self, name: SeatName) -> Seat | None:
        """See `Cluster.seat`."""
        return next((seat for seat in self.seats() if seat.name == name), None)

    def touch(self, fleet: FleetName) -> None:
        """Have all seats of a fleet reported anew, as other objects with the same contents."""
        self._stock[fleet] = tuple(replace(seat) for seat in self._stock[fleet])

    def replicas(self, fleet: FleetName) -> int:
        """See `Cluster.replicas`."""
        return len(self._stock[fleet])

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """See `Cluster.subscribe`."""
        del changed
        return lambda: None

    async def claim(self, seat: Seat, claim: Claim) -> Seat:
        """Nothing is acted on here."""
        raise NotImplementedError

    async def settle(self, name: SeatName, claim: Claim, *, serving: PolicyName | None) -> Seat:
        """Nothing is acted on here."""
        raise NotImplementedError

    async def resize(self, fleet: FleetName, total: int) -> None:
        """Nothing is acted on here."""
        raise NotImplementedError

    async def delete(self, seat: Seat, *, reason: str) -> None:
        """Nothing is acted on here."""
        raise NotImplementedError


class Idle(Actuator):
    """Begins no action: what is measured is the loop."""

    def start(self, actions: Sequence[Action], triggers: Mapping[PolicyName, Trigger]) -> None:
        """Begin nothing."""
        del actions, triggers
