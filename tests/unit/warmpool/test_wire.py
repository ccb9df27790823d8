"""Residents, claims and seats survive JSON, and what isn't one of them is refused by name."""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.errors import BadOrder
from warmpool.expectations import Answer, Ownership, Recording, Statement
from warmpool.seats import (
    Claim,
    Crash,
    FleetName,
    Operation,
    PolicyName,
    Resident,
    Seat,
    SeatName,
    Verdict,
    seat_value,
)
from warmpool.states import Depth, ResidentState
from warmpool.tiers import Budget
from warmpool.timeline import CacheUse, PassedOver, StartFacts, WeightLoad
from warmpool.wire import (
    budget_from_json,
    budget_to_json,
    claim_from_json,
    claim_to_json,
    recording_from_json,
    recording_to_json,
    resident_from_json,
    resident_to_json,
    seat_from_json,
    seat_to_json,
    statement_from_json,
    statement_to_json,
)

times = st.floats(min_value=0, max_value=1e11, allow_nan=False)
counts = st.integers(min_value=0, max_value=2**63)
policies = st.text(min_size=1, max_size=12).map(PolicyName)
starts = st.builds(
    StartFacts,
    at=times,
    told=st.booleans(),
    weights=st.none()
    | st.builds(
        WeightLoad,
        tier=st.text(max_size=8),
        nbytes=counts,
        seconds=times,
        passed_over=st.lists(
            st.builds(
                PassedOver, tier=st.text(max_size=8), code=st.text(max_size=8), reason=st.text(max_size=8)
            ),
            max_size=2,
        ).map(tuple),
    ),
    compile_cache=st.none() | st.builds(CacheUse, hits=counts, misses=counts),
    first_request_seconds=st.none() | times,
)
residents = st.builds(
    Resident,
    policy=policies,
    state=st.sampled_from(ResidentState),
    since=times,
    address=st.text(max_size=20),
    proven_at=st.none() | times,
    kv_released=st.booleans(),
    in_flight=counts,
    restarts=counts,
    failure=st.text(max_size=20),
    refused=st.booleans(),
    waiting=st.text(max_size=20),
    pid=st.none() | counts,
    memory_bytes=st.none() | counts,
    parked_bytes=st.none() | counts,
    wake_seconds=st.dictionaries(st.sampled_from(Depth), times),
    phases=st.dictionaries(st.text(max_size=8), times, max_size=3),
    start=st.none() | starts,
    checkpoint=st.text(max_size=8),
    stage=st.text(max_size=8),
    stage_reason=st.text(max_size=8),
)
claims = st.builds(
    Claim,
    id=st.text(max_size=12),
    policy=policies,
    operation=st.sampled_from(Operation),
    holder=st.text(max_size=12),
    epoch=counts,
    since=times,
    deadline=times,
    leaving=st.none() | policies,
    displace=st.none() | st.lists(policies, max_size=3).map(tuple),
)
crashes = st.builds(
    Crash,
    container=st.text(max_size=8),
    reason=st.text(max_size=8),
    restarts=counts,
    how=st.text(max_size=8),
    refused=st.booleans(),
)
seats = st.builds(
    Seat,
    name=st.text(max_size=12).map(SeatName),
    uid=st.text(max_size=12),
    version=st.text(max_size=12),
    fleet=st.text(max_size=12).map(FleetName),
    node=st.text(max_size=12),
    gpus=st.lists(st.text(max_size=8), max_size=3).map(tuple),
    residents=st.lists(residents, max_size=3).map(tuple),
    serving=st.frozensets(policies, max_size=2),
    claim=st.none() | claims,
    verdict=st.sampled_from(Verdict),
    admitted=st.booleans(),
    ready=st.booleans(),
    reachable=st.booleans(),
    terminating=st.booleans(),
    leaves_by=st.none() | times,
    node_leaving=st.text(max_size=8),
    lent=st.booleans(),
    created_at=times,
    template=st.text(max_size=8),
    agent=st.text(max_size=8),
    memory=st.none() | st.deferred(lambda: budgets),
    crash=st.none() | crashes,
)
budgets = st.builds(
    Budget,
    device_bytes=st.none() | counts,
    paused_bytes=counts,
    largest_compute_bytes=counts,
    reserve_bytes=counts,
    host_bytes=counts,
    parked_bytes=counts,
    verified=st.booleans(),
    stage_bytes=counts,
    stage_reason=st.text(max_size=8),
)
ownerships = st.builds(
    Ownership,
    weights_digest=st.text(max_size=8),
    engine_version=st.text(max_size=8),
    dtype=st.text(max_size=8),
    tensor_parallel_size=st.integers(0, 64),
)
answers = st.builds(
    Answer,
    prompt=st.text(max_size=8),
    tokens=st.lists(counts, min_size=1, max_size=3).map(tuple),
    logprobs=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
)
said = st.lists(answers, min_size=1, max_size=3).map(tuple)
recordings = st.builds(
    Recording,
    ownership=ownerships,
    answers=said,
    witnesses=st.frozensets(st.text(max_size=8), max_size=3),
)
statements = st.builds(Statement, uid=st.text(max_size=8), ownership=ownerships, answers=said)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def through_text(data: object) -> Any:
    return json.loads(json.dumps(data))


@given(residents)
def test_residents_survive(resident: Resident) -> None:
    assert resident_from_json(through_text(resident_to_json(resident))) == resident


@given(claims)
def test_claims_survive(claim: Claim) -> None:
    assert claim_from_json(through_text(claim_to_json(claim))) == claim


@given(budgets)
def test_budgets_survive_and_say_what_is_left(budget: Budget) -> None:
    data = through_text(budget_to_json(budget))
    assert budget_from_json(data) == budget
    assert data["freeBytes"] == budget.free_bytes


@given(recordings)
def test_recordings_survive(recording: Recording) -> None:
    assert recording_from_json(through_text(recording_to_json(recording))) == recording


@given(statements)
def test_statements_survive(statement: Statement) -> None:
    assert statement_from_json(through_text(statement_to_json(statement))) == statement


@pytest.mark.parametrize("broken", [{"answers": []}, {"answers": [{"prompt": "p", "tokens": []}]}])
def test_a_recording_that_expects_nothing_is_none(broken: dict[str, Any]) -> None:
    with pytest.raises(BadOrder, match="at least one"):
        recording_from_json({"witnesses": ["u"]} | broken)


@given(seats)
def test_seats_survive_and_carry_their_value(seat: Seat) -> None:
    data = through_text(seat_to_json(seat))
    assert seat_from_json(data) == seat
    assert data["value"] == str(seat_value(seat))


RESIDENT = {"policy": "a", "state": "Paused", "since": 1.0}
CLAIM = {
    "id": "1",
    "policy": "a",
    "operation": "Promote",
    "holder": "h",
    "epoch": 1,
    "since": 1.0,
    "deadline": 2.0,
}
SEAT = {"name": "s", "uid": "u", "version": "1", "fleet": "f"}
BUDGET = {"deviceBytes": 9, "pausedBytes": 1, "largestComputeBytes": 2, "reserveBytes": 3}
ANSWERS = [{"prompt": "p", "tokens": [1]}]
READERS: list[tuple[str, Callable[[Any], object], dict[str, Any]]] = [
    ("resident", resident_from_json, RESIDENT),
    ("claim", claim_from_json, CLAIM),
    ("seat", seat_from_json, SEAT),
    ("budget", budget_from_json, BUDGET),
    ("recording", recording_from_json, {"answers": ANSWERS, "witnesses": ["u"]}),
    ("statement", statement_from_json, {"answers": ANSWERS, "uid": "u"}),
]
by_reader = pytest.mark.parametrize(
    ("kind", "read", "least"), [pytest.param(*row, id=row[0]) for row in READERS]
)


@by_reader
def test_the_least_is_enough_and_unknown_keys_are_ignored(
    kind: str, read: Callable[[Any], object], least: dict[str, Any]
) -> None:
    assert read(least) == read({**least, "fromANewerWriter": {"x": [1]}})


@by_reader
def test_each_required_key_is_missed(kind: str, read: Callable[[Any], object], least: dict[str, Any]) -> None:
    for key in least:
        with pytest.raises(BadOrder, match=rf"not a {kind}.*{key}"):
            read({other: value for other, value in least.items() if other != key})


@by_reader
@given(data=st.data())
def test_anything_else_is_a_bad_order_and_no_other_error(
    kind: str, read: Callable[[Any], object], least: dict[str, Any], data: st.DataObject
) -> None:
    keys = st.sampled_from(
        [*least, "phases", "residents", "serving", "claim", "gpus", "inFlight", "provenAt", "ownership"]
    )
    broken = data.draw(anything | st.dictionaries(keys, anything).map(lambda part: {**least, **part}))
    with suppress(BadOrder):
        read(broken)


@pytest.mark.parametrize(
    ("read", "data"),
    [
        pytest.param(resident_from_json, RESIDENT | {"state": "Sleeping"}, id="unknown-state"),
        pytest.param(resident_from_json, RESIDENT | {"policy": None}, id="policy-is-null"),
        pytest.param(resident_from_json, RESIDENT | {"since": "1.0"}, id="time-is-text"),
        pytest.param(resident_from_json, RESIDENT | {"since": math.nan}, id="time-is-nan"),
        pytest.param(resident_from_json, RESIDENT | {"provenAt": math.inf}, id="time-is-infinite"),
        pytest.param(resident_from_json, RESIDENT | {"since": 10**400}, id="time-out-of-range"),
        pytest.param(resident_from_json, RESIDENT | {"inFlight": math.inf}, id="count-is-infinite"),
        pytest.param(resident_from_json, RESIDENT | {"inFlight": 1.5}, id="count-is-a-fraction"),
        pytest.param(resident_from_json, RESIDENT | {"inFlight": True}, id="count-is-a-flag"),
        pytest.param(resident_from_json, RESIDENT | {"kvReleased": "false"}, id="flag-is-text"),
        pytest.param(resident_from_json, RESIDENT | {"phases": [["x", 1.0]]}, id="phases-is-a-list"),
        pytest.param(resident_from_json, RESIDENT | {"start": {"at": "1.0"}}, id="start-is-text"),
        pytest.param(resident_from_json, RESIDENT | {"start": {"told": True}}, id="start-has-no-time"),
        pytest.param(
            resident_from_json,
            RESIDENT | {"start": {"at": 1.0, "weights": {"tier": "Disk"}}},
            id="load-has-no-time",
        ),
        pytest.param(claim_from_json, CLAIM | {"deadline": math.nan}, id="deadline-would-never-pass"),
        pytest.param(claim_from_json, CLAIM | {"operation": "Lend"}, id="unknown-operation"),
        pytest.param(claim_from_json, CLAIM | {"leaving": 3}, id="leaving-is-a-number"),
        pytest.param(seat_from_json, SEAT | {"gpus": "GPU-1"}, id="gpus-is-text"),
        pytest.param(seat_from_json, SEAT | {"serving": {"a": True}}, id="serving-is-a-mapping"),
        pytest.param(seat_from_json, SEAT | {"residents": [{}]}, id="a-resident-is-broken"),
        pytest.param(seat_from_json, SEAT | {"verdict": "Fine"}, id="unknown-verdict"),
        pytest.param(budget_from_json, BUDGET | {"deviceBytes": "9"}, id="memory-is-text"),
        pytest.param(recording_from_json, {"answers": [[1]], "witnesses": []}, id="answer-is-a-list"),
        pytest.param(statement_from_json, {"answers": ANSWERS, "uid": 1}, id="uid-is-a-number"),
        pytest.param(seat_from_json, None, id="null"),
        pytest.param(claim_from_json, [], id="a-list"),
        pytest.param(resident_from_json, "Paused", id="text"),
    ],
)
def test_malformed(read: Callable[[Any], object], data: object) -> None:
    with pytest.raises(BadOrder, match=r"^not a (resident|start|claim|seat|budget|recording|statement)"):
        read(data)


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert resident_from_json(RESIDENT | {"inFlight": 3.0}).in_flight == 3
