"""An hour of a large cluster's life, as fast as it is read: `python -m tests.fakes.kube_hour PODS FLEETS`.

Each pod's status changes again and again, in turn; one change in a thousand makes a seat another, since its pod becomes Ready or ceases to
be. Prints its URL. A line on its input with a number has it make so many changes, and print `done` once all watches were sent them.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tests.fakes import kube_crowd
from tests.fakes.kube_api import KubeApi, rules, serving
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.kinds import BY_PATH, NODE, POD
from tests.fakes.kube_api.kinds import NAMESPACE as NAMESPACES

AT_ONCE = 100
"""Changes before watches get a turn."""
BEHIND = 1000
"""Changes that a watch may be behind."""
REMEMBERED = 10_000
"""Changes that the server remembers at least; it forgets all when there are twice as many."""
ANOTHER = 1000
"""One change in so many makes a seat another."""


def fleet(number: int, fleets: int) -> str:
    return f"fleet-{number % fleets:03}"


def policies(name: str) -> tuple[str, str]:
    """The residents of a fleet's seats."""
    return f"{name}-a", f"{name}-b"


def pod(number: int, fleets: int) -> dict[str, Any]:
    body = kube_crowd.pod(number)
    name = fleet(number, fleets)
    body["metadata"]["labels"] |= {"app": name, "emberpool.dev/fleet": name}
    return body


def filled(pods: int, fleets: int) -> KubeApi:
    api = KubeApi()
    api.create(Target(kind=NAMESPACES, namespace=""), {"metadata": {"name": kube_crowd.NAMESPACE}}, {})
    deployments = Target(kind=BY_PATH["apps", "v1", "deployments"], namespace=kube_crowd.NAMESPACE)
    for number in range(fleets):
        name = fleet(number, fleets)
        template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": []}}
        spec = {
            "replicas": pods // fleets,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
        }
        api.create(deployments, {"metadata": {"name": name}, "spec": spec}, {})
    for number in range(kube_crowd.NODES):
        api.create(Target(kind=NODE, namespace=""), {"metadata": {"name": f"node-{number}"}}, {})
    for number in range(pods):
        body = rules.with_defaults(POD, pod(number, fleets))
        api.store.put(POD, (kube_crowd.NAMESPACE, kube_crowd.name(number)), body)
    return api


def changed(body: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """A pod after one more change of its status."""
    status = body["status"]
    ready, *others = status["conditions"]
    if number % ANOTHER == 0:
        ready = {**ready, "status": "False" if ready["status"] == "True" else "True"}
    probed = {**ready, "lastProbeTime": f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z"}
    return {**body, "status": {**status, "conditions": [probed, *others]}}


async def play(api: KubeApi, pods: int, numbers: Iterator[int]) -> None:
    """Make changes, no faster than they are read."""
    for number in numbers:
        key = kube_crowd.NAMESPACE, kube_crowd.name(number % pods)
        known = api.store.get(POD, key)
        assert known is not None
        api.store.put(POD, key, changed(known.body, number // pods + number))
        if number % AT_ONCE == 0:
            while api.behind > BEHIND:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
        if api.store.version - api.store.oldest > 2 * REMEMBERED and api.behind == 0:
            api.store.compact()
    while api.behind:
        await asyncio.sleep(0.001)


async def main(pods: int, fleets: int) -> None:
    api, number = filled(pods, fleets), 0
    async with serving(api) as url:
        print(url, flush=True)  # noqa: T201 - its output
        while line := await asyncio.to_thread(sys.stdin.readline):
            await play(api, pods, iter(range(number, number + int(line))))
            number += int(line)
            print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
