"""The law itself, in virtual time, is never slower than what is said of it, and not much faster either."""

from dataclasses import dataclass, field

import pytest

from scaler.core.model import FleetView
from scaler.policy.compile import PolicySet
from scaler.policy.lint import Figure, Subject, lint
from tests.unit.scaler.core.world import Run, load, served, simple
from tests.unit.scaler.policy.lint.sets import Tree, fleet, policy, subject, terms

STEP_SECONDS = 0.25
"""How often the law is asked here; on an event it is asked at once."""
HALF_A_MINUTE = {"policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}]}
ONE_A_MINUTE = {"policies": [{"type": "Seats", "value": 1, "periodSeconds": 60}]}


@dataclass
class OneFleet:
    """One policy on one fleet whose seats exist as soon as they are asked for, and follow every decision."""

    policies: PolicySet
    run: Run = field(init=False)
    serving: int = 0
    seats: int = 0

    def __post_init__(self) -> None:
        self.run = Run(list(self.policies.policy_specs.values()), list(self.policies.fleet_specs.values()))

    def step(self, in_flight: float) -> None:
        decision = self.run.step({"chat": load(in_flight)}, {"own": self._view()}, after=STEP_SECONDS)
        self.serving = served(decision, "chat", "own")
        self.seats = decision.fleets[self.policies.fleet_specs["own"].name].total

    def until(self, in_flight: float, *, serving: int | None = None, seats: int | None = None) -> float:
        """Hold a load until so many serve or exist, and return how long that took."""
        began = self.run.now
        for _ in range(100_000):
            self.step(in_flight)
            if self.serving == (self.serving if serving is None else serving) and self.seats == (
                self.seats if seats is None else seats
            ):
                return self.run.now - began
        raise AssertionError(f"{self.serving} of {self.seats} seats serve, and it stays so")

    def _view(self) -> FleetView:
        return simple({"chat": self.serving}, spare=max(0, self.seats - self.serving))


def figure(looked_at: Subject, ending: str) -> Figure:
    (report,) = lint(looked_at).policies
    (found,) = [each for each in report.times if each.name.endswith(ending)]
    return found


def known(found: Figure, *left_out: str) -> float:
    """Sum up what plays a part in a world without delays, drains and starts."""
    return sum(value or 0.0 for name, value in terms(found).items() if name not in left_out)


OUTSIDE = ("signal gateway", "tick and decision", "drain, at most")


@pytest.mark.parametrize(
    ("burst", "floor"),
    [
        pytest.param({}, 1, id="defaults"),
        pytest.param({"windowSeconds": 2, "stableWindowSeconds": 10, "demoteAfterSeconds": 3}, 0, id="short"),
        pytest.param(
            {"windowSeconds": 4, "stableWindowSeconds": 20, "demoteAfterSeconds": 60}, 1, id="slow-to-demote"
        ),
        pytest.param(
            {"windowSeconds": 30, "stableWindowSeconds": 30, "demoteAfterSeconds": 0},
            0,
            id="no-demote-window",
        ),
    ],
)
def test_the_last_resident_is_paused_when_it_is_said_to_be(burst: Tree, floor: int) -> None:
    looked_at = subject(fleet(), policy(burst=burst, serving={"min": floor}))
    world = OneFleet(looked_at.policies)
    world.until(500, serving=4)  # more than 150 % of what four hold: a burst until the end
    took = world.until(0, serving=floor)
    said = known(figure(looked_at, "paused"), *OUTSIDE)
    assert said - 2.5 <= took <= said + 2 * STEP_SECONDS


@pytest.mark.parametrize(
    "scale_down",
    [
        pytest.param({}, id="window"),
        pytest.param({"stabilizationWindowSeconds": 30, **HALF_A_MINUTE}, id="half-a-minute"),
        pytest.param({"stabilizationWindowSeconds": 0, **ONE_A_MINUTE}, id="one-a-minute"),
    ],
)
def test_the_last_surplus_seat_is_deleted_when_it_is_said_to_be(scale_down: Tree) -> None:
    looked_at = subject(fleet(maxSeats=12, scaleDown=scale_down), policy())
    world = OneFleet(looked_at.policies)
    world.until(900, serving=12)
    took = world.until(0, serving=1, seats=2)
    said = known(figure(looked_at, "seats deleted"), *OUTSIDE)
    assert said - 62.5 <= took <= said + 4 * STEP_SECONDS


@pytest.mark.parametrize("scale_up", [{}, {"stabilizationWindowSeconds": 20, **ONE_A_MINUTE}])
def test_the_last_seat_is_asked_for_when_it_is_said_to_be(scale_up: Tree) -> None:
    looked_at = subject(fleet(maxSeats=6, scaleUp=scale_up), policy())
    world = OneFleet(looked_at.policies)
    world.until(8, serving=1, seats=2)
    took = world.until(192, serving=6, seats=6)
    said = sum(
        value or 0.0
        for name, value in terms(figure(looked_at, "on new seats")).items()
        if name.startswith("scaleUp")
    )
    assert took <= said + 4 * STEP_SECONDS


def test_its_own_fleet_grows_off_the_bridge_within_the_time_that_is_said() -> None:
    looked_at = subject(
        fleet(spare={"min": 0}),
        fleet("spares", spare={"min": 2}),
        policy(fleets={"own": 32, "spares": 32}),
    )
    run = Run(list(looked_at.policies.policy_specs.values()), list(looked_at.policies.fleet_specs.values()))
    views = {"own": simple({"chat": 1}), "spares": simple({"chat": 0}, spare=2)}
    run.hold({"chat": load(0)}, views, 90.0)
    views = {"own": simple({"chat": 1}), "spares": simple({"chat": 2})}
    began, own = run.now, looked_at.policies.fleet_specs["own"].name  # type: ignore[index]
    totals = []
    while not totals or totals[-1] < 3:
        totals.append(run.step({"chat": load(96)}, views, after=STEP_SECONDS).fleets[own].total)
    said = terms(figure(looked_at, "off the bridge"))["mean reaches the load"]
    assert totals[0] == 1  # a burst that the spares carry starts no pod at once
    assert said is not None
    assert said / 2 <= run.now - began <= said + STEP_SECONDS
