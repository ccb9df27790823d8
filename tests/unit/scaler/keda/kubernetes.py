"""Objects as Kubernetes prints them, to be changed by tests."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaler.keda.findings import Intent
from scaler.keda.objects import Target

RECORDED = Path(__file__).parents[3] / "data" / "keda"

WHOLE: Mapping[str, Any] = {
    "apiVersion": "keda.sh/v1alpha1",
    "kind": "ScaledObject",
    "metadata": {"name": "spares", "namespace": "serving"},
    "spec": {
        "scaleTargetRef": {"name": "spares"},
        "minReplicaCount": 3,
        "maxReplicaCount": 44,
        "pollingInterval": 5,
        "fallback": {"failureThreshold": 3, "replicas": 3, "behavior": "currentReplicasIfHigher"},
        "advanced": {
            "horizontalPodAutoscalerConfig": {
                "behavior": {
                    "scaleUp": {
                        "tolerance": "0",
                        "policies": [{"type": "Pods", "value": 44, "periodSeconds": 15}],
                    },
                    "scaleDown": {"tolerance": "0", "stabilizationWindowSeconds": 0},
                }
            }
        },
        "triggers": [
            {
                "type": "external-push",
                "metadata": {"scalerAddress": "emberpool-keda:6000", "fleet": "spares"},
            }
        ],
    },
}
CPU: Mapping[str, Any] = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}
INTENT = Intent(
    fleet="spares",
    namespace="serving",
    workload=Target(kind="Deployment", name="spares"),
    max_seats=44,
    floor=3,
    by_keda=True,
    down_window=300.0,
)


def scaled_object(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a right ScaledObject with changes, by dotted path; None removes."""
    found = copy.deepcopy(dict(WHOLE))
    for path, value in (changes or {}).items():
        _put(found, path.split("."), value)
    return found


def hpa(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the HPA that KEDA makes of it, likewise; the recorded one with other names."""
    found: dict[str, Any] = json.loads((RECORDED / "hpa-created-by-keda.json").read_text("utf-8"))
    found["metadata"]["name"] = "keda-hpa-spares"
    found["metadata"]["namespace"] = "serving"
    found["metadata"]["ownerReferences"][0]["name"] = "spares"
    found["spec"].update(
        maxReplicas=44,
        minReplicas=3,
        scaleTargetRef={"apiVersion": "apps/v1", "kind": "Deployment", "name": "spares"},
        behavior=WHOLE["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
    )
    metric = found["spec"]["metrics"][0]["external"]["metric"]
    metric["name"] = "s0-emberpool-fleet-spares-total"
    metric["selector"]["matchLabels"]["scaledobject.keda.sh/name"] = "spares"
    found = copy.deepcopy(found)
    for path, value in (changes or {}).items():
        _put(found, path.split("."), value)
    return found


def _put(data: Any, path: list[str], value: object) -> None:
    head: Any = int(path[0]) if isinstance(data, list) else path[0].replace("~", ".")
    if len(path) > 1:
        if isinstance(data, dict):
            data.setdefault(head, {})
        _put(data[head], path[1:], value)
    elif value is None:
        del data[head]
    else:
        data[head] = value
