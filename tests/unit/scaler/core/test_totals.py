import pytest

from scaler.core.model import FleetDecision, FleetView, Floor, OneWay, Pace, ReasonCode, Replenish, Supply
from tests.unit.scaler.core.world import Run, fleet, load, policy, served, simple, view

IDLE = {"a": load(1)}


def of(run: Run, name: str = "spares") -> FleetDecision:
    return run.decision.fleets[name]


def codes(run: Run, name: str = "spares") -> list[ReasonCode]:
    return [reason.code for reason in of(run, name).reasons]


@pytest.mark.parametrize(
    ("one", "options", "total"),
    [
        pytest.param(simple({"a": 1}, 1), {}, 2, id="serving + spare"),
        pytest.param(simple({"a": 1}, 1, held=1), {"max_seats": 9}, 3, id="held seats take a replica each"),
        pytest.param(simple({"a": 1}, 1), {"spare_target": 5}, 3, id="max_seats"),
        pytest.param(simple({"a": 1}, 0), {"max_seats": -2}, 0, id="a negative limit is none"),
    ],
)
def test_the_total(one: FleetView, options: dict[str, int], total: int) -> None:
    run = Run([policy()], [fleet(**options)])
    run.step(IDLE, {"spares": one})
    run.hold(IDLE, {"spares": one}, 30.0)
    assert of(run).total == total


def test_wishes_above_max_seats_are_said() -> None:
    run = Run([policy()], [fleet(spare_target=5)])
    run.step(IDLE, {"spares": simple({"a": 1}, 2)})
    assert codes(run) == [ReasonCode.SEATS_AT_MAX]


def test_what_serving_residents_want_is_not_throttled() -> None:
    slow = Replenish(max_concurrent=1, per_minute=1)
    run = Run([policy()], [fleet(max_seats=20, spare_target=0, replenish=slow)])
    run.step({"a": load(4)}, {"spares": simple({"a": 1})})
    run.step({"a": load(80)}, {"spares": simple({"a": 1})}, after=1.0)
    assert of(run).total == 10


@pytest.mark.parametrize(
    ("replenish", "total", "limit"),
    [
        pytest.param(Replenish(max_concurrent=2, per_minute=9), 4, "maxConcurrent", id="at once"),
        pytest.param(Replenish(max_concurrent=9, per_minute=3), 5, "perMinute", id="per minute"),
        pytest.param(Replenish(max_concurrent=9, per_minute=9), 7, None, id="neither"),
        pytest.param(Replenish(max_concurrent=-1, per_minute=9), 2, "maxConcurrent", id="negative is none"),
    ],
)
def test_spares_grow_back_as_replenish_lets_them(replenish: Replenish, total: int, limit: str | None) -> None:
    run = Run([policy()], [fleet(max_seats=20, spare_target=6, replenish=replenish)])
    run.hold(IDLE, {"spares": simple({"a": 1}, 1)}, 1.0)
    assert of(run).total == total
    limits = [r.facts["limit"] for r in of(run).reasons if r.code is ReasonCode.REPLENISH_LIMITED]
    assert limits == ([] if limit is None else [limit])


def test_seats_that_are_starting_count_against_what_may_start_at_once() -> None:
    run = Run(
        [policy()],
        [fleet(max_seats=20, spare_target=6, replenish=Replenish(max_concurrent=2, per_minute=99))],
    )
    run.hold(IDLE, {"spares": simple({"a": 1}, 1)}, 1.0)
    run.hold(IDLE, {"spares": simple({"a": 1}, 1, starting=2)}, 1.0)
    assert of(run).total == 4
    run.step(IDLE, {"spares": simple({"a": 1}, 2, starting=1)}, after=1.0)
    assert of(run).total == 5


def test_no_minute_sees_more_starts_than_per_minute() -> None:
    run = Run(
        [policy()],
        [fleet(max_seats=100, spare_target=50, replenish=Replenish(max_concurrent=99, per_minute=5))],
    )
    starts: list[tuple[float, int]] = []
    before = 1
    for _ in range(400):
        run.step(IDLE, {"spares": simple({"a": 1}, before - 1)}, after=0.9)
        if of(run).total > before:
            starts.append((run.now, of(run).total - before))
        before = of(run).total
    assert before > 20
    for at, _ in starts:
        assert sum(count for then, count in starts if at - 60.0 < then <= at) <= 5


def test_the_wakeup_is_when_the_next_start_is_allowed() -> None:
    run = Run(
        [policy(serving_min=0)],
        [fleet(max_seats=20, spare_target=4, replenish=Replenish(max_concurrent=9, per_minute=1))],
    )
    one = {"spares": simple({"a": 0}, 1)}
    run.step({"a": load(0)}, one)
    began = run.now
    for _ in range(50):
        run.step({"a": load(0)}, one, after=0.5)
    assert run.decision.next_wakeup == began + 60.0


@pytest.mark.parametrize(
    ("replenish", "floor", "total"),
    [
        pytest.param(Replenish(max_concurrent=9, per_minute=1), 2, 6, id="not slowed per minute"),
        pytest.param(Replenish(max_concurrent=3, per_minute=1), 2, 3, id="but by what may start at once"),
        pytest.param(
            Replenish(max_concurrent=1, per_minute=1), 3, 3, id="unless the floors are more than that"
        ),
    ],
)
def test_a_fresh_fleet_is_filled(replenish: Replenish, floor: int, total: int) -> None:
    run = Run([policy(serving_min=floor)], [fleet(max_seats=20, spare_target=4, replenish=replenish)])
    run.step({}, {"spares": view({})})
    assert of(run).total == total


def test_a_fresh_fleet_is_filled_to_the_end_and_slowed_afterwards() -> None:
    slow = Replenish(max_concurrent=2, per_minute=1)
    run = Run([policy()], [fleet(max_seats=20, spare_target=4, replenish=slow)])
    for existing in range(6):
        run.step({}, {"spares": view({}, starting=min(2, existing), spare=max(0, existing - 2))}, after=0.1)
        run.step({}, {"spares": view({}, spare=existing)}, after=0.1)
    assert of(run).total == 5
    run.step({}, {"spares": view({}, spare=5)}, after=0.1)
    run.policies = [policy(serving_min=0)]
    run.fleets = [fleet(max_seats=20, spare_target=8, replenish=slow)]
    run.step({}, {"spares": view({}, spare=5)}, after=0.1)
    assert of(run).total == 6


def test_the_total_falls_after_a_smaller_one_has_lasted_for_the_window() -> None:
    run = Run([policy()], [fleet(max_seats=9, spare_target=1, scale_down=Pace(window=20.0))])
    run.hold({"a": load(40)}, {"spares": simple({"a": 5}, 1)}, 15.0)
    assert of(run).total == 6
    run.hold({"a": load(4)}, {"spares": simple({"a": 1}, 5)}, 5.0)
    while of(run).serving > 1:
        run.step({"a": load(4)}, {"spares": simple({"a": 1}, 5)}, after=0.25)
    smaller = run.now
    assert of(run).total == 6
    assert ReasonCode.SCALE_DOWN_DELAYED in codes(run)
    while of(run).total > 2:
        run.step({"a": load(4)}, {"spares": simple({"a": 1}, 5)}, after=0.25)
    assert run.now - smaller == pytest.approx(20.0, abs=0.5)


def test_a_restart_leaves_the_total_alone_for_the_window() -> None:
    run = Run([policy()], [fleet(max_seats=9, spare_target=1, scale_down=Pace(window=20.0))])
    many = {"spares": simple({"a": 1}, 5)}
    run.hold(IDLE, many, 19.0)
    assert of(run).total == 6
    run.hold(IDLE, many, 2.0)
    assert of(run).total == 2


def test_seats_that_were_asked_for_before_a_restart_and_are_not_there_yet_stay_asked_for() -> None:
    run = Run([policy()], [fleet(max_seats=9, spare_target=1)])
    run.step(IDLE, {"spares": view({}, serving=1, replicas=4)})
    assert of(run).total == 4


def test_a_fleet_that_the_snapshot_lacks_keeps_its_total() -> None:
    run = Run([policy()], [fleet(max_seats=9, spare_target=1)])
    run.hold(IDLE, {"spares": simple({"a": 1}, 3)}, 15.0)
    run.hold(IDLE, {}, 100.0)
    assert of(run).total == 4
    assert run.decision.policies["a"].serving == {"spares": 1}


def test_a_fleet_that_was_never_seen_gets_no_total() -> None:
    run = Run([policy()], [fleet()])
    run.step(IDLE, {})
    assert dict(run.decision.fleets) == {}


class TestBudget:
    """Two fleets under one budget: `own` with floor 1, `spares` with two spares."""

    @staticmethod
    def run(*, own_spare: int = 0, spares: int = 2) -> Run:
        return Run(
            [policy("a", fleets=(("own", 8),)), policy("b", fleets=(("spares", 8),))],
            [
                fleet("own", max_seats=9, spare_target=own_spare),
                fleet("spares", max_seats=9, spare_target=spares),
            ],
        )

    @staticmethod
    def views(own: int, spares: int, doomed: int = 0) -> dict[str, FleetView]:
        return {
            "own": view({}, spare=own, replicas=own),
            "spares": view({}, spare=spares, doomed=doomed, replicas=spares),
        }

    def test_floors_come_before_spares(self) -> None:
        run = self.run(own_spare=3)
        run.step({}, self.views(0, 0), budget=3)
        assert (of(run, "own").total, of(run, "spares").total) == (2, 1)
        assert ReasonCode.BUDGET_EXHAUSTED in codes(run, "spares")

    def test_serving_comes_before_spares(self) -> None:
        run = self.run(own_spare=3)
        run.step({"a": load(0), "b": load(32)}, self.views(1, 1), budget=6)
        assert (of(run, "own").total, of(run, "spares").total) == (2, 4)

    def test_a_fleet_that_shrinks_keeps_its_part_until_its_seats_are_gone(self) -> None:
        run = self.run(spares=0)
        quiet = {"a": load(1), "b": load(1)}
        run.hold(
            quiet,
            self.views(1, 5),
            30.0,
        )
        assert of(run, "spares").total == 1
        busy = {"a": load(30), "b": load(1)}
        run.step(busy, self.views(1, 5), after=1.0, budget=6)
        assert of(run, "own").total == 1
        run.step(busy, self.views(1, 1, doomed=4), after=1.0, budget=6)
        assert of(run, "own").total == 1
        run.step(busy, self.views(1, 1, doomed=1), after=1.0, budget=6)
        assert of(run, "own").total == 4

    def test_a_budget_that_was_cut_costs_spares_and_nothing_that_serves(self) -> None:
        run = self.run(own_spare=2)
        both = {"own": simple({"a": 1}, 2), "spares": simple({"b": 1}, 2)}
        run.hold({"a": load(1), "b": load(1)}, both, 1.0)
        run.step({"a": load(1), "b": load(1)}, both, after=1.0, budget=1)
        assert (of(run, "own").total, of(run, "spares").total) == (1, 1)

    def test_without_a_budget_nothing_is_held_back(self) -> None:
        run = self.run(own_spare=3)
        run.step({}, self.views(0, 0))
        assert (of(run, "own").total, of(run, "spares").total) == (4, 3)


# ------------------------------------------------------------------ the clock, freezes, GPUs


def test_a_schedule_raises_the_total_and_says_so() -> None:
    run = Run([policy()], [fleet(max_seats=9, spare_target=1)])
    day = Floor(value=5, schedule="day", changes_at=1060.0)
    run.step(IDLE, {"spares": simple({"a": 1}, 1)}, seat_floors={"spares": day})
    assert of(run).total > 2
    assert ReasonCode.SCHEDULED in codes(run)
    run.hold(IDLE, {"spares": simple({"a": 1}, 4)}, 5.0)
    night = Floor(changes_at=9000.0)
    run.step(IDLE, {"spares": simple({"a": 1}, 4)}, seat_floors={"spares": night})
    assert ReasonCode.SCHEDULED not in codes(run)


def test_a_schedule_stays_within_the_most_seats() -> None:
    run = Run([policy()], [fleet(max_seats=3, spare_target=1)])
    run.step(IDLE, {"spares": simple({"a": 1}, 2)}, seat_floors={"spares": Floor(value=9, schedule="day")})
    assert of(run).total == 3


def test_the_opening_of_a_window_is_a_wakeup() -> None:
    run = Run([policy()], [fleet(max_seats=3, spare_target=1)])
    run.hold(IDLE, {"spares": simple({"a": 1}, 1)}, 60.0)
    soon = Floor(changes_at=run.now + 0.4)
    run.step(IDLE, {"spares": simple({"a": 1}, 1)}, seat_floors={"spares": soon})
    assert run.decision.next_wakeup == pytest.approx(run.now + 0.4)


def test_a_policys_schedule_is_a_floor_of_what_serves() -> None:
    run = Run([policy(serving_max=3)], [fleet(max_seats=9, spare_target=1)])
    day = Floor(value=7, schedule="day", changes_at=1e6)
    run.step(IDLE, {"spares": simple({"a": 1}, 4)}, serving_floors={"a": day})
    decided = run.decision.policies["a"]
    assert decided.serving["spares"] == 3, "as far as serving.max lets it"
    assert decided.reasons[0].code is ReasonCode.SCHEDULED


def test_a_frozen_fleet_keeps_the_size_that_its_workload_has() -> None:
    run = Run([policy(serving_max=9)], [fleet(max_seats=9, spare_target=2)])
    run.step({"a": load(60)}, {"spares": simple({"a": 1}, 2)}, frozen={"spares": run.now + 100.0})
    assert of(run).total == 3
    assert ReasonCode.FROZEN in codes(run)
    assert served(run.decision) == 3, "promotions go on"
    assert run.decision.next_wakeup is not None
    run.step({"a": load(60)}, {"spares": simple({"a": 3})}, after=100.0, frozen={"spares": run.now + 100.0})
    assert of(run).total > 3


@pytest.mark.parametrize(
    ("way", "waiting", "spare", "total"),
    [
        pytest.param(OneWay.UP, 60, 2, None, id="up, and more is wanted"),
        pytest.param(OneWay.UP, 0, 7, 8, id="up, and less is wanted"),
        pytest.param(OneWay.DOWN, 60, 2, 3, id="down, and more is wanted"),
        pytest.param(OneWay.DOWN, 0, 7, None, id="down, and less is wanted"),
    ],
)
def test_a_fleet_that_is_frozen_one_way_goes_the_other_as_if_it_were_not(
    way: OneWay, waiting: int, spare: int, total: int | None
) -> None:
    def after_a_while(**inputs: dict[str, object]) -> Run:
        run = Run([policy(serving_max=9)], [fleet(max_seats=9, spare_target=1, scale_down=Pace(window=20.0))])
        for _ in range(8):
            frozen = {name: {"spares": value} for name, value in inputs.items()}
            run.step({"a": load(waiting)}, {"spares": simple({"a": 1}, spare)}, after=5.0, **frozen)
            told = codes(run)
            assert ReasonCode.FROZEN not in told or ReasonCode.SCALE_DOWN_DELAYED not in told
        return run

    free, held = after_a_while(), after_a_while(frozen=1e9, one_way=way)  # type: ignore[arg-type]
    assert of(held).total == (of(free).total if total is None else total)
    assert total is not None or ReasonCode.FROZEN not in codes(held)


def test_what_thaws_falls_no_faster_than_any_other_fleet() -> None:
    run = Run([policy(serving_max=2)], [fleet(max_seats=9, spare_target=1, scale_down=Pace(window=20.0))])
    for _ in range(30):
        run.step(
            {"a": load(3)}, {"spares": simple({"a": 1}, 7)}, after=5.0, frozen={"spares": run.now + 10.0}
        )
    assert of(run).total == 8
    run.step({"a": load(3)}, {"spares": simple({"a": 1}, 7)}, after=10.0)
    assert of(run).total == 8
    run.step({"a": load(3)}, {"spares": simple({"a": 1}, 7)}, after=20.0)
    assert of(run).total == 2


def test_a_gpu_budget_counts_what_a_seat_takes() -> None:
    two = policy("b", fleets=(("large", 8),))
    run = Run([policy(), two], [fleet(max_seats=9, spare_target=0), fleet("large", 9, 0, gpus=4)])
    loads = {"a": load(40), "b": load(40)}
    fleets = {"spares": simple({"a": 1}), "large": view({"b": Supply(serving=1)}, serving=1)}
    run.step(loads, fleets, gpu_budget=11)
    totals = {name: one.total for name, one in run.decision.fleets.items()}
    assert totals["spares"] + 4 * totals["large"] <= 11
    assert totals["large"] == 2
    assert ReasonCode.BUDGET_EXHAUSTED in codes(run)


def test_fleets_without_gpus_are_outside_the_gpu_budget() -> None:
    run = Run([policy(serving_max=9)], [fleet(max_seats=9, spare_target=0, gpus=0)])
    run.step({"a": load(40)}, {"spares": simple({"a": 1})}, gpu_budget=0)
    assert of(run).total == 5
