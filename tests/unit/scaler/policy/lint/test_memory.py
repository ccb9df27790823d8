"""GPU memory of a seat: who needs what, and what is left for whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.policy.lint.memory import Footprint, Room, SeatMemory, reserve, seat_memory
from tests.unit.scaler.policy.lint.sets import Tree, deployment, fleet, policy, residents, subject, terms
from warmpool.tiers import Tier

LARGE = {"pausedMiB": 16_000, "kvMiB": 40_000}
SMALL = {"pausedMiB": 4_000, "kvMiB": 10_000}


def memory(*trees: Tree, **assumptions: int) -> SeatMemory | None:
    looked_at = subject(*trees, **assumptions)
    return seat_memory(looked_at, looked_at.fleet("own"))


@pytest.mark.parametrize(("size", "kept"), [(100, 2), (101, 3), (143_771, 2876), (1, 1)])
def test_two_percent_stay_free_rounded_up(size: int, kept: int) -> None:
    assert reserve(size) == kept


def test_the_largest_kv_memory_counts_where_it_is_released() -> None:
    found = memory(fleet(seat={"memoryMiB": 80_000}), policy(engine=LARGE), policy("code", engine=SMALL))
    assert found is not None
    assert terms(found.needed) == {
        "chat paused": 16_000.0,
        "code paused": 4_000.0,
        "chat KV, the largest": 40_000.0,
        "2 % reserve": 1_600.0,
    }
    assert [
        (room.footprint.name, room.alone, room.shared, room.share, room.in_flight) for room in found.rooms
    ] == [
        ("chat", 62_400, 58_400, 1.0, 32),
        ("code", 74_400, 58_400, 1.0, 32),
    ]


def test_all_kv_memory_counts_where_it_is_kept() -> None:
    shape = {"memoryMiB": 80_000, "kvWhenPaused": "Keep"}
    found = memory(fleet(seat=shape), policy(engine=LARGE), policy("code", engine=SMALL))
    assert found is not None
    assert found.needed.total == 16_000 + 40_000 + 4_000 + 10_000 + 1_600
    assert [room.shared for room in found.rooms] == [48_400, 18_400]


def test_seats_without_gpus_and_without_residents_have_no_arithmetic() -> None:
    assert memory(fleet(seat={"gpus": 0}), policy(engine=LARGE)) is None
    assert memory(fleet(), fleet("other"), policy(fleets={"other": 1})) is None


def test_the_fleet_s_own_memory_counts_before_the_assumed() -> None:
    given_here = memory(fleet(seat={"memoryMiB": 80_000}), policy(), seat_memory_mib=1)
    assumed = memory(fleet(), policy(), seat_memory_mib=1)
    assert given_here is not None
    assert assumed is not None
    assert (given_here.memory, assumed.memory) == (80_000, 1)


def test_a_known_pod_template_says_who_lives_on_a_seat() -> None:
    listed = residents(
        {"policy": "chat", "command": ["x"], "port": 1, "pausedMiB": 99},
        {"policy": "gone", "command": ["x"], "port": 2, "pausedMiB": 7, "kvMiB": 5},
    )
    found = memory(
        fleet(), policy(engine=LARGE), policy("code", engine=SMALL), deployment(metadata__annotations=listed)
    )
    assert found is not None
    assert [(room.footprint.name, room.footprint.paused, room.footprint.kv) for room in found.rooms] == [
        ("chat", 99, 40_000),
        ("gone", 7, 5),
    ]


@pytest.mark.parametrize(
    ("host", "cold"),
    [
        pytest.param(47_999, ["math"], id="room for two parked, and for none that moves out"),
        pytest.param(48_000, [], id="and for one that moves out"),
    ],
)
def test_host_memory_is_for_all_that_are_parked_and_one_that_moves_out(host: int, cold: list[str]) -> None:
    found = memory(
        fleet(seat={"memoryMiB": 70_000}, spare={"min": 1, "parked": {"hostMemoryMiB": host}}),
        *(policy(name, engine={"pausedMiB": 16_000, "kvMiB": 40_000}) for name in ("chat", "code", "math")),
    )
    assert found is not None
    assert [each.name for each in found.at(Tier.COLD)] == cold
    assert found.host_wanted == 48_000


def test_where_no_host_memory_would_do_none_is_named() -> None:
    found = memory(
        fleet(seat={"memoryMiB": 50_000}, spare={"min": 1, "parked": {"hostMemoryMiB": 90_000}}),
        policy(engine=LARGE),
    )
    assert found is not None
    assert found.host_wanted is None


def test_what_computing_takes_counts_beside_kv_memory() -> None:
    found = memory(fleet(seat={"memoryMiB": 80_000}), policy(engine={**LARGE, "activationMiB": 2_000}))
    assert found is not None
    assert terms(found.needed)["chat KV, the largest"] == 42_000.0


@given(
    alone=st.integers(-1000, 200_000) | st.none(),
    shared=st.integers(-200_000, 200_000) | st.none(),
    kv=st.integers(1, 200_000) | st.none(),
    target=st.integers(1, 1000),
)
def test_a_share_is_never_more_than_all_and_never_less_than_nothing(
    alone: int | None, shared: int | None, kv: int | None, target: int
) -> None:
    footprint = Footprint(name="chat", policy=None, target=target, paused=1, kv=kv)
    room = Room(footprint=footprint, alone=alone, shared=shared)
    if room.share is None:
        assert room.in_flight is None
        return
    assert 0.0 <= room.share <= 1.0
    assert room.in_flight is not None
    assert 0 <= room.in_flight <= target
