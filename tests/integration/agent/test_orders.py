"""Orders to a seat, over real sockets to real processes."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.agent.conftest import TOKEN, Agent, calm, of, resident, running_agent

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    directory = tmp_path_factory.mktemp("pair")
    residents = [resident("a", seed=1), resident("b", seed=2)]
    async with running_agent(directory, residents, memory={"hostMiB": 64}) as agent:
        yield agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    async with running_agent(tmp_path_factory.mktemp("single"), [resident("a")]) as agent:
        yield agent


@pytest_asyncio.fixture(loop_scope="module")
async def pair(shared: Agent) -> Agent:
    """The seat of two residents, both paused, whatever the test before has left."""
    return await calm(shared)


@pytest_asyncio.fixture(loop_scope="module")
async def single(alone: Agent) -> Agent:
    """The seat of one resident, paused, whatever the test before has left."""
    return await calm(alone)


async def test_promotion_service_demotion_on_a_shared_seat(pair: Agent) -> None:
    promoted = await pair.api.order("resume", "a")
    assert (promoted.status, promoted.body["state"]) == (200, "Serving")
    assert promoted.body["phases"].keys() == {"kv", "canary", "open"}
    assert not of(await pair.api.get("/v1/state"), "a")["kvReleased"]

    status, text = await pair.api.generate("a", tokens=3)
    assert (status, text.count("token_ids")) == (200, 3)

    drained = await pair.api.order("drain", "a")
    assert (drained.status, drained.body["state"], drained.body["aborted"]) == (200, "Draining", 0)
    status, _ = await pair.api.generate("a", tokens=1)
    assert status == 503
    paused = await pair.api.order("pause", "a")
    assert (paused.status, paused.body["state"]) == (200, "Paused")
    assert of(await pair.api.get("/v1/state"), "a")["kvReleased"]
    calls = (await pair.api.engine_log("a"))["calls"]
    assert "POST /wake_up?tags=kv_cache" in calls
    assert calls.count("POST /pause?mode=wait&clear_cache=true") == 1
    assert "POST /resume" not in calls


async def test_a_resident_alone_on_its_seat_keeps_its_kv_memory(single: Agent) -> None:
    promoted = await single.api.order("resume", "a")
    assert promoted.body["phases"].keys() == {"resume", "canary", "open"}
    await single.api.order("drain", "a")
    await single.api.order("pause", "a")
    calls = (await single.api.engine_log("a"))["calls"]
    assert "POST /pause?mode=wait&clear_cache=false" in calls
    assert "POST /release_kv_cache_memory" not in calls


async def test_one_resident_computes_at_a_time(pair: Agent) -> None:
    await pair.api.order("resume", "a")
    for kind in ("resume", "prove"):
        refused = await pair.api.order(kind, "b")
        assert (refused.status, refused.code) == (409, "Busy")
        assert "a is Serving" in refused.message
    await pair.api.order("drain", "a")
    assert (await pair.api.order("resume", "b")).code == "Busy"  # drained, and not paused yet
    await pair.api.order("pause", "a")
    assert (await pair.api.order("resume", "b")).status == 200


async def test_an_order_during_another_is_busy(pair: Agent) -> None:
    await pair.api.script("a", faults={"POST /v1/completions": {"do": "slow", "seconds": 0.5}})
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(pair.api.order("resume", "a"))
        state = await pair.controller.until(lambda told: of(told, "a")["state"] == "Promoting")
        assert state["operation"]["kind"] == "resume"
        assert state["operation"]["policy"] == "a"
        for kind, policy in (("resume", "b"), ("prove", "b"), ("drain", "a"), ("resume", "a")):
            assert (await pair.api.order(kind, policy)).code == "Busy"
    assert first.result().status == 200
    assert (await pair.api.get("/v1/state"))["operation"] is None


@pytest.mark.wall_clock
async def test_a_burst_during_a_drain_recalls_the_draining_resident(single: Agent) -> None:
    await single.api.order("resume", "a")
    started = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(single.api.generate("a", tokens=300, started=started))
        await started.wait()
        drain = tasks.create_task(single.api.order("drain", "a"))
        await single.controller.until(
            lambda told: of(told, "a")["state"] == "Draining" and of(told, "a")["inFlight"] == 1
        )
        recalled = await single.api.order("resume", "a", claim="recall")
    assert (recalled.status, recalled.body["state"], recalled.body["phases"].keys()) == (
        200,
        "Serving",
        {"open"},
    )
    assert (drain.result().status, drain.result().code) == (409, "WrongState")
    assert "recalled by claim recall" in drain.result().message
    assert request.result()[1].count("token_ids") == 300
    assert (await single.api.generate("a", tokens=1))[0] == 200


@pytest.mark.wall_clock
async def test_a_drain_with_less_time_goes_on_with_one_that_is_under_way(single: Agent) -> None:
    """A switch needs the seat sooner than the demotion before it: its claim is another, and what had more time is ended."""
    await single.api.order("resume", "a")
    started = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(single.api.generate("a", tokens=100_000, started=started))
        await started.wait()
        slow = tasks.create_task(single.api.order("drain", "a", seconds=60.0, claim="demotion"))
        await single.controller.until(lambda told: of(told, "a")["state"] == "Draining")
        soon = await single.api.order("drain", "a", seconds=0.2, claim="switch")
        assert (soon.status, soon.body["state"], soon.body["aborted"]) == (200, "Draining", 1)
        paused = await single.api.order("pause", "a", claim="switch")
    assert (slow.result().status, slow.result().code) == (409, "WrongState")
    assert "taken over by claim switch: a goes on draining, for 0.2 s at most" in slow.result().message
    assert '"error"' in request.result()[1]
    assert (paused.status, paused.body["state"]) == (200, "Paused")
    late = await single.api.order("drain", "a", claim="another")
    assert (late.status, late.body["aborted"]) == (200, 0)


async def test_a_drain_ends_what_is_not_finished_by_its_deadline(single: Agent) -> None:
    await single.api.order("resume", "a")
    started = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(single.api.generate("a", tokens=100_000, started=started))
        await started.wait()
        began = time.monotonic()
        drained = await single.api.order("drain", "a", seconds=1.0)
        assert time.monotonic() - began < 20  # a tenth of what the request would take
    assert (drained.status, drained.body["aborted"]) == (200, 1)
    assert '"error"' in request.result()[1]
    assert (await single.api.order("pause", "a")).body["state"] == "Paused"


@pytest.mark.wall_clock
async def test_a_drain_waits_for_what_was_accepted(single: Agent) -> None:
    await single.api.order("resume", "a")
    started = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(single.api.generate("a", tokens=100, started=started))
        await started.wait()
        drained = await single.api.order("drain", "a")
    assert drained.body["aborted"] == 0
    assert drained.body["phases"]["drain"] > 0.05
    assert request.result()[1].count("token_ids") == 100


async def test_what_is_already_so_is_no_error(single: Agent) -> None:
    for kind in ("pause", "drain"):
        again = await single.api.order(kind, "a")
        assert (again.status, again.body["state"], again.body["phases"]) == (200, "Paused", {})
    await single.api.order("resume", "a")
    again = await single.api.order("resume", "a")
    assert (again.status, again.body["state"], again.body["phases"]) == (200, "Serving", {})


async def test_orders_that_make_no_sense_are_refused(single: Agent) -> None:
    single.api.epoch = 7
    await single.api.order("resume", "a")
    table = [
        (await single.api.order("pause", "a"), 409, "WrongState", "only a drained"),
        (await single.api.order("prove", "a"), 409, "WrongState", "only a paused"),
        (await single.api.order("drain", "a", epoch=6), 409, "StaleEpoch", "term 7"),
        (await single.api.order("drain", "nobody"), 404, "UnknownResident", "it has a"),
        (await single.api.order("drain", "a", epoch=-1), 400, "BadOrder", "epoch"),
        (await single.api.order("drain", "a", seconds=0), 400, "BadOrder", "deadlineSeconds"),
        (await single.api.post("/v1/drain", data=b"{"), 400, "BadOrder", "no JSON"),
        (await single.api.post("/v1/drain", json=[1]), 400, "BadOrder", "no JSON object"),
        (await single.api.post("/v1/drain", json={}, headers={}), 401, "BadOrder", "token"),
        (
            await single.api.post("/v1/drain", json={}, headers={"Authorization": f"Bearer {TOKEN}x"}),
            401,
            "BadOrder",
            "token",
        ),
        (await single.api.post("/v1/dance", json={}), 404, "BadOrder", "Not Found"),
    ]
    for answer, status, code, words in table:
        assert (answer.status, answer.code) == (status, code)
        assert words in answer.message
    state = await single.api.get("/v1/state")
    assert (state["epoch"], of(state, "a")["state"]) == (7, "Serving")


async def test_a_repeated_order_is_carried_out_once(single: Agent) -> None:
    async with asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(single.api.order("resume", "a", claim="same")) for _ in range(2)]
    first, second = (task.result() for task in both)
    assert first.body == second.body
    assert first.body["phases"].keys() == {"resume", "canary", "open"}
    await single.api.order("drain", "a")
    again = await single.api.order("resume", "a", claim="same")
    assert again.body == first.body
    assert of(await single.api.get("/v1/state"), "a")["state"] == "Draining"  # it was no recall
    assert (await single.api.engine_log("a"))["calls"].count("POST /resume") == 1


async def test_a_refused_order_may_be_tried_again_under_the_same_claim(pair: Agent) -> None:
    await pair.api.order("resume", "a")
    assert (await pair.api.order("resume", "b", claim="patient")).code == "Busy"
    await pair.api.order("drain", "a")
    await pair.api.order("pause", "a")
    assert (await pair.api.order("resume", "b", claim="patient")).status == 200


async def test_a_proof_compares_tokens_and_pauses_again(pair: Agent) -> None:
    before = of(await pair.api.get("/v1/state"), "a")["provenAt"]
    proven = await pair.api.order("prove", "a")
    assert (proven.status, proven.body["state"]) == (200, "Paused")
    assert proven.body["phases"].keys() == {"kv", "proof", "pause"}
    after = of(await pair.api.get("/v1/state"), "a")
    assert after["provenAt"] > before
    assert after["kvReleased"]


@pytest.mark.wall_clock
async def test_a_claim_during_a_proof_takes_over_the_resumed_engine(pair: Agent) -> None:
    await pair.api.script("a", faults={"POST /v1/completions": {"do": "slow", "seconds": 20, "times": 1}})
    async with asyncio.TaskGroup() as tasks:
        proof = tasks.create_task(pair.api.order("prove", "a", seconds=30))
        await pair.controller.until_states(a="Proving")
        # The slow answer has to be the proof's, and not the canary's.
        await until_asked(pair, "a", "POST /v1/completions")
        began = time.monotonic()
        promoted = await pair.api.order("resume", "a", claim="burst")
        assert time.monotonic() - began < 3
    assert (proof.result().status, proof.result().code) == (409, "WrongState")
    assert "taken over by claim burst" in proof.result().message
    assert (promoted.status, promoted.body["state"]) == (200, "Serving")
    calls = (await pair.api.engine_log("a"))["calls"]
    assert calls.count("POST /wake_up?tags=kv_cache") == 1
    assert calls[-3:-2] == ["POST /v1/completions"]


async def test_weights_are_parked_and_come_back_with_a_promotion(pair: Agent) -> None:
    parked = await pair.api.order("park", "a")
    assert (parked.status, parked.body["state"]) == (200, "Parked")
    assert parked.body["phases"].keys() == {"park"}
    state = await pair.api.get("/v1/state")
    assert of(state, "a")["parkedBytes"] == 4096
    assert state["memory"]["parkedBytes"] == sum(each["parkedBytes"] for each in state["residents"])
    assert of(state, "a")["verification"]["change"] == "Park"
    assert (await pair.api.order("prove", "a")).code == "WrongState"
    promoted = await pair.api.order("resume", "a", displace=["b"])
    assert (promoted.status, promoted.body["state"]) == (200, "Serving")
    assert promoted.body["phases"].keys() == {"unpark", "kv", "canary", "open"}
    status, text = await pair.api.generate("a", tokens=3)
    assert (status, text.count("token_ids")) == (200, 3)
    told = of(await pair.api.get("/v1/state"), "a")
    assert 0 < told["wakeSeconds"]["Parked"] < 30
    calls = (await pair.api.engine_log("a"))["calls"]
    assert [call for call in calls if "/sleep" in call or "/wake_up" in call] == [
        *("POST /sleep?level=1&mode=wait", "POST /wake_up?tags=weights", "POST /wake_up?tags=kv_cache")
    ]


async def test_a_parked_resident_is_unparked_ahead_of_need(pair: Agent) -> None:
    await pair.api.order("park", "b")
    unparked = await pair.api.order("unpark", "b")
    assert (unparked.status, unparked.body["state"], unparked.body["phases"].keys()) == (
        *(200, "Paused"),
        {"unpark"},
    )
    assert of(await pair.api.get("/v1/state"), "b")["kvReleased"]


async def test_where_nobody_is_parked_the_order_is_refused(single: Agent) -> None:
    refused = await single.api.order("park", "a")
    assert (refused.status, refused.code) == (409, "WrongState")
    assert "memory.hostMiB is 0" in refused.message
    assert (await single.api.order("park", "a", displace="b")).code == "BadOrder"


async def test_what_a_resident_is_compared_with_is_told_and_not_taken_from_anybody(single: Agent) -> None:
    assert await single.api.get("/v1/proof/a") == {
        "policy": "a",
        "uid": "uid-1",
        "statement": None,
        "recording": None,
        "missing": "",
    }
    term = single.api.epoch
    good = {"epoch": term, "answers": [{"prompt": "p", "tokens": [1]}], "witnesses": ["other"]}
    table = [
        (await single.api.put("/v1/proof/a", good), 409, "WrongState", "the config has recorded tokens"),
        (await single.api.put("/v1/proof/nobody", good), 404, "UnknownResident", "it has a"),
        (await single.api.put("/v1/proof/a", good | {"epoch": 0}), 409, "StaleEpoch", f"term {term}"),
        (await single.api.put("/v1/proof/a", good | {"epoch": str(term)}), 400, "BadOrder", "epoch: "),
        (await single.api.put("/v1/proof/a", good | {"answers": []}), 400, "BadOrder", "at least one"),
        (await single.api.put("/v1/proof/a", []), 400, "BadOrder", "no JSON object"),
    ]
    for answer, status, code, words in table:
        assert (answer.status, answer.code) == (status, code)
        assert words in answer.message


async def test_metrics_and_liveness(single: Agent) -> None:
    async with single.api.session.get(f"{single.api.url}/livez") as response:
        assert response.status == 200
    async with single.api.session.get(f"{single.api.url}/metrics") as response:
        assert response.status == 401
    before = await metrics(single)
    await single.api.order("resume", "a")
    after = await metrics(single)
    assert 'emberpool_agent_resident_state{policy="a",state="Paused"} 1.0' in before
    assert 'emberpool_agent_resident_state{policy="a",state="Serving"} 1.0' in after
    for name in (
        'emberpool_agent_orders_total{kind="resume",outcome="Done"}',
        'emberpool_agent_order_phase_seconds_count{kind="resume",phase="canary"}',
    ):
        assert figure(after, name) == figure(before, name) + 1


async def metrics(agent: Agent) -> str:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with agent.api.session.get(f"{agent.api.url}/metrics", headers=headers) as response:
        assert response.status == 200
        return await response.text()


def figure(text: str, name: str) -> float:
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)), 0.0)


async def until_asked(agent: Agent, policy: str, route: str) -> None:
    """Wait until a resident's engine has been asked for a route."""
    async with asyncio.timeout(20):
        while route not in (await agent.api.engine_log(policy))["calls"]:
            await asyncio.sleep(0.002)
