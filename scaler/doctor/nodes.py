"""Whether there are GPUs, and whether clocks agree. PURE."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from scaler.doctor import mends
from scaler.doctor.findings import Code, Finding, Severity
from scaler.doctor.objects import Object, at, mappings, text
from scaler.doctor.picture import Clock, Part, Picture, Template, devices

_GPU: Final = "nvidia.com/gpu"
_CLUSTER: Final = "Cluster"
_LATE_SECONDS: Final = 40.0
"""Kubelets renew each 10 s, and a node counts as lost after 40 s (Kubernetes, `--node-monitor-grace-period`)."""
MOST_SECONDS: Final = 2.0
"""Clocks that differ by more make ages and deadlines in what people see wrong."""


def check(picture: Picture) -> Iterator[Finding]:
    """Yield what is wrong with nodes and clocks."""
    if Part.NODES in picture.objects:
        yield from _gpus(picture)
    if picture.clock is not None:
        yield from _own_clock(picture.clock)
        yield from _node_clocks(picture, picture.clock)


# ------------------------------------------------------------------ GPUs


def _gpus(picture: Picture) -> Iterator[Finding]:
    nodes = picture.all(Part.NODES)
    wanting = [each for fleet in picture.fleets for each in fleet.templates if each.gpus]
    most = max((_count(node, "capacity") for node in nodes), default=0)
    if wanting and not most:
        yield Finding(
            code=Code.GPUS_ABSENT,
            severity=Severity.ERROR,
            object=_CLUSTER,
            path=f"status.capacity[{_GPU}]",
            message=f"no node offers GPUs, and {wanting[0].object} asks for {wanting[0].gpus} each: the device plugin is missing,"
            " or no GPU node has joined",
            mend="helm upgrade --install nvidia-device-plugin nvdp/nvidia-device-plugin"
            " --namespace nvidia-device-plugin --create-namespace",
        )
        return
    larger = [each for each in wanting if each.gpus > most]
    yield from (_too_large(each, most) for each in larger)
    if not larger:
        yield from _too_few(picture)
    for node in nodes:
        yield from _withheld(node)


def _too_large(template: Template, most: int) -> Finding:
    return Finding(
        code=Code.GPUS_TOO_FEW,
        severity=Severity.ERROR,
        object=str(template.object),
        path=template.path("spec", "containers"),
        message=f"a seat asks for {template.gpus} GPUs, and no node has more than {most}: its pods are never scheduled",
        mend="emberpool node get -o wide",
    )


def _too_few(picture: Picture) -> Iterator[Finding]:
    """Hold what all fleets may grow to against what there is."""
    wanted = 0
    for fleet in picture.fleets:
        wish, gpus = picture.wish(fleet), max((each.gpus for each in fleet.templates), default=0)
        wanted += 0 if wish is None or wish.max_seats is None else wish.max_seats * gpus
    offered = sum(_count(node, "allocatable") for node in picture.all(Part.NODES))
    if wanted > offered:
        yield Finding(
            code=Code.GPUS_TOO_FEW,
            severity=Severity.NOTE,
            object=_CLUSTER,
            path=f"status.allocatable[{_GPU}]",
            message=f"fleets may have seats with {wanted} GPUs together, and nodes offer {offered}: the rest waits for nodes to be"
            " added",
            mend="emberpool node get -o wide",
        )


def _withheld(node: Object) -> Iterator[Finding]:
    found, offered = _count(node, "capacity"), _count(node, "allocatable")
    if offered < found:
        yield Finding(
            code=Code.GPUS_UNHEALTHY,
            severity=Severity.WARNING,
            object=str(node),
            path=f"status.allocatable[{_GPU}]",
            message=f"the device plugin offers {offered} of {found} GPUs: it takes the others for unhealthy",
            mend=f"emberpool node describe {node.name}",
        )


def _count(node: Object, key: str) -> int:
    return devices(at(node.body, "status", key, _GPU))


# ------------------------------------------------------------------ clocks


def _own_clock(clock: Clock) -> Iterator[Finding]:
    if abs(clock.ahead) - clock.uncertain <= MOST_SECONDS:
        return
    which = "behind" if clock.ahead > 0 else "ahead of"
    yield Finding(
        code=Code.CLOCK_DIFFERS,
        severity=Severity.WARNING,
        object="Machine",
        message=f"this machine's clock is {abs(clock.ahead):.0f} s {which} the API server's: ages and deadlines that it shows are"
        " wrong by that",
        mend="sudo timedatectl set-ntp true",
    )


def _node_clocks(picture: Picture, clock: Clock) -> Iterator[Finding]:
    """A kubelet writes its own clock into its lease: one that lies in the future, or far back though the node is ready, is wrong."""
    of_interest = _nodes_with_seats(picture)
    now = picture.now + clock.ahead
    renewed = {
        each.name: _time(text(each.body, "spec", "renewTime")) for each in picture.all(Part.NODE_LEASES)
    }
    for node in picture.all(Part.NODES):
        at_node = renewed.get(node.name)
        if node.name not in of_interest or at_node is None:
            continue
        ahead = at_node - now
        if ahead > MOST_SECONDS + clock.uncertain:
            yield _node_clock(node, f"at least {ahead:.0f} s ahead of")
        elif -ahead > _LATE_SECONDS + clock.uncertain and _ready(node):
            yield _node_clock(node, f"up to {-ahead:.0f} s behind")


def _nodes_with_seats(picture: Picture) -> set[str]:
    pods = {text(pod.body, "spec", "nodeName") for fleet in picture.fleets for pod in fleet.pods}
    return pods | {node.name for node in picture.all(Part.NODES) if _count(node, "capacity")}


def _node_clock(node: Object, how: str) -> Finding:
    return Finding(
        code=Code.NODE_CLOCK_DIFFERS,
        severity=Severity.WARNING,
        object=str(node),
        path="spec.renewTime",
        message=f"its clock is {how} the API server's, by the lease that its kubelet renews: what its agents report looks older or"
        " newer than it is",
        mend=mends.kubectl(
            "debug", f"node/{node.name}", "-it", "--image=busybox", "--", "chroot", "/host", "timedatectl"
        ),
    )


def _ready(node: Object) -> bool:
    return any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for _, each in mappings(node.body, "status", "conditions")
    )


def _time(written: str) -> float | None:
    try:
        return datetime.fromisoformat(written).timestamp()
    except (ValueError, OverflowError):
        return None
