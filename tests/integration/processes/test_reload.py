"""A policy that goes while its requests are in flight: they finish, new ones are refused, and its seat stays as it is."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.processes.rig import POLICIES, TOKEN, Rig, running

WITHOUT_CHAT = "---\n".join(document for document in POLICIES.split("---\n") if "name: chat" not in document)


async def reload(rig: Rig, text: str) -> None:
    (rig.directory / "policies.yaml").write_text(text, "utf-8")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with rig.session.post(f"{rig.controller}/-/reload", headers=headers) as answer:
        assert (answer.status, (await answer.json())["outcome"]) == (200, "Loaded")


async def models(rig: Rig, *names: str) -> None:
    await rig.until(
        "routes",
        f"{rig.gateway}/v1/models",
        lambda body: {model["id"] for model in body["data"]} == set(names),
    )


@pytest.mark.long
async def test_a_deleted_policy_ends_in_order_and_comes_back(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        before, engines = await rig.serving(1), await rig.pids()
        loop = asyncio.get_running_loop()
        async with rig.traffic(
            each_seconds=0.3, tokens=50
        ) as traffic:  # a second each: three in flight, none waits
            await traffic.answers(3)
            deleted_at = loop.time()
            await reload(rig, WITHOUT_CHAT)
            await models(rig, "code")
            gone_at = loop.time()
            assert traffic.open > 0
            async with asyncio.timeout(20):
                while traffic.open:  # new ones are refused within milliseconds
                    await asyncio.sleep(0.01)
            after = await rig.seats()
            assert {name: seat["serving"] for name, seat in after.items()} == {
                name: seat["serving"] for name, seat in before.items()
            }
            await reload(rig, POLICIES)
            await models(rig, "chat", "code")
            back_at = loop.time()
            await traffic.answers(3)
        assert {status for began, status in traffic.statuses if began < deleted_at} == {200}
        assert {status for began, status in traffic.statuses if gone_at < began < back_at - 0.5} == {404}
        assert {status for began, status in traffic.statuses if began > back_at} == {200}
        assert {status for _, status in traffic.statuses} == {200, 404}
        assert await rig.pids() == engines
        assert [event["outcome"] for event in await rig.recorded("policies", 2)] == ["Loaded", "Loaded"]
