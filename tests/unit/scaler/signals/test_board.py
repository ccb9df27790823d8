"""What signals say comes to a load: never more than once, never as zero where nothing is known."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.model import MISSING, Load, Quality, Reading
from scaler.signals.board import PUSHED, Board, Change
from scaler.signals.expected import Expectation
from scaler.signals.port import Part, SignalKey
from warmpool.seats import PolicyName

CHAT = PolicyName("chat")
NOW = 1000.0
PARTS_OF = {
    "engine": Part.REQUESTS,
    "engine-2": Part.REQUESTS,
    "depth": Part.QUEUED,
    "age": Part.OLDEST_WAIT_SECONDS,
    "ttft": Part.LATE_SHARE,
    "jobs": Part.BACKLOG,
    "jobs-2": Part.BACKLOG,
}
"""Signals of the tests, and the part that each of them always says."""
FRESH, STALE, GONE = 0.0, 10.0, 100.0
"""Ages of readings that are one or the other: fresh up to 4 s, stale up to 40 s."""


def key(signal: str) -> SignalKey:
    return SignalKey(CHAT, signal)


def expected(*signals: str) -> dict[SignalKey, Expectation]:
    return {
        key(signal): Expectation(
            type=PUSHED if signal == "gateway" else "Prometheus",
            interval=2.0,
            timeout=1.0,
            parts=frozenset({PARTS_OF[signal]} if signal in PARTS_OF else ()),
        )
        for signal in signals
    }


def board(*signals: str) -> Board:
    made = Board()
    made.expect(expected(*signals))
    return made


def come_to(on: Board, policy: PolicyName, pushed: Load, now: float) -> Load:
    """What all signals come to, but for who is absent."""
    return replace(on.load(policy, pushed, now), absent=())


def reading(value: float, age: float = FRESH) -> Reading:
    return Reading(value=value, age=age, quality=Quality.FRESH if age <= 4.0 else Quality.STALE)


@dataclass(frozen=True)
class Said:
    """What one signal said of its part, and how long ago."""

    signal: str
    value: float
    age: float = FRESH


# ------------------------------------------------------------------ one signal


@pytest.mark.parametrize(
    ("age", "quality"),
    [
        pytest.param(-1.0, Quality.FRESH, id="of the future, for clocks are read twice"),
        pytest.param(0.0, Quality.FRESH, id="now"),
        pytest.param(4.0, Quality.FRESH, id="one and a half intervals and the timeout"),
        pytest.param(4.01, Quality.STALE, id="late"),
        pytest.param(40.0, Quality.STALE, id="at its expiry"),
        pytest.param(40.01, Quality.MISSING, id="expired"),
    ],
)
def test_a_reading_ages(age: float, quality: Quality) -> None:
    on = board("engine")
    on.observed(key("engine"), {Part.REQUESTS: 7.0}, NOW - age)
    found = come_to(on, CHAT, Load(), NOW).engines
    assert found.quality is quality
    if found.known:
        assert (found.value, found.age) == (7.0, pytest.approx(max(0.0, age)))


SPOILT = [
    pytest.param({Part.REQUESTS: math.nan}, id="NaN"),
    pytest.param({Part.REQUESTS: math.inf}, id="infinity"),
    pytest.param({Part.REQUESTS: -1.0}, id="negative"),
    pytest.param({Part.REQUESTS: True}, id="a boolean"),
    pytest.param({Part.REQUESTS: None}, id="nothing"),
    pytest.param({Part.REQUESTS: "3"}, id="text"),
    pytest.param({Part.LATE_SHARE: 1.01}, id="a share above one"),
]


@pytest.mark.parametrize("parts", SPOILT)
def test_a_number_that_is_none_changes_only_a_counter(parts: Mapping[Part, float]) -> None:
    on = board("engine")
    on.observed(key("engine"), {Part.REQUESTS: 7.0, Part.LATE_SHARE: 0.5}, NOW - 3)
    before = come_to(on, CHAT, Load(), NOW)
    assert on.take(key("engine"), parts, NOW) is Change.NOTHING
    assert come_to(on, CHAT, Load(), NOW) == before
    state = on.states(NOW)[key("engine")]
    assert (state.read, state.spoilt, state.newest) == (1, 1, NOW - 3)


@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf])
def test_a_time_that_is_none_spoils_a_reading(at: float) -> None:
    on = board("engine")
    on.observed(key("engine"), {Part.REQUESTS: 7.0}, at)
    assert come_to(on, CHAT, Load(), NOW) == Load()
    assert on.states(NOW)[key("engine")].spoilt == 1


def test_the_good_numbers_of_a_spoilt_reading_count() -> None:
    on = board("engine")
    on.observed(key("engine"), {Part.REQUESTS: 7.0, Part.LATE_SHARE: math.nan}, NOW)
    assert come_to(on, CHAT, Load(), NOW) == Load(engines=reading(7))


def test_what_a_newer_reading_has_not_is_gone_unless_every_reading_should_have_it() -> None:
    on = board("engine")
    on.observed(key("engine"), {Part.REQUESTS: 7.0, Part.LATE_SHARE: 0.5}, NOW - 2)
    on.observed(key("engine"), {Part.LATE_SHARE: 0.25}, NOW - 1)
    assert come_to(on, CHAT, Load(), NOW) == Load(engines=reading(7, 2.0), late_share=reading(0.25, 1.0))
    on.observed(key("engine"), {Part.REQUESTS: 7.0}, NOW)
    assert come_to(on, CHAT, Load(), NOW) == Load(engines=reading(7))


def test_what_was_read_later_but_was_true_earlier_changes_nothing() -> None:
    on = board("engine")
    on.observed(key("engine"), {Part.REQUESTS: 7.0}, NOW)
    assert on.take(key("engine"), {Part.REQUESTS: 70.0}, NOW - 1) is Change.NOTHING
    assert come_to(on, CHAT, Load(), NOW) == Load(engines=reading(7))


@pytest.mark.parametrize(
    ("part", "before", "after", "change"),
    [
        pytest.param(Part.REQUESTS, None, 0.0, Change.MOVED, id="the first, of nothing"),
        pytest.param(Part.REQUESTS, None, 3.0, Change.RISEN, id="the first"),
        pytest.param(Part.QUEUED, 0.0, 1.0, Change.RISEN, id="the first that waits"),
        pytest.param(Part.REQUESTS, 100.0, 109.0, Change.MOVED, id="nine of a hundred"),
        pytest.param(Part.REQUESTS, 100.0, 110.0, Change.RISEN, id="a tenth"),
        pytest.param(Part.BACKLOG, 5.0, 50.0, Change.RISEN, id="work"),
        pytest.param(Part.REQUESTS, 5.0, 4.0, Change.MOVED, id="a fall"),
        pytest.param(Part.REQUESTS, 5.0, 5.0, Change.NOTHING, id="the same"),
        pytest.param(Part.OLDEST_WAIT_SECONDS, 5.0, 50.0, Change.MOVED, id="a wait that grows"),
    ],
)
def test_what_a_reading_changes_is_told(
    part: Part, before: float | None, after: float, change: Change
) -> None:
    on = board("engine")
    if before is not None:
        on.observed(key("engine"), {part: before}, NOW - 1)
    assert on.take(key("engine"), {part: after}, NOW) is change


def test_a_signal_that_is_not_expected_says_nothing() -> None:
    on = board("engine")
    on.observed(key("other"), {Part.REQUESTS: 7.0}, NOW)
    on.failed(key("other"), "late")
    assert come_to(on, CHAT, Load(), NOW) == Load()
    assert on.states(NOW).keys() == {key("engine")}


def test_a_failure_is_kept_with_its_count_until_a_reading_comes() -> None:
    on = board("engine")
    on.failed(key("engine"), "no answer\n  within 1 s")
    on.failed(key("engine"), "connection refused " + "x" * 1000)
    state = on.states(NOW)[key("engine")]
    assert (state.failed, state.failed_in_a_row, len(state.error)) == (2, 2, 500)
    on.failed(key("engine"), "no answer\n  within 1 s")
    on.observed(key("engine"), {Part.REQUESTS: 1.0}, NOW)
    state = on.states(NOW)[key("engine")]
    assert (state.failed, state.failed_in_a_row, state.error) == (3, 0, "")


def test_what_a_reading_lacks_stands_until_a_whole_one_comes() -> None:
    on = board("engine")
    on.failed(key("engine"), "1 of 2 engines silent: two")
    on.observed(key("engine"), {Part.REQUESTS: 1.0}, NOW, "1 of 2 engines silent: two")
    state = on.states(NOW)[key("engine")]
    assert (state.failed, state.failed_in_a_row, state.error) == (1, 0, "1 of 2 engines silent: two")
    on.observed(key("engine"), {Part.REQUESTS: 1.0}, NOW)
    assert on.states(NOW)[key("engine")].error == ""


@pytest.mark.parametrize("at", [NOW, math.nan])
def test_a_reading_of_which_nothing_counts_says_so(at: float) -> None:
    on = board("engine")
    on.observed(key("engine"), {Part.REQUESTS: math.nan}, at)
    on.observed(key("engine"), {Part.REQUESTS: math.nan}, at)
    state = on.states(NOW)[key("engine")]
    assert (state.failed, state.failed_in_a_row) == (0, 2)
    assert state.error.startswith("what was read ")


def test_a_failure_leaves_the_last_reading_to_age() -> None:
    on = board("engine")
    on.observed(key("engine"), {Part.REQUESTS: 7.0}, NOW - STALE)
    on.failed(key("engine"), "late")
    assert come_to(on, CHAT, Load(), NOW) == Load(engines=reading(7, STALE))


# ------------------------------------------------------------------ which signals there are


def test_signals_that_stay_keep_what_they_said_and_others_are_forgotten() -> None:
    on = board("engine", "jobs")
    on.observed(key("engine"), {Part.REQUESTS: 7.0}, NOW)
    on.observed(key("jobs"), {Part.BACKLOG: 3.0}, NOW)
    on.expect(expected("engine"))
    on.expect(expected("engine", "jobs"))
    assert come_to(on, CHAT, Load(), NOW) == Load(engines=reading(7))


def test_a_signal_whose_number_means_something_else_from_now_on_is_forgotten() -> None:
    on = board("engine")
    on.observed(key("engine"), {Part.REQUESTS: 7.0}, NOW)
    on.failed(key("engine"), "late")
    on.forget(key("engine"))
    on.forget(key("other"))
    state = on.states(NOW)[key("engine")]
    assert (come_to(on, CHAT, Load(), NOW), state.error, state.newest) == (Load(), "", None)


def test_a_signal_that_is_read_more_slowly_holds_for_longer() -> None:
    on = board("engine")
    on.observed(key("engine"), {Part.REQUESTS: 7.0}, NOW - STALE)
    on.pace(key("engine"), 8.0)
    assert come_to(on, CHAT, Load(), NOW).engines.quality is Quality.FRESH
    on.expect(expected("engine"))
    assert come_to(on, CHAT, Load(), NOW).engines.quality is Quality.STALE


def test_every_part_that_is_expected_is_shown_and_whatever_else_is_known() -> None:
    on = board("engine", "jobs")
    on.observed(key("jobs"), {Part.BACKLOG: 3.0, Part.BACKLOG_AGE_SECONDS: 9.0}, NOW)
    shown = {signal.signal: dict(state.parts) for signal, state in on.states(NOW).items()}
    assert shown == {
        "engine": {Part.REQUESTS: MISSING},
        "jobs": {Part.BACKLOG: reading(3), Part.BACKLOG_AGE_SECONDS: reading(9)},
    }


def test_the_newest_number_of_a_policy_has_a_time() -> None:
    on = board("engine", "jobs")
    assert on.newest(CHAT) is None
    on.observed(key("jobs"), {Part.BACKLOG: 3.0}, NOW - 2)
    on.observed(key("engine"), {Part.REQUESTS: 3.0}, NOW - 5)
    assert on.newest(CHAT) == NOW - 2


# ------------------------------------------------------------------ several signals


GATEWAY = Load(queued=reading(3), in_flight=reading(20), oldest_wait=reading(0.5))


@pytest.mark.parametrize(
    ("said", "pushed", "load"),
    [
        pytest.param([], GATEWAY, GATEWAY, id="the gateway alone"),
        pytest.param(
            [Said("engine", 12), Said("engine-2", 15)],
            Load(),
            Load(engines=reading(15)),
            id="two views of the same engines: the higher",
        ),
        pytest.param(
            [Said("depth", 3)],
            GATEWAY,
            GATEWAY,
            id="the depth of the gateway's own queue is counted once",
        ),
        pytest.param(
            [Said("depth", 8, 3.0)],
            Load(queued=reading(3), in_flight=reading(20)),
            Load(queued=reading(8, 3.0), in_flight=reading(20)),
            id="a depth beyond the gateway's",
        ),
        pytest.param([Said("depth", 8)], Load(), Load(queued=reading(8)), id="a depth without a gateway"),
        pytest.param(
            [Said("age", 4)],
            Load(oldest_wait=reading(0.5)),
            Load(oldest_wait=reading(4)),
            id="the longest wait",
        ),
        pytest.param([Said("ttft", 0.25)], Load(), Load(late_share=reading(0.25)), id="late first tokens"),
        pytest.param(
            [Said("ttft", 0.25)],
            replace(GATEWAY, late_share=reading(0.125)),
            replace(GATEWAY, late_share=reading(0.125)),
            id="the gateway's first tokens have the waiting in them",
        ),
        pytest.param(
            [Said("jobs", 30, 1.0), Said("jobs-2", 12)],
            Load(backlog=reading(5)),
            Load(backlog=reading(47, 1.0)),
            id="queues of work add up",
        ),
        pytest.param(
            [Said("engine", 12, STALE), Said("engine-2", 15)],
            Load(),
            Load(engines=Reading(value=15, age=STALE, quality=Quality.STALE)),
            id="one that is late makes all late",
        ),
        pytest.param(
            [Said("engine", 12, GONE), Said("engine-2", 15)],
            Load(),
            Load(engines=Reading(value=15, age=FRESH, quality=Quality.STALE)),
            id="beside one that is gone the other is a lower bound",
        ),
        pytest.param(
            [Said("jobs", 12, GONE), Said("jobs-2", 15)],
            Load(),
            Load(backlog=Reading(value=15, age=FRESH, quality=Quality.STALE)),
            id="a sum without one of its queues is a lower bound",
        ),
        pytest.param(
            [Said("depth", 9, GONE)],
            GATEWAY,
            Load(
                queued=Reading(value=3, age=FRESH, quality=Quality.STALE),
                in_flight=GATEWAY.in_flight,
                oldest_wait=GATEWAY.oldest_wait,
            ),
            id="the gateway beside a depth that is gone",
        ),
        pytest.param([Said("engine", 12, GONE)], Load(), Load(), id="one that is gone is missing"),
    ],
)
def test_what_several_signals_come_to(said: Sequence[Said], pushed: Load, load: Load) -> None:
    on = board(*[each.signal for each in said])
    for each in said:
        on.observed(key(each.signal), {PARTS_OF[each.signal]: each.value}, NOW - each.age)
    assert come_to(on, CHAT, pushed, NOW) == load


def test_a_signal_that_never_answered_is_missing_and_makes_others_a_lower_bound() -> None:
    on = board("engine", "engine-2")
    assert come_to(on, CHAT, Load(), NOW) == Load()
    on.observed(key("engine"), {Part.REQUESTS: 3.0}, NOW)
    assert come_to(on, CHAT, Load(), NOW).engines == Reading(value=3.0, age=0.0, quality=Quality.STALE)


def test_a_gateway_that_should_push_and_does_not_makes_another_depth_a_lower_bound() -> None:
    on = board("gateway", "depth")
    on.observed(key("depth"), {Part.QUEUED: 3.0}, NOW)
    assert come_to(on, CHAT, Load(), NOW).queued == Reading(value=3.0, age=0.0, quality=Quality.STALE)
    assert come_to(on, CHAT, Load(in_flight=reading(1)), NOW).queued == reading(3)


def test_policies_know_nothing_of_each_other() -> None:
    on = Board()
    other = SignalKey(PolicyName("code"), "engine")
    on.expect({**expected("engine"), other: expected("engine")[key("engine")]})
    on.observed(other, {Part.REQUESTS: 50.0}, NOW)
    assert come_to(on, CHAT, Load(), NOW) == Load()
    assert come_to(on, PolicyName("nobody"), Load(), NOW) == Load()


# ------------------------------------------------------------------ laws

ANYTHING = st.one_of(st.floats(), st.integers(-5, 5), st.booleans(), st.none(), st.text(max_size=2))
NUMBERS = st.floats(0.0, 1.0)
TIMES = st.integers(int(NOW) - 50, int(NOW)).map(float)
OBSERVATIONS = st.tuples(
    st.sampled_from(sorted(PARTS_OF)), st.dictionaries(st.sampled_from(list(Part)), NUMBERS), TIMES
)
FIELDS = {
    Part.REQUESTS: "engines",
    Part.QUEUED: "queued",
    Part.OLDEST_WAIT_SECONDS: "oldest_wait",
    Part.LATE_SHARE: "late_share",
    Part.BACKLOG: "backlog",
    Part.BACKLOG_AGE_SECONDS: "backlog_age",
}


@given(st.lists(OBSERVATIONS, max_size=5))
def test_the_order_in_which_readings_come_does_not_matter(
    observations: list[tuple[str, dict[Part, float], float]],
) -> None:
    loads = set()
    for order in permutations(observations):
        on = board(*PARTS_OF)
        for signal, parts, at in order:
            on.observed(key(signal), parts, at)
        loads.add(repr(come_to(on, CHAT, Load(), NOW)))
    assert len(loads) == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(PARTS_OF)),
            st.dictionaries(st.sampled_from(list(Part)), ANYTHING),
            st.one_of(TIMES, st.floats()),
        ),
        max_size=20,
    )
)
def test_whatever_is_told_a_part_is_known_only_if_a_number_was_told(
    told: list[tuple[str, dict[Part, float], float]],
) -> None:
    on = board(*PARTS_OF)
    numbers: dict[Part, list[float]] = {part: [] for part in Part}
    for signal, parts, at in told:
        on.observed(key(signal), parts, at)
        for part, value in parts.items():
            good = type(value) in {int, float} and 0 <= value < math.inf and math.isfinite(at)
            if good:
                numbers[part].append(float(value))
    load = come_to(on, CHAT, Load(), NOW)
    for part, field in FIELDS.items():
        found: Reading = getattr(load, field)
        assert math.isfinite(found.value)
        assert found.value >= 0.0
        if found.known:
            most = sum(numbers[part]) if part is Part.BACKLOG else max(numbers[part])
            assert numbers[part]
            assert min(numbers[part]) <= found.value <= most


@given(
    st.lists(OBSERVATIONS, max_size=10),
    st.sampled_from(sorted(PARTS_OF)),
    st.dictionaries(
        st.sampled_from(list(Part)),
        st.sampled_from([math.nan, math.inf, -math.inf, -1.0]),
        min_size=1,
    ),
)
def test_spoilt_numbers_change_nothing_but_their_count(
    before: list[tuple[str, dict[Part, float], float]], signal: str, spoilt: dict[Part, float]
) -> None:
    on = board(*PARTS_OF)
    for name, parts, at in before:
        on.observed(key(name), parts, at)
    load, was = come_to(on, CHAT, Load(), NOW), on.states(NOW)[key(signal)]
    on.observed(key(signal), spoilt, NOW)
    after = on.states(NOW)[key(signal)]
    assert come_to(on, CHAT, Load(), NOW) == load
    assert (after.read, after.parts, after.newest) == (was.read, was.parts, was.newest)
    assert after.spoilt == was.spoilt + len(spoilt)


@given(st.lists(OBSERVATIONS, max_size=10), st.floats(0.0, 200.0))
def test_time_makes_nothing_better_known(
    observations: list[tuple[str, dict[Part, float], float]], seconds: float
) -> None:
    on = board(*PARTS_OF)
    for signal, parts, at in observations:
        on.observed(key(signal), parts, at)
    order = [Quality.MISSING, Quality.STALE, Quality.FRESH]
    now, later = come_to(on, CHAT, Load(), NOW), come_to(on, CHAT, Load(), NOW + seconds)
    for field in FIELDS.values():
        assert order.index(getattr(later, field).quality) <= order.index(getattr(now, field).quality)


# ------------------------------------------------------------------ who is absent


def test_a_signal_of_demand_that_says_nothing_is_named() -> None:
    on = board("engine", "jobs")
    assert on.load(CHAT, Load(), NOW).absent == ("engine", "jobs")
    on.observed(key("engine"), {Part.REQUESTS: 7.0}, NOW)
    assert on.load(CHAT, Load(), NOW).absent == ("jobs",)
    on.observed(key("jobs"), {Part.BACKLOG: 0.0}, NOW)
    assert on.load(CHAT, Load(), NOW).absent == ()


def test_a_signal_that_has_nothing_to_say_of_demand_is_not_waited_for() -> None:
    assert board("ttft").load(CHAT, Load(), NOW).absent == ()


def test_a_gateway_that_should_push_and_never_has_is_named() -> None:
    on = Board()
    gateway = Expectation(type=PUSHED, interval=0.0, timeout=0.0, parts=frozenset())
    on.expect({key("gateway"): gateway} | expected("jobs"))
    on.observed(key("jobs"), {Part.BACKLOG: 0.0}, NOW)
    assert on.load(CHAT, Load(), NOW).absent == ("gateway",)
    assert on.load(CHAT, Load(queued=reading(0)), NOW).absent == ()
