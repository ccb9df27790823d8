"""Fleets' workloads, found in a cluster."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from scaler.cluster.kube.access import Access
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.fleets import KubeFleet, find_fleets
from scaler.cluster.kube.resources import DEPLOYMENT, Kind
from scaler.cluster.kube.scale import Target
from scaler.errors import UserError
from scaler.policy.fleet import Fleet

ROLLOUTS = {
    "kind": "APIResourceList",
    "resources": [
        {"name": "rollouts", "kind": "Rollout", "namespaced": True},
        {"name": "rollouts/scale", "kind": "Scale", "namespaced": True},
        {"name": "analyses", "kind": "Analysis", "namespaced": True},
    ],
}


class Nobody:
    async def authorization(self) -> str:
        return ""

    async def renew(self) -> None:
        return


@asynccontextmanager
async def cluster() -> AsyncIterator[KubeClient]:
    """A server that knows one kind of its own, and how often it was asked."""

    async def discovery(request: web.Request) -> web.Response:
        if request.match_info["version"] == "argoproj.io/v1alpha1":
            return web.json_response(ROLLOUTS)
        return web.Response(status=404, text="404 page not found\n")

    async def listed(_: web.Request) -> web.Response:
        return web.json_response({"kind": "List", "items": []})

    async def hidden(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "code": 403, "message": "not yours"}, status=403)

    app = web.Application()
    app.router.add_get("/apis/{group}/{version}/namespaces/pool/statefulsets", hidden)
    app.router.add_get("/apis/{group}/{version}/namespaces/pool/{plural}", listed)
    app.router.add_get("/apis/{version:.+}", discovery)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with KubeClient(
            Access(server=url, namespace="pool", credentials=Nobody(), source="test")
        ) as made:
            yield made
    finally:
        await runner.cleanup()


def fleet(namespace: str = "pool", **spec: Any) -> Fleet:
    return Fleet.model_validate_json(
        json.dumps(
            {
                "apiVersion": "emberpool.dev/v1alpha1",
                "kind": "Fleet",
                "metadata": {"name": "spares", "namespace": namespace},
                "spec": {"maxSeats": 4, **spec},
            }
        )
    )


def target(kind: Kind = DEPLOYMENT, name: str = "spares") -> Target:
    return Target(kind=kind, namespace="pool", name=name)


ROLLOUT = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "spare-h200"}
KIND = Kind(group="argoproj.io", version="v1alpha1", plural="rollouts", name="Rollout")


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        pytest.param({}, KubeFleet(name="spares", target=target()), id="a Deployment of its name"),  # type: ignore[arg-type]
        pytest.param(
            {"mode": "Observe", "resizedBy": "Keda", "target": {"name": "x"}},
            KubeFleet(name="spares", target=target(name="x"), resized=False, observe=True),  # type: ignore[arg-type]
            id="another Deployment, looked at alone",
        ),
        pytest.param(
            {"target": ROLLOUT},
            KubeFleet(name="spares", target=target(KIND, "spare-h200")),  # type: ignore[arg-type]
            id="a kind that the cluster knows",
        ),
    ],
)
async def test_a_fleets_workload_is_found(spec: Mapping[str, Any], found: KubeFleet) -> None:
    async with cluster() as client:
        assert await find_fleets(client, "pool", [fleet(**spec)]) == (found,)


@pytest.mark.parametrize(
    ("written", "why", "hint"),
    [
        pytest.param(fleet("serving"), "namespace serving", "one namespace", id="another namespace"),
        pytest.param(
            fleet(target={**ROLLOUT, "kind": "Analysis"}), "can be scaled", "api-resources", id="no scale"
        ),
        pytest.param(
            fleet(target={**ROLLOUT, "kind": "Nothing"}), "no Nothing", "api-resources", id="no such kind"
        ),
        pytest.param(
            fleet(target={**ROLLOUT, "apiVersion": "x.io/v1"}), "x.io/v1", "api-versions", id="no such group"
        ),
        pytest.param(
            fleet(target={"kind": "StatefulSet", "name": "x"}),
            "can't be looked at: not yours",
            "Role wants statefulsets",
            id="not in the Role",
        ),
    ],
)
async def test_a_fleet_that_can_not_be_sized_is_its_owners_to_mend(
    written: Fleet, why: str, hint: str
) -> None:
    async with cluster() as client:
        with pytest.raises(UserError, match=why) as refused:
            await find_fleets(client, "pool", [written])
        assert hint in refused.value.hint
