"""Policies over a list of agents: the list says which fleets there are, and how large."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from scaler.cluster.static.listing import AgentList, load_agents
from scaler.runtime.controller import PolicyTable
from scaler.runtime.listed_policies import ListedPolicies
from tests.unit.scaler.runtime.policy_sets import compiled, fleet, policy, reading

AGENTS = """\
apiVersion: emberpool.dev/v1alpha1
kind: AgentList
metadata: {name: lab}
spec:
  fleets:
    - name: spares
      seats: [{name: seat-0, agent: "http://10.0.0.1:1"}, {name: seat-1, agent: "http://10.0.0.2:1"}]
    - name: own
      seats: [{name: seat-2, agent: "http://10.0.0.3:1"}]
"""


@pytest.fixture
def listed(tmp_path: Path) -> AgentList:
    (tmp_path / "agents.yaml").write_text(AGENTS, "utf-8")
    return load_agents(tmp_path / "agents.yaml")


def test_a_fleet_is_no_larger_than_its_list_and_one_without_policy_is_left_alone(listed: AgentList) -> None:
    adopted: list[PolicyTable] = []
    with capture_logs() as logs:
        notes = ListedPolicies(listed, adopted.append).adopt(compiled(fleet(), policy("chat")))
    assert notes == ["fleet own is in no policy file: its 1 seats are left as they are"]
    (found,) = adopted
    assert [(each.name, each.max_seats) for each in found.fleets] == [("spares", 2)]
    assert found.models == {"chat": ("chat",)}
    assert [(line["event"], line["maxSeats"], line["listed"]) for line in logs] == [
        ("maxSeats differs from the list of agents", 4, 2)
    ]


async def test_a_fleet_without_seats_is_refused_at_its_place(listed: AgentList, tmp_path: Path) -> None:
    offered = reading(tmp_path, fleet(), fleet("sparse"), policy("chat"))
    force = ListedPolicies(listed, lambda _: None)
    (fault,) = await force.refuse(offered)
    assert (fault.line, fault.column, fault.path) == (8, 18, "metadata.name")
    assert fault.message == "fleet sparse has no seat in the list of agents"
    assert await force.refuse(reading(tmp_path, fleet(), policy("chat"))) == []
