"""Worst-case times: what they are made of, and when they are unknown or never come."""

from typing import Any

import pytest

from scaler.policy.lint import Figure, lint
from tests.unit.scaler.policy.lint.sets import Tree, fleet, policy, subject, terms

STARTS = {"startSeconds": 60}
KEDA = {"resizedBy": "Keda"}
PROMOTION = {"tick": 0.02, "decision": 0.001, "promotion to first token": 0.142}


def times(*trees: Tree, of: str = "chat", **assumptions: Any) -> dict[str, Figure]:
    report = lint(subject(*trees, pod_start_seconds=40, **assumptions))
    (found,) = [each.times for each in report.policies if each.policy.metadata.name == of]
    return {figure.name: figure for figure in found}


def fleet_times(*trees: Tree, of: str = "own", **assumptions: Any) -> dict[str, Figure]:
    report = lint(subject(*trees, pod_start_seconds=40, **assumptions))
    (found,) = [each.times for each in report.fleets if each.fleet.metadata.name == of]
    return {figure.name: figure for figure in found}


def test_a_floor_never_lets_a_policy_come_from_nothing() -> None:
    figure = times(fleet(), policy(serving={"min": 2}))["0→1"]
    assert (figure.never, figure.total) == ("serving.min keeps 2 serving", None)


def test_a_spare_seat_serves_the_first_request_after_a_promotion() -> None:
    figure = times(fleet(), policy(serving={"min": 0}))["0→1 on a spare seat"]
    assert terms(figure) == {"signal gateway": 0.01, **PROMOTION}
    assert figure.total == pytest.approx(0.173)
    assert figure.exact


def test_kv_memory_that_was_released_is_taken_again() -> None:
    engine = {"kvMiB": 40_960}
    loose = fleet(seat={"kvWhenPaused": "Release"})
    released = times(loose, policy(serving={"min": 0}, engine=engine))["0→1 on a spare seat"]
    kept = times(fleet(), policy(serving={"min": 0}, engine=engine))
    assert terms(released)["KV memory"] == pytest.approx(0.033)
    assert "KV memory" not in terms(kept["0→1 on a spare seat"])


def test_without_a_spare_seat_a_pod_and_all_its_residents_have_to_start_first() -> None:
    found = times(
        fleet(spare={"min": 0}),
        policy(serving={"min": 0}, engine=STARTS),
        policy("code", serving={"min": 0}, engine={"startSeconds": 30}),
    )
    assert found["0→1 on a spare seat"].never == "spare.min is 0 on all its fleets"
    assert terms(found["0→1 on a new seat"]) == {
        "signal gateway": 0.01,
        "pod until its containers run": 40.0,
        "start of chat": 60.0,
        "start of code": 30.0,
        **PROMOTION,
    }


def test_what_nobody_measured_is_unknown_with_the_field_to_set() -> None:
    figure = times(fleet(), policy(serving={"min": 0}))["0→1 on a new seat"]
    (unknown,) = figure.unknown
    assert (unknown.name, unknown.value) == ("start of chat", None)
    assert unknown.origin == "unknown: set spec.engine.startSeconds of policy chat, as measured"
    assert figure.total == pytest.approx(40.173)
    assert not figure.exact


def test_without_a_signal_that_sees_the_first_request_it_never_comes() -> None:
    engine_only = [{"name": "engine", "type": "EngineMetrics"}]
    found = times(fleet(), policy(serving={"min": 0}, signals=engine_only))
    assert {found[name].never for name in ("0→1 on a spare seat", "0→1 on a new seat")} == {
        "no signal sees its requests"
    }


def test_the_fastest_signal_counts_up_and_the_slowest_down() -> None:
    prometheus = {"name": "prom", "type": "Prometheus", "query": "sum(q)", "measures": "Requests"}
    signals = [{"name": "engine", "type": "EngineMetrics"}, prometheus]
    found = times(fleet(), policy(signals=signals))
    assert terms(found["1→2 on spare seats"])["signal engine: interval"] == 0.25
    down = terms(found["4→1, paused"])
    assert (down["signal prom: scrape"], down["signal prom: interval"]) == (60.0, 15.0)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param("sum(q)", {"scrape": 15.0, "interval": 5.0}, id="gauge"),
        pytest.param("sum(rate(q[2m]))", {"scrape": 15.0, "range": 120.0, "interval": 5.0}, id="range"),
        pytest.param("job:q:sum", {"scrape": 15.0, "recording rule": 60.0, "interval": 5.0}, id="recorded"),
    ],
)
def test_news_from_prometheus_waits_for_each_step_on_its_way(query: str, expected: dict[str, float]) -> None:
    signal = {"name": "p", "type": "Prometheus", "query": query, "measures": "Requests", "intervalSeconds": 5}
    figure = times(fleet(), policy(signals=[signal]), prometheus_scrape_seconds=15)["1→2 on spare seats"]
    seen = {
        name.removeprefix("signal p: "): value for name, value in terms(figure).items() if "signal p" in name
    }
    assert seen == expected


def test_spare_seats_of_all_fleets_are_taken_first() -> None:
    trees = [fleet(), fleet("spares", spare={"min": 2}), policy(fleets={"own": 32, "spares": 32})]
    assert "1→4 on spare seats" in times(*trees)


def test_new_seats_come_as_fast_as_the_slowest_fleet_grows() -> None:
    found = times(
        fleet(spare={"min": 0}),
        fleet("spares", scaleUp={"stabilizationWindowSeconds": 90}),
        policy(fleets={"own": 32, "spares": 32}, engine=STARTS),
    )
    assert terms(found["1→8 on new seats"])["scaleUp window"] == 90.0


def test_rates_of_growth_count() -> None:
    rules = [{"type": "Seats", "value": 1, "periodSeconds": 30}]
    found = times(fleet(maxSeats=6, scaleUp={"policies": rules}), policy(engine=STARTS))
    assert (
        terms(found["1→6 on new seats"])["scaleUp.policies"] == 120.0
    )  # four seats, the first after those that came just before


def test_rates_that_take_too_many_changes_leave_the_rest_unknown() -> None:
    rules = [{"type": "Seats", "value": 1, "periodSeconds": 30}]
    figure = times(fleet(maxSeats=5000, scaleUp={"policies": rules}), policy(engine=STARTS))[
        "1→5000 on new seats"
    ]
    assert [term.name for term in figure.unknown] == ["scaleUp.policies: the rest"]
    assert terms(figure)["scaleUp.policies"] == 30_000.0


@pytest.mark.parametrize(
    ("spec", "never"),
    [
        ({"scaleUp": {"selectPolicy": "Disabled"}}, "own 2→4: scaleUp.selectPolicy is Disabled"),
        (
            {"scaleUp": {"tolerancePercent": 100}},
            "own 2→4: scaleUp.tolerancePercent 100 ignores 2 of 2 seats",
        ),
    ],
)
def test_a_fleet_that_never_grows_never_gets_there(spec: Tree, never: str) -> None:
    assert times(fleet(**spec), policy())["1→4 on new seats"].never == never


def test_keda_activates_from_zero_and_its_hpa_does_the_rest() -> None:
    found = times(fleet(spare={"min": 0}, **KEDA), policy(serving={"min": 0}, engine=STARTS))
    assert terms(found["0→1 on a new seat"])["KEDA activates"] == 30.0
    assert "HPA's sync" not in terms(found["0→1 on a new seat"])
    more = terms(found["1→4 on new seats"])
    assert (more["HPA's sync"], "KEDA activates" in more) == (15.0, False)


def test_the_hpa_doubles_each_sync() -> None:
    found = times(fleet(maxSeats=40, **KEDA), policy(engine=STARTS))
    assert terms(found["1→40 on new seats"])["HPA's rates"] == 60.0  # 2, just grown; then 6, 12, 24, 40


def test_the_hpa_ignores_a_step_within_its_tolerance() -> None:
    found = times(fleet(maxSeats=11, spare={"min": 0}, **KEDA), policy(serving={"min": 10}))
    assert found["10→11 on new seats"].never == "own 10→11: the HPA's tolerance of 10 % ignores 1 of 10 seats"


def test_a_neighbour_of_lower_priority_leaves_its_seat_first() -> None:
    figure = times(fleet(), policy(priority=1), policy("code"))["+1 on a seat of lower priority"]
    found = terms(figure)
    assert (found["leaving rotation"], found["drain, at most"]) == (1.0, 5.0)
    assert "+1 on a seat of lower priority" not in times(fleet(), policy(), policy("code"))


def test_work_that_only_borrows_finds_seats_beyond_the_unlent_spares_and_makes_none() -> None:
    auto = {"mode": "Auto", "min": 1, "max": 3}
    lent = times(fleet(spare=auto), policy(serving={"min": 0}, preemptible=True))
    assert lent["0→1 on a lent seat"].exact
    assert [name for name in lent if name.startswith(("1→", "2→"))] == [
        "1→2 on lent seats",
        "2→0, paused",
        "2→0, seats deleted",
    ]
    assert lent["0→1 on a new seat"].never == "beyond serving.min preemptible work only borrows seats"


def test_work_that_only_borrows_gets_none_where_none_are_lent() -> None:
    found = times(fleet(), policy(serving={"min": 0}, preemptible=True))
    assert found["0→1 on a lent seat"].never == "no fleet of it aims at spares beyond spare.min"


def test_going_down_waits_for_both_windows_then_drains() -> None:
    figure = times(fleet(), policy(burst={"demoteAfterSeconds": 20}))["4→1, paused"]
    assert terms(figure) == {
        "signal gateway": 0.01,
        "burst window runs out": 7.0,
        "calm for a stable window": 60.0,
        "smaller answer holds": 20.0,
        "tick and decision": pytest.approx(0.021),
        "drain, at most": 30.0,
    }


def test_a_bridge_is_given_back_after_a_stable_window_at_the_earliest() -> None:
    trees = [
        fleet(),
        fleet("spares"),
        policy(fleets={"own": 32, "spares": 32}, burst={"demoteAfterSeconds": 20}),
    ]
    assert terms(times(*trees)["8→1, paused"])["smaller answer holds"] == 60.0


def test_more_demotions_than_may_run_at_once_drain_one_after_the_other() -> None:
    figure = times(fleet(maxSeats=66), policy())["66→1, paused"]
    assert terms(figure)["drain, at most"] == 90.0  # 65 of them, 32 at once


def test_deletion_comes_after_the_pause() -> None:
    rules = [{"type": "Seats", "value": 1, "periodSeconds": 60}]
    found = times(fleet(scaleDown={"policies": rules}), policy())
    paused, deleted = found["4→1, paused"], found["4→1, seats deleted"]
    assert deleted.total == pytest.approx((paused.total or 0.0) + 300.0 + 60.0)  # 4→3→2, the spare stays


def test_seats_that_floors_and_spares_need_are_never_deleted() -> None:
    found = times(fleet(maxSeats=2), policy())
    assert found["2→1, seats deleted"].never == "floors and spares are all of maxSeats"


def test_to_zero_keda_s_cooldown_comes_after_the_hpa_s_window() -> None:
    figure = fleet_times(fleet(spare={"min": 0}, **KEDA), policy(serving={"min": 0}))["own 4→0"]
    assert terms(figure) == {
        "scaleDown window": 300.0,
        "HPA's sync": 15.0,
        "HPA's scaleDown window": 300.0,
        "KEDA's cooldown": 300.0,
        "KEDA's poll": 30.0,
    }


def test_a_fleet_that_never_shrinks_says_why() -> None:
    found = fleet_times(fleet(scaleDown={"selectPolicy": "Disabled"}), policy())
    assert found["own 4→2"].never == "scaleDown.selectPolicy is Disabled"


def test_spares_come_back_as_the_replenish_limits_let_them() -> None:
    spare = {"min": 3, "replenish": {"maxConcurrent": 1, "perMinute": 12}}
    figure = fleet_times(fleet(maxSeats=20, spare=spare), policy(engine=STARTS))["3 of 3 spare seats back"]
    assert terms(figure) == {
        "waiting for replenish limits": 200.0,
        "pod until its containers run": 40.0,
        "start of chat": 60.0,
    }


def test_how_long_spares_wait_for_each_other_is_unknown_while_a_start_is() -> None:
    spare = {"min": 3, "replenish": {"maxConcurrent": 1}}
    figure = fleet_times(fleet(maxSeats=20, spare=spare), policy())["3 of 3 spare seats back"]
    assert {term.name for term in figure.unknown} == {"waiting for replenish limits", "start of chat"}


@pytest.mark.parametrize(
    ("most", "name", "never"),
    [
        (6, "2 of 3 spare seats back", ""),
        (4, "3 spare seats back", "maxSeats 4 leaves no room beside 4 seats"),
    ],
)
def test_no_more_spares_come_back_than_there_is_room_for(most: int, name: str, never: str) -> None:
    found = fleet_times(fleet(maxSeats=most, spare={"min": 3}), policy(engine=STARTS))
    assert found[name].never == never


def test_floors_fill_the_fleets_in_their_order() -> None:
    found = fleet_times(
        fleet(spare={"min": 0}),
        fleet("spares"),
        policy(fleets={"own": 32, "spares": 32}, serving={"min": 6}),
        of="spares",
    )
    assert "spares 4→3" in found  # two of the six floors are there, and a spare


def test_its_own_fleet_grows_for_the_mean_and_not_for_the_peak() -> None:
    found = times(
        fleet(maxSeats=4, spare={"min": 0}),
        fleet("spares", spare={"min": 2}),
        policy(fleets={"own": 32, "spares": 32}, engine=STARTS),
    )
    assert terms(found["1→3 on its own fleet, off the bridge"]) == {
        "signal gateway": 0.01,
        "mean reaches the load": 61.0,
        "pod until its containers run": 40.0,
        "start of chat": 60.0,
        **PROMOTION,
    }


@pytest.mark.parametrize(
    "trees",
    [
        pytest.param([fleet(spare={"min": 2}), policy()], id="no-bridge"),
        pytest.param(
            [
                fleet(maxSeats=1, spare={"min": 0}),
                fleet("spares", spare={"min": 2}),
                policy(fleets={"own": 32, "spares": 32}),
            ],
            id="no-room-of-its-own",
        ),
    ],
)
def test_without_a_bridge_or_room_nothing_comes_off_it(trees: list[Tree]) -> None:
    assert not [name for name in times(*trees) if "off the bridge" in name]


def test_only_seats_beyond_floors_and_spares_are_lent() -> None:
    day = {"name": "day", "start": "0 8 * * *", "end": "0 22 * * *"}
    trees = [policy(serving={"min": 1}), policy("batch", preemptible=True, priority=-1, serving={"min": 0})]
    two = times(fleet(schedules=[{**day, "minSeats": 2}]), *trees, of="batch")
    three = times(fleet(schedules=[{**day, "minSeats": 3}]), *trees, of="batch")
    assert two["0→1 on a lent seat"].never
    assert three["0→1 on a lent seat"].exact


def test_who_rests_in_host_memory_is_woken_from_there() -> None:
    sizes = {"pausedMiB": 16_384, "kvMiB": 40_960}
    seats = fleet(seat={"memoryMiB": 70_000}, spare={"min": 1, "parked": {"hostMemoryMiB": 40_000}})
    both = [policy(engine=sizes, serving={"min": 0}), policy("code", engine=sizes, serving={"min": 0})]
    of_code = times(seats, *both, of="code", move_milliseconds_per_gib=100)
    found = terms(of_code["0→1 on a spare seat, from host memory"])
    assert found["chat parked"] == found["weights"] == pytest.approx(1.6)
    assert "burst on own, from host memory" in of_code
    assert "0→1 on a spare seat" in times(seats, *both, of="chat")
