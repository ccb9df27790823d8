"""`emberpool decision` on the ledger of a controller that looks at one island at a time."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scaler.cli.app import main
from scaler.core.replay import decision_to_json
from tests.sim.test_islands import CHAT, CODE, EMBED, FLEETS, LLM, POLICIES, SERVICE, SMALL, warm
from tests.sim.world import World, world

pytestmark = pytest.mark.looptime


def kept(on: World, file: Path) -> Path:
    file.write_text("".join(f"{json.dumps(line)}\n" for line in on.ledger), encoding="utf-8")
    return file


def explained(capsys: pytest.CaptureFixture[str], file: Path, *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["decision", "explain", *arguments, "--file", str(file), "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def shape(decision: Mapping[str, Any]) -> dict[str, object]:
    """What of a decision makes the ledger write a whole record: between two, numbers move and answers don't."""
    return {
        **{name: (each["mode"], each["serving"]) for name, each in decision["policies"].items()},
        **{f"fleet {name}": each["total"] for name, each in decision["fleets"].items()},
    }


async def test_without_a_number_every_policy_and_fleet_is_told_as_the_controller_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = 0
    async with world(POLICIES, FLEETS) as on:
        await warm(on)
        for _ in range(40):
            await on.constant(CHAT, 7.5, SERVICE, 0.3)
            found = explained(capsys, kept(on, tmp_path / "decisions.jsonl"))
            tick = on.controller.last
            assert tick is not None
            assert shape(found["decision"]) == shape(decision_to_json(tick.decision))
            assert found["inputs"]["loads"].keys() == {CHAT, CODE, EMBED}
            assert found["inputs"]["fleets"].keys() == {LLM, SMALL}
            answers = [*found["decision"]["policies"].values(), *found["decision"]["fleets"].values()]
            assert all(0.0 <= found["at"] - each["at"] <= 1.1 for each in answers)
            assert max(each["number"] for each in answers) == found["number"]
            parts += found["decision"]["policies"][EMBED]["number"] < found["number"]
    assert parts > 0


async def test_a_decision_that_looked_at_a_part_says_so_and_the_list_finds_those_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with world(POLICIES, FLEETS) as on:
        await warm(on)
        await on.constant(CHAT, 7.5, SERVICE, 10)
        file = kept(on, tmp_path / "decisions.jsonl")
        records = [line for line in on.ledger if "decision" in line]
    (part, *_) = [line for line in records if "looked" in line and CHAT in line["looked"]["policies"]]
    assert main(["decision", "explain", str(part["number"]), "--file", str(file)]) == 0
    out = capsys.readouterr().out
    looked = "Looked at:    policy chat, policy code, fleet llm; a part of 3 policies and 2 fleets"
    assert looked in out.splitlines()
    assert "Policy embed" not in out
    assert explained(capsys, file, str(part["number"]))["of"] == {
        "policies": [CHAT, CODE, EMBED],
        "fleets": [LLM, SMALL],
    }
    for option, name, kind in (("--policy", EMBED, "policies"), ("--fleet", LLM, "fleets")):
        assert (
            main(["decision", "list", option, name, "--last", "999", "--file", str(file), "-o", "name"]) == 0
        )
        about = [line for line in records if name in line["decision"][kind]]
        assert capsys.readouterr().out.split() == [f"decision/{line['number']}" for line in about]
    assert sum(EMBED in line["decision"]["policies"] for line in records) < len(records)
