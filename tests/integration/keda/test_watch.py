"""The controller's own look at ScaledObjects and HPAs, on an API server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.events import Event
from scaler.core.model import OneWay
from scaler.keda.findings import Severity
from scaler.keda.objects import PREFIX
from scaler.policy.compile import compile_set
from scaler.policy.document import parse_documents
from scaler.runtime.keda_watch import KedaWatch
from tests.fakes.kube_api import Call, KubeApi, User, kubeconfig, serving
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.kinds import BY_PATH, NAMESPACE
from tests.integration.kube.conftest import written
from tests.unit.scaler.keda.kubernetes import hpa, scaled_object
from warmpool.seats import FleetName

SCALED = BY_PATH["keda.sh", "v1alpha1", "scaledobjects"]
HPAS = BY_PATH["autoscaling", "v2", "horizontalpodautoscalers"]
POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares, namespace: serving}
spec: {maxSeats: 44, resizedBy: Keda, spare: {min: 3}, scaleDown: {stabilizationWindowSeconds: 300}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat, namespace: serving}
spec: {fleets: [{name: spares, targetInFlight: 4}], serving: {min: 0, max: 4}}
"""
PAUSED = PREFIX + "paused-replicas"


@dataclass
class Watched:
    """A watch, and the cluster that it looks at."""

    api: KubeApi
    watch: KedaWatch
    events: list[Event] = field(default_factory=list)

    def create(self, body: Mapping[str, Any]) -> None:
        kind = SCALED if body["kind"] == "ScaledObject" else HPAS
        self.api.create(Target(kind=kind, namespace="serving"), dict(body), {})

    def patch(self, kind: Any, name: str, body: Mapping[str, Any]) -> None:
        target = Target(kind=kind, namespace="serving", name=name)
        self.api.patch(target, "application/merge-patch+json", body, {})

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.02)

    def errors(self) -> int | None:
        found = self.watch.counts().get("spares")
        return None if found is None else found[Severity.ERROR]

    async def shown(self) -> Any:
        app = web.Application()
        app.add_routes(self.watch.routes())
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/keda/findings"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return await answer.json()
        finally:
            await runner.cleanup()


@asynccontextmanager
async def watched(directory: Path, may: Callable[[Call], bool] = lambda _: True) -> AsyncIterator[Watched]:
    api = KubeApi({"test": User(name="test", may=may)})
    api.create(Target(kind=NAMESPACE, namespace=""), {"metadata": {"name": "serving"}}, {})
    policies = compile_set(parse_documents(POLICIES, "f.yaml"))
    events: list[Event] = []
    async with serving(api) as url:
        path = written(directory / "kubeconfig", kubeconfig(url, "test", "serving"))
        async with KubeClient(await find_access(AccessOptions(kubeconfig=path), {})) as client:
            watch = KedaWatch(client, "serving", policies, lambda _: 5, events.append)
            task = asyncio.get_running_loop().create_task(watch.run())
            try:
                yield Watched(api, watch, events)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def test_what_is_wrong_is_counted_shown_and_told_once(tmp_path: Path) -> None:
    async with watched(tmp_path) as on:
        on.create(scaled_object())
        on.create(hpa())
        await on.until(lambda: on.errors() == 0)
        assert (await on.shown())["items"] == [{"fleet": "spares", "paused": [], "findings": []}]
        on.patch(HPAS, "keda-hpa-spares", {"spec": {"maxReplicas": 12}})
        await on.until(lambda: on.errors() == 1)
        (item,) = (await on.shown())["items"]
        (finding,) = item["findings"]
        assert (finding["object"], finding["name"], finding["code"]) == (
            "HorizontalPodAutoscaler",
            "keda-hpa-spares",
            "MaxBelowSeats",
        )
        (event,) = on.events
        assert (event.reason, event.subject.name, event.warning) == ("MaxBelowSeats", "keda-hpa-spares", True)
        assert event.subject.uid
        on.patch(SCALED, "spares", {"metadata": {"labels": {"looked": "again"}}})
        await asyncio.sleep(1.0)
        assert len(on.events) == 1
        on.watch.lead()  # another led before, and what it told isn't known here
        await on.until(lambda: len(on.events) == 2)


async def test_a_fleet_that_nobody_sizes_is_found(tmp_path: Path) -> None:
    async with watched(tmp_path) as on:
        await on.until(lambda: on.errors() == 1)
        (item,) = (await on.shown())["items"]
        assert [each["code"] for each in item["findings"]] == ["NoScaledObject"]
        assert not on.events  # there is no object to tell it of


async def test_a_pause_pins_the_fleet_until_it_ends(tmp_path: Path) -> None:
    async with watched(tmp_path) as on:
        on.create(scaled_object())
        on.create(hpa())
        await on.until(lambda: on.errors() == 0)
        assert not on.watch.paused
        on.patch(SCALED, "spares", {"metadata": {"annotations": {PAUSED: "5"}}})
        await on.until(lambda: on.watch.paused == {FleetName("spares"): None})
        (item,) = (await on.shown())["items"]
        there = "HorizontalPodAutoscaler keda-hpa-spares is there all the same, and scales"
        assert item["paused"] == [f"paused at 5 replicas: KEDA doesn't ask, and {there}"]
        conditions = [each["message"] for each in on.watch.conditions() if each["type"] == "KedaPaused"]
        assert conditions == item["paused"]
        on.patch(SCALED, "spares", {"metadata": {"annotations": {PAUSED: None}}})
        await on.until(lambda: not on.watch.paused)


@pytest.mark.parametrize(("stopped", "left"), [("in", OneWay.UP), ("out", OneWay.DOWN)])
async def test_a_pause_in_one_direction_leaves_the_other(tmp_path: Path, stopped: str, left: OneWay) -> None:
    async with watched(tmp_path) as on:
        on.create(scaled_object())
        on.patch(
            SCALED, "spares", {"metadata": {"annotations": {PREFIX + f"paused-scale-{stopped}": "true"}}}
        )
        await on.until(lambda: on.watch.paused == {FleetName("spares"): left})


async def test_what_may_not_be_seen_is_said_once_and_costs_nothing_else(tmp_path: Path) -> None:
    def may(call: Call) -> bool:
        return call.resource not in {"scaledobjects", "horizontalpodautoscalers"}

    with capture_logs() as logs:
        async with watched(tmp_path, may) as on:
            await on.until(lambda: len(on.api.calls) >= 2)
            await asyncio.sleep(1.0)
            assert len(on.api.calls) == 2
            assert on.watch.counts() == {}
            assert (await on.shown())["lookedAt"] == {
                "scaledobjects": False,
                "horizontalpodautoscalers": False,
            }
    assert sorted(line["what"] for line in logs if line["event"] == "not looked at") == [
        "horizontalpodautoscalers in serving",
        "scaledobjects in serving",
    ]


async def test_without_keda_an_hpa_of_somebody_elses_is_found_all_the_same(tmp_path: Path) -> None:
    async with watched(tmp_path, lambda call: call.resource != "scaledobjects") as on:
        on.create(hpa({"metadata.ownerReferences": [], "metadata.name": "mine"}))
        await on.until(lambda: on.errors() == 1)
        (item,) = (await on.shown())["items"]
        assert [(each["name"], each["code"]) for each in item["findings"]] == [("mine", "NotKedas")]
