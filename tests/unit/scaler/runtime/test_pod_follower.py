"""Many pods at once are looked at in stretches, and end in the same routes as a look at all of them."""

import asyncio
import gc
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from scaler.cluster.kube.reflector import Reflector
from scaler.gateway.observe import SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.routes import RouteTable
from scaler.gateway.settings import GatewaySettings
from scaler.policy.compile import PolicySet, load_policies
from scaler.runtime.followed_routes import FollowedRoutes
from scaler.runtime.pod_follower import PodFollower
from scaler.runtime.rotation import Rotation
from scaler.runtime.route_follower import RouteFollower
from scaler.runtime.routing import routes
from warmpool.seats import FleetName, PolicyName, Seat

CHAT = PolicyName("chat")
POLICY = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 20000, seat: {gpus: 0}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets: [{name: spares, targetInFlight: SLOTS}]
  models: [m]
  engine: {type: Reference}
  serving: {min: 0}
  signals: [{name: gateway, type: Pushed}]
"""


def pod(number: int, *, serves: bool = True, port: int | None = 8001) -> dict[str, Any]:
    labels = {"emberpool.dev/fleet": "spares"} | ({"serving.emberpool.dev/chat": "true"} if serves else {})
    residents = json.dumps([] if port is None else [{"policy": "chat", "port": port}])
    metadata = {
        "name": f"seat-{number}",
        "namespace": "serving",
        "uid": f"uid-{number}",
        "resourceVersion": "1",
    }
    return {
        "metadata": {**metadata, "labels": labels, "annotations": {"emberpool.dev/residents": residents}},
        "spec": {"nodeName": "node"},
        "status": {"phase": "Running", "podIP": f"10.0.{number // 250}.{number % 250}"},
    }


class Pods:
    """The copy of a collection, changed by hand."""

    def __init__(self, read: Callable[[dict[str, Any]], Seat]) -> None:
        self.restarts: Counter[str] = Counter()
        self.synced, self.age = True, 0.0
        self._read = read
        self._held: dict[int, Seat] = {}
        self._changed: Callable[[], None] = lambda: None

    def put(self, *numbers: int, **what: Any) -> None:
        self._held |= {number: self._read(pod(number, **what)) for number in numbers}
        self._changed()

    def remove(self, number: int) -> None:
        del self._held[number]
        self._changed()

    def values(self) -> list[Seat]:
        return list(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._changed = changed
        return lambda: None

    async def wait_synced(self) -> None:
        """They are."""

    async def run(self) -> None:
        await asyncio.Event().wait()


class Followed:
    """A gateway whose follower runs."""

    def __init__(self, policies: PolicySet) -> None:
        self.gateway = Gateway(GatewaySettings(), SilentObserver(), CollectorRegistry())
        self._made: list[Pods] = []
        taken = FollowedRoutes(self.gateway, "gw-1", lambda _policy, _keys: None)
        self.follower = PodFollower(self._source, policies, taken, RouteFollower((), taken.take))
        (self.pods,) = self._made

    def _source(self, read: Callable[[dict[str, Any]], Seat]) -> Reflector[Seat]:
        self._made.append(Pods(read))
        return cast("Reflector[Seat]", self._made[0])

    def slots(self) -> dict[str, int]:
        there = self.gateway.routes.policies.get(CHAT)
        return {} if there is None else {each.seat: each.slots for each in there.endpoints}

    async def until(self, true: Callable[[], bool]) -> float:
        """Run until something is true; return the longest time of the processor between two turns of others."""
        longest = 0.0
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.follower.run())
            while not true():
                began = time.thread_time()
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - began)
            running.cancel()
        return longest


@pytest.fixture
def policies(tmp_path: Path) -> Callable[[int], PolicySet]:
    def make(slots: int) -> PolicySet:
        file = tmp_path / f"{slots}.yaml"
        file.write_text(POLICY.replace("SLOTS", str(slots)), "utf-8")
        return load_policies([file])

    return make


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """A gateway's garbage is collected while nobody waits (`scaler.gateway.garbage`)."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def all_at_once(policies: PolicySet, seats: Sequence[Seat]) -> float:
    """Return what it takes to work the routes out and to take them over, without a turn of others."""
    specs, models, table = tuple(policies.policy_specs.values()), {CHAT: ("m",)}, RouteTable()
    rotation = Rotation(lambda changed: routes(specs, models, changed))
    began = time.thread_time()
    rotation.look({FleetName("spares"): seats}, 0.0)
    table.replace(rotation.policies)
    return time.thread_time() - began


@pytest.mark.usefixtures("_no_collector")
async def test_a_first_look_at_thousands_of_pods_is_cut_in_stretches(
    policies: Callable[[int], PolicySet],
) -> None:
    made = Followed(policies(4))
    made.pods.put(*range(3000))
    longest = await made.until(lambda: len(made.slots()) == 3000)
    assert longest < 0.7 * min(all_at_once(policies(4), made.pods.values()) for _ in range(3))


async def test_many_changes_and_a_removal_end_in_what_the_pods_say(
    policies: Callable[[int], PolicySet],
) -> None:
    made = Followed(policies(4))
    made.pods.put(*range(1000))
    await made.until(lambda: len(made.slots()) == 1000)
    made.pods.put(*range(700), serves=False)
    made.pods.remove(999)
    await made.until(lambda: len(made.slots()) == 299)
    assert set(made.slots()) == {f"seat-{number}" for number in range(700, 999)}


async def test_other_policies_take_nobody_out_of_rotation_while_they_are_worked_out(
    policies: Callable[[int], PolicySet],
) -> None:
    made, seen = Followed(policies(4)), set[int]()
    made.pods.put(*range(1000))
    await made.until(lambda: len(made.slots()) == 1000)
    made.gateway.routes.watch(lambda _: seen.add(len(made.slots())))
    made.follower.adopt(policies(8))
    await made.until(lambda: 8 in made.slots().values())
    assert seen == {1000}
    assert set(made.slots().values()) == {8}


async def test_residents_without_a_port_are_known_until_they_have_one(
    policies: Callable[[int], PolicySet],
) -> None:
    made = Followed(policies(4))
    made.pods.put(1, port=None)
    made.pods.put(2)
    await made.until(lambda: set(made.slots()) == {"seat-2"})
    assert made.follower.unreached == [("seat-1", CHAT)]
    assert made.follower.state()["withoutPort"] == ["seat-1/chat"]
    made.pods.put(1)
    await made.until(lambda: set(made.slots()) == {"seat-1", "seat-2"})
    assert not made.follower.unreached


async def test_their_number_does_not_fall_while_other_policies_are_worked_out(
    policies: Callable[[int], PolicySet],
) -> None:
    made, seen = Followed(policies(4)), set[int]()
    made.pods.put(*range(1000), port=None)
    made.pods.put(1000)
    await made.until(lambda: len(made.follower.unreached) == 1000 and len(made.slots()) == 1)
    made.follower.adopt(policies(8))

    def worked_out() -> bool:
        seen.add(len(made.follower.unreached))
        return 8 in made.slots().values()

    await made.until(worked_out)
    assert seen == {1000}
