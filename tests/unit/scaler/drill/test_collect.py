from pathlib import Path
from typing import Any

import pytest

from scaler.drill.collect import (
    Evidence,
    Hit,
    SeatsPoll,
    demotions,
    fault_figures,
    load_curves,
    load_point,
    promotions,
    read_events,
    scaled_down_serving,
    seat_bands,
    seat_seconds,
    served_seconds,
    summarize,
)

RECORDED = Path(__file__).with_name("recorded-events.jsonl")


@pytest.fixture
def evidence() -> Evidence:
    events, unreadable = read_events(RECORDED)
    return Evidence(events=events, unreadable=unreadable, zero=1000.0, end=50.0)


def test_a_line_that_was_cut_is_counted_and_skipped(evidence: Evidence) -> None:
    assert evidence.unreadable == 1
    assert len(evidence.events) == 21


def test_no_file_means_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / "events.jsonl") == ([], 0)


# ------------------------------------------------------------------ promotions


def test_promotions_outside_the_load_are_left_out(evidence: Evidence) -> None:
    assert [one.claim for one in promotions(evidence)] == ["c-1", "c-3", "c-4"]


def test_steps_are_milliseconds_after_the_sample(evidence: Evidence) -> None:
    first = promotions(evidence)[0]
    assert first.sample == 12.3
    assert first.steps == pytest.approx(
        {"decision": 2, "claimed": 6, "resumed": 60, "canary": 90, "rotation": 100, "firstToken": 200},
        abs=0.01,
    )
    assert first.phases == {"resume": 50.0, "canary": 30.0}


def test_a_request_that_waited_counts_from_the_sample(evidence: Evidence) -> None:
    first = promotions(evidence)[0]
    assert (first.basis, first.waiting) == ("Waited", 3)


def test_where_none_waited_the_first_token_is_composed(evidence: Evidence) -> None:
    composed = promotions(evidence)[1]
    assert composed.basis == "Composed"
    # 100 ms to the rotation and 50 ms of the first request; not the 3 s until somebody came
    assert composed.steps["firstToken"] == pytest.approx(150, abs=0.01)


def test_a_failed_promotion_has_the_steps_that_it_reached(evidence: Evidence) -> None:
    failed = promotions(evidence)[2]
    assert set(failed.steps) == {"decision", "claimed"}
    assert (failed.outcome, failed.error, failed.basis) == ("Failed", "DeadlineExceeded: drain", "None")


def test_promotions_are_summarized_per_operation(evidence: Evidence) -> None:
    promote, switch = summarize(promotions(evidence))
    assert (promote.operation, promote.count, promote.failed, promote.waited, promote.composed) == (
        "Promote",
        2,
        0,
        1,
        1,
    )
    assert (promote.steps["firstToken"].p50, promote.steps["firstToken"].p99) == (150.0, 200.0)
    assert (switch.count, switch.failed, switch.steps) == (0, 1, {})


def test_demotions_are_counted(evidence: Evidence) -> None:
    assert demotions(evidence) == 1


# ------------------------------------------------------------------ seats


def test_bands_are_clipped_to_the_load_and_have_no_gaps(evidence: Evidence) -> None:
    first, second = seat_bands(evidence)
    assert [(span.start, span.end, span.value, span.serves) for span in first.spans] == [
        (0.0, 50.0, "Serving", "chat")
    ]
    assert [(span.start, span.end, span.value, span.serves) for span in second.spans] == [
        (0.0, 12.31, "Spare", None),
        (12.31, 12.4, "Promoting", "chat"),
        (12.4, 20.0, "Serving", "chat"),
        (20.0, 30.1, "Spare", None),
        (30.1, 41.0, "Serving", "code"),
    ]
    assert second.fleet == "spares"


def test_a_seat_that_a_poll_lacks_is_gone(evidence: Evidence) -> None:
    evidence.seats = [SeatsPoll(at=45.0, seats=[{"name": "spares-1"}]), SeatsPoll(at=46.0, seats=[])]
    assert seat_bands(evidence)[0].spans[-1].end == 45.0


def test_seat_seconds_add_up(evidence: Evidence) -> None:
    bands = seat_bands(evidence)
    assert seat_seconds(bands) == {"Promoting": 0.1, "Serving": 68.5, "Spare": 22.4}
    assert served_seconds(bands) == {"chat": 57.6, "code": 10.9}


# ------------------------------------------------------------------ load and faults


def test_load_curves_join_events_and_polls(evidence: Evidence) -> None:
    evidence.load = {"chat": [load_point({"queued": 1, "inFlight": 8, "capacity": None}, 5.0)]}
    points = load_curves(evidence, ["chat", "code"])
    assert [(point.at, point.queued, point.capacity) for point in points["chat"]] == [
        (1.0, 0, 8),
        (5.0, 1, None),
        (12.3, 3, 8),
    ]
    assert points["code"] == []


def test_a_kill_is_followed_to_the_replacement(evidence: Evidence) -> None:
    evidence.hits = [
        Hit(type="KillEngine", policy="chat", at=34.9, seat="spares-0", pid=41, neighbours=(("code", 42),))
    ]
    evidence.seats = [
        SeatsPoll(at=49.0, seats=[{"name": "spares-0", "residents": [{"policy": "code", "pid": 42}]}])
    ]
    (fault,) = fault_figures(evidence)
    assert fault.noticed_seconds == pytest.approx(0.1)
    assert fault.replaced_seconds == pytest.approx(4.6)  # Paused, not yet when it was Loading
    assert [one.survived for one in fault.neighbours] == [True]


def test_a_neighbour_with_another_process_was_lost(evidence: Evidence) -> None:
    evidence.hits = [
        Hit(type="KillEngine", policy="chat", at=34.9, seat="spares-0", pid=41, neighbours=(("code", 42),))
    ]
    evidence.seats = [
        SeatsPoll(at=49.0, seats=[{"name": "spares-0", "residents": [{"policy": "code", "pid": 99}]}])
    ]
    (fault,) = fault_figures(evidence)
    assert [one.survived for one in fault.neighbours] == [False]


def test_a_fault_that_hit_nothing_says_why(evidence: Evidence) -> None:
    evidence.hits = [Hit(type="KillEngine", policy="chat", at=1.0, error="no seat serves chat")]
    (fault,) = fault_figures(evidence)
    assert (fault.pid, fault.error, fault.replaced_seconds) == (None, "no seat serves chat", None)


# ------------------------------------------------------------------ scale-downs


@pytest.mark.parametrize(
    ("events", "taken"),
    [
        ([("resize", 10.0, 4, 2), ("leaving", 10.5, ["chat"])], ["s-1"]),
        ([("resize", 10.0, 4, 2), ("leaving", 10.5, [])], []),  # a spare
        ([("resize", 10.0, 2, 4), ("leaving", 10.5, ["chat"])], []),  # made larger
        ([("resize", 10.0, 4, 2), ("leaving", 25.0, ["chat"])], []),  # evicted, long after
        ([("leaving", 10.5, ["chat"])], []),  # a rollout
        ([("resize", 10.0, 4, 2), ("leaving", 9.0, ["chat"])], []),  # before it
        ([("resize", 55.0, 4, 2), ("leaving", 56.0, ["chat"])], []),  # after the load
    ],
)
def test_a_serving_seat_that_a_lower_size_took(events: list[tuple[Any, ...]], taken: list[str]) -> None:
    def record(kind: str, at: float, *rest: Any) -> dict[str, Any]:
        head = {"kind": kind, "at": 1000.0 + at, "fleet": "spares"}
        if kind == "resize":
            return {**head, "from": rest[0], "to": rest[1]}
        return {**head, "seat": "s-1", "serving": rest[0]}

    evidence = Evidence(events=[record(*each) for each in events], zero=1000.0, end=50.0)
    assert scaled_down_serving(evidence) == taken


def test_the_time_from_claim_to_rotation_is_apart(evidence: Evidence) -> None:
    by_operation = {each.operation: each for each in summarize(promotions(evidence))}
    label = by_operation["Promote"].claim_to_rotation
    assert label is not None
    assert (label.count, label.max) == (
        2,
        pytest.approx(94, abs=0.1),
    )  # claimed at 6 ms, in rotation at 100 ms
