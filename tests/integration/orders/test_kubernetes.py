"""Orders on Kubernetes: given to any replica, carried out by the one that leads, and known to the one that leads next."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.contract.kube_rig import NAMESPACE_NAME
from tests.fakes.kube_api.faults import Answer
from tests.fakes.kube_api.kinds import BY_PATH
from tests.integration.processes.rig import TOKEN
from tests.integration.standby.rig import LEASE_SECONDS, Replica, Rig, running


async def order(rig: Rig, replica: Replica, **body: Any) -> tuple[int, dict[str, Any]]:
    headers = {"Emberpool-Token": TOKEN}
    async with rig.session.post(f"{replica.url}/v1/orders", json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def items(rig: Rig, replica: Replica, plural: str) -> dict[str, dict[str, Any]]:
    status, text, _ = await rig.get(replica, f"/v1/{plural}")
    return {each["name"]: each for each in json.loads(text)["items"]} if status == 200 else {}


async def told(
    rig: Rig, replica: Replica, plural: str, condition: Callable[[dict[str, dict[str, Any]]], bool]
) -> dict[str, dict[str, Any]]:
    async def holds() -> dict[str, dict[str, Any]] | None:
        found = await items(rig, replica, plural)
        return found if found and condition(found) else None

    found: dict[str, dict[str, Any]] = await rig.until(f"what {plural} shall be", holds)
    return found


@pytest.mark.long
async def test_an_order_to_who_stands_by_is_carried_out_and_what_stands_outlives_the_leader(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as rig:
        seats = await items(rig, rig.a, "seats")
        (busy,) = [name for name, seat in seats.items() if seat["serving"]]
        (idle,) = seats.keys() - {busy}
        status, answer = await order(
            rig, rig.b, id="1", operation="Promote", seat=idle, uid=seats[idle]["uid"], policy="chat"
        )
        assert (status, answer["accepted"]) == (200, True)
        await told(rig, rig.b, "seats", lambda found: found[idle]["serving"] == ["chat"])

        status, answer = await order(rig, rig.b, id="2", operation="Drain", seat=busy, reason="row 3")
        assert status == 200
        until = datetime.fromtimestamp(time.time() + 3600, UTC).isoformat()
        freeze = {"operation": "Freeze", "fleet": "spares", "until": until, "reason": "driver", "by": "anna"}
        namespace = (await items(rig, rig.a, "fleets"))["spares"]["namespace"]
        status, answer = await order(rig, rig.b, id="3", namespace=namespace, **freeze)
        assert (status, answer["accepted"]) == (200, True)
        await told(rig, rig.b, "seats", lambda found: found[busy]["drained"] and not found[busy]["serving"])
        frozen = (await items(rig, rig.b, "fleets"))["spares"]["frozen"]
        assert (frozen["reason"], frozen["by"]) == ("driver", "anna")

        events = BY_PATH["events.k8s.io", "v1", "events"]

        async def recorded() -> bool:
            told = {each.body["reason"] for each in rig.api.store.all(events, NAMESPACE_NAME)}
            return {"OrderAccepted", "OrderDone"} <= told

        await rig.until("events about the orders", recorded)
        assert await rig.processes.end("a") == 0
        await rig.until("b to lead", lambda: rig.leads(rig.b), LEASE_SECONDS)
        after = await told(rig, rig.b, "fleets", lambda found: found["spares"]["frozen"] is not None)
        assert after["spares"]["frozen"] == frozen

        def stands(found: dict[str, dict[str, Any]]) -> bool:
            """It stays drained, and another serves: the one that was promoted, or one that came in the drained one's place."""
            others = [seat["serving"] for name, seat in found.items() if name != busy]
            return found[busy]["drained"] and not found[busy]["serving"] and ["chat"] in others

        await told(rig, rig.b, "seats", stands)
        status, answer = await order(rig, rig.b, id="4", operation="Thaw", fleet="spares")
        assert "notKept" not in answer
        assert status == 200
        assert (await items(rig, rig.b, "fleets"))["spares"]["frozen"] is None


@pytest.mark.long
async def test_an_order_that_was_answered_outlives_a_leader_that_is_killed(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        seat = min(await items(rig, rig.a, "seats"))
        until = datetime.fromtimestamp(time.time() + 3600, UTC).isoformat()
        freeze = {"operation": "Freeze", "fleet": "spares", "until": until, "reason": "driver"}
        config_maps = BY_PATH["", "v1", "configmaps"]
        rig.api.faults.answer(Answer(status=500), lambda call: call.resource == "configmaps", times=2)
        status, answer = await order(rig, rig.a, id="1", **freeze)
        assert (status, "refused on demand" in answer["notKept"]) == (200, True)
        rig.api.faults.clear()
        status, answer = await order(rig, rig.a, id="1", **freeze)  # once more: now it is kept
        assert (status, answer.get("notKept")) == (200, None)
        status, answer = await order(rig, rig.a, id="2", operation="Drain", seat=seat)
        assert (status, answer.get("notKept")) == (200, None)
        assert len(rig.api.store.all(config_maps, NAMESPACE_NAME)) == 1
        await rig.processes.kill("a")
        await rig.until("b to lead", lambda: rig.leads(rig.b), 2 * LEASE_SECONDS)
        await told(rig, rig.b, "fleets", lambda found: found["spares"]["frozen"] is not None)
        await told(rig, rig.b, "seats", lambda found: found[seat]["drained"])
