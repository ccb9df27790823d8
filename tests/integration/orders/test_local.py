"""Orders to `emberpool local`: the same controller, with engines that it has started itself."""

from pathlib import Path

import pytest

from tests.integration.processes.rig import TOKEN, recorded_in
from tests.integration.reload.test_local import POLICIES, Json, local


def has_paused(body: Json) -> bool:
    """Whether both could be promoted on the seat."""
    residents = [each for seat in body["items"] for each in seat["residents"]]
    return [each["state"] for each in residents] == ["Paused"] * 2


@pytest.mark.long
async def test_a_person_promotes_on_the_machine_at_hand(tmp_path: Path) -> None:
    async with local(tmp_path) as rig:
        await rig.models("chat", "code")
        spare = "seat: {gpus: 0}, spare: {mode: Fixed, min: 1}}"
        rig.policies.write_text(POLICIES.replace("seat: {gpus: 0}}", spare), "utf-8")
        await rig.attempt("Loaded")
        (seat,) = (await rig.until(f"{rig.controller}/v1/seats", has_paused))["items"]
        url = f"{rig.controller}/v1/orders"
        body = {"id": "1", "operation": "Promote", "seat": seat["name"], "policy": "chat", "by": "anna"}
        async with rig.session.post(url, json=body) as answer:
            assert answer.status == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with rig.session.post(url, json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
        await rig.until(f"{rig.controller}/v1/seats", lambda body: body["items"][0]["serving"] == ["chat"])
        told = await recorded_in(tmp_path / "state", "order")
        assert (told[0]["outcome"], told[0]["by"]) == ("Accepted", "anna")
