"""Kubernetes manifests, as far as a pod template is read from them: leniently, for they are another format's business."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from scaler.errors import PolicyError, PolicyFault
from scaler.policy.document import Document, Path, look_up
from scaler.policy.fleet import Fleet
from scaler.policy.lint.findings import Place
from scaler.policy.residents import RESIDENTS_ANNOTATION, SeatResident, residents_at
from warmpool.seats import FLEET_LABEL

_DEFAULT_NAMESPACE: Final = "default"
_DEFAULT_GRACE: Final = 30
"""`terminationGracePeriodSeconds` of a pod that doesn't say (Kubernetes, core/v1 PodSpec)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """The pods that a workload makes, or a pod by itself.

    Attributes:
        document: the manifest.
        root: where the pod's `metadata` and `spec` are in it.
        residents: what its annotation lists; None without the annotation.
    """

    document: Document
    root: Path
    residents: tuple[SeatResident, ...] | None

    @property
    def kind(self) -> str:
        """Kind of the workload."""
        return str(self.document.data.get("kind", ""))

    @property
    def name(self) -> str:
        """Name of the workload; empty where the manifest has none."""
        return str(look_up(self.document.data, "metadata", "name") or "")

    @property
    def namespace(self) -> str | None:
        """Namespace of the workload; None where the manifest leaves it to whoever applies it."""
        written = look_up(self.document.data, "metadata", "namespace")
        return None if written is None else str(written)

    @property
    def fleet(self) -> str | None:
        """Name of the fleet that the pods' label gives."""
        written = self.pod("metadata", "labels", FLEET_LABEL)
        return None if written is None else str(written)

    @property
    def grace_seconds(self) -> int:
        """What a pod has to end, from SIGTERM until it is killed: as written, or Kubernetes' default."""
        written = self.pod("spec", "terminationGracePeriodSeconds")
        return written if isinstance(written, int) else _DEFAULT_GRACE

    def belongs_to(self, fleet: Fleet) -> bool:
        """Whether these are a fleet's pods: by their label, or by the workload that the fleet names as its target."""
        if self.fleet is not None:
            return self.fleet == fleet.metadata.name
        namespace, _, kind, name = fleet.target
        return (self.kind, self.name) == (kind, name) and self.namespace in {None, namespace}

    def pod(self, *path: str | int) -> Any:  # noqa: ANN401 - a manifest may hold anything
        """Return a value of the pod; None where there is none."""
        return look_up(self.document.data, *self.root, *path)

    def workload(self, *path: str | int) -> Any:  # noqa: ANN401 - as above
        """Return a value of the workload; None where there is none."""
        return look_up(self.document.data, *path)

    def containers(self, key: str = "containers") -> list[tuple[int, dict[str, Any]]]:
        """List the pod's containers, or its init containers, with their index."""
        listed = self.pod("spec", key)
        found = enumerate(listed) if isinstance(listed, list) else ()
        return [(index, each) for index, each in found if isinstance(each, dict)]

    def place(self, *path: str | int) -> Place:
        """Point at a value of the pod."""
        return self.workload_place(*self.root, *path)

    def workload_place(self, *path: str | int) -> Place:
        """Point at a value of the workload."""
        namespace = self.namespace or _DEFAULT_NAMESPACE
        return Place(kind=self.kind, namespace=namespace, name=self.name, path=path)


def pod_templates(documents: Sequence[Document]) -> tuple[PodTemplate, ...]:
    """Find the pod templates among manifests; what makes no pods is passed over.

    Raises:
        PolicyError: there is none, or an annotation that lists residents can't be used.
    """
    found: list[PodTemplate] = []
    faults: list[PolicyFault] = []
    for document in documents:
        root = _root(document)
        if root is None:
            continue
        path: Path = (*root, "metadata", "annotations", RESIDENTS_ANNOTATION)
        try:
            listed = None if look_up(document.data, *path) is None else residents_at(document, path)
        except PolicyError as error:
            faults += error.faults
            continue
        found.append(PodTemplate(document=document, root=root, residents=listed))
    if faults:
        raise PolicyError(tuple(faults))
    if not found and documents:
        message = "no document here makes pods"
        raise PolicyError(
            (documents[0].fault(("kind",), message, "name a Deployment's manifest, or a Pod's"),)
        )
    return tuple(found)


def _root(document: Document) -> Path | None:
    if document.data.get("kind") == "Pod":
        return ()
    template = look_up(document.data, "spec", "template")
    return ("spec", "template") if isinstance(look_up(template, "spec", "containers"), list) else None
