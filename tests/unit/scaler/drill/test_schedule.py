import random
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.drill.scenario import Arrivals, Process, Scenario
from scaler.drill.schedule import arrival_times, schedule, windows


def times(
    segments: list[tuple[float, float, float, float]], process: str, *, burstiness: int = 100
) -> list[float]:
    arrivals = Arrivals(process=Process(process), burstiness_percent=burstiness)
    return list(arrival_times(segments, arrivals, random.Random(7)))


def test_the_same_seed_gives_the_same_requests(scenario: Scenario) -> None:
    assert schedule(scenario, 5) == schedule(scenario, 5)


def test_another_seed_gives_other_requests(scenario: Scenario) -> None:
    assert [one.at for one in schedule(scenario, 5)] != [one.at for one in schedule(scenario, 6)]


def test_one_models_load_leaves_the_others_requests_alone(scenario: Scenario) -> None:
    data = scenario.model_dump(by_alias=True)
    data["spec"]["models"][0]["requestsPerMinute"] = 60
    changed = Scenario.model_validate(data, strict=False)

    def of(requests: list, policy: str) -> list:
        return [one for one in requests if one.policy == policy]

    assert of(schedule(changed, 1), "code") == of(schedule(scenario, 1), "code")
    assert len(of(schedule(changed, 1), "chat")) < len(of(schedule(scenario, 1), "chat"))


def test_requests_are_in_order_and_carry_their_stage(scenario: Scenario) -> None:
    requests = schedule(scenario, 1)
    assert [one.at for one in requests] == sorted(one.at for one in requests)
    for window in windows(scenario.spec):
        inside = [one for one in requests if window.start <= one.at < window.end]
        assert {one.stage for one in inside} == {window.stage.name}


def test_rates_follow_the_stages(scenario: Scenario) -> None:
    requests = [one for one in schedule(scenario, 1) if one.policy == "code"]
    assert len(requests) == 5 * 60  # constant: 5 per second for 60 s
    chat = [one for one in schedule(scenario, 1) if one.policy == "chat"]
    burst = sum(one.stage == "burst" for one in chat)
    assert burst == pytest.approx(20 * 30, rel=0.15)  # Poisson: four standard deviations


def test_windows_name_the_bursting_policies_through_hold(scenario: Scenario) -> None:
    assert [window.bursting for window in windows(scenario.spec)] == [(), ("chat",), ("chat",), ()]


def test_a_linear_ramp_starts_at_the_stage_before(scenario: Scenario) -> None:
    assert windows(scenario.spec)[3].rates["chat"] == (30.0, 10.0)


def test_a_constant_process_has_equal_gaps() -> None:
    found = times([(0.0, 10.0, 4.0, 4.0)], "Constant")
    assert len(found) == 40
    assert all(later - earlier == pytest.approx(0.25) for earlier, later in pairwise(found))


def test_a_step_keeps_the_phase_of_a_constant_process() -> None:
    found = times([(0.0, 1.0, 4.0, 4.0), (1.0, 2.0, 8.0, 8.0)], "Constant")
    assert len(found) == 12


def test_a_ramp_has_as_many_arrivals_as_its_area() -> None:
    found = times([(0.0, 10.0, 0.0, 20.0)], "Constant")
    assert len(found) == 100
    assert sum(at < 5 for at in found) == pytest.approx(25, abs=1)


@pytest.mark.parametrize(
    ("process", "burstiness", "low", "high"),
    [
        pytest.param("Poisson", 100, 0.9, 1.1, id="Poisson-varies-as-its-mean"),
        pytest.param("Gamma", 400, 0.4, 0.6, id="smoother-varies-half-as-much"),
        pytest.param("Gamma", 25, 1.7, 2.3, id="burstier-varies-twice-as-much"),
    ],
)
def test_burstiness_is_the_variation_of_the_gaps(
    process: str, burstiness: int, low: float, high: float
) -> None:
    found = times([(0.0, 1000.0, 5.0, 5.0)], process, burstiness=burstiness)
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert low < statistics.stdev(gaps) / statistics.mean(gaps) < high


@given(
    rates=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), min_size=1, max_size=5),
    process=st.sampled_from(["Constant", "Poisson", "Gamma"]),
)
def test_arrivals_ascend_and_stay_inside(rates: list[tuple[float, float]], process: str) -> None:
    segments = [(float(index), float(index + 1), first, last) for index, (first, last) in enumerate(rates)]
    found = times(segments, process)
    assert found == sorted(found)
    assert all(0 <= at <= len(rates) for at in found)
    for start, end, first, last in segments:
        if first == last == 0:
            assert not [at for at in found if start < at < end]
