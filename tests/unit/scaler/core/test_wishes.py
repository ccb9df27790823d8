"""What others want of the size of a fleet whose size they write: its total follows a rise that isn't our own."""

from dataclasses import replace
from itertools import pairwise

import pytest

from scaler.core.comparison import verify
from scaler.core.encoding import decode, encode
from scaler.core.explain import explain
from scaler.core.ledger import Reader
from scaler.core.memory import FleetMemory
from scaler.core.model import (
    ChangeLimit,
    FleetDecision,
    FleetSpec,
    Pace,
    Reason,
    ReasonCode,
    Replenish,
    Select,
    Snapshot,
)
from scaler.core.windows import Maxima
from scaler.core.wishes import FOLLOWED_SECONDS, HPA_SYNC_SECONDS
from tests.unit.scaler.core.world import Run, fleet, load, policy, served, simple, view
from tests.unit.scaler.core.writer import Rules, Writer

IDLE = {"a": load(1)}
OWN = 2
"""Seats that a fleet of one idle policy wants of itself: one that serves and one spare."""
WINDOW = 100.0


def keda(**changes: object) -> FleetSpec:
    options: dict[str, object] = {
        "max_seats": 30,
        "resized": False,
        "scale_down": Pace(window=WINDOW),
        **changes,
    }
    return fleet(**options)  # type: ignore[arg-type]


class Fleet:
    """One fleet of an idle policy that somebody else sizes, looked at by hand."""

    def __init__(self, spec: FleetSpec | None = None) -> None:
        self.run = Run([policy()], [spec if spec is not None else keda()])

    def see(self, replicas: int | None, after: float = 1.0, **more: object) -> FleetDecision:
        """Decide with what the workload is asked for; None: the fleet can't be seen."""
        seats = {"spares": replace(simple({"a": 1}, 1), replicas=replicas)} if replicas is not None else {}
        self.run.step(IDLE, seats, after=after, **more)  # type: ignore[arg-type]
        return self.run.decision.fleets["spares"]

    def watch(self, replicas: int | None, seconds: float) -> FleetDecision:
        """Look four times a minute, as an HPA does."""
        for _ in range(round(seconds / 15.0)):
            self.see(replicas, 15.0)
        return self.run.decision.fleets["spares"]

    def settled(self) -> "Fleet":
        """Let everything that was there at the start be forgotten."""
        self.watch(OWN, FOLLOWED_SECONDS + WINDOW + 60.0)
        assert self.run.decision.fleets["spares"].total == OWN
        return self


def reason(decision: FleetDecision, code: ReasonCode) -> Reason:
    (found,) = [each for each in decision.reasons if each.code is code]
    return found


def codes(decision: FleetDecision) -> set[ReasonCode]:
    return {each.code for each in decision.reasons}


# ------------------------------------------------------------------ what is a wish


def test_the_total_follows_a_rise_above_all_that_was_published() -> None:
    on = Fleet().settled()
    wished = on.see(7)
    assert wished.total == 7
    assert (wished.serving, wished.spare) == (1, 1), "nothing serves and nothing is kept spare for it"
    assert served(on.run.decision) == 1


def test_what_is_found_at_the_start_was_published_and_is_no_wish() -> None:
    on = Fleet()
    found = on.see(9)
    assert found.total == 9
    assert ReasonCode.WISHED not in codes(found)
    assert on.watch(9, WINDOW + 30.0).total == OWN


def test_our_own_totals_are_no_wish_for_as_long_as_they_are_acted_on() -> None:
    on = Fleet()
    assert on.see(9).total == 9
    assert on.watch(9, WINDOW + 30.0).total == OWN
    on.see(OWN)
    late = on.see(9)
    assert late.total == OWN, "the HPA still had the nine that were published"


def test_a_total_counts_as_published_until_it_was_replaced_however_long_ago_it_was_decided() -> None:
    on = Fleet()
    on.see(9)
    on.see(9, after=FOLLOWED_SECONDS + WINDOW + 100.0)
    assert on.see(OWN).total == OWN
    assert on.see(9).total == OWN


def test_replicas_that_were_there_before_are_no_wish_however_far_above_the_total() -> None:
    on = Fleet()
    on.see(9)
    totals = [on.see(9, 15.0).total for _ in range(200)]
    assert totals[-1] == OWN
    assert all(after <= before for before, after in pairwise(totals)), "it never rises again"


def test_a_workload_that_we_size_has_no_wishes() -> None:
    on = Fleet(keda(resized=True)).settled()
    assert on.see(7).total == OWN


def test_an_observed_fleet_is_followed_by_nobody_so_its_replicas_are_nobodys_answer() -> None:
    on = Fleet(keda(observe=True)).settled()
    assert on.see(7).total == OWN


def test_what_was_there_when_observing_ended_is_no_wish() -> None:
    on = Fleet(keda(observe=True)).settled()
    on.watch(7, 60.0)
    on.run.fleets = [keda()]
    assert on.see(7).total == OWN
    assert on.see(8).total == 8


# ------------------------------------------------------------------ how long it holds


def test_a_wish_holds_for_the_scale_down_window_and_lapses() -> None:
    on = Fleet().settled()
    began = on.run.now + 1.0
    on.see(7)
    while on.run.decision.fleets["spares"].total == 7:
        on.see(7, 0.5)
    assert on.run.now - began == pytest.approx(WINDOW, abs=0.5)
    assert on.watch(7, 1000.0).total == OWN


def test_a_wish_holds_until_the_hpa_has_looked_where_there_is_no_window() -> None:
    on = Fleet(keda(scale_down=Pace(window=0.0))).settled()
    on.see(7)
    assert on.see(7, HPA_SYNC_SECONDS - 0.1).total == 7
    assert on.see(7, 0.2).total == OWN


def test_a_higher_wish_begins_anew() -> None:
    on = Fleet().settled()
    on.see(7)
    on.see(9, WINDOW / 2)
    assert on.see(9, WINDOW * 0.9).total == 9
    assert on.see(9, WINDOW * 0.2).total == OWN


def test_a_wish_that_has_lapsed_can_be_had_again_once_it_was_lower() -> None:
    on = Fleet().settled()
    on.see(7)
    on.watch(7, WINDOW + 30.0)
    on.watch(OWN, FOLLOWED_SECONDS + 30.0)
    assert on.see(7).total == 7


def test_the_rates_of_scaling_down_hold_when_it_lapses() -> None:
    slow = Pace(window=WINDOW, limits=(ChangeLimit(value=1, percent=False, period=60.0),))
    on = Fleet(keda(scale_down=slow))
    on.watch(OWN, FOLLOWED_SECONDS + WINDOW + 60.0)
    on.see(7)
    assert on.see(7, WINDOW).total == 6


# ------------------------------------------------------------------ limits


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"replenish": Replenish(max_concurrent=1, per_minute=1)}, id="replenish"),
        pytest.param({"scale_up": Pace(select=Select.DISABLED)}, id="no scaling up"),
        pytest.param({"scale_up": Pace(window=600.0)}, id="a window"),
        pytest.param({"scale_up": Pace(tolerance=9.0)}, id="a tolerance"),
        pytest.param(
            {"scale_up": Pace(limits=(ChangeLimit(value=1, percent=False, period=60.0),))}, id="a rate"
        ),
    ],
)
def test_what_slows_our_own_growth_does_not_slow_a_wish(limits: dict[str, object]) -> None:
    on = Fleet(keda(**limits)).settled()
    wished = on.see(7)
    assert wished.total == 7
    assert codes(wished) == {ReasonCode.WISHED}


def test_a_wish_takes_none_of_the_starts_that_spares_have() -> None:
    on = Fleet(keda(replenish=Replenish(max_concurrent=9, per_minute=1))).settled()
    on.see(7)
    on.run.fleets = [keda(replenish=Replenish(max_concurrent=9, per_minute=1), spare_target=9)]
    assert on.see(7).total == 8


def test_a_wish_stays_within_max_seats_and_says_so() -> None:
    on = Fleet(keda(max_seats=5)).settled()
    wished = on.see(7)
    assert wished.total == 5
    assert reason(wished, ReasonCode.SEATS_AT_MAX).facts == {"wanted": 7, "maxSeats": 5}
    assert on.watch(7, WINDOW + 30.0).total == OWN


def test_a_wish_stays_within_the_budget() -> None:
    on = Fleet().settled()
    wished = on.see(7, budget=5)
    assert wished.total == 5
    assert ReasonCode.BUDGET_EXHAUSTED in codes(wished)


def test_a_wish_whose_seats_are_there_needs_nothing_more_of_the_budget() -> None:
    on = Fleet().settled()
    on.run.step(IDLE, {"spares": simple({"a": 1}, 6)}, after=1.0, budget=7)
    assert on.run.decision.fleets["spares"].total == 7


def test_a_wish_takes_no_seat_of_the_budget_from_another_fleet() -> None:
    run = Run(
        [policy("a"), policy("b", fleets=(("zebra", 8),))],
        [keda(max_seats=20, spare_target=1), fleet("zebra", max_seats=9, spare_target=2)],
    )
    loads = {"a": load(1), "b": load(1)}
    calm = {"spares": simple({"a": 1}, 1), "zebra": simple({"b": 1}, 2)}
    for _ in range(40):
        run.step(loads, calm, after=15.0, budget=6)
    run.step(loads, calm | {"spares": replace(calm["spares"], replicas=20)}, after=1.0, budget=6)
    assert {name: one.total for name, one in run.decision.fleets.items()} == {"spares": 3, "zebra": 3}


# ------------------------------------------------------------------ freezes and blind spots


def test_a_freeze_keeps_what_the_workload_has_and_a_wish_made_in_it_holds_afterwards() -> None:
    on = Fleet().settled()
    until = on.run.now + 20.0
    assert on.see(7, frozen={"spares": until}).total == 7
    assert on.see(7, 30.0, frozen={"spares": until}).total == 7
    assert on.see(7, WINDOW).total == OWN


def test_a_fleet_that_cannot_be_seen_keeps_its_total() -> None:
    on = Fleet().settled()
    on.see(7)
    assert on.watch(None, 10 * WINDOW).total == 7


def test_what_was_published_before_nobody_could_see_is_no_wish_afterwards() -> None:
    on = Fleet()
    on.see(9)
    on.watch(OWN, WINDOW + 30.0)
    assert on.watch(None, 3 * FOLLOWED_SECONDS).total == OWN
    assert on.see(9).total == OWN, "an HPA that was as blind as we were acts on the nine only now"


def test_a_rise_that_happened_unseen_is_a_wish() -> None:
    on = Fleet().settled()
    on.watch(None, 60.0)
    assert on.see(7).total == 7


# ------------------------------------------------------------------ what is said, and when to look


def test_a_wish_is_explained() -> None:
    on = Fleet().settled()
    wished = on.see(7)
    assert explain(reason(wished, ReasonCode.WISHED), on.run.now) == (
        "Somebody else (a person, another trigger) raised the workload to 7 replicas, and 2 seats would do; the total "
        "follows for 100 s and lapses then; this may change in 100 s."
    )
    assert ReasonCode.WISHED in codes(on.see(7, 50.0)), "for as long as it holds"


def test_replicas_that_somebody_keeps_above_the_total_are_explained() -> None:
    on = Fleet()
    on.see(9)
    kept = on.watch(9, FOLLOWED_SECONDS + WINDOW + 30.0)
    assert kept.total == OWN
    assert explain(reason(kept, ReasonCode.KEPT_ABOVE)) == (
        "The workload is asked for 9 replicas, though no more than 2 were published for 315 s: whatever writes its size keeps "
        "them (its minReplicas, its tolerance, another trigger, slower rules for scaling down), and the total doesn't follow."
    )


def test_a_wish_that_demand_has_caught_up_with_is_not_spoken_of() -> None:
    on = Fleet().settled()
    on.see(7)
    on.run.step({"a": load(80)}, {"spares": simple({"a": 1}, 6)}, after=1.0)
    grown = on.run.decision.fleets["spares"]
    assert grown.total > 7
    assert ReasonCode.WISHED not in codes(grown)


def test_the_end_of_a_wish_is_a_wakeup() -> None:
    on = Fleet().settled()
    for _ in range(15):
        on.see(OWN)
    on.see(7)
    assert on.run.decision.next_wakeup == pytest.approx(on.run.now + WINDOW)


def test_the_end_of_what_was_published_is_a_wakeup_while_there_are_more_replicas() -> None:
    on = Fleet()
    on.see(9)
    while on.run.decision.fleets["spares"].total != OWN:
        on.see(9, 0.5)
    assert on.run.decision.next_wakeup == pytest.approx(on.run.now + FOLLOWED_SECONDS)
    assert ReasonCode.KEPT_ABOVE not in codes(on.see(9, FOLLOWED_SECONDS - 0.1))
    assert ReasonCode.KEPT_ABOVE in codes(on.see(9, 0.1))


# ------------------------------------------------------------------ replay


def test_a_ledger_that_begins_in_the_middle_of_a_wish_replays() -> None:
    writer = Writer(Rules([policy()], [keda()]))
    for tick in range(60):
        replicas = 7 if 30 <= tick < 55 else OWN
        seats = {"spares": replace(simple({"a": 1}, 1), replicas=replicas)}
        writer.tick(Snapshot(loads=IDLE, fleets=seats), after=20.0)
    totals = [line["decision"]["fleets"]["spares"]["total"] for line in writer.lines]
    assert totals[30:35] == [7] * 5
    assert totals[-1] == OWN
    steps = list(Reader().steps(writer.lines[32:]))
    begins = steps[0].memory
    assert begins is not None
    assert begins.fleets["spares"].wishes.at(steps[0].now, WINDOW) == 7
    found = verify(steps)
    assert (found.difference, found.ticks) == (None, len(steps))


def test_a_ledger_that_is_older_than_wishes_begins_without_any() -> None:
    known = FleetMemory(view=view(), total=3, filled=True, totals=Maxima())
    old = {key: value for key, value in encode(known).items() if key != "wishes"}
    assert decode(FleetMemory, old) == known
