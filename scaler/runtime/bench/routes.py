"""What a change of rotation costs, from the controller's cache to the gateway's table.

    python -m scaler.runtime.bench.routes --seats 10000 --policies 500

Seats of several fleets serve; one of them leaves rotation and comes back, again and again. Beside it stands what it costs to work out
and write down everything anew. The best of all rounds is shown, for the machine may have other things to do.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from scaler.core.model import FleetShare, PolicySpec
from scaler.gateway.routes import PolicyRoutes, RouteTable
from scaler.runtime.published_routes import Change, PublishedTable, from_line, line, say
from scaler.runtime.rotation import Rotation
from scaler.runtime.routing import routes
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

_FLEETS: Final = 100
_SLOTS: Final = 8

Stock = dict[FleetName, Sequence[Seat]]


class Estate:
    """Seats that serve, evenly over fleets and policies.

    Args:
        seats: how many.
        policies: how many; each has one fleet.

    Attributes:
        stock: the seats per fleet.
    """

    def __init__(self, seats: int, policies: int) -> None:
        self._policies = [
            PolicySpec(
                name=PolicyName(f"policy-{number}"),
                fleets=(FleetShare(fleet=_fleet(number), target_in_flight=_SLOTS),),
            )
            for number in range(policies)
        ]
        self._models = {policy.name: (f"model-of-{policy.name}",) for policy in self._policies}
        found: dict[FleetName, list[Seat]] = defaultdict(list)
        for number in range(seats):
            seat = _seat(number, self._policies[number % policies].name, _fleet(number % policies))
            found[seat.fleet].append(seat)
        self.stock: Stock = {fleet: tuple(each) for fleet, each in found.items()}

    def routes(self, seats: Sequence[Seat]) -> dict[PolicyName, PolicyRoutes]:
        """Work out all policies' routes to some seats."""
        return routes(self._policies, self._models, seats)

    def turned(self, *, out: bool) -> Stock:
        """Return the stock with one seat out of rotation, or with none."""
        fleet, seats = next(iter(self.stock.items()))
        first = replace(seats[0], serving=frozenset()) if out else replace(seats[0])
        return {**self.stock, fleet: (first, *seats[1:])}


def _fleet(number: int) -> FleetName:
    return FleetName(f"fleet-{number % _FLEETS}")


def _seat(number: int, policy: PolicyName, fleet: FleetName) -> Seat:
    resident = Resident(
        policy=policy, state=ResidentState.SERVING, since=1.0, address=f"http://10.0.0.1:{number}"
    )
    return Seat(
        name=SeatName(f"seat-{number}"),
        uid=f"uid-{number}",
        version="",
        fleet=fleet,
        residents=(resident,),
        serving=frozenset({policy}),
    )


class Clock:
    """The shortest time of each step, in milliseconds."""

    def __init__(self) -> None:
        self.best: dict[str, float] = {}

    def time(self, step: str, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the work gives
        """Do some work, and return what it gives."""
        begun = time.perf_counter()
        result = work()
        taken = 1000 * (time.perf_counter() - begun)
        self.best[step] = min(taken, self.best.get(step, taken))
        return result


def measure(estate: Estate, rounds: int) -> Clock:
    """Turn one seat out and in again, so many times."""
    clock, rotation, table = Clock(), Rotation(estate.routes), RouteTable()
    rotation.look(estate.stock, 0.0)
    table.replace(rotation.policies)
    for number in range(rounds):
        stock = estate.turned(out=number % 2 == 0)
        changes = clock.time("work out what changed", partial(rotation.look, stock, 0.0))
        last = PublishedTable(term=1, version=number + 1, gateways=("gw",), policies=dict(rotation.policies))
        text = clock.time("write it down", partial(_written, last, changes))
        change = clock.time("read it", partial(from_line, text))
        assert isinstance(change, Change)
        clock.time("take it over", partial(table.update, change.policies))
    seats = [seat for each in estate.stock.values() for seat in each]
    for _ in range(3):
        whole = clock.time("work out everything", partial(estate.routes, seats))
        last = PublishedTable(term=1, version=1, gateways=("gw",), policies=whole)
        clock.time("write everything down", last.to_line)
        clock.time("take everything over", partial(RouteTable().replace, whole))
    return clock


def _written(last: PublishedTable, changes: Mapping[PolicyName, PolicyRoutes | None]) -> bytes:
    said = {name: "null" if found is None else say(found) for name, found in changes.items()}
    return line(last, "changes", said, last.version - 1)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description="What a change of rotation costs.")
    parser.add_argument("--seats", type=int, default=10_000)
    parser.add_argument("--policies", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    clock = measure(Estate(arguments.seats, arguments.policies), arguments.rounds)
    for step, milliseconds in clock.best.items():
        print(f"{milliseconds:8.2f} ms  {step}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
