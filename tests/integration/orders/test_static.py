"""Orders at a real controller process, carried out by real agents with engines; given by the command line, as people do."""

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import forked
from tests.integration.processes.rig import TOKEN, Rig, running


async def order(rig: Rig, token: str = TOKEN, **body: Any) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"}
    async with rig.session.post(f"{rig.controller}/v1/orders", json=body, headers=headers) as answer:
        return answer.status, await answer.json()


def say(rig: Rig, *arguments: str) -> tuple[int, str, str]:
    environment = {**os.environ, "EMBERPOOL_AGENT_TOKEN": TOKEN}
    done = forked.run(*arguments, "--controller", rig.controller, environment=environment)
    return done.returncode, done.stdout, done.stderr


async def test_what_is_no_order_of_ours_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        seats = await rig.serving(1)
        (busy,) = {name for name, seat in seats.items() if "chat" in seat["serving"]}
        (idle,) = seats.keys() - {busy}
        promote = {"id": "1", "operation": "Promote", "seat": idle, "policy": "chat"}
        status, answer = await order(rig, "wrong", **promote)
        assert (status, answer["error"]["code"]) == (401, "Unauthorized")
        status, answer = await order(rig, **promote, uid="another")
        assert (status, answer["error"]["code"]) == (409, "AnotherSeat")
        status, answer = await order(rig, **{**promote, "seat": busy})
        assert (status, answer["error"]["code"]) == (409, "Serving")
        status, answer = await order(rig, **{**promote, "operation": "Dance"})
        assert (status, answer["error"]["code"]) == (400, "BadOrder")
        url, headers = f"{rig.controller}/v1/orders", {"Authorization": f"Bearer {TOKEN}"}
        async with rig.session.post(url, data=b"[" * 100_000, headers=headers) as refused:
            assert refused.status == 400
        assert [each["outcome"] for each in await rig.recorded("order", 2)] == ["Refused"] * 2
        code, out, err = say(rig, "seat", "promote", idle, "-p", "chat", "--dry-run")
        assert (code, err) == (0, "")
        assert out.startswith(f"seat/{idle}: promotes chat on {idle} and keeps it for 60 s at least")
        code, _, err = say(rig, "seat", "demote", busy)
        assert code == 1
        assert "its floor is 1" in err
        assert not [each for each in rig.events("order") if each["outcome"] == "Accepted"]
        await rig.serving(1)


@pytest.mark.long
async def test_a_promotion_and_a_drain_are_carried_out_by_the_agents_and_stand_in_the_ledger(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as rig:
        seats = await rig.serving(1)
        (busy,) = {name for name, seat in seats.items() if "chat" in seat["serving"]}
        (idle,) = seats.keys() - {busy}
        promote = ("seat", "promote", idle, "-p", "chat", "--reason", "before the launch")
        assert say(rig, *promote)[::2] == (0, "")
        await rig.serving(2)
        (told,) = await rig.recorded("order", 1, outcome="Accepted")
        assert (told["operation"], told["seat"], told["reason"]) == ("Promote", idle, "before the launch")
        (promoted,) = await rig.recorded("promotion", 1, seat=idle)
        assert promoted["outcome"] == "Promoted"
        assert promoted["canary"] > 0.0
        assert say(rig, "seat", "drain", busy, "--reason", "row 3 loses power")[::2] == (0, "")
        await handed_over(rig, busy)
        assert set(await rig.serving(1)) == {busy, idle}
        assert await rig.engines_serving() == {idle}
        ledger = ("decision", "list", "--state-dir", str(rig.directory / "state"), "--last", "1000")
        code, out, _ = say(rig, *ledger, "-o", "wide")
        assert code == 0
        assert "before the launch" in out
        assert "row 3 loses power" in out


@pytest.mark.long
async def test_a_freeze_and_a_drain_outlive_the_controller_until_people_end_them(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        seats = await rig.serving(1)
        (idle,) = [name for name, seat in seats.items() if not seat["serving"]]
        assert say(rig, "seat", "drain", idle)[::2] == (0, "")
        freeze = ("fleet", "freeze", "spares")
        assert say(rig, *freeze, "--minutes", "60", "--reason", "driver")[::2] == (0, "")
        before = (await fleets(rig))["spares"]
        assert (before["namespace"], before["frozen"]["reason"]) == ("default", "driver")

        assert await rig.processes.end("controller") == 0
        await rig.start_controller()
        await handed_over(rig, idle)
        assert (await fleets(rig))["spares"]["frozen"] == before["frozen"]

        assert say(rig, *freeze, "--end")[::2] == (0, "")
        assert (await fleets(rig))["spares"]["frozen"] is None
        promoted = await order(rig, id="1", operation="Promote", seat=idle, policy="chat")
        assert promoted[0] == 200
        both = await rig.serving(2)
        assert not both[idle]["drained"]


async def handed_over(rig: Rig, name: str) -> None:
    """Wait until a seat is drained and serves nobody."""
    await rig.until(
        "the handover",
        f"{rig.controller}/v1/seats",
        lambda body: any(
            seat["name"] == name and seat["drained"] and not seat["serving"] for seat in body["items"]
        ),
    )


async def fleets(rig: Rig) -> dict[str, Any]:
    body = await rig.until("fleets", f"{rig.controller}/v1/fleets", lambda body: bool(body["items"]))
    return {each["name"]: each for each in body["items"]}


@pytest.mark.long
async def test_a_freeze_has_an_end_within_a_week_and_an_order_is_carried_out_once(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        late = datetime.fromtimestamp(time.time() + 8 * 86_400, UTC).isoformat()
        freeze = {"id": "1", "operation": "Freeze", "fleet": "spares", "reason": "x"}
        status, answer = await order(rig, **freeze, until=late)
        assert (status, "7 days" in answer["error"]["message"]) == (400, True)
        soon = datetime.fromtimestamp(time.time() + 3600, UTC).isoformat()
        first = await order(rig, **freeze, until=soon)
        assert await order(rig, **freeze, until=soon) == first
        assert first[0] == 200
        assert len(await rig.recorded("order", 1, outcome="Accepted")) == 1
        status, answer = await order(rig, id="2", operation="Thaw", fleet="spares", namespace="elsewhere")
        assert (status, answer["error"]["code"]) == (404, "OtherNamespace")
        assert json.dumps(answer["error"]["hint"]) == '"ask the controller of namespace elsewhere"'
