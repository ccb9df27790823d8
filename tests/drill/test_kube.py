"""The short form of `make drill-kube`: a burst through the Kubernetes adapter, in a cluster of stand-ins, with real agents and engines."""

import importlib.util
from pathlib import Path

import pytest

from tests.drill.kube.bring_up import WHOLE, Site, brought_up, drill
from tests.drill.kube.disruptions import refused_evictions
from tests.drill.kube.ground import stand_in

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the reference engine needs torch")
async def test_a_burst_through_the_kubernetes_adapter_fails_no_request(tmp_path: Path) -> None:
    said: list[str] = []

    async def last_seat_stays(site: Site) -> None:
        said.append(f"refused: {await refused_evictions(site, 'chat', 1)}")

    async with (
        stand_in(tmp_path) as ground,
        brought_up(tmp_path, ground, WHOLE / "short", said.append) as site,
    ):
        done = await drill(site, "short", tmp_path / "report", lambda: last_seat_stays(site))
    assert done.code == 0, f"{done.said}\n{done.printed}"
    assert said[-1] == "refused: 1"
    checks = {check["name"]: check["status"] for check in done.report["checks"]}
    assert checks["maxFailures"] == checks["minPromotions"] == checks["servingSeatsKept"] == "Pass"
    (arm,) = done.report["arms"]
    promoted = next(each for each in arm["promotions"] if each["operation"] == "Promote")
    assert (promoted["policy"], promoted["fleet"], promoted["outcome"]) == ("chat", "spares", "Promoted")
    assert set(promoted["steps"]) >= {"claimed", "resumed", "canary", "rotation", "firstToken"}
