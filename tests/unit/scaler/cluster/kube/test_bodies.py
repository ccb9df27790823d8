"""What is written."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.cluster.kube.bodies import (
    claim_patch,
    mark_operations,
    settlement_patch,
    taints_with,
    taints_without,
)
from scaler.cluster.kube.views import Taint
from tests.fakes.kube_api.patches import json_patch, merge
from tests.fakes.kube_api.refusals import Refusal
from warmpool.claim import Errand, Term, apply_claim, apply_settlement, new_claim
from warmpool.seats import (
    DELETION_COST,
    Claim,
    FleetName,
    Operation,
    PolicyName,
    Resident,
    Seat,
    SeatName,
)
from warmpool.states import ResidentState

CHAT, CODE = PolicyName("chat"), PolicyName("code")
COST = "controller.kubernetes.io/pod-deletion-cost"


def seat(*serving: PolicyName, claim: Claim | None = None) -> Seat:
    residents = tuple(
        Resident(
            policy=policy, state=ResidentState.SERVING if policy in serving else ResidentState.PAUSED, since=0
        )
        for policy in (CHAT, CODE)
    )
    return Seat(
        name=SeatName("s"),
        uid="u",
        version="7",
        fleet=FleetName("f"),
        residents=residents,
        serving=frozenset(serving),
        claim=claim,
    )


def claim(operation: Operation, policy: PolicyName, leaving: PolicyName | None = None) -> Claim:
    errand = Errand(operation=operation, policy=policy, leaving=leaving)
    return new_claim(errand, Term(holder="c", epoch=1), number=1, now=0, seconds=9)


CLAIMS = [
    (seat(), claim(Operation.PROMOTE, CHAT)),
    (seat(CHAT), claim(Operation.DEMOTE, CHAT)),
    (seat(CHAT), claim(Operation.SWITCH, CODE, CHAT)),
    (seat(), claim(Operation.PROVE, CHAT)),
]


def serving_in(body: Mapping[str, Any]) -> set[str]:
    prefix = "serving.emberpool.dev/"
    return {key.removeprefix(prefix) for key in body["metadata"]["labels"] if key.startswith(prefix)}


def as_pod(seat: Seat) -> dict[str, Any]:
    labels = {f"serving.emberpool.dev/{policy}": "true" for policy in seat.serving}
    return {"metadata": {"labels": labels, "annotations": {}}}


@pytest.mark.parametrize(("before", "order"), CLAIMS)
def test_a_claims_patch_leaves_on_the_pod_what_the_rules_say(before: Seat, order: Claim) -> None:
    patch, after = claim_patch(before, order), apply_claim(before, order)
    pod = merge(as_pod(before), patch)
    assert serving_in(pod) == after.serving
    assert pod["metadata"]["labels"]["emberpool.dev/seat"] == after.value
    assert pod["metadata"]["annotations"][COST] == str(DELETION_COST[after.value])
    assert (patch["metadata"]["uid"], patch["metadata"]["resourceVersion"]) == ("u", "7")


@pytest.mark.parametrize("serving", [None, CHAT, CODE])
@pytest.mark.parametrize(("before", "order"), CLAIMS)
def test_a_settlements_patch_leaves_on_the_pod_what_the_rules_say(
    before: Seat, order: Claim, serving: PolicyName | None
) -> None:
    claimed = apply_claim(before, order)
    pod = merge(merge(as_pod(before), claim_patch(before, order)), settlement_patch(claimed, order, serving))
    after = apply_settlement(claimed, order, serving)
    assert serving_in(pod) == after.serving
    assert "emberpool.dev/claim" not in pod["metadata"]["annotations"]
    assert ("karpenter.sh/do-not-disrupt" in pod["metadata"]["annotations"]) == bool(after.serving)


TAINTS = st.lists(
    st.fixed_dictionaries(
        {"key": st.sampled_from(["a", "b", "ours"]), "effect": st.sampled_from(["NoSchedule", "NoExecute"])},
        optional={"value": st.text(max_size=3), "timeAdded": st.just("2026-11-30T00:00:00Z")},
    ),
    unique_by=lambda taint: (taint["key"], taint["effect"]),
    max_size=5,
)
OURS = Taint(key="ours", effect="NoSchedule", value="why")


@given(TAINTS)
def test_setting_and_removing_our_taint_leaves_others_as_they_are(taints: list[dict[str, str]]) -> None:
    others = [taint for taint in taints if taint["key"] != "ours"]
    tainted = taints_with(taints, OURS)
    assert tainted == taints_with(tainted, OURS)
    assert {"key": "ours", "effect": "NoSchedule", "value": "why"} in tainted
    assert [taint for taint in tainted if taint["key"] != "ours"] == others
    assert taints_without(tainted, "ours") == others


@given(
    read=TAINTS, version=st.sampled_from(["7", "8"]), annotations=st.sampled_from([None, {}, {"o/m": "x"}])
)
def test_a_node_that_has_changed_since_it_was_read_is_not_marked(
    read: list[dict[str, str]], version: str, annotations: dict[str, str] | None
) -> None:
    metadata = {"resourceVersion": "7", **({} if annotations is None else {"annotations": annotations})}
    node = {"metadata": metadata, "spec": {"taints": read} if read else {}}
    patch = mark_operations(node, taints_with(read, OURS), ("o/m", "why"))
    found = {**node, "metadata": {**metadata, "resourceVersion": version}}
    if version == "7":
        marked = json_patch(found, patch)
        assert marked["spec"]["taints"] == taints_with(read, OURS)
        assert marked["metadata"]["annotations"] == {"o/m": "why"}
    else:
        with pytest.raises(Refusal):
            json_patch(found, patch)
