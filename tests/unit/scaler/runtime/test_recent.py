"""The last decisions that a controller keeps."""

from typing import Any

from scaler.runtime.recent import RecentDecisions


def record(number: int, policies: int = 1) -> dict[str, Any]:
    decision = {"policies": {f"p{n}": {} for n in range(policies)}, "fleets": {"f": {}}}
    return {"number": number, "decision": decision, "start": {"memory": "much"}}


def test_what_only_a_replay_needs_is_left_out() -> None:
    recent = RecentDecisions()
    recent.add(record(1), 2)
    assert [each.keys() for each in recent] == [{"number", "decision"}]


def test_five_hundred_decisions_over_everything_are_kept() -> None:
    recent = RecentDecisions()
    for number in range(600):
        recent.add(record(number), 2)
    assert [each["number"] for each in recent] == list(range(100, 600))


def test_of_decisions_over_a_part_so_many_more_are_kept() -> None:
    recent = RecentDecisions()
    for number in range(2000):
        recent.add(record(number), 6)
    assert len(recent) == 1500


def test_a_large_controller_keeps_so_many_answers_and_the_last_decision_in_any_case() -> None:
    recent = RecentDecisions()
    for number in range(100):
        recent.add(record(number, policies=999), 1000)
    assert len(recent) == 20
    recent.add(record(100, policies=50_000), 50_001)
    assert [each["number"] for each in recent] == [100]
