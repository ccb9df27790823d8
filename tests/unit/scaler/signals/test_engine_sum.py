import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.model import Load, Quality, Reading
from scaler.signals.board import Board
from scaler.signals.engine_page import DIALECTS, EnginePage
from scaler.signals.engine_sum import FEWEST_FIRST_TOKENS, LATE_WINDOW_SECONDS, EngineSum
from scaler.signals.engine_targets import EngineTarget
from scaler.signals.expected import Expectation
from scaler.signals.port import Part, SignalKey
from warmpool.seats import PolicyName

ONE, TWO, THREE = (EngineTarget(f"uid-{n}", f"http://10.0.0.{n}:8000", f"seat-{n}") for n in (1, 2, 3))
FRESH_SECONDS = 1.375
OBJECTIVE = 1.0


def page(
    requests: float, *, late: float = 0.0, every: float = 0.0, started: float | None = 1e9
) -> EnginePage:
    return EnginePage(
        dialect=DIALECTS[0],
        running=requests,
        waiting=0.0,
        first_tokens={0.5: 0.0, 1.0: every - late, 2.5: every, math.inf: every},
        started=started,
    )


def following(*targets: EngineTarget, at: float = 0.0) -> EngineSum:
    made = EngineSum(OBJECTIVE)
    made.follow(targets, at)
    return made


def parts(made: EngineSum, now: float) -> Mapping[Part, float]:
    taken = made.taken(now, FRESH_SECONDS)
    assert taken is not None
    return taken.parts


# ------------------------------------------------------------------ the sum


def test_engines_are_added_up_and_the_sum_is_as_old_as_its_oldest_page() -> None:
    made = following(ONE, TWO)
    made.answered(ONE, page(3), 10.0)
    made.answered(TWO, page(4), 10.2)
    taken = made.taken(10.3, FRESH_SECONDS)
    assert taken is not None
    assert (taken.parts, taken.at) == ({Part.REQUESTS: 7}, 10.0)


def test_no_engine_in_rotation_is_a_known_zero() -> None:
    taken = following().taken(5.0, FRESH_SECONDS)
    assert taken is not None
    assert (taken.parts, taken.at) == ({Part.REQUESTS: 0}, 5.0)


def test_nothing_is_told_while_no_engine_has_answered() -> None:
    made = following(ONE, TWO)
    made.silent(ONE, "connection refused")
    assert made.taken(100.0, FRESH_SECONDS) is None


def test_a_silent_engine_stays_in_the_sum_with_what_it_last_told_and_makes_it_old() -> None:
    made = following(ONE, TWO)
    made.answered(ONE, page(3), 10.0)
    made.answered(TWO, page(4), 10.0)
    for moment in range(11, 15):
        made.silent(ONE, "no answer within 1 s")
        made.answered(TWO, page(9), float(moment))
    taken = made.taken(14.0, FRESH_SECONDS)
    assert taken is not None
    assert taken.parts[Part.REQUESTS] == 12
    assert 10.0 <= taken.at < 14.0 - FRESH_SECONDS


def test_however_long_an_engine_is_silent_what_others_say_stays_known() -> None:
    made = following(ONE, TWO)
    made.answered(ONE, page(3), 10.0)
    for moment in range(10, 500):
        made.answered(TWO, page(9), float(moment))
        taken = made.taken(float(moment), FRESH_SECONDS)
        assert taken is not None
        assert moment - taken.at <= 2 * FRESH_SECONDS


@pytest.mark.parametrize(
    ("now", "told"),
    [
        pytest.param(20.1, None, id="just promoted: wait for it"),
        pytest.param(20.0 + FRESH_SECONDS, None, id="as long as the sum would read as fresh"),
        pytest.param(20.1 + FRESH_SECONDS, 20.0, id="then it is as old as the engine is in rotation"),
    ],
)
def test_a_promoted_engine_that_has_not_answered_yet_never_makes_a_fresh_sum(
    now: float, told: float | None
) -> None:
    made = following(ONE)
    made.answered(ONE, page(8), 19.9)
    made.follow([ONE, TWO], 20.0)
    made.answered(ONE, page(5), now)
    taken = made.taken(now, FRESH_SECONDS)
    assert (None if taken is None else taken.at) == told


def test_an_engine_that_left_rotation_is_gone_at_once() -> None:
    made = following(ONE, TWO)
    made.answered(ONE, page(3), 10.0)
    made.answered(TWO, page(4), 10.2)
    made.follow([TWO], 10.3)
    made.answered(ONE, page(30), 10.3)
    taken = made.taken(10.3, FRESH_SECONDS)
    assert taken is not None
    assert (taken.parts, taken.at) == ({Part.REQUESTS: 4}, 10.2)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(EngineTarget("uid-9", ONE.url, ONE.seat), id="a new pod of the same name"),
        pytest.param(EngineTarget(ONE.uid, "http://10.0.0.1:9000", ONE.seat), id="a new address"),
    ],
)
def test_what_an_engine_told_is_not_believed_of_another(other: EngineTarget) -> None:
    made = following(ONE)
    made.answered(ONE, page(30), 10.0)
    made.follow([other], 10.1)
    assert made.taken(10.1, FRESH_SECONDS) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from([ONE, TWO, THREE]),
            st.sampled_from(["page", "silent", "join", "leave"]),
            st.floats(0.01, 3.0),
            st.integers(0, 50),
        ),
        max_size=40,
    )
)
def test_a_sum_that_the_board_calls_fresh_holds_every_engine_as_it_lately_was(
    events: list[tuple[EngineTarget, str, float, int]],
) -> None:
    key = SignalKey(PolicyName("chat"), "engines")
    board, made = Board(), EngineSum(OBJECTIVE)
    board.expect(
        {key: Expectation(type="EngineMetrics", interval=0.25, timeout=1.0, parts=frozenset({Part.REQUESTS}))}
    )
    now, told, present = 100.0, dict[EngineTarget, tuple[float, int]](), set[EngineTarget]()
    for target, event, seconds, number in events:
        now += seconds
        if event in {"join", "leave"}:
            (present.add if event == "join" else present.discard)(target)
            made.follow(sorted(present, key=str), now)
            told = {each: told[each] for each in told if each in present}
        elif event == "silent":
            made.silent(target, "no answer")
        elif target in present:
            made.answered(target, page(number), now)
            told[target] = (now, number)
        taken = made.taken(now, FRESH_SECONDS)
        if taken is not None:
            board.observed(key, taken.parts, taken.at)
        reading = board.load(key.policy, Load(), now).engines
        if taken is not None and reading.quality is Quality.FRESH:
            assert taken.at == pytest.approx(now - reading.age)
            assert told.keys() == present
            assert all(now - at <= FRESH_SECONDS for at, _ in told.values())
            assert reading.value >= sum(count for _, count in told.values())


# ------------------------------------------------------------------ late first tokens


def test_first_tokens_from_before_the_promotion_do_not_count() -> None:
    made = following(ONE)
    made.answered(ONE, page(1, late=90, every=100), 10.0)
    assert Part.LATE_SHARE not in parts(made, 10.0)
    made.answered(ONE, page(1, late=92, every=110), 10.25)
    assert parts(made, 10.25)[Part.LATE_SHARE] == pytest.approx(0.2)


def test_of_too_few_first_tokens_no_share_is_told() -> None:
    made = following(ONE)
    made.answered(ONE, page(1), 10.0)
    made.answered(ONE, page(1, late=1, every=FEWEST_FIRST_TOKENS - 1), 10.25)
    assert Part.LATE_SHARE not in parts(made, 10.25)
    made.answered(ONE, page(1, late=1, every=FEWEST_FIRST_TOKENS), 10.5)
    assert parts(made, 10.5)[Part.LATE_SHARE] == pytest.approx(1 / FEWEST_FIRST_TOKENS)


def test_first_tokens_of_all_engines_make_one_share() -> None:
    made = following(ONE, TWO)
    for target in (ONE, TWO):
        made.answered(target, page(1), 10.0)
    made.answered(ONE, page(1, late=3, every=3), 10.25)
    made.answered(TWO, page(1, late=0, every=9), 10.25)
    assert parts(made, 10.25)[Part.LATE_SHARE] == pytest.approx(0.25)


def test_first_tokens_older_than_the_window_are_forgotten() -> None:
    made = following(ONE)
    made.answered(ONE, page(1), 10.0)
    made.answered(ONE, page(1, late=10, every=10), 11.0)
    end = 11.0 + LATE_WINDOW_SECONDS
    made.answered(ONE, page(1, late=10, every=20), end)
    assert parts(made, end)[Part.LATE_SHARE] == 0.0


@pytest.mark.parametrize(
    "anew",
    [
        pytest.param(page(1, late=5, every=10), id="counters fell"),
        pytest.param(
            page(1, late=40, every=120, started=2e9), id="another process, whose counters have passed"
        ),
        pytest.param(page(1, late=5, every=30), id="only the late ones fell"),
    ],
)
def test_an_engine_that_began_anew_is_counted_from_there(anew: EnginePage) -> None:
    made = following(ONE)
    made.answered(ONE, page(1, late=10, every=20), 10.0)
    made.answered(ONE, page(1, late=20, every=30), 10.25)
    made.answered(ONE, anew, 10.5)
    assert Part.LATE_SHARE not in parts(made, 10.5)


def test_an_engine_promoted_again_is_counted_from_its_promotion() -> None:
    made = following(ONE)
    made.answered(ONE, page(1, late=0, every=10), 10.0)
    made.answered(ONE, page(1, late=20, every=30), 10.25)
    made.follow([], 10.5)
    made.follow([ONE], 11.0)
    made.answered(ONE, page(1, late=30, every=40), 11.0)
    assert Part.LATE_SHARE not in parts(made, 11.0)


def test_an_objective_above_all_edges_tells_no_share() -> None:
    made = EngineSum(objective=60.0)
    made.follow([ONE], 0.0)
    made.answered(ONE, page(1), 10.0)
    made.answered(ONE, page(1, late=50, every=50), 10.25)
    assert Part.LATE_SHARE not in parts(made, 10.25)
    assert made.views(10.25)[0].edge is None


# ------------------------------------------------------------------ for people


def test_the_trouble_counts_the_silent_and_names_the_first_of_them() -> None:
    made = following(ONE, TWO, THREE)
    made.answered(TWO, page(1), 1.0)
    assert made.trouble() == ""
    made.silent(THREE, "no answer within 1 s")
    assert made.trouble() == "1 of 3 engines silent: seat-3: no answer within 1 s"
    made.silent(ONE, "connection refused")
    assert made.trouble() == "2 of 3 engines silent: seat-1: connection refused, and 1 more"


def test_views_show_what_is_known_and_what_is_not() -> None:
    made = following(TWO, ONE)
    made.answered(ONE, page(3), 10.0)
    made.silent(TWO, "answered 404")
    one, two = made.views(10.5)
    assert (one.dialect, one.running, one.waiting, one.edge, one.age) == ("vLLM (vllm:)", 3, 0, 1.0, 0.5)
    assert (two.dialect, two.running, two.age, two.trouble) == ("", None, math.inf, "answered 404")


def test_a_sum_with_a_silent_engine_is_stale_on_the_board_until_that_one_answers() -> None:
    key = SignalKey(PolicyName("chat"), "engines")
    board, made = Board(), following(ONE, TWO)
    board.expect(
        {key: Expectation(type="EngineMetrics", interval=0.25, timeout=1.0, parts=frozenset({Part.REQUESTS}))}
    )

    def seen(requests: float, now: float) -> Reading:
        made.answered(TWO, page(requests), now)
        taken = made.taken(now, FRESH_SECONDS)
        assert taken is not None
        board.observed(key, taken.parts, taken.at)
        return board.load(key.policy, Load(), now).engines

    made.answered(ONE, page(5), 10.0)
    assert seen(5, 10.0) == Reading(value=10, age=0.0, quality=Quality.FRESH)
    stale = [seen(20, 12.0), *(seen(4, float(moment)) for moment in range(13, 120))]
    assert {reading.quality for reading in stale} == {Quality.STALE}
    assert (stale[0].value, stale[-1].value) == (25, 9)
    made.answered(ONE, page(1), 120.0)
    assert seen(4, 120.0) == Reading(value=5, age=0.0, quality=Quality.FRESH)
