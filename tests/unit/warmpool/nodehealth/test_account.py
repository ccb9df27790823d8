"""Who is told what of the GPUs' memory, and when it counts as verified."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.nodehealth.account import (
    SLACK_BYTES,
    SLACK_PER_PROCESS_BYTES,
    Ask,
    DeviceAccount,
    DeviceReading,
    Reading,
    Scope,
    account,
    holders,
)
from warmpool.nodehealth.nvml import Device, DeviceMemory, GpuProcess
from warmpool.nodehealth.processes import NOBODY, Identity, Look, Owner, Unseen

GPU, MIG = Device(uuid="GPU-a", index=0), Device(uuid="MIG-a", index=0, parent="GPU-a")
C, D = "c" * 64, "d" * 64
MINE, YOURS = Owner("pod-1", C), Owner("pod-2", D)
GB = 10**9
TOTAL = 140 * GB


def process(
    pid: int,
    owner: Owner = NOBODY,
    *,
    uid: int = 1000,
    kin: tuple[tuple[int, ...], ...] = (),
    namespace: str = "pid:[1]",
) -> Identity:
    own = (pid, pid - 100) if owner != NOBODY else (pid,)
    return Identity(ns_pids=own, namespace=namespace, owner=owner, uid=uid, kin=kin or (own,))


def reading(
    held: Mapping[int, int | None],
    look: Look,
    *,
    beyond: int = 0,
    sees_all: bool = True,
    reserved: int | None = 1,
) -> Reading:
    used = sum(size or 0 for size in held.values()) + beyond
    memory = DeviceMemory(
        total_bytes=TOTAL, used_bytes=used, free_bytes=TOTAL - used, reserved_bytes=reserved
    )
    processes = tuple(GpuProcess(pid, size) for pid, size in held.items())
    read = DeviceReading(device=GPU, memory=memory, processes=processes)
    return Reading(began_at=0.0, devices=(read,), look=look, sees_all=sees_all)


def told(found: Reading, scope: Scope, pids: frozenset[int] = frozenset()) -> DeviceAccount:
    (only,) = account(found, Ask(scope=scope, devices=["GPU-a"], pids=pids))
    return only


def held(found: DeviceAccount) -> dict[int, int | None]:
    return {holding.pid: holding.held_bytes for holding in found.holdings}


IN_POD = Scope(owner=MINE, by_own_ids=True)


def test_a_pod_is_told_its_own_processes_and_the_sum_of_all_others() -> None:
    look = {
        101: process(101, MINE),
        102: process(102, Owner("pod-1", D)),
        201: process(201, YOURS),
        9: process(9),
    }
    found = told(reading({101: 5 * GB, 102: GB, 201: 2 * GB, 9: 3 * GB}, look), IN_POD)
    assert held(found) == {101: 5 * GB, 102: GB}
    assert found.others_bytes == 5 * GB
    assert found.reason == ""


@pytest.mark.parametrize(
    ("scope", "its"),
    [
        pytest.param(Scope(owner=Owner("", C)), {11}, id="a container without a pod"),
        pytest.param(Scope(uid=1000), {12}, id="a user outside containers"),
        pytest.param(Scope(uid=0), {13}, id="root is a user like any other"),
        pytest.param(Scope(), set(), id="nobody"),
        pytest.param(Scope(everyone=True), {11, 12, 13, 101, 102}, id="whoever is trusted"),
    ],
)
def test_a_scope_holds_its_own_processes_alone(scope: Scope, its: set[int]) -> None:
    look = {
        11: process(11, Owner("", C)),
        12: process(12, uid=1000),
        13: process(13, uid=0),
        101: process(101, MINE),
        102: process(102, YOURS, uid=1000),
    }
    assert set(held(told(reading(dict.fromkeys(look, GB), look), scope))) == its


def test_a_process_is_known_by_its_ancestors_as_the_caller_numbers_them() -> None:
    kin = ((150, 50), (140, 40), (130,), (120, 20), (110, 0))
    look = {150: process(150, MINE, kin=kin)}
    by_own = told(reading({150: GB}, look), IN_POD).holdings[0]
    by_node = told(reading({150: GB}, look), Scope(owner=MINE)).holdings[0]
    assert by_own.ids == (50, 40, 20)
    assert by_node.ids == (150, 140, 130, 120, 110)
    assert (by_own.namespace, by_node.namespace) == ("pid:[1]", "")


def test_a_namespace_that_may_not_be_read_goes_by_its_container() -> None:
    look = {150: process(150, MINE, namespace="")}
    assert told(reading({150: GB}, look), IN_POD).holdings[0].namespace == C


def test_processes_that_are_named_are_told_and_the_others_are_others() -> None:
    look = {150: process(150, MINE), 160: process(160, MINE, kin=((160, 60), (140, 40)))}
    found = told(reading({150: GB, 160: 2 * GB}, look), IN_POD, frozenset({40}))
    assert held(found) == {160: 2 * GB}
    assert found.others_bytes == GB


@pytest.mark.parametrize("unseen", Unseen)
def test_a_process_that_nobody_knows_might_be_the_callers(unseen: Unseen) -> None:
    found = told(reading({101: GB, 7: GB}, {101: process(101, MINE), 7: unseen}), IN_POD)
    assert "process 7" in found.reason
    assert held(found) == {101: GB}


def test_what_the_driver_does_not_tell_of_the_callers_process_is_not_zero() -> None:
    found = told(reading({101: None}, {101: process(101, MINE)}), IN_POD)
    assert held(found) == {101: None}
    assert "doesn't tell what process 101 holds" in found.reason


def test_what_the_driver_does_not_tell_of_others_makes_their_sum_unknown_and_no_more() -> None:
    found = told(reading({101: GB, 201: None}, {101: process(101, MINE), 201: process(201, YOURS)}), IN_POD)
    assert (found.others_bytes, found.unaccounted_bytes, found.reason) == (None, None, "")


@given(st.integers(0, 4), st.integers(-2, 2))
def test_memory_that_nobody_is_said_to_hold_is_tolerated_up_to_what_drivers_take(
    count: int, more: int
) -> None:
    slack = SLACK_BYTES + SLACK_PER_PROCESS_BYTES * count
    look = {pid: process(pid, MINE) for pid in range(101, 101 + count)}
    found = told(reading(dict.fromkeys(look, GB), look, beyond=slack + more), IN_POD)
    assert found.unaccounted_bytes == slack + more
    assert bool(found.reason) is (more > 0)


def test_an_empty_list_is_not_nobody_where_the_driver_leaves_processes_out() -> None:
    found = told(reading({}, {}, beyond=GB, sees_all=False), IN_POD)
    assert "held by nobody whom the driver lists" in found.reason


def test_an_empty_list_on_an_empty_device_is_nobody() -> None:
    assert told(reading({}, {}, sees_all=False), IN_POD).reason == ""


@pytest.mark.parametrize("sees_all", [True, False])
def test_where_nothing_can_be_added_up_the_hosts_namespace_decides(*, sees_all: bool) -> None:
    found = told(reading({101: GB}, {101: process(101, MINE)}, reserved=None, sees_all=sees_all), IN_POD)
    assert found.unaccounted_bytes is None
    assert bool(found.reason) is not sees_all


@pytest.mark.parametrize(
    "read",
    [
        DeviceReading(device=GPU, reason="it hangs"),
        DeviceReading(
            device=GPU,
            memory=DeviceMemory(total_bytes=1, used_bytes=0, free_bytes=1, reserved_bytes=0),
            reason="it hangs",
        ),
    ],
)
def test_a_device_that_was_not_read_is_unknown(read: DeviceReading) -> None:
    found = told(Reading(began_at=0, devices=(read,), look={}), IN_POD)
    assert (found.memory, found.holdings, found.others_bytes, found.reason) == (
        read.memory,
        (),
        None,
        "it hangs",
    )


def test_only_devices_that_were_asked_for_are_told() -> None:
    assert account(reading({}, {}), Ask(scope=IN_POD, devices=["GPU-b"])) == ()


def test_whose_gpus_are_held_goes_by_mig_devices_where_a_gpu_is_partitioned() -> None:
    memory = DeviceMemory(total_bytes=1, used_bytes=0, free_bytes=1, reserved_bytes=0)
    whole = Device(uuid="GPU-a", index=0, partitioned=True)
    found = Reading(
        began_at=0,
        devices=tuple(
            DeviceReading(device=each, memory=memory, processes=(GpuProcess(101, 1),))
            for each in (whole, MIG)
        ),
        look={101: process(101, MINE)},
    )
    assert holders(found, IN_POD) == {"MIG-a"}
    assert holders(found, Scope(owner=YOURS)) == frozenset()


owners = st.sampled_from([NOBODY, MINE, YOURS, Owner("", C)])


@given(
    st.dictionaries(st.integers(101, 120), st.tuples(owners, st.integers(0, TOTAL // 40)), max_size=12),
    st.sampled_from([IN_POD, Scope(owner=YOURS), Scope(uid=1000), Scope(owner=Owner("", C)), Scope()]),
)
def test_own_and_others_and_unaccounted_are_all_that_is_used(
    those: dict[int, tuple[Owner, int]], scope: Scope
) -> None:
    look = {pid: process(pid, owner) for pid, (owner, _) in those.items()}
    found = told(reading({pid: size for pid, (_, size) in those.items()}, look, beyond=12345), scope)
    assert found.memory is not None
    own = sum(size or 0 for size in held(found).values())
    assert own + (found.others_bytes or 0) + (found.unaccounted_bytes or 0) == found.memory.used_bytes
    assert all(scope.holds(look[pid]) for pid in held(found))
