"""What the controller may do, against what it has to. PURE."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from scaler.doctor import mends
from scaler.doctor.findings import Code, Finding, Severity
from scaler.doctor.picture import Picture, Right, Rights

NEEDED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "pods": ("get", "list", "watch", "patch", "delete"),
        "pods/status": ("patch",),
        "nodes": ("get", "list", "watch", "patch"),
        "nodes/status": ("patch",),
        "resourceslices.resource.k8s.io": ("list",),
        "devicetaintrules.resource.k8s.io": ("list", "create", "patch", "delete"),
        "services": ("list", "watch"),
        "configmaps": ("get", "list", "create", "update"),
        "deployments.apps": ("list", "watch"),
        "deployments.apps/scale": ("get", "update"),
        "leases.coordination.k8s.io": ("get", "create", "update"),
        "events.events.k8s.io": ("create", "patch"),
        "horizontalpodautoscalers.autoscaling": ("list", "watch"),
        "scaledobjects.keda.sh": ("list", "watch"),
        "inferencepools.inference.networking.k8s.io": ("list", "watch"),
    }
)
"""Resource, with its group and subresource → verbs, as docs/kubernetes.md lists them."""
_OF_DEVICE_TAINTS: Final = frozenset({"resourceslices.resource.k8s.io", "devicetaintrules.resource.k8s.io"})
"""What only fleets with `gpuHealth.scope: Gpu` need."""
_OF_CLUSTER: Final = frozenset({"nodes", "nodes/status"}) | _OF_DEVICE_TAINTS
_OF_CONTROLLER: Final = frozenset({"leases.coordination.k8s.io"})
"""What is in the controller's own namespace."""


def needed(namespaces: tuple[str, ...], controller: str) -> Iterator[Right]:
    """Yield what the controller has to be allowed.

    Args:
        namespaces: where the fleets are; none for everywhere.
        controller: the controller's own namespace.
    """
    for resource, verbs in NEEDED.items():
        if resource in _OF_CLUSTER:
            where: tuple[str, ...] = ("",)
        else:
            where = (controller,) if resource in _OF_CONTROLLER else namespaces or ("",)
        for namespace in where:
            for verb in verbs:
                yield Right(resource=resource, verb=verb, namespace=namespace)


def attributes(right: Right) -> dict[str, str]:
    """Return a right as an access review asks about it."""
    name, _, subresource = right.resource.partition("/")
    resource, _, group = name.partition(".")
    asked = {"verb": right.verb, "resource": resource, "group": group, "namespace": right.namespace}
    return {**asked, "subresource": subresource} if subresource else asked


def check(picture: Picture) -> Iterator[Finding]:
    """Yield what is missing: one finding for each account, resource and namespace."""
    for rights in picture.rights:
        if rights.unknown:
            yield Finding(
                code=Code.NOT_LOOKED_AT,
                severity=Severity.NOTE,
                object="Cluster",
                message=f"what the controller may do couldn't be asked: {rights.unknown}",
                mend="kubectl auth can-i create selfsubjectaccessreviews.authorization.k8s.io",
            )
        missing: dict[tuple[str, str], list[str]] = {}
        for right in rights.refused:
            missing.setdefault((right.resource, right.namespace), []).append(right.verb)
        for (resource, namespace), verbs in missing.items():
            yield _missing(rights, resource, namespace, verbs)


def _missing(rights: Rights, resource: str, namespace: str, verbs: list[str]) -> Finding:
    known = bool(rights.account) or rights.own
    who = f"the controller's account {rights.account}" if rights.account else "whoever asks"
    where = f" in namespace {namespace}" if namespace else ""
    optional = resource in _OF_DEVICE_TAINTS
    more = (
        "; fleets with gpuHealth.scope: Gpu need it"
        if optional
        else ""
        if known
        else "; the controller needs it, and its own account isn't known here"
    )
    return Finding(
        code=Code.RIGHT_MISSING,
        severity=Severity.NOTE if optional else Severity.ERROR if known else Severity.WARNING,
        object=f"ServiceAccount {rights.account}" if rights.account else "Account",
        path=resource,
        message=f"{who} may not {', '.join(verbs)} {resource}{where}{more}",
        mend=_mend(rights.account, resource, namespace, verbs),
    )


def _mend(account: str, resource: str, namespace: str, verbs: list[str]) -> str:
    """Write the commands that grant what is missing to the controller's account; without one, the one that shows what there is."""
    if not account:
        return mends.kubectl("auth", "can-i", "--list", namespace=namespace)
    name = "emberpool-" + resource.replace("/", "-").replace(".", "-")
    kind = "role" if namespace else "clusterrole"
    role = mends.kubectl(
        "create", kind, name, f"--verb={','.join(verbs)}", f"--resource={resource}", namespace=namespace
    )
    bound = f"--serviceaccount={account.replace('/', ':')}"
    binding = mends.kubectl("create", f"{kind}binding", name, f"--{kind}={name}", bound, namespace=namespace)
    return f"{role} && {binding}"
