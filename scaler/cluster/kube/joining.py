"""One seat from what three say of it: the pod its claim and rotation, the agent its residents, the node whether it stays. PURE.

Joined by the pod's UID, so that nothing that an agent told of an earlier pod of the same name is believed of this one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from scaler.cluster.kube.views import Node, Pod
from scaler.cluster.reports import Life, Report, bracketed, routable
from warmpool.nodehealth.others import Heeded
from warmpool.seats import GpuWord, Resident, Seat, Verdict, worst_of
from warmpool.tiers import Budget

UNSCHEDULABLE_SECONDS: Final = 600.0
"""For how long a pod that no node takes is still on its way: an autoscaler of nodes needs some minutes for a GPU node."""
STUCK_SECONDS: Final = 60.0
"""How long after its grace a terminating pod still counts: then its node has vanished, and nobody else counts it either."""
_ENDED = frozenset({"Failed", "Succeeded"})
_WORST = (Verdict.BAD, Verdict.SUSPECT, Verdict.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a seat's agent has told.

    Attributes:
        life: where its newest report stands among all.
        residents: its residents, under addresses at which gateways reach them.
        agent: base URL of the agent.
        gpus: the seat's GPUs.
        memory: what its residents take of its memory; None where it isn't told.
        gpu_words: what its node says of its GPUs.
        epoch: the highest term whose orders the agent has taken.
        ip: the pod's address as all this was read.
    """

    life: Life
    residents: tuple[Resident, ...]
    agent: str
    gpus: tuple[str, ...] = ()
    memory: Budget | None = None
    gpu_words: tuple[GpuWord, ...] = ()
    epoch: int = 0
    ip: str = ""


def heard(pod: Pod, report: Report, life: Life) -> Heard:
    """Read a report of a pod's agent.

    Raises:
        BadOrder: an engine listens where no gateway reaches it.
    """
    return Heard(
        life=life,
        residents=tuple(routable(resident, pod.ip, report.seat) for resident in report.residents),
        agent=agent_url(pod, _port(report.agent)),
        gpus=report.gpus,
        memory=report.memory,
        gpu_words=report.gpu_words,
        epoch=report.epoch,
        ip=pod.ip,
    )


def agent_url(pod: Pod, port: int | None = None) -> str:
    """Return where a pod's agent is reached; empty while it has no address.

    Args:
        pod: the pod.
        port: as the agent told it; None while it hasn't.
    """
    return f"http://{bracketed(pod.ip)}:{port or pod.agent_port}" if pod.ip else ""


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known beside a pod when it is read.

    Attributes:
        node: its node; None while it has none, or that isn't known.
        heard: what its agent has told; None while it has told nothing.
        silent: its agent hasn't been heard for too long.
        verdicts: what nodes say of GPUs, by UUID, beside what the agent was told; a GPU that is missing is Ok.
        observed: what is said of GPUs is shown and not acted on.
        fenced: UUIDs of GPUs that the scheduler gives nobody, whose nodes take new pods all the same.
        heeded: what others say of nodes that counts.
        now: Unix seconds.
    """

    node: Node | None = None
    heard: Heard | None = None
    silent: bool = False
    verdicts: Mapping[str, Verdict] = field(default_factory=lambda: MappingProxyType({}))
    observed: bool = False
    fenced: frozenset[str] = frozenset()
    heeded: Heeded = Heeded()  # noqa: RUF009 - it can't be changed
    now: float = 0.0


def joined(pod: Pod, known: Known) -> Seat:
    """Return the seat."""
    told, leaving = known.heard, "" if known.node is None else known.node.leaving(known.heeded)
    fenced = known.node is not None and known.node.fenced
    if told is None:
        return replace(
            pod.seat,
            reachable=starting(pod, known.now),
            node_leaving=leaving,
            fenced=fenced,
            health_observed=known.observed,
        )
    return replace(
        pod.seat,
        residents=told.residents,
        agent=told.agent,
        gpus=told.gpus,
        memory=told.memory,
        reachable=not known.silent and _stands(pod) and told.ip == pod.ip,
        verdict=Verdict.OK if known.observed else _verdict(told, known.verdicts),
        gpu_words=told.gpu_words,
        health_observed=known.observed,
        node_leaving=leaving,
        fenced=fenced or not known.fenced.isdisjoint(told.gpus),
    )


def _stands(pod: Pod) -> bool:
    return bool(pod.ip) and not pod.unreadable and pod.phase not in _ENDED


def starting(pod: Pod, now: float) -> bool:
    """Whether a pod whose agent hasn't been heard may still become a seat: it isn't out of reach, but on its way."""
    if pod.seat.admitted or pod.unreadable or pod.phase in _ENDED:
        return False
    return not unschedulable(pod, now)


def unschedulable(pod: Pod, now: float) -> bool:
    """Whether no node has taken a pod for so long that it is on its way no more."""
    since = pod.unschedulable_since
    return since is not None and now - since >= UNSCHEDULABLE_SECONDS


def counted(pod: Pod, now: float) -> bool:
    """Whether a pod is a seat at all.

    One that has ended isn't: its workload has made another, and leaves it behind for people to read. Nor is one that is
    terminating for longer than its grace: no kubelet is there to end it.
    """
    if pod.phase in _ENDED:
        return False
    leaves_by = pod.seat.leaves_by
    return leaves_by is None or now - leaves_by < STUCK_SECONDS


def _verdict(told: Heard, verdicts: Mapping[str, Verdict]) -> Verdict:
    """Return the worst verdict of a seat's GPUs, whether its agent or its node has told."""
    gpus = {*told.gpus, *(word.uuid for word in told.gpu_words)}
    found = {worst_of(told.gpu_words), *(verdicts.get(gpu, Verdict.OK) for gpu in gpus)}
    return next((verdict for verdict in _WORST if verdict in found), Verdict.OK)
