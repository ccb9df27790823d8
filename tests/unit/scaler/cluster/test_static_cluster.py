"""A cluster that is a list: hearing, adopting, resting; nothing is started and nothing is ended."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scaler.cluster.static.cluster import StaticCluster
from scaler.cluster.static.listing import load_agents
from scaler.errors import NotFound, PolicyError, Unreachable
from warmpool.errors import BadOrder
from warmpool.seats import FleetName, PolicyName, Resident, SeatValue, seat_value
from warmpool.states import ResidentState
from warmpool.wire import resident_to_json

LIST = """\
apiVersion: emberpool.dev/v1alpha1
kind: AgentList
metadata: {name: lab}
spec:
  fleets:
    - name: spares
      seats:
        - {name: seat-0, agent: "http://10.0.0.1:9081", node: gpu-a, gpus: ["0"]}
        - {name: seat-1, agent: "http://10.0.0.2:9081"}
"""
SPARES = FleetName("spares")
S = ResidentState


class Agents:
    """Answers for some agents; the others are out of reach."""

    def __init__(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        self.states = dict(states)

    async def read(self, agent: str) -> Mapping[str, Any]:
        if agent not in self.states:
            raise Unreachable(f"{agent} didn't answer")
        return self.states[agent]


def told(seat: str = "seat-0", *, chat: ResidentState = S.PAUSED, **others: Any) -> dict[str, Any]:
    resident = Resident(
        policy=PolicyName("chat"), state=chat, since=1.0, proven_at=1.0, address="http://0.0.0.0:5000"
    )
    body = {"seat": seat, "fleet": "spares", "uid": "u", "pid": 7, "epoch": 0, "seq": 1, "at": 10.0}
    return {**body, "residents": [resident_to_json(resident)], **others}


def cluster(tmp_path: Path, agents: Agents | None = None) -> StaticCluster:
    (tmp_path / "agents.yaml").write_text(LIST, "utf-8")
    return StaticCluster(load_agents(tmp_path / "agents.yaml"), agents or Agents({}))


def values(made: StaticCluster) -> list[SeatValue]:
    return [seat_value(seat) for seat in made.seats()]


async def test_a_seat_of_which_nothing_is_heard_takes_its_place_and_serves_nobody(tmp_path: Path) -> None:
    made = cluster(tmp_path, Agents({"http://10.0.0.1:9081": told()}))
    assert not made.synced
    await made.discover()
    assert made.synced
    assert values(made) == [SeatValue.SPARE, SeatValue.HELD]
    assert made.replicas(SPARES) == 2


async def test_what_serves_is_in_rotation_from_the_first_report_on(tmp_path: Path) -> None:
    made = cluster(tmp_path)
    made.report(told(chat=S.SERVING, epoch=4))
    seat = made.seats()[0]
    assert (seat.serving, seat.node, seat.gpus) == (frozenset({"chat"}), "gpu-a", ("0",))
    assert seat.residents[0].address == "http://10.0.0.1:5000"
    assert made.highest_epoch == 4


async def test_only_the_first_report_makes_rotation(tmp_path: Path) -> None:
    made = cluster(tmp_path)
    made.report(told())
    made.report(told(chat=S.SERVING, seq=2))
    assert made.seats()[0].serving == frozenset()


async def test_an_agent_that_began_anew_is_heard_though_it_counts_from_zero(tmp_path: Path) -> None:
    made = cluster(tmp_path)
    made.report(told(seq=50))
    made.report(told(chat=S.LOADING, seq=0, at=20.0))
    assert made.seats()[0].residents[0].state is S.LOADING


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(told("seat-9"), "not in the list", id="unlisted"),
        pytest.param(told(fleet="others"), "listed under fleet spares", id="another fleet"),
    ],
)
async def test_a_report_that_the_list_contradicts_is_refused(
    tmp_path: Path, body: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadOrder, match=message):
        cluster(tmp_path).report(body)


async def test_an_agent_that_answers_for_another_seat_is_not_believed(tmp_path: Path) -> None:
    made = cluster(tmp_path, Agents({"http://10.0.0.1:9081": told("seat-1")}))
    await made.discover()
    assert values(made) == [SeatValue.HELD, SeatValue.HELD]


async def test_another_size_is_recorded_and_changes_nothing(tmp_path: Path) -> None:
    made = cluster(tmp_path)
    await made.resize(SPARES, 5)
    assert (made.replicas(SPARES), made.drift(SPARES), len(made.seats())) == (5, 3, 2)
    with pytest.raises(NotFound):
        await made.resize(FleetName("nothing"), 1)


async def test_a_deleted_seat_rests_until_its_agent_begins_anew(tmp_path: Path) -> None:
    made = cluster(tmp_path)
    made.report(told())
    await made.delete(made.seats()[0], reason="three promotions failed")
    await made.delete(made.seats()[0], reason="again")
    made.report(told(seq=2))
    assert values(made)[0] is SeatValue.HELD
    made.report(told(seq=0, pid=8))
    assert values(made)[0] is SeatValue.SPARE


@pytest.mark.looptime
async def test_a_silent_agent_is_asked_and_a_mute_one_becomes_unreachable(tmp_path: Path) -> None:
    agents = Agents({})
    loop = asyncio.get_running_loop()
    (tmp_path / "agents.yaml").write_text(LIST, "utf-8")
    made = StaticCluster(load_agents(tmp_path / "agents.yaml"), agents, wall=loop.time)
    made.report(told())
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(made.run())
        await asyncio.sleep(8)
        assert not made.seats()[0].reachable
        agents.states["http://10.0.0.1:9081"] = told(seq=2)
        await asyncio.sleep(4)
        assert made.seats()[0].reachable
        running.cancel()


async def test_a_later_term_is_noticed(tmp_path: Path) -> None:
    made = cluster(tmp_path)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(made.superseded(5))
        made.report(told(epoch=5))
        await asyncio.sleep(0)
        assert not waiting.done()
        made.report(told("seat-1", epoch=6))
    assert waiting.result() == 6


def test_names_and_agents_that_are_listed_twice_are_faults_at_their_places(tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text(LIST.replace("seat-1", "seat-0").replace("10.0.0.2", "10.0.0.1"), "utf-8")
    with pytest.raises(PolicyError) as caught:
        load_agents(path)
    assert [(fault.line, fault.path) for fault in caught.value.faults] == [
        (9, "spec.fleets[0].seats[1].name"),
        (9, "spec.fleets[0].seats[1].agent"),
    ]


def test_an_agent_is_named_by_a_base_url(tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text(LIST.replace("http://10.0.0.2:9081", "10.0.0.2:9081"), "utf-8")
    with pytest.raises(PolicyError, match=r"seats\[1\].agent: must be a base URL such as"):
        load_agents(path)
