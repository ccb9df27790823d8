"""A fleet's workload as its manifest has it: the pod template, its containers, and what may not be in them.

A manifest is whatever somebody wrote, so nothing about its form is taken for granted: what should be a mapping or a list
and isn't is a fault at its place.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scaler.errors import PolicyError, PolicyFault
from scaler.policy.document import Document, Path, look_up, show
from scaler.policy.fleet import Fleet
from scaler.policy.quantity import quantity

POD_TEMPLATE: Final[Path] = ("spec", "template")
"""Where workloads with `/scale` keep their pods' template."""
_POD: Final[Path] = (*POD_TEMPLATE, "spec")
_PROBES: Final = ("readinessProbe", "livenessProbe", "startupProbe")
_GPU: Final = frozenset({"nvidia.com/gpu", "nvidia.com/gpu.shared"})
_GPU_PART: Final = "nvidia.com/mig-"
_MIB: Final = 2**20
_AS_DOCUMENTED: Final = "write it as Kubernetes documents it"


@dataclass(frozen=True, slots=True)
class Container:
    """One container of the pod template.

    Attributes:
        document: the manifest.
        path: its place there.
        data: what it says.
    """

    document: Document
    path: Path
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.data["name"])

    @property
    def line(self) -> str:
        """Its command and arguments in one line; empty where the image says them."""
        words = [self.data.get(key) for key in ("command", "args")]
        return " ".join(str(word) for part in words if isinstance(part, list) for word in part)

    @property
    def probes(self) -> list[str]:
        """The probes that it has."""
        return [probe for probe in _PROBES if self.data.get(probe) is not None]

    @property
    def claims(self) -> tuple[str, ...]:
        """The ResourceClaims of the pod that give it devices; they don't say here how many.

        Raises:
            PolicyError: they aren't a list of names.
        """
        path = (*self.path, "resources", "claims")
        claims = _mapping(self.document, path[:-1]).get("claims") or []
        if not isinstance(claims, list):
            raise PolicyError(
                (self.document.fault(path, f"must be a list, is {show(claims)}", _AS_DOCUMENTED),)
            )
        return tuple(sorted(show(each.get("name")) for each in claims if isinstance(each, dict)))

    @property
    def memory_mib(self) -> float | None:
        """Its limit of host memory, in MiB; None where it has none, or one in another form than Kubernetes documents."""
        limit = _mapping(self.document, (*self.path, "resources", "limits")).get("memory")
        size = quantity(limit)
        return None if size is None else size / _MIB

    @property
    def gpus(self) -> int:
        """GPUs, or parts of one, that the device plugin gives it.

        Raises:
            PolicyError: a limit is no whole number.
        """
        path = (*self.path, "resources", "limits")
        limits = _mapping(self.document, path)
        return sum(
            _whole(self.document, (*path, name), value)
            for name, value in limits.items()
            if name in _GPU or name.startswith(_GPU_PART)
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload that a fleet's seats come from.

    Attributes:
        document: its manifest.
        kind: its kind.
        name: its name.
        containers: the containers of its pods.
        sidecars: init containers that go on running beside them.
    """

    document: Document
    kind: str
    name: str
    containers: Sequence[Container]
    sidecars: Sequence[Container]

    def container(self, name: str) -> Container | None:
        """Return the container of a name, if there is one."""
        return next((each for each in self.containers if each.name == name), None)

    def at(self, path: Path) -> Any:  # noqa: ANN401 - a YAML value may be anything
        """Return what stands at a path; None where nothing does."""
        return look_up(self.document.data, *path)

    def fault(self, path: Path, message: str, hint: str) -> PolicyFault:
        """Make a fault that points at a path in the manifest."""
        return self.document.fault(path, message, hint)


def find_workload(fleet: Fleet, manifest: Sequence[Document]) -> Workload:
    """Find a fleet's workload among the documents of a manifest.

    Raises:
        PolicyError: there is none, or more than one, or it isn't formed as a workload is.
    """
    namespace, group, kind, name = fleet.target
    named = [document for document in manifest if _is(document, group, kind, name)]
    found = [document for document in named if _namespace(document) in (None, namespace)]
    if not found:
        raise PolicyError((_missing(fleet, manifest, named),))
    if len(found) > 1:
        path = ("metadata", "name")
        first = found[0].position(path)[0]
        message = f"there is a {kind} {name} already, in line {first}"
        raise PolicyError(
            tuple(each.fault(path, message, "name one of the two otherwise") for each in found[1:])
        )
    document = found[0]
    if not isinstance(look_up(document.data, *_POD), dict):
        message = f"the {kind} {name} has no pod template at spec.template.spec"
        raise PolicyError((document.fault(_POD, message, _AS_DOCUMENTED),))
    _mapping(document, (*POD_TEMPLATE, "metadata"))
    return Workload(
        document,
        kind,
        name,
        containers=_containers(document, "containers"),
        sidecars=[
            each
            for each in _containers(document, "initContainers")
            if each.data.get("restartPolicy") == "Always"
        ],
    )


def _is(document: Document, group: str, kind: str, name: str) -> bool:
    version = document.data.get("apiVersion")
    theirs = version.rpartition("/")[0] if isinstance(version, str) else None
    return (theirs, document.data.get("kind"), look_up(document.data, "metadata", "name")) == (
        group,
        kind,
        name,
    )


def _namespace(document: Document) -> object:
    return look_up(document.data, "metadata", "namespace")


def _missing(fleet: Fleet, manifest: Sequence[Document], named: Sequence[Document]) -> PolicyFault:
    """Say that the manifest lacks the workload, and what it has instead."""
    namespace, group, kind, name = fleet.target
    what = f"{kind} {name}" if group == "apps" else f"{kind}.{group} {name}"
    if named:
        message = f"the {kind} {name} is in namespace {_namespace(named[0])}, the fleet in {namespace}"
        return named[0].fault(("metadata", "namespace"), message, "they share one namespace")
    held = ", ".join(
        f"{document.data.get('kind')} {look_up(document.data, 'metadata', 'name')}" for document in manifest
    )
    message = f"there is no {what} here, the workload of fleet {fleet.metadata.name}"
    hint = f"the manifest holds: {held}; spec.target of the fleet says which one is meant"
    return manifest[0].fault((), message, hint)


def _containers(document: Document, key: str) -> list[Container]:
    """Read a list of containers."""
    path = (*_POD, key)
    listed = look_up(document.data, *path)
    if listed is None:
        listed = []
    if not isinstance(listed, list):
        raise PolicyError((document.fault(path, f"must be a list, is {show(listed)}", _AS_DOCUMENTED),))
    faults = [
        document.fault((*path, index), "must be a mapping with a name", _AS_DOCUMENTED)
        for index, each in enumerate(listed)
        if not isinstance(each, dict) or not isinstance(each.get("name"), str)
    ]
    if faults:
        raise PolicyError(tuple(faults))
    return [Container(document, (*path, index), each) for index, each in enumerate(listed)]


def _mapping(document: Document, path: Path) -> Mapping[str, Any]:
    """Return the mapping at a path; an empty one where there is none."""
    found = look_up(document.data, *path)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise PolicyError((document.fault(path, f"must be a mapping, is {show(found)}", _AS_DOCUMENTED),))
    return found


def _whole(document: Document, path: Path, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value)
    message = f"must be a whole number of GPUs, is {show(value)}"
    raise PolicyError((document.fault(path, message, "Kubernetes counts devices in whole numbers"),))


def probe_faults(engines: Sequence[Container]) -> Iterator[PolicyFault]:
    """Yield a fault for each probe of a container that holds engines.

    A seat's readiness hangs on its gate alone: a probe would see an engine that is paused on purpose, or one that has
    crashed beside a neighbour that serves, and take the whole pod out of rotation or restart it.
    """
    for each in engines:
        for probe in each.probes:
            message = f"container {each.name} holds engines, and must have no probe"
            hint = f"remove {probe}: the agent watches engines, and the pod's readiness gate says when it is ready"
            yield each.document.fault((*each.path, probe), message, hint)
