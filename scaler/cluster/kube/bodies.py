"""What is written, as JSON: one function per write. PURE.

A claim and everything that must change with it is one merge patch that carries the version: seat label, deletion cost and
the leaving serving label change together or not at all.
"""

import json
from collections.abc import Mapping, Sequence

from scaler.cluster.kube.views import ADMITTED_CONDITION, DELETION_COST_ANNOTATION, Json, Taint
from warmpool.claim import apply_claim, apply_settlement, leaves
from warmpool.seats import (
    CLAIM_ANNOTATION,
    DELETION_COST,
    SEAT_LABEL,
    SERVING_LABEL_PREFIX,
    Claim,
    PolicyName,
    Seat,
    SeatValue,
)
from warmpool.wire import claim_to_json

DONT_EVICT: Mapping[str, str] = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""What cluster-autoscaler and Karpenter read on a pod that they would like to remove."""


def claim_patch(seat: Seat, claim: Claim) -> Json:
    """Put a claim on the seat, and take the resident that it sends away out of rotation."""
    claimed = apply_claim(seat, claim)
    labels: dict[str, str | None] = {SEAT_LABEL: claimed.value}
    if (leaving := leaves(claim)) is not None:
        labels[SERVING_LABEL_PREFIX + leaving] = None
    annotations = {
        CLAIM_ANNOTATION: json.dumps(claim_to_json(claim), separators=(",", ":")),
        DELETION_COST_ANNOTATION: str(DELETION_COST[claimed.value]),
    }
    return _versioned(seat, {"labels": labels, "annotations": annotations})


def settlement_patch(seat: Seat, claim: Claim, serving: PolicyName | None) -> Json:
    """Clear a claim, and put `serving` into rotation; whoever serves is spared by autoscalers of nodes."""
    settled = apply_settlement(seat, claim, serving)
    labels: dict[str, str | None] = {SEAT_LABEL: settled.value}
    if serving is not None:
        labels[SERVING_LABEL_PREFIX + serving] = "true"
    annotations: dict[str, str | None] = {
        CLAIM_ANNOTATION: None,
        DELETION_COST_ANNOTATION: str(DELETION_COST[settled.value]),
        **(DONT_EVICT if settled.serving else dict.fromkeys(DONT_EVICT)),
    }
    return _versioned(seat, {"labels": labels, "annotations": annotations})


def mark_patch(seat: Seat, value: SeatValue) -> Json:
    """Mirror a seat's value in its label and its deletion cost."""
    return _versioned(
        seat,
        {
            "labels": {SEAT_LABEL: value},
            "annotations": {DELETION_COST_ANNOTATION: str(DELETION_COST[value])},
        },
    )


def freeing_patch(seat: Seat) -> Json:
    """Take a claim off that nobody can read."""
    return _versioned(seat, {"annotations": {CLAIM_ANNOTATION: None}})


def _versioned(seat: Seat, changes: Json) -> Json:
    return {"metadata": {"uid": seat.uid, "resourceVersion": seat.version, **changes}}


def admission_patch(*, admitted: bool, at: str, reason: str) -> Json:
    """Set the readiness gate; the list of conditions is merged by type in a strategic patch."""
    return {
        "status": {
            "conditions": [
                {
                    "type": ADMITTED_CONDITION,
                    "status": "True" if admitted else "False",
                    "lastTransitionTime": at,
                    "reason": reason,
                }
            ]
        }
    }


def condition_patch(kind: str, *, status: bool, reason: str, message: str, at: str) -> Json:
    """Set one condition of a node; the list is merged by type in a strategic patch."""
    return {
        "status": {
            "conditions": [
                {
                    "type": kind,
                    "status": "True" if status else "False",
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": at,
                    "lastTransitionTime": at,
                }
            ]
        }
    }


def taints_with(taints: Sequence[Json], wanted: Taint) -> list[Json]:
    """Return a node's taints with ours set; the others stay as they are, in their order."""
    ours = {
        "key": wanted.key,
        **({"value": wanted.value} if wanted.value else {}),
        "effect": wanted.effect,
    }
    kept = [each for each in taints if (each.get("key"), each.get("effect")) != (wanted.key, wanted.effect)]
    return [*kept, ours]


def taints_without(taints: Sequence[Json], key: str) -> list[Json]:
    """Return a node's taints without those of one key."""
    return [each for each in taints if each.get("key") != key]


def mark_operations(node: Json, taints: Sequence[Json], annotation: tuple[str, str | None]) -> list[Json]:
    """Replace a node's list of taints and an annotation of its in one write, if the node is still what was read.

    Merge and strategic patches replace the whole list blindly: taints have no merge key. So the patch tests the version first.

    Args:
        node: the node as it was read.
        taints: the list as it shall be.
        annotation: its key, and its value; None: it is taken away.
    """
    metadata, (key, value) = node["metadata"], annotation
    there = metadata.get("annotations")
    place = f"/metadata/annotations/{key.replace('~', '~0').replace('/', '~1')}"
    operations: list[Json] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        {"op": "add", "path": "/spec/taints", "value": list(taints)},
    ]
    if value is None:
        return [*operations, *([{"op": "remove", "path": place}] if key in (there or {}) else [])]
    if there is None:
        return [*operations, {"op": "add", "path": "/metadata/annotations", "value": {key: value}}]
    return [*operations, {"op": "add", "path": place, "value": value}]


def scale_body(scale: Json, total: int) -> Json:
    """Return a Scale that asks for `total`, under the version that was read."""
    return {**scale, "spec": {**(scale.get("spec") or {}), "replicas": total}}
