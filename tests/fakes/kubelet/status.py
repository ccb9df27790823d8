"""What a kubelet says of a pod, from what its containers do. PURE.

Follows what Kubernetes documents of a pod's lifecycle: phases, the conditions that are the kubelet's own, and what a sidecar (an
init container with `restartPolicy: Always`) counts for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]
OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a container's process ended."""

    code: int
    started: str
    finished: str
    reason: str = ""

    def state(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "exitCode": self.code,
            "reason": self.reason or ("Completed" if self.code == 0 else "Error"),
            "startedAt": self.started,
            "finishedAt": self.finished,
        }
        return {"terminated": body}


@dataclass(kw_only=True)
class ContainerState:
    """One container as it is now.

    Attributes:
        name, image: as in the spec.
        sidecar: an init container that goes on running.
        waiting: why it doesn't run, as Kubernetes names it; empty while it runs and when it has ended for good.
        message: the same in words.
        running: since when it runs; empty if it doesn't.
        ended: how its process ended last; None before that.
        started: its startup probe has succeeded, or it has none and runs.
        ready: its readiness probe has succeeded, or it has none and has started.
        restarts: how often it was started again.
        over: it won't be started again.
    """

    name: str
    image: str
    sidecar: bool = False
    waiting: str = "PodInitializing"
    message: str = ""
    running: str = ""
    ended: Ended | None = None
    started: bool = False
    ready: bool = False
    restarts: int = 0
    over: bool = False

    @property
    def completed(self) -> bool:
        return self.over and self.ended is not None and self.ended.code == 0

    def status(self) -> dict[str, Any]:
        if self.running:
            state: dict[str, Any] = {"running": {"startedAt": self.running}}
        elif self.over and self.ended is not None:
            state = self.ended.state()
        else:
            message = {"message": self.message} if self.message else {}
            state = {"waiting": {"reason": self.waiting, **message}}
        last = self.ended.state() if self.ended is not None and not self.over else {}
        return {
            "name": self.name,
            "state": state,
            "lastState": last,
            "ready": self.ready,
            "restartCount": self.restarts,
            "image": self.image,
            "imageID": "",
            "started": self.started,
        }


@dataclass(kw_only=True)
class PodState:
    """A pod's containers, and what else its status needs.

    Attributes:
        init: init containers and sidecars, in their order.
        main: the other containers.
        host_ip, ip: addresses of node and pod; the pod's is empty until it has one.
        started: when the kubelet took it up.
        killed: the kubelet has ended it on order; what has run has ended for good.
        failure: why the kubelet refuses to run it: reason and message.
    """

    init: Sequence[ContainerState]
    main: Sequence[ContainerState]
    host_ip: str
    started: str
    ip: str = ""
    killed: bool = False
    failure: tuple[str, str] | None = None
    restart_policy: str = "Always"
    gates: Sequence[str] = field(default_factory=tuple)

    @property
    def initialized(self) -> bool:
        """All init containers have completed, and all sidecars have started."""
        return all(each.started or each.over if each.sidecar else each.completed for each in self.init)

    @property
    def finished(self) -> bool:
        """No container will run again but for sidecars."""
        failed = any(each.over and not each.completed for each in self.init if not each.sidecar)
        return failed or all(each.over for each in self.main)

    @property
    def phase(self) -> str:
        everyone = [*self.init, *self.main]
        if self.failure is not None:
            return "Failed"
        if self.killed and all(not each.running for each in everyone):
            codes = [each.ended.code if each.ended else 1 for each in self.main]
            return "Failed" if any(codes) else "Succeeded"
        if self.finished and not any(each.running for each in everyone):
            sound = all(each.completed for each in self.main) and self.initialized
            return "Succeeded" if sound else "Failed"
        begun = any(each.running or each.ended for each in self.main)
        return "Running" if begun and self.initialized else "Pending"


def conditions(state: PodState, before: Iterable[Object], now: str) -> list[dict[str, Any]]:
    """Return the kubelet's own conditions.

    Args:
        state: the pod.
        before: all conditions that the object has: others' for readiness gates, our own for their times.
        now: for those that change.
    """
    held = {each["type"]: each for each in before}
    phase = state.phase
    unready = [each.name for each in [*(e for e in state.init if e.sidecar), *state.main] if not each.ready]
    over = phase in {"Succeeded", "Failed"}
    containers = _verdict(unready, over=over, phase=phase)
    ready = containers
    if containers[0] == "True":
        shut = [gate for gate in state.gates if (held.get(gate) or {}).get("status") != "True"]
        if shut:
            missing = " and ".join(
                f'corresponding condition of pod readiness gate "{gate}" {_gate(held.get(gate))}'
                for gate in shut
            )
            ready = ("False", "ReadinessGatesNotReady", missing)
    incomplete = [
        each.name
        for each in state.init
        if not (each.started or each.over if each.sidecar else each.completed)
    ]
    initialized = (
        ("False", "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(incomplete)}]")
        if incomplete and not (over and phase == "Succeeded")
        else ("True", "PodCompleted" if phase == "Succeeded" else "", "")
    )
    sandbox = ("True" if state.ip and not state.killed else "False", "", "")
    wanted = dict(zip(OWN_CONDITIONS, (sandbox, initialized, containers, ready), strict=True))
    return [_condition(kind, *verdict, held.get(kind), now) for kind, verdict in wanted.items()]


def _gate(condition: Object | None) -> str:
    if condition is None:
        return "does not exist."
    return f'is set to "{condition.get("status")}" with reason "{condition.get("reason", "")}"'


def _verdict(unready: Sequence[str], *, over: bool, phase: str) -> tuple[str, str, str]:
    if over:
        return "False", "PodCompleted" if phase == "Succeeded" else "PodFailed", ""
    if unready:
        return "False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    return "True", "", ""


def _condition(
    kind: str, status: str, reason: str, message: str, before: Object | None, now: str
) -> dict[str, Any]:
    unchanged = before is not None and before.get("status") == status
    since = before.get("lastTransitionTime") if unchanged and before is not None else now
    # None takes away what a strategic patch would otherwise leave
    return {
        "type": kind,
        "status": status,
        "lastProbeTime": None,
        "lastTransitionTime": since or now,
        "reason": reason or None,
        "message": message or None,
    }


def status_of(state: PodState, before: Iterable[Object], now: str) -> dict[str, Any]:
    """Return what the kubelet writes into a pod's status."""
    body: dict[str, Any] = {
        "phase": state.phase,
        "hostIP": state.host_ip,
        "hostIPs": [{"ip": state.host_ip}],
        "startTime": state.started,
        "conditions": conditions(state, before, now),
        "containerStatuses": [each.status() for each in state.main],
    }
    if state.init:
        body["initContainerStatuses"] = [each.status() for each in state.init]
    if state.ip:
        body |= {"podIP": state.ip, "podIPs": [{"ip": state.ip}]}
    if state.failure is not None:
        body |= {"reason": state.failure[0], "message": state.failure[1]}
    return body
