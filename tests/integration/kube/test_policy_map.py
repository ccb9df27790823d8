"""Policies in a ConfigMap: what changes is in force at once, and whatever happens to it or to the server, the last good set stays."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from scaler.cluster.kube.policy_map import PolicyConfigMap
from scaler.cluster.kube.reflector import Timing
from scaler.cluster.kube.resources import CONFIG_MAP
from scaler.errors import PolicyError, PolicyFault
from scaler.policy.compile import PolicySet
from scaler.policy.reading import PolicyTexts, Reading
from scaler.runtime.clock import SystemClock
from scaler.runtime.config_map_policies import ConfigMapReader
from scaler.runtime.events import EventLog
from scaler.runtime.metrics.reloads import CONTROLLER, ReloadMetrics
from scaler.runtime.policy_process import PolicyReader
from scaler.runtime.reload import Attempt, Cause, Outcome, Reloader, Told
from tests.fakes.kube_api import Call, KubeApi, Pace, User
from tests.fakes.kube_api.faults import Answer
from tests.integration.kube.conftest import Cluster, allowed, documented_role

NAME = "policies"
QUICK = Timing(call=5, watch=(60, 60), idle=60, backoff=(0.01, 0.05), short=0.05)
WATCHFUL = Timing(call=5, watch=(60, 60), idle=0.5, backoff=(0.01, 0.05), short=0.05)
WAIT = 20.0
AT_ONCE = 5.0
"""A look each second, and what a process that reads takes on a busy machine: a mounted ConfigMap takes a minute."""


def fleet(seats: int = 4, name: str = "spares") -> str:
    return f"apiVersion: emberpool.dev/v1alpha1\nkind: Fleet\nmetadata: {{name: {name}}}\nspec: {{maxSeats: {seats}}}\n"


def may(call: Call) -> bool:
    """What the Role grants, with a watch of the policies alone."""
    role = documented_role()
    return allowed(role, call) or (call.resource, call.verb, call.name) == ("configmaps", "watch", NAME)


@pytest.fixture
def api() -> KubeApi:
    users = {"test": User(name="test", may=may), "admin": User(name="admin")}
    return KubeApi(users, Pace(second=0.02, bookmarks=5))


@dataclass
class Force:
    """Takes every set."""

    adopted: list[PolicySet] = field(default_factory=list)

    async def refuse(self, _reading: Reading) -> Sequence[PolicyFault]:
        return ()

    def adopt(self, policies: PolicySet) -> Sequence[str]:
        self.adopted.append(policies)
        return ()


@dataclass
class Rig:
    """A process that follows the ConfigMap."""

    cluster: Cluster
    held: PolicyConfigMap
    reader: ConfigMapReader
    reloader: Reloader
    force: Force
    events: list[Mapping[str, Any]]
    tasks: asyncio.TaskGroup

    @property
    def seats(self) -> int:
        """The size that is in force."""
        (found,) = self.force.adopted[-1].fleets.values()
        return found.spec.max_seats

    async def write(self, **texts: str) -> None:
        await self.cluster.patch(
            CONFIG_MAP, NAME, {"data": {f"{key}.yaml": text for key, text in texts.items()}}
        )

    async def until(self, condition: Callable[[], bool], seconds: float = WAIT) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)

    async def watched(self) -> None:
        """Wait until a change has come by the watch."""
        await self.until(lambda: self.held.synced)
        await self.write(fleet=fleet(5))
        await self.until(lambda: self.seats == 5)

    async def ended(self, outcome: Outcome, seconds: float = WAIT) -> Mapping[str, Any]:
        """Wait for the next event of an attempt, which has to end so."""
        before = len(self.events)
        await self.until(lambda: len(self.events) > before, seconds)
        assert self.events[before]["outcome"] == outcome, self.events[before]
        return self.events[before]

    async def read(self) -> Attempt:
        async with asyncio.timeout(WAIT):
            return await asyncio.shield(self.reloader.request(Cause.REQUEST))


@asynccontextmanager
async def following(cluster: Cluster, timing: Timing = QUICK) -> AsyncIterator[Rig]:
    """Follow the ConfigMap, which says 4 seats at first."""
    await cluster.create(
        CONFIG_MAP, {"metadata": {"name": NAME}, "data": {"fleet.yaml": fleet(), "README.md": "no policy"}}
    )
    held = PolicyConfigMap(cluster.client, cluster.namespace, NAME, timing)
    first = await held.fetch()
    assert first is not None
    reading = PolicyTexts().read(held.place, first.texts)
    reader = ConfigMapReader(held, PolicyReader(()))
    force = Force([reading.set])
    events: list[Mapping[str, Any]] = []
    told = Told(
        metrics=ReloadMetrics(CollectorRegistry(), CONTROLLER),
        clock=SystemClock(),
        events=EventLog(events.append, SystemClock()),
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            reloader = Reloader(reader, force, reading.set, told)
            running = [tasks.create_task(each) for each in (reader.run(), reloader.run())]
            yield Rig(cluster, held, reader, reloader, force, events, tasks)
            for task in running:
                task.cancel()
    finally:
        await reader.close()


# ---------------------------------------------------------------- on any server


async def test_what_changes_is_in_force_at_once(cluster: Cluster) -> None:
    async with following(cluster) as rig:
        await rig.write(fleet=fleet(6))
        await rig.until(lambda: rig.seats == 6, AT_ONCE)
        await rig.until(lambda: bool(rig.events))
        assert (rig.events[0]["outcome"], rig.events[0]["changed"]) == ("Loaded", ["Fleet/spares"])
        assert rig.reloader.status()["files"] == [f"configmap/{NAME}/fleet.yaml"]


async def test_what_cannot_be_used_is_told_with_the_key_and_the_line_and_changes_nothing(
    cluster: Cluster,
) -> None:
    async with following(cluster) as rig:
        await rig.write(fleet=fleet(6) + "  maxSeat: 1\n")
        event = await rig.ended(Outcome.REJECTED)
        (fault, *_) = event["faults"]
        assert fault["file"] == f"configmap/{NAME}/fleet.yaml"
        assert fault["line"] == 5
        assert rig.seats == 4
        await rig.write(fleet=fleet(7))
        await rig.ended(Outcome.LOADED)
        assert rig.seats == 7


async def test_a_config_map_that_is_deleted_changes_nothing_and_is_said_once(cluster: Cluster) -> None:
    async with following(cluster) as rig:
        await rig.cluster.delete(CONFIG_MAP, NAME)
        event = await rig.ended(Outcome.REJECTED)
        assert [(each["file"], each["message"]) for each in event["faults"]] == [
            (f"configmap/{NAME}", "there is no such ConfigMap")
        ]
        assert rig.seats == 4
        last = rig.reloader.status()["lastAttempt"]
        assert last["faults"] == event["faults"]
        attempt = await rig.read()
        assert attempt.outcome is Outcome.REJECTED  # whoever asks is told again
        await rig.cluster.create(CONFIG_MAP, {"metadata": {"name": NAME}, "data": {"fleet.yaml": fleet(5)}})
        await rig.until(lambda: rig.seats == 5)
        assert [each["outcome"] for each in rig.events] == ["Rejected", "Rejected", "Loaded"]


async def test_keys_count_as_files_in_a_directory_do(cluster: Cluster) -> None:
    async with following(cluster) as rig:
        await rig.cluster.patch(CONFIG_MAP, NAME, {"data": {"fleet.yaml": None, ".hidden.yaml": fleet(9)}})
        event = await rig.ended(Outcome.REJECTED)
        (fault,) = event["faults"]
        assert fault["message"] == "the ConfigMap has no key that ends in .yaml or .yml"
        raw = base64.b64encode(fleet(8).encode("utf-16")).decode()
        await rig.cluster.patch(CONFIG_MAP, NAME, {"binaryData": {"fleet.yml": raw}})
        event = await rig.ended(Outcome.REJECTED)
        (fault,) = event["faults"]
        assert (fault["file"], fault["message"]) == (f"configmap/{NAME}/fleet.yml", "is UTF-16, not UTF-8")


async def test_no_other_config_map_is_looked_at(cluster: Cluster) -> None:
    async with following(cluster) as rig:
        other = {"metadata": {"name": f"{NAME}-old"}, "data": {"fleet.yaml": fleet(9, "old")}}
        await rig.cluster.create(CONFIG_MAP, other)
        await rig.write(fleet=fleet(5))
        await rig.until(lambda: rig.seats == 5)
        assert set(rig.force.adopted[-1].fleets) == {"spares"}


# ---------------------------------------------------------------- on the tests' own server


def of_policies(verb: str, call: Call) -> bool:
    return (call.resource, call.verb) == ("configmaps", verb)


async def test_versions_that_have_expired_lead_to_a_new_list(cluster: Cluster, api: KubeApi) -> None:
    async with following(cluster) as rig:
        await rig.watched()
        with capture_logs() as logs:
            api.faults.answer(Answer(status=503), partial(of_policies, "watch"))
            api.faults.drop_watches()
            await rig.write(fleet=fleet(6))
            api.store.compact()
            api.faults.clear()
            await rig.until(lambda: rig.seats == 6)
        assert "expired" in {each.get("cause") for each in logs}


async def test_a_watch_that_is_silent_is_begun_anew(cluster: Cluster, api: KubeApi) -> None:
    async with following(cluster, WATCHFUL) as rig:
        await rig.watched()
        api.faults.silent = True
        await rig.write(fleet=fleet(6))
        api.faults.silent = False
        await rig.until(lambda: rig.seats == 6)


async def test_whoever_asks_is_answered_with_what_is_there_though_the_watch_is_silent(
    cluster: Cluster, api: KubeApi
) -> None:
    async with following(cluster) as rig:
        await rig.watched()
        api.faults.silent = True
        await rig.write(fleet=fleet(6))
        attempt = await rig.read()
        assert (attempt.outcome, rig.seats) == (Outcome.LOADED, 6)


async def test_a_server_that_says_nothing_leaves_everything_as_it_is(cluster: Cluster, api: KubeApi) -> None:
    async with following(cluster) as rig:
        api.faults.answer(
            Answer(status=500), lambda call: call.resource == "configmaps" and call.user != "admin"
        )
        attempt = await rig.read()
        assert attempt.outcome is Outcome.FAILED
        assert f"the API server doesn't say what configmap/{NAME} holds" in attempt.problem
        assert rig.seats == 4
        api.faults.clear()
        await rig.write(fleet=fleet(6))
        await rig.until(lambda: rig.seats == 6)


async def test_a_reader_that_dies_is_started_anew_with_what_is_there(cluster: Cluster) -> None:
    async with following(cluster) as rig:
        await rig.write(fleet=fleet(6))
        await rig.until(lambda: rig.seats == 6)
        await rig.reader.close()
        await rig.write(fleet=fleet(7))
        await rig.until(lambda: rig.seats == 7)


async def test_a_controller_that_begins_without_it_says_how_to_make_it() -> None:
    with pytest.raises(PolicyError) as caught:
        PolicyTexts().read(f"configmap/{NAME}", None)
    (fault,) = caught.value.faults
    assert fault.hint == f"make it with the policies: kubectl create configmap {NAME} --from-file=policies/"
