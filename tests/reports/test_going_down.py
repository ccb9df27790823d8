"""Going down as others got it wrong: too late, too early, to and fro, to nothing by an old order, or without a word."""

from datetime import UTC, datetime

import pytest

from scaler.core.model import Burst, FleetDecision, Mode, Pace, PolicyDecision, ReasonCode
from scaler.policy.base import API_VERSION, Metadata
from scaler.policy.calendar import Calendar
from scaler.policy.fleet import Fleet, Frozen
from scaler.policy.fleet import FleetSpec as WrittenFleet
from tests.reports.site import Site
from tests.unit.scaler.core.world import fleet, load, policy
from warmpool.seats import FleetName, PolicyName

A, SPARES = PolicyName("a"), FleetName("spares")
USUAL = Burst()
"""The windows as they are where nobody sets them: 6 s, 60 s, 60 s."""
AT_ONCE = Burst(demote_after=0.0)
"""The same without the last: whatever isn't wanted any more goes at once."""

# ------------------------------------------------------------------ too early


@pytest.mark.parametrize(
    ("up", "start"),
    [pytest.param(4, 1.0, id="from spares"), pytest.param(1, 90.0, id="from seats that take 90 s")],
)
def test_the_end_of_a_burst_does_not_undo_it(up: int, start: float) -> None:
    """On leaving panic the long mean ruled, which still held the quiet before: the new pods were taken away again."""
    shape = fleet(max_seats=6, scale_down=Pace(window=30.0))
    site = Site(policies=[policy(burst=AT_ONCE)], fleets=[shape], up={"spares": up}, start=start)
    site.hold({"a": load(2)}, 300.0)
    assert (site.serving(), site.decision.policies[A].mode) == (1, Mode.STABLE)
    modes, served = [], []
    for _ in range(400):
        modes.append(site.step({"a": load(20)}).policies[A].mode)
        served.append(site.serving())
    grown = served.index(3)
    assert Mode.BURST in modes[: grown + 1]
    assert modes[-1] is Mode.STABLE
    assert set(served[grown:]) == {3}


def test_what_a_burst_brought_serves_for_a_whole_window() -> None:
    """It was taken back as soon as the short window had seen a quiet moment."""
    shape = fleet(max_seats=6, spare_target=3)
    site = Site(policies=[policy(burst=AT_ONCE)], fleets=[shape], up={"spares": 4})
    site.hold({"a": load(2)}, 200.0)
    site.step({"a": load(20)})
    assert site.serving() == 3
    came = site.now
    site.hold({"a": load(2)}, AT_ONCE.stable_window - 1.0)
    assert site.serving() == 3
    site.hold({"a": load(2)}, 10.0)
    assert site.serving() == 1
    assert site.now - came < 2 * AT_ONCE.stable_window


# ------------------------------------------------------------------ to and fro


@pytest.mark.parametrize("said_by", ["in_flight", "engines"])
@pytest.mark.parametrize("demand", [1, 7, 8, 8.1, 9, 15.9, 16, 16.1, 23.5])
@pytest.mark.long
def test_constant_load_moves_nothing(demand: float, said_by: str) -> None:
    """With two engines each looked half idle, with one it looked full: 2, 1, 2, 1 under a load that never changed."""
    site = Site(policies=[policy(burst=USUAL)], fleets=[fleet(max_seats=5, spare_target=2)], up={"spares": 3})
    loads = {"a": load(demand) if said_by == "in_flight" else load(0, engines=demand)}
    site.hold(loads, 300.0)
    settled = (site.serving(), site.total())
    for _ in range(900):
        site.step(loads)
        assert (site.serving(), site.total()) == settled


def test_the_last_resident_is_not_taken_away_while_the_others_could_not_bear_it() -> None:
    """Each decision to go down by one looked at the mean alone, and was undone by the next peak."""
    site = Site(policies=[policy(burst=USUAL)], fleets=[fleet(max_seats=5, spare_target=2)], up={"spares": 3})
    site.hold({"a": load(9)}, 300.0)
    assert site.serving() == 2
    for second in range(900):
        site.step({"a": load(9 if second % 5 == 0 else 7)})
        assert site.serving() == 2, "7.4 in the mean, and 9 every few seconds"


def test_an_hour_without_load_changes_nothing() -> None:
    """Something was added in every cycle although nobody asked for anything."""
    site = Site(
        policies=[policy(serving_min=1)], fleets=[fleet(max_seats=9, spare_target=2)], up={"spares": 3}
    )
    site.hold({"a": load(0, completions=0, arrivals=0)}, 60.0)
    for _ in range(3600):
        site.step({"a": load(0, completions=0, arrivals=0)})
        assert (site.serving(), site.total()) == (1, 3)


# ------------------------------------------------------------------ too late


def test_sixty_policies_that_are_told_to_be_idle_again_and_again_all_reach_zero() -> None:
    """Every word of a route, also that it was idle, kept it alive: with sixty of them none ever reached zero."""
    names = [f"p{number}" for number in range(60)]
    site = Site(
        policies=[policy(name, serving_min=0) for name in names],
        fleets=[fleet(max_seats=70, spare_target=4)],
        up={"spares": 64},
    )
    site.hold({name: load(3) for name in names}, 15.0)
    assert all(site.serving(name) == 1 for name in names)
    site.hold({name: load(0) for name in names}, 40.0, each=0.2)
    assert [site.serving(name) for name in names] == [0] * 60
    assert len(site.place().seats) == 4


def holds(decision: PolicyDecision | FleetDecision) -> list[float]:
    """Return when what holds something may cease to, for each hold that time alone may end."""
    return [reason.until for reason in decision.reasons if reason.until is not None]


def test_every_moment_of_the_way_down_says_what_holds_it_and_until_when() -> None:
    """Half an hour after a burst the pods were still there, and nothing said which of five timers held them."""
    shape = fleet(max_seats=9, spare_target=1, scale_down=Pace(window=300.0))
    site = Site(policies=[policy(burst=USUAL)], fleets=[shape], up={"spares": 5})
    site.hold({"a": load(2)}, 150.0)
    site.hold({"a": load(30)}, 60.0)
    assert (site.serving(), site.total()) == (4, 5)
    over, longest = site.now, USUAL.window + USUAL.stable_window + USUAL.demote_after
    while (kept := site.step({"a": load(2)}).policies[A].serving[SPARES]) > 1:
        said = site.decision.policies[A]
        ruling = said.reasons[0]
        asked_for = ruling.code is ReasonCode.CONCURRENCY and float(ruling.facts["demand"]) > 8 * (kept - 1)
        assert asked_for or holds(said), "the mean still asks for it, or something holds it"
        assert all(site.now < until <= over + longest for until in holds(said))
    assert site.now - over <= longest
    while site.total() > 2:
        assert holds(site.decision.fleets[SPARES])
        assert all(
            site.now < until <= over + longest + 300.0 for until in holds(site.decision.fleets[SPARES])
        )
        site.step({"a": load(2)})
    assert site.now - over <= longest + 300.0


# ------------------------------------------------------------------ an old order


def frozen(until: float) -> Calendar:
    ends = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    written = WrittenFleet(max_seats=3, frozen=Frozen(until=ends, reason="maintenance"))
    return Calendar(
        [Fleet(api_version=API_VERSION, kind="Fleet", metadata=Metadata(name=SPARES), spec=written)]
    )


WALL = 1_796_000_000.0


@pytest.mark.parametrize(("hours", "total"), [(-1, 2), (1, 0)])
def test_a_restart_does_not_carry_out_a_pause_that_is_over(hours: int, total: int) -> None:
    """A controller that restarted replayed a pause of long ago and took everything to its number of replicas, zero."""
    site = Site(policies=[policy()], fleets=[fleet()])
    said = frozen(WALL + hours * 3600.0).at(WALL, site.now + 1.0)
    site.limits = {"frozen": said.frozen}
    site.step({"a": load(0)})
    assert site.total() == total


def test_a_pause_ends_by_itself_and_says_when() -> None:
    """A pause without an end had been forgotten by those who had asked for it."""
    site = Site(policies=[policy()], fleets=[fleet()], up={"spares": 1})
    site.limits = {"frozen": frozen(WALL + 60.0).at(WALL, site.now).frozen}
    site.step({"a": load(20)})
    assert holds(site.decision.fleets[SPARES]) == [pytest.approx(site.now + 59.0)]
    assert site.total() == 1
    site.hold({"a": load(20)}, 60.0)
    assert site.total() == 3
