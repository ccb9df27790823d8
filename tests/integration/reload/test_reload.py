"""A running controller follows its policy files, however they are changed, and keeps the last good set."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.reload.conftest import FLEET, Reloading, controller, policy


@pytest.mark.long
async def test_a_file_renamed_over_takes_effect_by_itself(reloading: Reloading) -> None:
    before = await reloading.status()
    assert before["lastAttempt"] is None
    assert before["notChangedLive"] == []
    assert (before["fleets"], before["policies"]) == (1, 2)
    new = reloading.policies / "code.yaml.tmp"
    new.write_text(policy("math"), "utf-8")
    new.replace(reloading.policies / "code.yaml")
    await reloading.in_force("chat", "math")
    after = await reloading.status()
    assert after["hash"] != before["hash"]
    assert after["since"] > before["since"]
    assert after["files"] == [str(reloading.policies / f"{name}.yaml") for name in ("chat", "code", "fleet")]
    assert after["lastAttempt"]["outcome"] == "Loaded"
    assert after["lastAttempt"]["cause"] == "change"
    assert after["lastAttempt"]["added"] == ["ScalingPolicy/math"]
    assert after["lastAttempt"]["removed"] == ["ScalingPolicy/code"]
    decisions = (await reloading.get("/v1/decisions"))["items"]
    assert decisions[-1]["policyHash"] == after["hash"]
    event = await reloading.event()
    assert (event["outcome"], event["hash"], event["added"]) == (
        "Loaded",
        after["hash"],
        ["ScalingPolicy/math"],
    )


async def test_the_swap_of_a_configmap_takes_effect_by_itself(tmp_path: Path) -> None:
    policies = tmp_path / "mounted"
    for version, names in (("..2026_1", ("chat",)), ("..2026_2", ("chat", "code"))):
        (policies / version).mkdir(parents=True)
        documents = "---\n".join([FLEET, *map(policy, names)])
        (policies / version / "all.yaml").write_text(documents, "utf-8")
    (policies / "..data").symlink_to("..2026_1")
    (policies / "all.yaml").symlink_to("..data/all.yaml")
    async with controller(tmp_path, policies) as rig:
        await rig.in_force("chat")
        (policies / "..data_tmp").symlink_to("..2026_2")
        (policies / "..data_tmp").rename(policies / "..data")
        await rig.in_force("chat", "code")
        assert (await rig.status())["files"] == [str(policies / "all.yaml")]


@pytest.mark.long
async def test_a_hang_up_has_the_files_read_at_once(reloading: Reloading) -> None:
    reloading.hang_up()
    found = await reloading.until(lambda status: status["lastAttempt"])
    assert (found["lastAttempt"]["cause"], found["lastAttempt"]["outcome"]) == ("signal", "Unchanged")
    assert await reloading.metric('policy_reloads_total{outcome="Unchanged"}') == 1
    assert await reloading.metric("policy_reload_success") == 1


async def test_a_request_is_answered_with_what_came_of_it(reloading: Reloading) -> None:
    before = (await reloading.status())["hash"]
    assert await reloading.post("wrong") == (
        401,
        {
            "error": {
                "code": "Unauthorized",
                "message": "missing or wrong token; EMBERPOOL_AGENT_TOKEN of the controller is the one",
            }
        },
    )
    (reloading.policies / "math.yaml").write_text(policy("math"), "utf-8")
    code, body = await reloading.post()
    assert (code, body["outcome"], body["cause"]) == (200, "Loaded", "request")
    assert body["hash"] == (await reloading.status())["hash"] != before
    await reloading.in_force("chat", "code", "math")
    (reloading.policies / "math.yaml").write_text(policy("math").replace("max:", "mux:"), "utf-8")
    code, refused = await reloading.post()
    assert (code, refused["outcome"], refused["hash"]) == (422, "Rejected", body["hash"])
    assert refused["faults"] == [
        {
            "file": str(reloading.policies / "math.yaml"),
            "line": 6,
            "column": 21,
            "path": "spec.serving.mux",
            "message": "is not a known key",
            "hint": "did you mean max?",
        }
    ]


async def test_requests_at_one_time_share_a_reading(reloading: Reloading) -> None:
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(reloading.post()) for _ in range(20)]
    assert {(code, body["outcome"]) for code, body in map(asyncio.Task.result, asked)} == {(200, "Unchanged")}
    assert await reloading.metric('policy_reloads_total{outcome="Unchanged"}') < 20


async def test_a_bad_set_keeps_the_last_good_one_and_says_so_everywhere(reloading: Reloading) -> None:
    good = await reloading.status()
    loaded_at = await reloading.metric("policy_last_reload_timestamp_seconds")
    file = reloading.policies / "chat.yaml"
    file.write_text(policy("chat").replace("spares", "sparse") + "---\nkind: [\n", "utf-8")
    bad = await reloading.until(lambda status: status["lastAttempt"])
    assert bad["lastAttempt"]["outcome"] == "Rejected"
    assert (bad["hash"], bad["since"]) == (good["hash"], good["since"])
    assert await reloading.names() == {"chat", "code"}
    assert await reloading.metric("policy_reload_success") == 0
    assert await reloading.metric("policy_last_reload_timestamp_seconds") == loaded_at
    assert await reloading.metric('policy_reloads_total{outcome="Rejected"}') == 1
    event = await reloading.event()
    assert event["faults"] == bad["lastAttempt"]["faults"]
    (line,) = [line for line in reloading.log() if line["event"] == "policy fault"]
    assert line["at"].startswith(f"{file}:{event['faults'][0]['line']}:")
    file.write_text(policy("chat", most=1), "utf-8")  # mended: nobody has to ask
    await reloading.until(lambda status: status["lastAttempt"]["outcome"] == "Loaded")
    assert await reloading.metric("policy_reload_success") == 1


async def test_a_fleet_without_seats_is_refused_at_its_place(reloading: Reloading) -> None:
    (reloading.policies / "more.yaml").write_text(FLEET.replace("spares", "own"), "utf-8")
    code, body = await reloading.post()
    (fault,) = body["faults"]
    assert code == 422
    assert (fault["line"], fault["message"]) == (3, "fleet own has no seat in the list of agents")


async def test_without_any_policy_left_the_controller_goes_on(reloading: Reloading) -> None:
    (reloading.policies / "chat.yaml").unlink()
    (reloading.policies / "code.yaml").unlink()
    await reloading.in_force()
    found = await reloading.status()
    assert (found["fleets"], found["policies"]) == (1, 0)
    (reloading.policies / "fleet.yaml").unlink()  # an empty directory is more likely a mistake than a wish
    code, body = await reloading.post()
    assert (code, body["faults"][0]["message"]) == (422, "the directory holds no *.yaml or *.yml file")


@pytest.mark.long
async def test_all_files_rewritten_and_removed_for_a_moment_change_nothing(reloading: Reloading) -> None:
    await reloading.post()
    before = await reloading.status()
    text = (reloading.policies / "code.yaml").read_text("utf-8")
    (reloading.policies / "code.yaml").unlink()
    await asyncio.sleep(0)
    (reloading.policies / "code.yaml").write_text(text, "utf-8")
    found = await reloading.until(lambda status: status["lastAttempt"]["cause"] == "change")
    assert found["lastAttempt"]["outcome"] == "Unchanged"
    assert found["since"] == before["since"]


@pytest.mark.long
async def test_a_reader_that_is_killed_is_replaced(reloading: Reloading) -> None:
    await reloading.post()
    (reader,) = reloading.processes.children("controller")
    reader.kill()
    found = await reloading.until(lambda status: status["lastAttempt"]["outcome"] == "Failed")
    assert "exit code -9" in found["lastAttempt"]["problem"]
    assert await reloading.metric("policy_reload_success") == 0
    (reloading.policies / "math.yaml").write_text(policy("math"), "utf-8")
    await reloading.in_force("chat", "code", "math")
    assert await reloading.metric("policy_reload_success") == 1


async def test_the_reader_ends_with_its_controller(reloading: Reloading) -> None:
    await reloading.post()
    (reader,) = reloading.processes.children("controller")
    await reloading.processes.kill("controller")
    await asyncio.to_thread(reader.wait, 20)
