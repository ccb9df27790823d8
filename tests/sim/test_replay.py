"""Ledgers that a whole controller wrote, in virtual time: they replay, and what was changed in them is found."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaler.core.comparison import Verdict, verify, what_if
from scaler.core.ledger import Reader
from scaler.core.model import Burst, FleetShare, FleetSpec, Pace, PolicySpec
from scaler.runtime.controller import PolicyTable
from scaler.store.journal import Journal, read
from tests.sim.world import world
from warmpool.seats import FleetName, PolicyName

pytestmark = pytest.mark.looptime

FLEET, CHAT, CODE = FleetName("spares"), PolicyName("chat"), PolicyName("code")
SERVICE = 1.6
CALM = Burst(window=2.0, stable_window=10.0, demote_after=3.0)
TABLE = PolicyTable(
    policies=[
        PolicySpec(
            name=name,
            fleets=(FleetShare(fleet=FLEET, target_in_flight=8),),
            serving_min=1,
            ttft_objective=0.5,
            burst=CALM,
        )
        for name in (CHAT, CODE)
    ],
    fleets=[FleetSpec(name=FLEET, max_seats=3, spare_target=1, scale_down=Pace(window=10.0))],
    hash="other",
)


async def write(path: Path) -> int:
    """Let a controller live through a burst, silence and nonsense, and return how often it ticked."""
    journal = Journal(path)
    async with world(TABLE.policies, TABLE.fleets) as on:
        await on.until(lambda: on.serving("chat") == 1 and on.serving("code") == 1)
        await on.constant("chat", 2.5, SERVICE, 20)
        await on.constant("chat", 7.5, SERVICE, 10)
        on.traffic.silent.add(CHAT)
        await asyncio.sleep(20)
        on.traffic.silent.clear()
        on.traffic.garbled.add(CODE)
        await on.constant("chat", 2.5, SERVICE, 10)
        await asyncio.sleep(40)
    for line in on.ledger:
        journal.append(line)
    journal.close()
    assert on.controller.last is not None
    return on.controller.last.number


WRITTEN: list[str] = []
"""The one ledger that most tests here read, as text: whichever of them comes first has it written."""


async def lines(tmp_path: Path) -> list[dict[str, Any]]:
    if not WRITTEN:
        await write(tmp_path / "decisions.jsonl")
        WRITTEN.append((tmp_path / "decisions.jsonl").read_text("utf-8"))
    return [json.loads(line) for line in WRITTEN[0].splitlines()]


def verdict(written: list[dict[str, Any]]) -> Verdict:
    return verify(Reader().steps(written))


async def test_every_decision_of_a_ledger_is_made_again(tmp_path: Path) -> None:
    ticks = await write(tmp_path / "decisions.jsonl")
    written = list(read(tmp_path / "decisions.jsonl"))
    modes = {line["decision"]["policies"]["chat"]["mode"] for line in written if "decision" in line}
    assert modes == {"Stable", "Burst", "Hold"}
    records = sum("decision" in line for line in written)
    assert records < ticks
    assert verdict(written) == Verdict(ticks=ticks, compared=records)


async def test_a_ledger_of_two_runs_replays(tmp_path: Path) -> None:
    ticks = [await write(tmp_path / "decisions.jsonl") for _ in range(2)]
    assert verdict(list(read(tmp_path / "decisions.jsonl"))).ticks == sum(ticks)


async def test_a_ledger_that_was_cut_replays_from_its_next_start(tmp_path: Path) -> None:
    written = (await lines(tmp_path))[40:]
    reader = Reader()
    found = verify(reader.steps(written))
    assert found.difference is None
    assert found.ticks + reader.skipped == len(written)
    assert found.ticks > 0


def _more_serving(line: dict[str, Any]) -> None:
    line["decision"]["policies"]["chat"]["serving"]["spares"] += 1


def _another_reason(line: dict[str, Any]) -> None:
    line["decision"]["policies"]["chat"]["reasons"][0]["facts"]["demand"] = 99.0


def _another_total(line: dict[str, Any]) -> None:
    line["decision"]["fleets"]["spares"]["total"] = 7


def _no_policy(line: dict[str, Any]) -> None:
    del line["decision"]["policies"]["code"]


@pytest.mark.parametrize(
    ("tamper", "subject", "field"),
    [
        pytest.param(_more_serving, "policy chat", "serving.spares", id="a-resident-more"),
        pytest.param(_another_reason, "policy chat", "reasons.0.facts.demand", id="another-reason"),
        pytest.param(_another_total, "fleet spares", "total", id="another-total"),
        pytest.param(_no_policy, "policy code", "all of it", id="a-policy-fewer"),
    ],
)
async def test_a_decision_that_was_changed_is_found(
    tmp_path: Path, tamper: Callable[[dict[str, Any]], None], subject: str, field: str
) -> None:
    written = await lines(tmp_path)
    records = [line for line in written if "decision" in line]
    victim = records[len(records) // 2]
    tamper(victim)
    found = verdict(written).difference
    assert found is not None
    assert (found.number, found.subject, found.field) == (victim["number"], subject, field)
    assert found.at == victim["at"]
    assert found.recorded != found.replayed


async def test_an_input_that_was_changed_is_found_at_the_next_start_at_the_latest(tmp_path: Path) -> None:
    written = await lines(tmp_path)
    victim = next(line for line in written if line.get("changes", {}).get("loads"))
    loads = victim["changes"]["loads"]
    next(iter(loads.values()))["inFlight"]["value"] += 1.0
    found = verdict(written).difference
    assert found is not None
    assert found.number > victim["number"]


async def test_other_sentences_are_no_difference(tmp_path: Path) -> None:
    written = await lines(tmp_path)
    for line in written:
        for policy in line.get("decision", {}).get("policies", {}).values():
            for reason in policy["reasons"]:
                reason["sentence"] = "said in other words"
    assert verdict(written).difference is None


async def test_a_ledger_of_another_law_says_so_first(tmp_path: Path) -> None:
    written = await lines(tmp_path)
    for line in written:
        if "decision" in line:
            line["decision"]["law"] = "0"
            line["decision"]["policies"]["chat"]["needed"] = 1e6
    found = verdict(written).difference
    assert found is not None
    assert (found.field, found.recorded) == ("law", "0")


# ------------------------------------------------------------------ other policies


async def test_the_same_policies_would_have_changed_nothing(tmp_path: Path) -> None:
    written = await lines(tmp_path)
    effects = what_if(Reader().steps(written), TABLE, lambda step: step.snapshot)
    assert effects.ticks == len(written)
    assert {effect.different for effect in effects.policies.values()} == {0}
    assert {effect.different for effect in effects.fleets.values()} == {0}


async def test_a_higher_floor_would_have_served_with_more(tmp_path: Path) -> None:
    written = await lines(tmp_path)
    chat, code = TABLE.policies
    other = replace(TABLE, policies=[replace(chat, serving_min=2), code])
    effects = what_if(Reader().steps(written), other, lambda step: step.snapshot)
    effect = effects.policies["chat"]
    assert (effect.most_more, effect.most_fewer) == (1, 0)
    assert 0 < effect.different < effect.decisions
    assert 0.0 < effect.different_seconds < effect.seconds
    assert effect.extra_seconds == pytest.approx(effect.different_seconds, rel=0.5)
    assert effect.first is not None
    assert effect.first.subject == "policy chat"
    assert effects.policies["code"].different == 0


async def test_an_earlier_burst_is_told_in_seconds(tmp_path: Path) -> None:
    written = await lines(tmp_path)
    chat, code = TABLE.policies
    eager = replace(chat, burst=replace(CALM, threshold=1.01, stable_window=30.0))
    effects = what_if(
        Reader().steps(written), replace(TABLE, policies=[eager, code]), lambda step: step.snapshot
    )
    assert effects.policies["chat"].burst_seconds > 5.0
    assert effects.policies["code"].burst_seconds == 0.0


async def test_what_only_one_of_both_knows_is_said(tmp_path: Path) -> None:
    written = await lines(tmp_path)
    chat, _ = TABLE.policies
    talk = replace(chat, name=PolicyName("talk"))
    effects = what_if(
        Reader().steps(written), replace(TABLE, policies=[chat, talk]), lambda step: step.snapshot
    )
    assert (effects.unknown, effects.gone) == ({"policy talk"}, {"policy code"})
    assert effects.policies.keys() == {"chat"}


async def test_time_between_two_runs_counts_for_nothing(tmp_path: Path) -> None:
    written = await lines(tmp_path)
    once, twice = (
        what_if(Reader().steps(ledger), TABLE, lambda step: step.snapshot).policies["chat"].seconds
        for ledger in (written, written + written)
    )
    assert twice == pytest.approx(2 * once)


async def test_who_asks_the_controller_gets_whole_decisions_without_what_only_a_replay_needs() -> None:
    async with world(TABLE.policies, TABLE.fleets) as on:
        await on.until(lambda: on.serving("chat") == 1 and on.serving("code") == 1)
        await on.constant("chat", 2.5, SERVICE, 5)
    whole = [line for line in on.ledger if "decision" in line]
    assert len(whole) < len(on.ledger)
    assert list(on.controller.recent) == [
        {key: value for key, value in line.items() if key != "start"} for line in whole
    ]
