"""Lines of a ledger: which there are, and that reading them gives the ticks back."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.decide import decide
from scaler.core.islands import Island
from scaler.core.ledger import BadLine, Inputs, Reader, Step
from scaler.core.model import FleetView, Load, Quality, Reading, Snapshot
from scaler.core.replay import RenderedViews, snapshot_to_json
from tests.unit.scaler.core.world import fleet, fresh, load, policy, simple
from tests.unit.scaler.core.writer import Rules, Writer

RULES = Rules([policy("a"), policy("b")], [fleet()])
ON = Island(tuple(RULES.policies), tuple(RULES.fleets))


def changed(before: Snapshot, after: Snapshot) -> dict[str, Any] | None:
    inputs = Inputs()
    inputs.put(ON, before)
    return inputs.changed(ON, after)


def snapshot(a: float = 4, b: float = 3, spare: int = 1, **more: Any) -> Snapshot:
    return Snapshot(
        loads={"a": load(a), "b": load(b)}, fleets={"spares": simple({"a": 1, "b": 1}, spare)}, **more
    )  # type: ignore[dict-item]


def read(lines: Iterable[dict[str, Any]]) -> list[Step]:
    return list(Reader().steps(lines))


# ------------------------------------------------------------------ which lines there are


def test_the_first_line_holds_everything_that_a_replay_begins_with() -> None:
    line = Writer(RULES).tick(snapshot())
    assert line.keys() == {
        "at", "number", "policyHash", "causes", "inputs", "decision", "actions", "start",
    }  # fmt: skip
    assert line["start"].keys() == {"law", "policies", "fleets", "memory"}


def test_a_tick_with_the_same_answer_holds_what_changed_and_nothing_else() -> None:
    writer = Writer(RULES)
    writer.tick(snapshot())
    line = writer.tick(snapshot(a=5))
    assert line.keys() == {"at", "number", "policyHash", "now", "changes"}
    assert line["changes"].keys() == {"loads"}
    assert line["changes"]["loads"].keys() == {"a"}


def test_a_tick_with_another_answer_is_written_whole() -> None:
    writer = Writer(RULES)
    writer.tick(snapshot())
    line = writer.tick(snapshot(a=30))
    assert line["decision"]["policies"]["a"]["serving"] == {"spares": 2}
    assert "start" not in line


def test_the_same_answer_is_written_whole_once_a_second() -> None:
    writer = Writer(RULES)
    lines = [writer.tick(snapshot(), after=0.25) for _ in range(21)]
    assert [line["number"] for line in lines if "decision" in line] == [1, 5, 9, 13, 17, 21]


def test_a_view_is_rendered_anew_when_it_is_another_and_only_then() -> None:
    views, seen = RenderedViews(), snapshot()
    others = (seen, replace(seen, loads={"a": load(9), "b": load(3)}), snapshot(spare=0))
    rendered = [snapshot_to_json(each, views)["fleets"]["spares"] for each in others]
    assert rendered[1] is rendered[0]
    assert rendered == [snapshot_to_json(each)["fleets"]["spares"] for each in others]


def test_a_start_is_written_once_a_minute() -> None:
    writer = Writer(RULES)
    lines = [writer.tick(snapshot(), after=0.5) for _ in range(250)]
    assert [line["number"] for line in lines if "start" in line] == [1, 121, 241]


def test_other_policies_begin_with_a_start() -> None:
    writer = Writer(RULES)
    writer.tick(snapshot())
    writer.rules = Rules([policy("a", serving_min=2)], [fleet()], hash="def")
    line = writer.tick(snapshot())
    assert line["policyHash"] == "def"
    assert len(line["start"]["policies"]) == 1


@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [
        pytest.param(snapshot(), snapshot(), set(), id="nothing"),
        pytest.param(snapshot(), snapshot(a=9), {"loads"}, id="a-load"),
        pytest.param(snapshot(), snapshot(spare=0), {"fleets"}, id="a-fleet"),
        pytest.param(snapshot(), snapshot(seat_budget=4), {"seatBudget"}, id="a-budget"),
        pytest.param(snapshot(seat_budget=4), snapshot(), set(), id="no-budget-any-more"),
        pytest.param(snapshot(), snapshot(frozen={"spares": 9.0}), {"frozenUntil"}, id="a-freeze"),
    ],
)
def test_what_changed(before: Snapshot, after: Snapshot, keys: set[str]) -> None:
    found = changed(before, after)
    assert found is not None
    assert found.keys() == keys


def test_what_went_needs_the_whole_snapshot() -> None:
    assert changed(snapshot(frozen={"spares": 9.0}), snapshot()) is None


def test_an_age_is_no_change_and_its_end_is() -> None:
    def aged(age: float) -> Snapshot:
        reading = Reading(value=3.0, age=age, quality=Quality.FRESH)
        return replace(snapshot(), loads={"a": Load(queued=reading), "b": load(3)})

    assert changed(aged(0.1), aged(0.9)) == {}
    assert changed(aged(0.1), aged(math.inf)) != {}


# ------------------------------------------------------------------ reading

READINGS = st.one_of(
    st.just(Reading()),
    st.builds(
        Reading,
        value=st.one_of(st.integers(0, 40).map(float), st.sampled_from([math.nan, math.inf, -1.0, 1e12])),
        age=st.sampled_from([0.0, 0.5, 30.0, math.inf]),
        quality=st.sampled_from(Quality),
    ),
)
LOADS = st.builds(
    Load,
    queued=READINGS,
    in_flight=READINGS,
    engines=READINGS,
    oldest_wait=READINGS,
    peak=READINGS,
    completions=READINGS,
    arrivals=READINGS,
)


def views(serving: int, spare: int, starting: int) -> FleetView:
    return simple({"a": serving, "b": 1}, spare, starting=starting)


SNAPSHOTS = st.builds(
    Snapshot,
    loads=st.fixed_dictionaries({"a": LOADS, "b": LOADS}),
    fleets=st.fixed_dictionaries(
        {"spares": st.builds(views, st.integers(0, 2), st.integers(0, 2), st.integers(0, 1))}
    ),
    frozen=st.sampled_from([{}, {"spares": 130.0}]),
    seat_budget=st.sampled_from([None, 3]),
    gpu_budget=st.sampled_from([None, 2]),
)


@given(ticks=st.lists(st.tuples(SNAPSHOTS, st.sampled_from([0.0, 0.05, 0.4, 3.0])), min_size=1, max_size=30))
def test_the_law_says_the_same_of_every_tick_that_is_read_back(ticks: list[tuple[Snapshot, float]]) -> None:
    writer = Writer(RULES)
    memories = []
    for seen, after in ticks:
        writer.tick(seen, after)
        memories.append(writer.memory)
    steps = read(writer.lines)
    assert len(steps) == len(ticks)
    memory = steps[0].memory
    assert memory is not None
    for step, expected in zip(steps, memories, strict=True):
        _, memory = decide(step.rules.policies, step.rules.fleets, step.snapshot, memory, step.now)
        assert memory == expected


@given(first=SNAPSHOTS, second=SNAPSHOTS, age=st.sampled_from([0.0, 7.5, 3600.0]))
def test_the_law_does_not_ask_how_old_a_reading_is(first: Snapshot, second: Snapshot, age: float) -> None:
    def older(one: Snapshot) -> Snapshot:
        def aged(reading: Reading) -> Reading:
            return replace(reading, age=age) if math.isfinite(reading.age) else reading

        return replace(
            one,
            loads={
                name: Load(
                    **{key: aged(getattr(found, key)) for key in Load.__dataclass_fields__ if key != "absent"}
                )
                for name, found in one.loads.items()
            },
        )

    plain, aged = Writer(RULES), Writer(RULES)
    for seen in (first, second):
        plain.tick(seen)
        aged.tick(older(seen))
    assert plain.memory == aged.memory


def ledger(ticks: int, after: float = 0.25) -> list[dict[str, Any]]:
    writer = Writer(RULES)
    for tick in range(ticks):
        writer.tick(snapshot(a=4 + tick % 3), after)
    return writer.lines


@pytest.mark.parametrize(
    ("lines", "numbers", "skipped", "missing"),
    [
        pytest.param(ledger(10), range(1, 11), 0, 0, id="whole"),
        pytest.param(ledger(10)[3:], [], 7, 0, id="cut-before-any-other-start"),
        pytest.param(ledger(300)[3:], range(241, 301), 237, 0, id="cut-and-taken-up-at-the-next-start"),
        pytest.param([*ledger(9)[:4], *ledger(9)[6:]], range(1, 5), 3, 2, id="a-gap"),
        pytest.param(ledger(3) + ledger(4), [1, 2, 3, 1, 2, 3, 4], 0, 0, id="two-runs"),
    ],
)
def test_what_can_be_decided_again(
    lines: list[dict[str, Any]], numbers: Sequence[int], skipped: int, missing: int
) -> None:
    reader = Reader()
    assert [step.number for step in reader.steps(lines)] == list(numbers)
    assert (reader.skipped, reader.missing) == (skipped, missing)


def test_only_a_start_without_a_past_begins_anew() -> None:
    steps = read(ledger(300) + ledger(2))
    assert [index for index, step in enumerate(steps) if step.memory is not None] == [0, 240, 300]
    assert [index for index, step in enumerate(steps) if step.begins] == [0, 300]


def test_a_tick_under_other_policies_than_the_start_is_not_guessed_at() -> None:
    lines = ledger(3)
    lines[2]["policyHash"] = "other"
    assert len(read(lines)) == 2


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        pytest.param(0, {"number": "x"}, id="no-number"),
        pytest.param(0, {"inputs": {}}, id="no-inputs"),
        pytest.param(0, {"start": {}}, id="an-empty-start"),
        pytest.param(1, {"changes": None}, id="no-changes"),
        pytest.param(1, {"now": None}, id="no-time"),
    ],
)
def test_a_line_that_is_none_is_named(line: int, changes: dict[str, Any]) -> None:
    lines = ledger(3)
    lines[line] |= changes
    with pytest.raises(BadLine, match=f"decision {lines[line]['number']} can't be read"):
        read(lines)


def test_a_reading_stays_what_it_was_until_it_changes() -> None:
    writer = Writer(RULES)
    for a in (4.0, 5.0, 5.0):
        writer.tick(snapshot(a=a))
    assert [step.snapshot.loads["a"].in_flight.value for step in read(writer.lines)] == [4.0, 5.0, 5.0]
    assert read(writer.lines)[2].snapshot.loads["b"].in_flight == fresh(3)
