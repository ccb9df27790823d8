"""Policies that change under `emberpool local`: what takes effect, what is said not to, and what is refused."""

from pathlib import Path

import pytest

from scaler.policy.compile import PolicySet
from scaler.runtime.controller import PolicyTable
from scaler.runtime.local_policies import LocalPolicies, not_changed, table
from tests.unit.scaler.runtime.policy_sets import compiled, fleet, policy, reading
from warmpool.healing import Rule

BEGUN = compiled(fleet(), fleet("own"), policy("chat"), policy("code"))
RESTART = "restart `emberpool local` to apply it"
ON_BOTH = "fleets: [{name: own, targetInFlight: 4}, {name: spares, targetInFlight: 4}]"


def moved(text: str, fleets: str) -> str:
    return text.replace("fleets: [{name: spares, targetInFlight: 4}]", fleets)


async def refused(directory: Path, *documents: str) -> list[str]:
    faults = await LocalPolicies(BEGUN, None, lambda _: None).refuse(reading(directory, *documents))
    return [f"{fault.line}: {fault.message}" for fault in faults]


def test_what_the_law_reads_takes_effect() -> None:
    found = table(BEGUN, compiled(fleet(maxSeats="3"), policy("chat", minServing="3")), 7)
    (spec,), (limits,) = found.policies, found.fleets
    assert (spec.name, limits.max_seats, found.seat_budget) == ("chat", 3, 7)
    assert found.calendar is not BEGUN.calendar


def test_a_set_that_was_begun_with_is_in_force_as_it_is() -> None:
    found = table(BEGUN, BEGUN, None)
    assert found.policies == tuple(BEGUN.policy_specs.values())
    assert found.fleets == tuple(BEGUN.fleet_specs.values())
    assert found.models == {"chat": ("chat",), "code": ("code",)}
    assert list(not_changed(BEGUN, BEGUN)) == []


def test_what_a_fleet_says_of_bad_starts_takes_effect() -> None:
    said = "spec: {selfHealing: {initDurationSeconds: 90, consecutive: 2, action: None}, "
    found = table(BEGUN, compiled(fleet().replace("spec: {", said), fleet("own"), policy("chat")), None)
    assert found.healing == {
        "spares": Rule(init_seconds=90.0, consecutive=2, replaces=False),
        "own": Rule(init_seconds=600.0, consecutive=3, replaces=True),
    }


ENGINE = "spec:\n  engine: {args: [--max-model-len, '64']}\n"
MODELS = "spec:\n  models: [chat, alias]\n"


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(
            compiled(fleet(), fleet("own"), policy("chat").replace("spec:\n", ENGINE), policy("code")),
            [f"policy chat: spec.engine is not what its engines were started with; {RESTART}"],
            id="engine",
        ),
        pytest.param(
            compiled(fleet(), fleet("own"), policy("chat").replace("spec:\n", MODELS), policy("code")),
            [f"policy chat: spec.models stays chat, what its engines answer to; {RESTART}"],
            id="models",
        ),
        pytest.param(
            compiled(fleet(), fleet("own"), moved(policy("chat"), ON_BOTH), policy("code")),
            [f"policy chat: it has no engine on fleet own, and doesn't serve there; {RESTART}"],
            id="fleets",
        ),
        pytest.param(
            compiled(
                fleet(maxSeats="9"),
                fleet("own").replace("{maxSeats", "{seat: {gpus: 2}, maxSeats"),
                policy("chat"),
                policy("code"),
            ),
            [
                f"fleet spares: spec.maxSeats stays 4, what there is room for; {RESTART}",
                f"fleet own: spec.seat is not what its seats were started with; {RESTART}",
            ],
            id="seats",
        ),
        pytest.param(
            compiled(
                fleet().replace("{maxSeats", "{spare: {parked: {hostMemoryMiB: 9}}, maxSeats"),
                fleet("own"),
                policy("chat"),
                policy("code"),
            ),
            [f"fleet spares: spec.spare.parked is not what its seats were started with; {RESTART}"],
            id="parked",
        ),
        pytest.param(
            compiled(fleet(), policy("chat")),
            [
                "policy code is in no policy file: its engines are left as they are",
                "fleet own is in no policy file: its seats are left as they are",
            ],
            id="removed",
        ),
    ],
)
def test_what_does_not_take_effect_is_said(now: PolicySet, expected: list[str]) -> None:
    adopted: list[PolicyTable] = []
    assert LocalPolicies(BEGUN, None, adopted.append).adopt(now) == expected
    assert [found.hash for found in adopted] == [now.short_hash]


def test_what_does_not_take_effect_is_not_in_force_either() -> None:
    now = compiled(
        fleet(maxSeats="9"),
        fleet("own"),
        moved(policy("chat"), ON_BOTH).replace("spec:\n", MODELS),
        policy("code"),
    )
    found = table(BEGUN, now, None)
    assert [share.fleet for share in found.policies[0].fleets] == ["spares"]
    assert found.fleets[0].max_seats == 4
    assert found.models["chat"] == ("chat",)


async def test_fleets_and_policies_that_nothing_was_started_for_are_refused_at_their_place(
    tmp_path: Path,
) -> None:
    assert await refused(tmp_path, fleet(), fleet("new"), policy("chat")) == [
        "8: fleet new can't be added while `emberpool local` runs: it has no seats"
    ]
    assert await refused(tmp_path, fleet(), policy("chat"), policy("talk")) == [
        "15: policy talk can't be added while `emberpool local` runs: no engine was started for it"
    ]
    elsewhere = moved(policy("chat"), "fleets: [{name: own, targetInFlight: 4}]")
    assert await refused(tmp_path, fleet("own"), elsewhere) == [
        "8: policy chat has its engines on none of the fleets that it names now"
    ]
    assert await refused(tmp_path, fleet(), policy("chat")) == []
