"""What each process's death costs: of the controller nothing, of a gateway what it held, and never a seat."""

from pathlib import Path

import pytest

from tests.integration.processes.rig import running


async def test_requests_go_on_without_a_controller_and_the_next_one_recovers_rotation_and_promotes(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as rig:
        before = await rig.serving(1)
        terms = await rig.epochs()
        async with rig.traffic(each_seconds=0.1) as traffic:
            await rig.processes.kill("controller")
            await traffic.answers(10)  # nobody decides, and requests are answered
            await rig.start_controller()
            after = await rig.serving(1)
            assert {n: s["serving"] for n, s in after.items()} == {n: s["serving"] for n, s in before.items()}
            async with rig.traffic(
                each_seconds=0.02
            ):  # 10 tokens of 20 ms: 10 in flight on top of 2, and a seat holds 4
                await rig.serving(2)
                (token,) = await rig.recorded("firstToken", 1)  # of the resident that the next one promoted
        assert traffic.failed == []
        assert max(await rig.epochs()) > max(terms)
        (promoted,) = await rig.recorded("promotion", 1, claim=token["claim"])
        assert promoted["outcome"] == "Promoted"
        assert promoted["rotation"] < token["first"]


@pytest.mark.long
async def test_no_end_of_a_gateway_or_of_the_controller_touches_a_seat(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        before, engines = await rig.serving(1), await rig.pids()
        async with rig.traffic(each_seconds=0.1) as traffic:
            await traffic.answers(5)
            await rig.processes.kill("gateway")
        await rig.start_gateway("gateway-2")
        await rig.until("routes", f"{rig.gateway}/v1/models", lambda body: len(body["data"]) == 2)
        after = await rig.seats()
        assert all(
            after[name]["serving"] == seat["serving"] for name, seat in before.items() if seat["serving"]
        )
        async with rig.traffic(each_seconds=0.1, tokens=25) as traffic:
            await traffic.answers(3)
            assert await rig.processes.end("controller") == 0
            serving = await rig.engines_serving()
            answered, in_flight = traffic.answered, traffic.open
            assert await rig.processes.end("gateway-2") == 0
            assert traffic.answered >= answered + in_flight  # what was accepted was finished
        assert await rig.pids() == engines
        assert await rig.engines_serving() == serving
        assert serving >= {name for name, seat in before.items() if seat["serving"]}
