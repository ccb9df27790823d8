"""Who else writes a fleet's size: whoever applies a manifest that says replicas. PURE.

Of two that write one number neither gets what it wants, and seats are made and deleted all the time. HPAs and ScaledObjects are
looked at in `sizes`.
"""

import json
from collections.abc import Iterator
from typing import Final

from scaler.doctor import mends
from scaler.doctor.findings import Code, Finding, Severity
from scaler.doctor.objects import Object, at, mappings, text
from scaler.doctor.picture import Picture

_APPLIERS: Final = ("argocd", "kustomize-controller", "helm", "flux", "terraform", "pulumi")
"""Beginnings of the names under which tools write that apply a manifest again and again."""
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_ARGO: Final = "argocd.argoproj.io/"
_FLUX: Final = "kustomize.toolkit.fluxcd.io/"


def check(picture: Picture) -> Iterator[Finding]:
    """Yield whoever sets fleets back to the size that some manifest says."""
    for fleet in picture.fleets:
        for workload in fleet.workloads:
            yield from _manifests(workload)


def _manifests(workload: Object) -> Iterator[Finding]:
    for applier, applies in _appliers(workload):
        yield Finding(
            code=Code.SIZE_IN_MANIFEST,
            severity=Severity.ERROR if applies else Severity.WARNING,
            object=str(workload),
            path="spec.replicas",
            message=f"{applier} {'owns' if applies else 'has written'} the size: each time it applies its manifest the fleet gets that"
            " size back. Take replicas out of the manifest",
            mend=_mend(workload, applier),
        )
    if _says_replicas(workload.annotations.get(_LAST_APPLIED, "")):
        yield Finding(
            code=Code.SIZE_IN_MANIFEST,
            severity=Severity.WARNING,
            object=str(workload),
            path="spec.replicas",
            message="the manifest that was applied last says replicas: applied again, it sets the fleet back to that size",
            mend=mends.kubectl(
                "apply",
                "edit-last-applied",
                f"{workload.kind.lower()}/{workload.name}",
                namespace=workload.namespace,
            ),
        )


def _appliers(workload: Object) -> Iterator[tuple[str, bool]]:
    """Yield who has written the size with the whole object, and whether by server-side apply."""
    for _, entry in mappings(workload.body, "metadata", "managedFields"):
        manager, applies = text(entry, "manager"), text(entry, "operation") == "Apply"
        if text(entry, "subresource") or at(entry, "fieldsV1", "f:spec", "f:replicas") is None:
            continue
        if manager and (applies or manager.lower().startswith(_APPLIERS)):
            yield manager, applies


def _says_replicas(applied: str) -> bool:
    try:
        return at(json.loads(applied), "spec", "replicas") is not None
    except (ValueError, RecursionError):
        return False


def _mend(workload: Object, applier: str) -> str:
    """Write the command that has a tool leave the size alone; where it isn't known whose it is, the one that shows who owns it."""
    tracked = workload.annotations.get(f"{_ARGO}tracking-id", "").partition(":")[0]
    application = tracked or workload.labels.get(f"{_ARGO}instance", "")
    if applier.lower().startswith("argocd") and application:
        group = text(workload.body, "apiVersion").partition("/")[0]
        ignored = [
            {"group": group, "kind": workload.kind, "name": workload.name, "jsonPointers": ["/spec/replicas"]}
        ]
        app = Object({"kind": "Application", "metadata": {"name": application, "namespace": "argocd"}})
        return mends.merge_patch(app, {"spec": {"ignoreDifferences": ignored}})
    flux = workload.labels.get(f"{_FLUX}name", "")
    if flux:
        where = workload.labels.get(f"{_FLUX}namespace", "flux-system")
        return mends.kubectl("get", "kustomization", flux, "-o", "yaml", namespace=where)
    return mends.of("get", workload, "-o", "yaml", "--show-managed-fields")
