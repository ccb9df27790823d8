"""What an agent does when an engine fails it: during an order, at rest, and while starting."""

import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.agent.conftest import Agent, calm, engine_command, of, resident, running_agent

together = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lasting(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    """A shared seat with two residents, for those whose engines are whole again in the end."""
    residents = [resident("a", seed=1), resident("b", seed=2)]
    async with running_agent(tmp_path_factory.mktemp("lasting"), residents) as agent:
        yield agent


@pytest_asyncio.fixture(loop_scope="module")
async def seat(lasting: Agent) -> Agent:
    """That seat, both residents paused."""
    return await calm(lasting)


@pytest.fixture
async def releasing(tmp_path: Path) -> AsyncIterator[Agent]:
    """A seat with one resident, paused, which gives its KV memory back as on a shared one."""
    async with running_agent(tmp_path, [resident("a")], kvWhenPaused="Release") as agent:
        yield agent


@together
@pytest.mark.wall_clock
@pytest.mark.parametrize(
    ("route", "step"),
    [
        pytest.param("POST /wake_up", "kv", id="wake-up hangs"),
        pytest.param("POST /v1/completions", "canary", id="canary hangs"),
        pytest.param("POST /guard/open", "open", id="guard hangs"),
    ],
)
async def test_a_promotion_that_hangs_is_undone_within_its_deadline(
    seat: Agent, route: str, step: str
) -> None:
    await seat.api.script("a", faults={route: {"do": "hang", "times": 1}})
    began = time.monotonic()
    late = await seat.api.order("resume", "a", seconds=1.0)
    assert time.monotonic() - began < 1.3
    assert (late.status, late.code) == (504, "DeadlineExceeded")
    assert late.message.startswith(f"{step}: {route}: no answer within")
    assert "a is paused again" in late.message
    state = of(await seat.api.get("/v1/state"), "a")
    assert (state["state"], state["kvReleased"], state["provenAt"]) == ("Paused", True, None)
    assert (await seat.api.generate("a", tokens=1))[0] == 503
    assert (await seat.api.order("resume", "a")).status == 200


async def test_an_engine_that_cannot_even_be_undone_is_replaced(pair: Agent) -> None:
    await pair.api.script("a", faults={"POST /v1/completions": {"do": "hang"}, "POST /pause": {"do": "hang"}})
    pid = of(await pair.api.get("/v1/state"), "a")["pid"]
    failed = await pair.api.order("resume", "a", seconds=2.5)  # the canary has to be reached
    assert (failed.status, failed.code) == (502, "EngineFailed")
    assert "canary: " in failed.message
    assert "undoing it failed too: POST /pause" in failed.message
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (await pair.api.order("resume", "b")).status == 200  # the seat is free for its neighbour at once
    assert "Serving" not in pair.controller.seen("a")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"wrongTokens": True}, "token 0 is", id="wrong token"),
        pytest.param({"faults": {"POST /wake_up": {"do": "refuse"}}}, "answered 500", id="refusal"),
        pytest.param({"faults": {"POST /guard/open": {"do": "lie"}}}, "says that it is closed", id="lie"),
        pytest.param(
            {"faults": {"POST /v1/completions": {"do": "crash"}}}, "exited with status 3; log:", id="crash"
        ),
    ],
)
async def test_an_engine_that_fails_a_promotion_never_serves(
    releasing: Agent, change: dict[str, object], words: str
) -> None:
    await releasing.api.script("a", **change)
    failed = await releasing.api.order("resume", "a")
    assert (failed.status, failed.code) == (502, "EngineFailed")
    assert words in failed.message
    state = await releasing.controller.until(lambda told: of(told, "a")["state"] == "Failed")
    assert words in of(state, "a")["failure"]
    assert "Serving" not in releasing.controller.seen("a")


@together
async def test_a_failed_engine_is_restarted_and_may_serve_again(seat: Agent) -> None:
    before = of(await seat.api.get("/v1/state"), "a")["restarts"]
    await seat.api.script("a", wrongTokens=True)
    assert (await seat.api.order("prove", "a")).code == "EngineFailed"
    again = await seat.controller.until(
        lambda told: of(told, "a")["restarts"] == before + 1 and of(told, "a")["state"] == "Paused"
    )
    assert of(again, "a")["failure"] == ""
    assert (await seat.api.order("resume", "a")).status == 200


@together
async def test_a_killed_neighbour_is_told_at_once_and_restarted_once_the_seat_is_free(seat: Agent) -> None:
    before = of(await seat.api.get("/v1/state"), "b")["restarts"]
    await seat.api.order("resume", "a")
    os.kill(of(await seat.api.get("/v1/state"), "b")["pid"], signal.SIGKILL)
    state = await seat.controller.until_states(b="Failed")
    assert "killed by SIGKILL" in of(state, "b")["failure"]
    assert of(state, "b")["pid"] is None
    # A second later it would be started again; a whole exchange with the serving neighbour takes longer than that.
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        assert (await seat.api.generate("a", tokens=50))[0] == 200
    assert seat.controller.seen("b")[-1] == "Failed"
    await seat.api.order("drain", "a")
    await seat.api.order("pause", "a")
    again = await seat.controller.until_states(a="Paused", b="Paused")
    assert of(again, "b")["restarts"] == before + 1


async def test_a_serving_engine_that_dies_during_a_drain_ends_the_order(single: Agent) -> None:
    await single.api.order("resume", "a")
    await single.api.script("a", faults={"POST /guard/close": {"do": "crash"}})
    failed = await single.api.order("drain", "a", seconds=30)
    assert (failed.status, failed.code) == (502, "EngineFailed")
    assert "exited with status 3" in failed.message
    assert "scripted crash" in failed.message


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param({"exitStatus": 7}, "exited with status 7; log: ", id="exits"),
        pytest.param({"wrongTokens": True}, "was recorded", id="wrong tokens"),
        pytest.param(
            {"faults": {"POST /pause": {"do": "lie"}}}, "says that it isn't paused", id="doesn't pause"
        ),
        pytest.param({"kvBytes": 2**30}, "1024 MiB of KV memory were released", id="releases nothing"),
    ],
)
@pytest.mark.long
async def test_an_engine_that_fails_its_start_is_never_paused(
    tmp_path: Path, script: dict[str, object], words: str
) -> None:
    residents = [resident("a", script=script), resident("b", seed=2)]
    async with running_agent(tmp_path, residents, wait=False) as agent:
        state = await agent.controller.until(lambda told: of(told, "a")["state"] == "Failed")
        assert words in of(state, "a")["failure"]
        await agent.controller.until_states(b="Paused")  # one that fails holds nobody up
        assert "Paused" not in agent.controller.seen("a")


async def test_a_command_that_does_not_exist_fails_by_name(tmp_path: Path) -> None:
    broken = resident("a") | {"command": ["no-such-engine", "{port}", "{controlPort}"]}
    async with running_agent(tmp_path, [broken], wait=False) as agent:
        state = await agent.controller.until_states(a="Failed")
        assert "command: no-such-engine can't be started: No such file" in of(state, "a")["failure"]


CLASH = """
import pathlib, socket, subprocess, sys
first = pathlib.Path(sys.argv[1])
if first.exists():
    import os
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
first.touch()
with socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1]))):
    sys.exit(subprocess.call([sys.executable, *sys.argv[2:]]))
"""


async def test_a_port_taken_meanwhile_is_no_failure(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLASH, str(tmp_path / "first"), *engine_command(seed=1)[1:]]
    async with running_agent(tmp_path, [resident("a") | {"command": command}]) as agent:
        assert of(await agent.api.get("/v1/state"), "a")["restarts"] == 0
    logs = next((tmp_path / "logs").iterdir()).read_text()
    ports = [line.split("--port ")[1].split()[0] for line in logs.splitlines() if line.startswith("---")]
    assert len(ports) == 2
    assert ports[0] != ports[1]
    assert "address already in use" in logs


STRANGER = """
import os, pathlib, sys
first = pathlib.Path(sys.argv[1])
if not first.exists() and os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    first.write_text(str(os.getpid()))
elif not first.exists() or not first.read_text():
    import signal
    signal.pause()
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


async def test_an_engine_of_somebody_else_on_the_same_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    command = [sys.executable, "-c", STRANGER, str(stranger), *engine_command(seed=1)[1:]]
    try:
        async with running_agent(tmp_path, [resident("a") | {"command": command}]) as agent:
            state = of(await agent.api.get("/v1/state"), "a")
            assert state["pid"] != int(stranger.read_text())
            assert (await agent.api.order("resume", "a")).status == 200
    finally:
        os.kill(int(stranger.read_text()), signal.SIGKILL)


def test_intervals_helper_finds_an_overlap() -> None:
    assert overlap([[0, 2], [3, 4]], [[1, 5]])
    assert not overlap([[0, 2], [3, 4]], [[2, 3]])


def overlap(*engines: list[list[float]]) -> bool:
    """Whether two engines computed at the same time."""
    by_start = sorted((begin, end, number) for number, each in enumerate(engines) for begin, end in each)
    latest_end = {number: float("-inf") for number in range(len(engines))}
    for begin, end, number in by_start:
        if any(begin < other_end for other, other_end in latest_end.items() if other != number):
            return True
        latest_end[number] = max(latest_end[number], end)
    return False


async def test_a_promotion_goes_before_a_neighbours_warm_up(tmp_path: Path) -> None:
    slow = {
        "tokenSeconds": 0.001,
        "faults": {"POST /v1/completions": {"do": "slow", "seconds": 60, "times": 1}},
    }
    residents = [resident("a"), resident("b", seed=2, script=slow)]
    async with running_agent(tmp_path, residents, wait=False) as agent:
        await agent.controller.until_states(a="Paused", b="Warming")
        promoted = await agent.api.order("resume", "a")
        assert (promoted.status, promoted.body["state"]) == (200, "Serving")
        assert promoted.body["phases"]["preempt"] < 2
        state = of(await agent.api.get("/v1/state"), "b")
        assert (state["state"], state["kvReleased"], state["restarts"]) == ("Loading", True, 0)
        assert (await agent.api.generate("a", tokens=20))[0] == 200
        await agent.api.order("drain", "a")
        await agent.api.order("pause", "a")
        ready = await agent.controller.until_states(a="Paused", b="Paused")
        assert of(ready, "b")["restarts"] == 0
        for told, following in pairwise(agent.controller.told):
            assert told["seq"] <= following["seq"]
            assert (
                sum(
                    each["state"] in {"Warming", "Proving", "Promoting", "Serving"}
                    for each in told["residents"]
                )
                <= 1
            )
        computed = [(await agent.api.engine_log(policy))["computed"] for policy in ("a", "b")]
        assert not overlap(*computed)


async def test_a_resident_that_loads_while_its_neighbour_serves_waits_in_loading(tmp_path: Path) -> None:
    residents = [resident("a"), resident("b", seed=2, script={"loadSeconds": 1.0})]
    async with running_agent(tmp_path, residents, wait=False) as agent:
        await agent.controller.until_states(a="Paused", b="Loading")
        assert "preempt" not in (await agent.api.order("resume", "a")).body["phases"]
        await agent.controller.until(
            lambda told: of(told, "b")["kvReleased"]
        )  # it has loaded, and has been set aside
        assert of(await agent.api.get("/v1/state"), "b")["state"] == "Loading"
        await agent.api.order("drain", "a")
        await agent.api.order("pause", "a")
        await agent.controller.until_states(a="Paused", b="Paused")
        assert agent.controller.seen("b")[-3:] != ["Failed", "Starting", "Loading"]


async def test_a_claim_takes_over_the_engine_of_a_first_proof(tmp_path: Path) -> None:
    slow = {"faults": {"POST /v1/completions": {"do": "slow", "seconds": 60, "times": 1}}}
    async with running_agent(tmp_path, [resident("a", script=slow, warmup=())], wait=False) as agent:
        await agent.controller.until_states(a="Proving")
        promoted = await agent.api.order("resume", "a")
        assert (promoted.status, promoted.body["state"]) == (200, "Serving")
        calls = (await agent.api.engine_log("a"))["calls"]
        assert not any(call.startswith(("POST /pause", "POST /resume", "POST /wake_up")) for call in calls)
