import json
import math
from dataclasses import replace

import pytest

from scaler.core.decide import decide
from scaler.core.memory import Memory
from scaler.core.model import Kind, Load, OneWay, Quality, Reading, Snapshot, Supply
from scaler.core.replay import decision_to_json, snapshot_from_json, snapshot_to_json
from tests.unit.scaler.core.world import Run, fleet, fresh, load, policy, simple, view


def test_a_ledger_of_snapshots_gives_the_same_decisions_again() -> None:
    policies, fleets = [policy("a"), policy("b")], [fleet()]
    run = Run(policies, fleets)
    ledger = []
    for tick in range(200):
        loads = {
            "a": load(4 + tick % 9, tick % 3, oldest_wait=0.01 * tick, completions=3, arrivals=3),
            "b": Load() if tick % 20 < 8 else load(tick % 12, peak=tick % 14),
        }
        seats = {"spares": simple({"a": 1 + tick % 2, "b": 1}, 1 - tick % 2)}
        run.step(loads, seats, after=0.3, budget=None if tick % 5 else 4)
        snapshot = Snapshot(loads=loads, fleets=seats, seat_budget=None if tick % 5 else 4)
        ledger.append(
            (run.now, json.dumps(snapshot_to_json(snapshot)), json.dumps(decision_to_json(run.decision)))
        )
    memory = Memory.initial(1000.0)
    for at, snapshot_text, decision_text in ledger:
        decision, memory = decide(policies, fleets, snapshot_from_json(json.loads(snapshot_text)), memory, at)
        assert json.dumps(decision_to_json(decision)) == decision_text


def test_a_decision_as_json() -> None:
    run = Run([policy()], [fleet()])
    run.hold({"a": load(4)}, {"spares": simple({"a": 1}, 1)}, 12.0)
    run.step({"a": load(14)}, {"spares": simple({"a": 1}, 1)}, after=1.0)
    data = decision_to_json(run.decision)
    assert set(data) == {"at", "law", "nextWakeup", "policies", "fleets"}
    one = data["policies"]["a"]
    assert (one["mode"], one["demand"], one["needed"], one["capacity"]) == ("Burst", 14, 14, 8)
    assert one["wanted"] == one["serving"] == {"spares": 2}
    assert {"code", "facts", "until", "sentence"} == set(one["reasons"][0])
    assert one["reasons"][0]["sentence"].startswith("Demand reached 14 requests")
    assert data["fleets"]["spares"]["total"] == 3
    json.dumps(data, allow_nan=False)


def test_seats_that_are_told_apart_come_back() -> None:
    kinds = (Kind(up=("a", "b"), starts=(), seats=2), Kind(up=(), starts=("b",), seats=1))
    snapshot = Snapshot(loads={}, fleets={"spares": replace(simple({"a": 1}, 2), kinds=kinds)})
    assert snapshot_from_json(json.loads(json.dumps(snapshot_to_json(snapshot)))).fleets == snapshot.fleets


def test_every_reading_comes_back() -> None:
    names = [name for name in Load.__slots__ if name != "absent"]
    full = Load(**{name: fresh(number / 8) for number, name in enumerate(names)}, absent=("ttft",))
    snapshot = Snapshot(loads={"a": full}, fleets={})
    assert snapshot_from_json(json.loads(json.dumps(snapshot_to_json(snapshot)))).loads == {"a": full}


@pytest.mark.parametrize(
    "supply",
    [
        pytest.param(
            Supply(serving=1, promoting=2, draining=3, promotable=4, switchable=5), id="what all have"
        ),
        pytest.param(Supply(startable=1, blocked=2), id="nothing up"),
        pytest.param(Supply(promotable=3, parked=2, paused_wake=0.2, parked_wake=3.5), id="parked"),
    ],
)
def test_every_part_of_a_supply_comes_back(supply: Supply) -> None:
    snapshot = Snapshot(loads={}, fleets={"spares": view({"a": supply}, serving=1, start_seconds=2)})
    text = json.dumps(snapshot_to_json(snapshot))
    assert snapshot_from_json(json.loads(text)).fleets == snapshot.fleets


def test_freezes_come_back_with_their_ways() -> None:
    snapshot = Snapshot(loads={}, fleets={}, frozen={"a": 9.0, "b": 9.0}, one_way={"b": OneWay.UP})
    back = snapshot_from_json(json.loads(json.dumps(snapshot_to_json(snapshot))))
    assert (back.frozen, back.one_way) == (snapshot.frozen, snapshot.one_way)


def test_wake_times_that_are_none_are_unknown() -> None:
    spoilt = Supply(promotable=1, parked=1, paused_wake=math.nan, parked_wake=math.inf)
    snapshot = Snapshot(loads={}, fleets={"spares": view({"a": spoilt}, spare=1)})
    text = json.dumps(snapshot_to_json(snapshot), allow_nan=False)
    back = snapshot_from_json(json.loads(text)).fleets
    both = [policy("a", serving_min=0), policy("b", serving_min=0)]
    run, again = Run(both, [fleet()]), Run(both, [fleet()])
    for demand in (2, 30):
        told = {"a": load(0, demand), "b": load(0)}
        assert run.step(told, dict(snapshot.fleets)) == again.step(told, dict(back))
    assert run.memory.policies == again.memory.policies


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_survive_as_unknown(value: float) -> None:
    spoilt = Load(queued=Reading(value=value, age=value, quality=Quality.FRESH))
    text = json.dumps(snapshot_to_json(Snapshot(loads={"a": spoilt}, fleets={})), allow_nan=False)
    back = snapshot_from_json(json.loads(text))
    run, again = Run([policy()], [fleet()]), Run([policy()], [fleet()])
    seats = {"spares": simple({"a": 1}, 1)}
    assert run.step(dict(back.loads), seats) == again.step({"a": Load()}, seats)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({}, id="empty"),
        pytest.param({"loads": [], "fleets": {}}, id="a list for a mapping"),
        pytest.param({"loads": {"a": {"queued": {"value": 1}}}, "fleets": {}}, id="half a reading"),
        pytest.param(
            {"loads": {"a": {"queued": {"value": 1, "age": 0, "quality": "Good"}}}, "fleets": {}},
            id="no such quality",
        ),
        pytest.param({"loads": {}, "fleets": {"f": {"supply": None}}}, id="no supply"),
    ],
)
def test_what_is_no_snapshot_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"not a|is not"):
        snapshot_from_json(data)
