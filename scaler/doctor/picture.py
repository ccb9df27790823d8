"""What was read of a cluster, all of one moment: what checks look at, and nothing else. PURE."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Final

from scaler.cluster.kube.views import AGENT_PORT_ANNOTATION, RESIDENTS_ANNOTATION, agent_port
from scaler.doctor.objects import Json, Object, at, mapping, mappings, text, texts
from scaler.doctor.wishes import FleetWish, Wishes
from scaler.errors import UserError
from scaler.policy.residents import SeatResident, parse_residents
from warmpool.seats import FLEET_LABEL, SEAT_LABEL, SERVING_LABEL_PREFIX

OPERATED_LABELS: Final = (SEAT_LABEL, SERVING_LABEL_PREFIX)
"""Labels of pods that the controller writes: no template has them. The second is a prefix."""
_DIGITS: Final = 9
_GPU: Final = re.compile(r"nvidia\.com/(gpu|gpu\.shared|mig-.+)")


class Part(StrEnum):
    """What is read, by its plural in the API."""

    PODS = "pods"
    DEPLOYMENTS = "deployments"
    STATEFUL_SETS = "statefulsets"
    NODES = "nodes"
    NODE_LEASES = "leases of kubelets"
    SERVICES = "services"
    POOLS = "inferencepools"
    BUDGETS = "poddisruptionbudgets"
    HPAS = "horizontalpodautoscalers"
    SCALED_OBJECTS = "scaledobjects"
    NETWORK_POLICIES = "networkpolicies"
    NAMESPACES = "namespaces"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What a clock says, against that of this machine.

    Attributes:
        ahead: seconds that the API server's clock is ahead; negative for behind.
        uncertain: by how much that may be wrong, for the way of the answer and the second that it is written in.
    """

    ahead: float
    uncertain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Something that the controller must be allowed to do.

    Attributes:
        resource: with group and subresource, as `deployments.apps/scale`.
        verb: what.
        namespace: where; empty for a kind without, or everywhere.
    """

    resource: str
    verb: str
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What the API server says of them.

    Attributes:
        account: whose they are, as `NAMESPACE/NAME` of a service account; empty for whoever asks.
        refused: those that are missing.
        unknown: why they couldn't be asked about; empty if they could.
        own: whether whoever asks is the controller's account.
    """

    account: str = ""
    refused: tuple[Right, ...] = ()
    unknown: str = ""
    own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """What the controller told.

    Attributes:
        missing: why it wasn't reached; empty if it was.
        seats: as it tells them.
        status: by namespace, what it says of its policy files and of conditions of fleets.
    """

    missing: str = ""
    seats: tuple[Json, ...] = ()
    status: Mapping[str, Json] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Template:
    """What pods of a fleet are made from.

    Attributes:
        object: the workload, or a pod by itself.
        root: where the pod's `metadata` and `spec` are in it.
    """

    object: Object
    root: tuple[str, ...]

    @property
    def pod(self) -> Json:
        """The pod as the template has it."""
        return mapping(self.object.body, *self.root)

    @property
    def labels(self) -> dict[str, str]:
        """Labels that every pod of it begins with."""
        labels = texts(self.pod, "metadata", "labels")
        return {key: value for key, value in labels.items() if not key.startswith(OPERATED_LABELS)}

    @property
    def annotation(self) -> str | None:
        """The list of residents, as it is written; None where there is none."""
        written = at(self.pod, "metadata", "annotations", RESIDENTS_ANNOTATION)
        return written if isinstance(written, str) else None

    @property
    def residents(self) -> tuple[SeatResident, ...]:
        """The residents; none where the list is missing or can't be read."""
        return residents_of(self.annotation)[0]

    @property
    def ports(self) -> dict[int, str]:
        """Ports at which residents, or their engines, are reached: port → policy."""
        return {
            port: str(each.policy)
            for each in self.residents
            for port in (each.engine_port, each.port)
            if port is not None
        }

    def containers(self) -> Iterator[tuple[tuple[str | int, ...], Json]]:
        """Yield the pod's containers with their path in it; those that end before the others start aren't of interest."""
        for index, each in mappings(self.pod, "spec", "containers"):
            yield ("spec", "containers", index), each
        for index, each in mappings(self.pod, "spec", "initContainers"):
            if each.get("restartPolicy") == "Always":
                yield ("spec", "initContainers", index), each

    def named_port(self, name: str) -> int | None:
        """Return the number of a port that a container names; None where none does."""
        for _, container in self.containers():
            for _, port in mappings(container, "ports"):
                number = port.get("containerPort")
                if port.get("name") == name and isinstance(number, int):
                    return number
        return None

    @property
    def agent_port(self) -> int:
        """Where its agent listens."""
        return agent_port(text(self.pod, "metadata", "annotations", AGENT_PORT_ANNOTATION))

    @property
    def gpus(self) -> int:
        """GPUs that a device plugin gives a pod of it."""
        limits = [mapping(each, "resources", "limits") for _, each in self.containers()]
        counts = [str(count) for each in limits for name, count in each.items() if _GPU.fullmatch(str(name))]
        return sum(map(devices, counts))

    def path(self, *path: str | int) -> str:
        """Write a path in the pod as one in the object."""
        return dotted((*self.root, *path))

    def pointer(self, *path: str | int) -> str:
        """Write a path in the pod as a JSON patch does."""
        return "/" + "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in (*self.root, *path))


def devices(count: object) -> int:
    """Read a number of devices, as nodes and limits write it; 0 for what is none."""
    written = str(count)
    return int(written) if written.isascii() and written.isdecimal() and len(written) <= _DIGITS else 0


@lru_cache(maxsize=256)
def residents_of(annotation: str | None) -> tuple[tuple[SeatResident, ...], str]:
    """Read a list of residents; return it with what is wrong with it, in words.

    A look asks for the same few lists over and over, and reading one takes milliseconds.
    """
    if annotation is None:
        return (), ""
    try:
        return parse_residents(annotation), ""
    except UserError as error:
        return (), str(error).partition("\n")[0]


def dotted(path: Iterable[str | int]) -> str:
    """Write a path as `spec.containers[0].image`."""
    written = ""
    for part in path:
        written += f"[{part}]" if isinstance(part, int) else f".{part}"
    return written.removeprefix(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A fleet as the cluster shows it.

    Attributes:
        name: its name.
        namespace: its namespace.
        workloads: what makes its pods.
        pods: its pods.
    """

    name: str
    namespace: str
    workloads: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()

    @property
    def templates(self) -> tuple[Template, ...]:
        """What its pods are made from; the pods themselves where nothing that was read makes them."""
        if self.workloads:
            return tuple(Template(each, ("spec", "template")) for each in self.workloads)
        return tuple(Template(each, ()) for each in self.pods[:1])


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What was read.

    Attributes:
        now: Unix time of this machine when leases of kubelets were read.
        objects: what was read, by part.
        unread: why a part wasn't.
        absent: parts whose kind the server doesn't have.
        namespaces: where was looked; empty for everywhere.
        clock: the API server's clock; None where it didn't say.
        rights: what controllers may do, for each account; none where that wasn't asked.
        controller: what it told.
        wishes: what policies want; None where nobody says.
    """

    now: float
    objects: Mapping[Part, Sequence[Object]] = field(default_factory=lambda: MappingProxyType({}))
    unread: Mapping[Part, str] = field(default_factory=lambda: MappingProxyType({}))
    absent: frozenset[Part] = frozenset()
    namespaces: tuple[str, ...] = ()
    clock: Clock | None = None
    rights: tuple[Rights, ...] = ()
    controller: Controller = field(default_factory=Controller)
    wishes: Wishes | None = None

    def all(self, *parts: Part) -> list[Object]:
        """Return the objects of some parts."""
        return [each for part in parts for each in self.objects.get(part, ())]

    @cached_property
    def fleets(self) -> tuple[Seen, ...]:
        """Return the fleets that pods or workloads name."""
        pods: dict[tuple[str, str], list[Object]] = {}
        workloads: dict[tuple[str, str], list[Object]] = {}
        for pod in self.all(Part.PODS):
            if name := pod.labels.get(FLEET_LABEL):
                pods.setdefault((pod.namespace, name), []).append(pod)
        for workload in self.all(Part.DEPLOYMENTS, Part.STATEFUL_SETS):
            if name := texts(workload.body, "spec", "template", "metadata", "labels").get(FLEET_LABEL):
                workloads.setdefault((workload.namespace, name), []).append(workload)
        keys = sorted({*pods, *workloads})
        return tuple(
            Seen(
                name=name,
                namespace=namespace,
                workloads=tuple(workloads.get((namespace, name), ())),
                pods=tuple(pods.get((namespace, name), ())),
            )
            for namespace, name in keys
        )

    def wish(self, fleet: Seen) -> FleetWish | None:
        """Return what policies want of a fleet; None where they don't name it, or nobody says."""
        return None if self.wishes is None else self.wishes.fleet(fleet.namespace, fleet.name)

    def controller_of(self, namespace: str) -> Object | None:
        """Return the workload of a namespace's controller: the one in it, else any; None where there is none."""
        there = [each for each in self.controllers if each.namespace == namespace]
        return next(iter(there or self.controllers), None)

    @cached_property
    def controllers(self) -> tuple[Object, ...]:
        """Return the workloads that run the controller."""
        return tuple(
            each
            for each in self.all(Part.STATEFUL_SETS, Part.DEPLOYMENTS)
            if is_controller(texts(each.body, "spec", "template", "metadata", "labels"))
        )


CONTROLLER_LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {"app.kubernetes.io/name": "emberpool", "app.kubernetes.io/component": "controller"}
)
"""Labels of the controller's pods."""


def is_controller(labels: Mapping[str, str]) -> bool:
    """Whether labels are those of the controller's pods."""
    return CONTROLLER_LABELS.items() <= labels.items()
