"""Which kinds the server knows, and what is particular to each."""

from collections.abc import Mapping
from dataclasses import dataclass, field

_POD_LISTS: Mapping[str, str] = {
    "metadata.ownerReferences": "uid",
    "spec.containers": "name",
    "spec.initContainers": "name",
    "spec.containers.env": "name",
    "spec.containers.ports": "containerPort",
    "spec.containers.volumeMounts": "mountPath",
    "spec.initContainers.env": "name",
    "spec.volumes": "name",
    "status.conditions": "type",
    "status.podIPs": "ip",
}
"""Lists that a strategic patch merges, with the key of their items; all others are replaced (taints, tolerations)."""


def _below(prefix: str, lists: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}.{path}": key for path, key in lists.items()}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of object.

    Attributes:
        group, version, plural, kind: its names; the core group is empty.
        namespaced: whether its objects live in namespaces.
        generation: whether its metadata count changes of the spec.
        status, scale: whether it has this subresource.
        unconditional: whether a PUT without resourceVersion is taken.
        fields: what a field selector may name beside name and namespace.
        merge_keys: dotted path of a list → key by which a strategic patch merges it.
    """

    group: str = ""
    version: str = "v1"
    plural: str
    kind: str
    namespaced: bool = True
    generation: bool = False
    status: bool = False
    scale: bool = False
    unconditional: bool = True
    fields: tuple[str, ...] = ()
    merge_keys: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As conflicts name it: `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_WORKLOAD = {
    "generation": True,
    "status": True,
    "scale": True,
    "merge_keys": _below("spec.template", _POD_LISTS),
}

_RBAC = "rbac.authorization.k8s.io"
_FLOW = "flowcontrol.apiserver.k8s.io"

KINDS = (
    Kind(plural="namespaces", kind="Namespace", namespaced=False, status=True, fields=("status.phase",)),
    Kind(
        plural="pods",
        kind="Pod",
        generation=True,
        status=True,
        fields=("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.phase", "status.podIP"),
        merge_keys=_POD_LISTS,
    ),
    Kind(
        plural="nodes",
        kind="Node",
        namespaced=False,
        status=True,
        fields=("spec.unschedulable",),
        merge_keys={"status.conditions": "type", "status.addresses": "type"},
    ),
    Kind(plural="configmaps", kind="ConfigMap"),
    Kind(plural="secrets", kind="Secret", fields=("type",)),
    Kind(plural="serviceaccounts", kind="ServiceAccount"),
    Kind(plural="services", kind="Service", status=True, merge_keys={"spec.ports": "port"}),
    Kind(group="apps", plural="deployments", kind="Deployment", **_WORKLOAD),
    Kind(group="apps", plural="replicasets", kind="ReplicaSet", **_WORKLOAD),
    Kind(group="apps", plural="statefulsets", kind="StatefulSet", **_WORKLOAD),
    Kind(group="coordination.k8s.io", plural="leases", kind="Lease", unconditional=False),
    Kind(group="discovery.k8s.io", plural="endpointslices", kind="EndpointSlice"),
    Kind(group="events.k8s.io", plural="events", kind="Event", fields=("reason", "type")),
    Kind(
        group="policy",
        plural="poddisruptionbudgets",
        kind="PodDisruptionBudget",
        generation=True,
        status=True,
    ),
    Kind(plural="persistentvolumeclaims", kind="PersistentVolumeClaim", status=True),
    Kind(group="apps", plural="daemonsets", kind="DaemonSet", generation=True, status=True),
    Kind(group="networking.k8s.io", plural="networkpolicies", kind="NetworkPolicy", generation=True),
    Kind(group=_RBAC, plural="roles", kind="Role"),
    Kind(group=_RBAC, plural="rolebindings", kind="RoleBinding"),
    Kind(group=_RBAC, plural="clusterroles", kind="ClusterRole", namespaced=False),
    Kind(group=_RBAC, plural="clusterrolebindings", kind="ClusterRoleBinding", namespaced=False),
    Kind(
        group="scheduling.k8s.io",
        plural="priorityclasses",
        kind="PriorityClass",
        namespaced=False,
        generation=True,
    ),
    Kind(group=_FLOW, plural="flowschemas", kind="FlowSchema", namespaced=False, status=True),
    Kind(
        group=_FLOW,
        plural="prioritylevelconfigurations",
        kind="PriorityLevelConfiguration",
        namespaced=False,
        status=True,
    ),
    Kind(group="resource.k8s.io", plural="resourceclaimtemplates", kind="ResourceClaimTemplate"),
    Kind(group="resource.k8s.io", plural="resourceslices", kind="ResourceSlice", namespaced=False),
    Kind(
        group="resource.k8s.io",
        version="v1beta2",
        plural="devicetaintrules",
        kind="DeviceTaintRule",
        namespaced=False,
        generation=True,
    ),
    Kind(
        group="inference.networking.k8s.io",
        plural="inferencepools",
        kind="InferencePool",
        generation=True,
        status=True,
    ),
    Kind(
        group="autoscaling",
        version="v2",
        plural="horizontalpodautoscalers",
        kind="HorizontalPodAutoscaler",
        status=True,
    ),
    Kind(
        group="keda.sh",
        version="v1alpha1",
        plural="scaledobjects",
        kind="ScaledObject",
        generation=True,
        status=True,
    ),
)

BY_PATH = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
POD = BY_PATH["", "v1", "pods"]
NODE = BY_PATH["", "v1", "nodes"]
SERVICE = BY_PATH["", "v1", "services"]
ENDPOINT_SLICE = BY_PATH["discovery.k8s.io", "v1", "endpointslices"]
NAMESPACE = BY_PATH["", "v1", "namespaces"]
BUDGET = BY_PATH["policy", "v1", "poddisruptionbudgets"]
PRIORITY_CLASS = BY_PATH["scheduling.k8s.io", "v1", "priorityclasses"]
