"""How requests beside a load are summed up, and which of them count as beside it."""

import math
from itertools import islice

import pytest

from warmpool.bench.cold_starts import Found, judge, unsound
from warmpool.bench.neighbour import Answered, Asking, tail


def asked(*seconds: float | None) -> list[Answered]:
    return [Answered(at=float(number), seconds=each) for number, each in enumerate(seconds)]


@pytest.mark.parametrize(
    ("seconds", "p50", "p99", "worst", "failed"),
    [
        pytest.param([0.5], 0.5, 0.5, 0.5, 0, id="one"),
        pytest.param(
            [3.0, 1.0, 2.0, None], 2.0, 3.0, 3.0, 1, id="in whatever order, and one without an answer"
        ),
        pytest.param(
            [each / 100 for each in range(1, 201)], 1.0, 1.98, 2.0, 0, id="two of 200 may take longer"
        ),
    ],
)
def test_a_tail_is_of_those_that_were_answered(
    seconds: list[float | None], p50: float, p99: float, worst: float, failed: int
) -> None:
    found = tail(asked(*seconds))
    assert (found.p50, found.p99, found.worst, found.failed) == (p50, p99, worst, failed)
    assert found.requests == len(seconds) - failed


def test_without_any_answer_there_are_no_times() -> None:
    found = tail(asked(None, None))
    assert (found.requests, found.failed, math.isnan(found.p99)) == (0, 2, True)


@pytest.mark.parametrize(
    ("at", "seconds", "within"),
    [
        pytest.param(5.0, 0.1, True, id="sent within"),
        pytest.param(3.5, 1.0, True, id="it still waited when that began"),
        pytest.param(3.5, 0.2, False, id="answered before"),
        pytest.param(6.0, 1.0, False, id="sent afterwards"),
    ],
)
def test_a_request_is_beside_what_it_waited_through(at: float, seconds: float, *, within: bool) -> None:
    assert Answered(at=at, seconds=seconds).overlaps(4.0, 6.0) is within


def test_intervals_are_as_many_a_second_as_were_asked_for_and_prompts_differ() -> None:
    asking = Asking(url="", model="m", per_second=50.0, prompt_tokens=8, answer_tokens=2)
    made = list(islice(asking.bodies(), 2000))
    assert sum(wait for wait, _ in made) == pytest.approx(2000 / 50.0, rel=0.1)
    assert made == list(islice(asking.bodies(), 2000))
    assert len({tuple(body["prompt"]) for _, body in made}) == 2000  # type: ignore[arg-type]  # a list of numbers


def started(arm: str, seconds: float, **others: object) -> dict[str, object]:
    crash = {"sameAnswer": True, "cutOff": True} if arm == "crash" else {}
    return {"arm": arm, "seconds": seconds, "phases": {}, "tier": "Staged", "passedOver": []} | crash | others


@pytest.mark.parametrize(
    ("rows", "met"),
    [
        pytest.param([started("staged", 2.4), started("crash", 1.4)], [True, True], id="both"),
        pytest.param(
            [*(started("staged", each) for each in (2.0, 2.1, 9.0)), started("crash", 1.6)],
            [True, False],
            id="the median counts",
        ),
        pytest.param(
            [{"arm": "staged", "staging": 1.0}], [False, False], id="what wasn't measured isn't met"
        ),
    ],
)
def test_targets_are_held_against_medians(rows: list[dict[str, object]], met: list[bool]) -> None:
    assert [each["met"] for each in judge(Found(rows), ["zygote", "staged", "crash"])] == met
    assert judge(Found(rows), ["zygote"]) == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (started("staged", 1.0), ""),
        (started("staged", 1.0, tier="Tmpfs", passedOver=["Staged: NotStaged"]), "weights came from Tmpfs"),
        (started("zygote", 1.0, note="the zygote gave no fork"), "gave no fork"),
        (started("crash", 1.0, sameAnswer=False), "answers otherwise"),
        (started("crash", 1.0, cutOff=False), "had answered before"),
    ],
)
def test_an_arm_that_was_not_what_it_is_called_is_told(row: dict[str, object], said: str) -> None:
    found = unsound(Found([row]))
    assert bool(found) is bool(said)
    assert all(said in each for each in found)
