"""Fleets that come and go while a controller works: of other kinds, and in the middle of a write."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from scaler.cluster.kube.conditions import ConditionType
from scaler.cluster.kube.errors import Forbidden
from scaler.cluster.kube.fleets import KubeFleet
from scaler.cluster.kube.resources import STATEFUL_SET
from tests.contract.kube_rig import DEPLOYMENTS, NAMESPACE_NAME, Stage, fleet_of, stage
from tests.fakes.kube_api import Call
from tests.fakes.kube_api.api import Target as Object
from tests.fakes.kube_api.faults import Answer
from tests.integration.kube.test_cluster import eventually
from warmpool.seats import FleetName, PolicyName

FLEET, OTHER = FleetName("spares"), FleetName("others")


@pytest.fixture
async def set_up(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path, FLEET, [PolicyName("chat")]) as made:
        yield made


def hidden() -> KubeFleet:
    """A fleet of a kind that the controller's Role leaves out."""
    of = fleet_of(OTHER)
    return replace(of, target=replace(of.target, kind=STATEFUL_SET))


def of_the_scale(call: Call) -> bool:
    return call.subresource == "scale"


def size(made: Stage) -> int:
    found = made.api.store.get(DEPLOYMENTS, (NAMESPACE_NAME, FLEET))
    assert found is not None
    return int(found.body["spec"]["replicas"])


async def test_a_kind_that_no_fleet_is_of_any_more_holds_nothing_up_and_is_followed_no_longer(
    set_up: Stage,
) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        cluster.adopt([fleet_of(FLEET), hidden()])
        await eventually(lambda: "statefulsets.apps is forbidden" in cluster.waits_for)
        assert not cluster.synced
        cluster.adopt([fleet_of(FLEET)])
        assert (cluster.synced, cluster.waits_for) == (True, "")
        assert cluster.age < 30.0
        await cluster.wait_synced()
        asked = [call for call in set_up.api.calls if call.resource == "statefulsets"]
        cluster.adopt([fleet_of(FLEET), hidden()])  # and once more from the beginning
        await eventually(
            lambda: len([call for call in set_up.api.calls if call.resource == "statefulsets"]) > len(asked)
        )


async def test_a_fleet_is_looked_at_while_another_ones_kind_can_not_be_seen(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        cluster.adopt([fleet_of(FLEET), hidden()])
        set_up.api.delete(Object(kind=DEPLOYMENTS, namespace=NAMESPACE_NAME, name=FLEET), {}, {})
        await eventually(
            lambda: (
                [each.type for each in cluster.conditions.get(FLEET, ())] == [ConditionType.WORKLOAD_MISSING]
            )
        )


async def test_a_size_that_arrives_when_its_fleet_has_gone_is_nobodys(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        await cluster.resize(FLEET, 2)
        set_up.change(FLEET, {"spec": {"replicas": 1}}, DEPLOYMENTS)
        set_up.api.faults.delay(0.2, of_the_scale)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cluster.resize(FLEET, 2))
            await asyncio.sleep(0)
            cluster.adopt([])
        assert size(set_up) == 2
        assert dict(cluster.conditions) == {}


async def test_a_size_that_is_on_its_way_counts_and_one_that_was_refused_does_not(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        set_up.api.faults.delay(0.2, of_the_scale)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cluster.resize(FLEET, 2))
            await asyncio.sleep(0)
            assert (cluster.replicas(FLEET), size(set_up)) == (2, 0)
        assert (cluster.replicas(FLEET), size(set_up)) == (2, 2)
        set_up.api.faults.answer(Answer(status=403), of_the_scale)
        resizing = asyncio.gather(cluster.resize(FLEET, 3), return_exceptions=True)
        await asyncio.sleep(0)
        assert cluster.replicas(FLEET) == 3
        assert [type(each) for each in await resizing] == [Forbidden]
        assert cluster.replicas(FLEET) == 2


async def test_of_two_sizes_on_their_way_the_later_one_stays(set_up: Stage) -> None:
    async with set_up.controller([fleet_of(FLEET)]) as cluster:
        set_up.api.faults.delay(0.2, of_the_scale, times=1)
        await asyncio.gather(cluster.resize(FLEET, 2), cluster.resize(FLEET, 3))
        assert (cluster.replicas(FLEET), size(set_up)) == (3, 3)
