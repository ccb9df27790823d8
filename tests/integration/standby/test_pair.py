"""Two replicas: one leads, and both answer; whatever becomes of the leader, the other goes on, and KEDA never gets less than before."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from scaler.keda.client import KedaClient
from tests.contract.kube_rig import NAMESPACE_NAME
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.faults import Cut
from tests.fakes.kube_api.kinds import BY_PATH
from tests.integration.keda.test_processes import emberpool
from tests.integration.processes.rig import TOKEN
from tests.integration.standby.rig import ASKER, LEASE_SECONDS, Rig, keda, running, total


@dataclass
class Asked:
    """What KEDA was told, again and again.

    Attributes:
        answers: seconds and value; None where there was no answer.
    """

    answers: list[tuple[float, float | None]] = field(default_factory=list)

    @property
    def values(self) -> set[float | None]:
        return {value for _, value in self.answers}

    @property
    def longest_gap(self) -> float:
        times = [at for at, value in self.answers if value is not None]
        return max(later - sooner for sooner, later in pairwise(times))


@asynccontextmanager
async def asking(client: KedaClient) -> AsyncIterator[Asked]:
    asked = Asked()

    async def ask() -> None:
        while True:
            value = await total(client)
            asked.answers.append((time.monotonic(), value))
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(ask())
        yield asked
        task.cancel()


@asynccontextmanager
async def load(rig: Rig, queued: int) -> AsyncIterator[None]:
    """Have a gateway say meanwhile that so many requests wait."""

    async def push() -> None:
        while True:
            await rig.push(queued)
            await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(push())
        yield
        task.cancel()


async def told(rig: Rig, clients: Sequence[KedaClient], value: float) -> None:
    """Wait until every replica tells KEDA a value."""

    async def same() -> bool:
        return all([await total(client) == value for client in clients])

    await rig.until(f"both replicas to say {value:g}", same)


@pytest.mark.long
async def test_one_leads_and_the_other_answers_as_it_does(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        assert [await rig.leads(each) for each in rig.replicas] == [True, False]
        for path in ("/v1/seats", "/v1/fleets", "/v1/policies", "/v1/status", "/v1/decisions"):
            mine, theirs = [await rig.get(each, path) for each in rig.replicas]
            assert (mine[0], theirs[0]) == (200, 200)
            assert json.loads(mine[1]).keys() == json.loads(theirs[1]).keys()
            assert ("Emberpool-Leader" in mine[2], "Emberpool-Leader" in theirs[2]) == (False, True)
        assert not rig.b.writes()
        code, out, err = await emberpool("seat", "get", "--server", rig.b.url)
        assert (code, err) == (0, "")
        assert out.count("spares") >= 2  # the command line needn't know who leads
        async with keda(*rig.replicas) as clients:
            await told(rig, clients, 2.0)  # one serves, one is spare
            async with load(rig, 10):
                await told(rig, clients, 4.0)  # three of four requests each, and a spare
            assert await clients[1].is_active(ASKER)


@pytest.mark.wall_clock
async def test_a_leader_that_is_killed_is_followed_by_the_other_within_a_lease(tmp_path: Path) -> None:
    async with running(tmp_path) as rig, keda(rig.b) as (client, _), load(rig, 10):
        await told(rig, [client], 4.0)
        async with asking(client) as asked:
            began = time.monotonic()
            await rig.processes.kill("a")
            await rig.until("b to lead", lambda: rig.leads(rig.b), 2 * LEASE_SECONDS)
            took = time.monotonic() - began
            await asyncio.sleep(1.0)
        assert took <= LEASE_SECONDS + 4.0  # a candidate looks each second, and this machine may be busy
        assert asked.values == {4.0}
        assert asked.longest_gap < 2.0
        await rig.until("b to act", lambda: _wrote(rig))


async def _wrote(rig: Rig) -> bool:
    return any(call.resource == "leases" for call in rig.b.writes())


@pytest.mark.long
async def test_a_leader_that_was_stopped_past_its_lease_does_nothing_any_more(tmp_path: Path) -> None:
    async with running(tmp_path) as rig, keda(rig.b) as (client, _):
        await told(rig, [client], 2.0)
        rig.processes.signal("a", signal.SIGSTOP)
        async with asking(client) as asked:
            await rig.until("b to lead", lambda: rig.leads(rig.b), 2 * LEASE_SECONDS)
            async with load(rig, 10):
                await told(rig, [client], 4.0)
        assert asked.values <= {2.0, 3.0, 4.0}
        resumed = time.monotonic()
        rig.processes.signal("a", signal.SIGCONT)

        async def stands_by() -> bool:
            return (await rig.get(rig.a, "/readyz"))[0] == 200 and not await rig.leads(rig.a)

        await rig.until("a to stand by", stands_by)
        async with keda(rig.a) as (theirs, _):
            await told(rig, [theirs, client], await total(client) or 0.0)
        assert await rig.leads(rig.b)
        done = [call for call in rig.a.writes(resumed) if call.resource != "leases"]
        assert done == []  # a renewal that was on its way is refused for its version


@pytest.mark.long
async def test_a_leader_that_ends_hands_over_at_once_and_ends_its_streams_in_order(tmp_path: Path) -> None:
    async with running(tmp_path) as rig, keda(*rig.replicas) as (first, second):
        async with load(rig, 10):
            await told(rig, [first, second], 4.0)
            await rig.up(rig.a, 4)  # two seats have started meanwhile
        async with first.pushed(ASKER) as pushed:
            assert await anext(pushed)
            began = time.monotonic()
            assert await rig.processes.end("a") == 0
            assert [state async for state in pushed] == []
        await rig.until("b to lead", lambda: rig.leads(rig.b), LEASE_SECONDS)
        assert time.monotonic() - began < LEASE_SECONDS
        assert await total(second) == 4.0
        (kept,) = rig.api.store.all(BY_PATH["", "v1", "configmaps"], NAMESPACE_NAME)
        assert kept.body["metadata"]["name"] == "emberpool-kept-spares"
        learned = json.loads(kept.body["data"]["kept.json"])["histories"]["fleets"]["spares"]
        assert len(learned["starts"]) >= 1  # what a saw of seats that start, b goes on from


@pytest.mark.long
async def test_what_is_wrong_with_kedas_objects_is_shown_by_both_and_told_by_the_leader(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as rig:
        body = {
            "metadata": {"name": "second"},
            "spec": {
                "scaleTargetRef": {"name": "spares"},
                "triggers": [
                    {"type": "external-push", "metadata": {"scalerAddress": "x:1", "fleet": "spares"}}
                ],
            },
        }
        target = Target(kind=BY_PATH["keda.sh", "v1alpha1", "scaledobjects"], namespace=NAMESPACE_NAME)
        rig.api.create(target, body, {})

        def codes(text: str) -> set[str]:
            return {each["code"] for item in json.loads(text)["items"] for each in item["findings"]}

        async def shown() -> bool:
            pages = [await rig.get(each, "/v1/keda/findings") for each in rig.replicas]
            return all("SecondWriter" in codes(text) for _, text, _ in pages)

        await rig.until("both to show it", shown)
        _, text, _ = await rig.get(rig.b, "/v1/policies/status")
        conditions = {
            (each["fleet"], each["type"], each["reason"]) for each in json.loads(text)["conditions"]
        }
        assert ("spares", "KedaMisfit", "SecondWriter") in conditions
        events = BY_PATH["events.k8s.io", "v1", "events"]

        async def told() -> bool:
            return any(
                each.body["reason"] == "SecondWriter" for each in rig.api.store.all(events, NAMESPACE_NAME)
            )

        await rig.until("an Event", told)
        assert not rig.b.writes()
        _, mine, _ = await rig.get(rig.a, "/metrics")
        _, theirs, _ = await rig.get(rig.b, "/metrics")
        assert 'emberpool_keda_findings{fleet="spares",severity="Error"}' in mine
        assert 'emberpool_keda_findings{fleet="spares"' not in theirs


@pytest.mark.long
async def test_while_the_api_server_is_away_nothing_is_done_and_everybody_answers(tmp_path: Path) -> None:
    async with running(tmp_path) as rig, keda(*rig.replicas) as clients:
        await told(rig, clients, 2.0)
        rig.api.faults.cut(Cut.BEFORE, lambda _: True)
        rig.api.faults.drop_watches()

        async def nobody() -> bool:
            return not any([await rig.leads(each) for each in rig.replicas])

        await rig.until("nobody to lead", nobody)
        gone = time.monotonic()
        async with load(rig, 10), asking(clients[0]) as one, asking(clients[1]) as other:
            await asyncio.sleep(3.0)
        assert one.values | other.values == {2.0}
        tried = {call.resource for each in rig.replicas for call in each.writes(gone)}
        assert tried <= {"leases"}
        status, text, _ = await rig.get(rig.b, "/v1/seats")
        assert (status, json.loads(text)["error"]["code"]) == (503, "NotLeading")
        rig.api.faults.clear()

        async def somebody() -> bool:
            return any([await rig.leads(each) for each in rig.replicas])

        await rig.until("somebody to lead", somebody)
        await told(rig, clients, 4.0)  # what was pushed meanwhile was not lost on anybody


@pytest.mark.long
async def test_the_stream_of_decisions_wants_the_token_and_a_leader(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        path = "/v1/decisions/stream"
        assert (await rig.get(rig.a, path))[0] == 401
        for replica, wanted in ((rig.a, 200), (rig.b, 503)):
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with rig.session.get(replica.url + path, headers=headers) as answer:
                assert answer.status == wanted
