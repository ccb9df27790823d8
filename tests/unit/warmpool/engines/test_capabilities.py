"""What is found out about an engine, as values and on the wire."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.engines.capabilities import (
    GRANTING,
    Capabilities,
    Capability,
    Change,
    Finding,
    Ground,
    Verdict,
    Verification,
)
from warmpool.engines.evidence import Evidence
from warmpool.seats import PolicyName, Resident
from warmpool.states import ResidentState
from warmpool.wire import resident_from_json, resident_to_json

FINDINGS = st.builds(Finding, ground=st.sampled_from(Ground), reason=st.text(max_size=40))
CAPABILITIES = st.builds(
    Capabilities,
    kind=st.text(max_size=10),
    version=st.text(max_size=10),
    findings=st.dictionaries(st.sampled_from(Capability), FINDINGS),
)
VERIFICATIONS = st.builds(
    Verification,
    change=st.sampled_from(Change),
    verdict=st.sampled_from(Verdict),
    evidence=st.lists(st.text(max_size=20), max_size=3).map(tuple),
)


def resident(**facts: object) -> Resident:
    return Resident(policy=PolicyName("a"), state=ResidentState.PAUSED, since=1.0, **facts)  # type: ignore[arg-type]


@given(capabilities=st.none() | CAPABILITIES, verification=st.none() | VERIFICATIONS)
def test_the_wire_keeps_what_was_found(
    capabilities: Capabilities | None, verification: Verification | None
) -> None:
    told = resident(capabilities=capabilities, verification=verification)
    assert resident_from_json(json.loads(json.dumps(resident_to_json(told)))) == told


def test_what_a_newer_agent_tells_is_left_out() -> None:
    told = resident_to_json(resident())
    told["capabilities"] = {
        "kind": "VLLM",
        "findings": {
            "Telepathy": {"ground": "Tried", "reason": ""},
            "KvRelease": {"ground": "Guessed", "reason": ""},
            "DrainWait": {"ground": "Tried", "reason": "seen"},
        },
    }
    told["verification"] = {"change": "Teleport", "verdict": "Verified", "evidence": []}
    read = resident_from_json(told)
    assert read.verification is None
    assert read.capabilities is not None
    assert dict(read.capabilities.findings) == {
        Capability.DRAIN_WAIT: Finding(ground=Ground.TRIED, reason="seen")
    }


def test_an_older_agent_tells_nothing_of_it() -> None:
    told = resident_to_json(resident())
    del told["capabilities"], told["verification"]
    assert resident_from_json(told) == resident()


@pytest.mark.parametrize("ground", Ground)
def test_only_what_was_tried_or_declared_is_granted(ground: Ground) -> None:
    found = Capabilities(kind="VLLM", findings={Capability.KV_RELEASE: Finding(ground=ground, reason="")})
    assert found.has(Capability.KV_RELEASE) is (ground in {Ground.TRIED, Ground.DECLARED})
    assert {Ground.TRIED, Ground.DECLARED} == GRANTING


def test_what_nobody_asked_about_is_refused() -> None:
    assert Capabilities(kind="VLLM").finding(Capability.KV_RELEASE).ground is Ground.NOT_TRIED
    assert not Capabilities(kind="VLLM").has(Capability.KV_RELEASE)


def test_a_change_without_any_answer_is_not_verified() -> None:
    assert Evidence(Change.PAUSE).verification().verdict is Verdict.UNVERIFIED


def test_one_thing_untold_keeps_a_change_from_being_verified() -> None:
    evidence = Evidence(Change.RELEASE)
    evidence.told("paused")
    assert evidence.verification().verdict is Verdict.VERIFIED
    evidence.untold("memory")
    assert evidence.verification().verdict is Verdict.UNVERIFIED
    evidence.told("idle")
    assert evidence.verification().verdict is Verdict.UNVERIFIED


def test_a_contradiction_tells_what_had_spoken_for_it_too() -> None:
    evidence = Evidence(Change.PAUSE)
    evidence.told("one")
    error = evidence.contradict("two")
    assert error.verification == Verification(
        change=Change.PAUSE, verdict=Verdict.CONTRADICTED, evidence=("one", "two")
    )
    assert str(error) == "Pause Contradicted: one; two"
