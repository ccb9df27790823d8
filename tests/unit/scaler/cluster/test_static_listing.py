"""The list of agents: all that is wrong with it in one run, and nothing that only follows."""

from pathlib import Path

import pytest

from scaler.cluster.static.listing import load_agents
from scaler.errors import PolicyError

HEAD = "apiVersion: emberpool.dev/v1alpha1\nkind: AgentList\nmetadata: {name: lab}\n"
ONE = 'fleets: [{name: spares, seats: [{name: seat-0, agent: "http://10.0.0.1:9081"}]}]'


def told(folder: Path, text: str) -> list[str]:
    """Return the line of each fault, and its path, or what is said of the whole document."""
    path = folder / "agents.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(PolicyError) as caught:
        load_agents(path)
    return [f"{each.line}: {each.path or each.message}" for each in caught.value.faults]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            f"""{HEAD}spec:
  fleet: spares
  fleets:
    - name: Spares
      seats:
        - {{name: seat-0, agent: "10.0.0.1:9081"}}
        - {{name: seat-0, agent: "http://10.0.0.2:9081", gpus: 0}}
    - name: own
      seats:
        - {{name: seat-1, agent: "http://10.0.0.2:9081"}}
        - {{agent: "http://10.0.0.2:9081", node: ""}}
""",
            [
                "5: spec.fleet",
                "7: spec.fleets[0].name",
                "9: spec.fleets[0].seats[0].agent",
                "10: spec.fleets[0].seats[1].name",
                "10: spec.fleets[0].seats[1].gpus",
                "13: spec.fleets[1].seats[0].agent",
                "14: spec.fleets[1].seats[1].name",
                "14: spec.fleets[1].seats[1].agent",
                "14: spec.fleets[1].seats[1].node",
            ],
            id="values, and names and agents that are listed twice",
        ),
        pytest.param(
            f"{HEAD}spec: {{fleets: [{{name: own, seats: []}}, {{name: own, seats: 3}}]}}\n",
            ["4: spec.fleets[0].seats", "4: spec.fleets[1].name", "4: spec.fleets[1].seats"],
            id="a fleet twice, both without seats",
        ),
        pytest.param(
            f"metadata: {{name: lab, namespace: A}}\nspec: {{fleets: []}}\n---\n{HEAD}spec: {{{ONE}, more: 1}}\n",
            [
                "1: apiVersion",
                "1: kind",
                "1: metadata.namespace",
                "2: spec.fleets",
                "4: a list of agents is one document",
                "7: spec.more",
            ],
            id="two documents, the first one without a kind",
        ),
        pytest.param(
            f"{HEAD}spec:\n  {ONE}\n  fleets: 3\n---\nkind: [\n",
            [
                '6: the key "fleets" appears twice, first in line 5',
                "8: is not valid YAML: expected the node content, but found the end of the file",
            ],
            id="a key twice, and no YAML",
        ),
        pytest.param("", ["1: the file holds no document"], id="nothing"),
    ],
)
def test_all_faults_come_in_one_run(tmp_path: Path, text: str, expected: list[str]) -> None:
    found = told(tmp_path, text)
    assert found == expected


def test_a_list_among_others_in_a_folder_is_told_with_them(tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text(f"{HEAD}spec: {{{ONE}}}\n", "utf-8")
    assert load_agents(tmp_path).metadata.name == "lab"
    (tmp_path / "broken.yaml").write_text("kind: [\n", "utf-8")
    with pytest.raises(PolicyError, match=r"broken\.yaml:1:"):
        load_agents(tmp_path)


def test_policies_are_sent_to_where_they_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(HEAD.replace("AgentList", "Fleet") + "spec: {maxSeats: x}\n", "utf-8")
    with pytest.raises(PolicyError) as caught:
        load_agents(path)
    (fault,) = caught.value.faults
    assert (fault.path, fault.hint) == ("kind", "a Fleet is checked with `emberpool policy validate FILE`")
