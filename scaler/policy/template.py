"""What a fleet's pod template must say, and the changes that make a manifest say it.

The pod template is the one place where it stands which residents a seat has. Three marks make a pod a seat: the label
that watches select on, the annotation that lists the residents, and the readiness gate that only the leading controller
opens. They follow from the policies that name the fleet, and from what only the manifest knows: which container, or
which command, starts each engine.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from scaler.errors import PolicyError, PolicyFault
from scaler.policy.document import Document, Path, show
from scaler.policy.edit import Edit, EditRefused, edited
from scaler.policy.fleet import Fleet, HealthMode
from scaler.policy.residents import RESIDENTS_ANNOTATION, SeatResident, parse_residents, residents_at
from scaler.policy.scaling_policy import EngineType, GraphCapture, ScalingPolicy
from scaler.policy.workload import POD_TEMPLATE, Container, Workload, probe_faults

FLEET_LABEL: Final = "emberpool.dev/fleet"
"""Label of the pod template that names the fleet."""
ADMITTED_GATE: Final = "emberpool.dev/admitted"
"""Readiness gate of the pods: the leading controller opens it, and nothing else makes a seat ready."""

MEMORY_ANNOTATION: Final = "emberpool.dev/memory"
"""Annotation of the pod template that says, as JSON, what the seat may take: `deviceMiB` and `hostMiB`, as in an agent's
configuration, and `kvWhenPaused`. What isn't said is measured, or the agent's own default."""

HEALTH_ANNOTATION: Final = "emberpool.dev/gpu-health"
"""Annotation of the pod template with the fleet's `gpuHealth.mode`, which its agents go by. Without it they enforce."""

_HEALTH: Final[Path] = (*POD_TEMPLATE, "metadata", "annotations", HEALTH_ANNOTATION)
_MEMORY: Final[Path] = (*POD_TEMPLATE, "metadata", "annotations", MEMORY_ANNOTATION)
_LABEL: Final[Path] = (*POD_TEMPLATE, "metadata", "labels", FLEET_LABEL)
_ANNOTATION: Final[Path] = (*POD_TEMPLATE, "metadata", "annotations", RESIDENTS_ANNOTATION)
_GATES: Final[Path] = (*POD_TEMPLATE, "spec", "readinessGates")
_CONTAINERS: Final[Path] = (*POD_TEMPLATE, "spec", "containers")
_ENGINE_PORT: Final[Path] = ("spec", "engine", "port")
_PORT_FLAG: Final = re.compile(r"(?<![\w-])--port(?:=|\s+)(\S+)")
_OWN_PORTS: Final[Mapping[EngineType, int]] = {EngineType.VLLM: 8000, EngineType.SGLANG: 30_000}
"""Where an engine listens that isn't told: the defaults of `vllm serve --port` and of SGLang's `--port`."""
_NAMES: Final[Mapping[EngineType, str]] = {EngineType.VLLM: "vLLM", EngineType.SGLANG: "SGLang"}


@dataclass(frozen=True, slots=True)
class Written:
    """A policy with the document that it was written in.

    Attributes:
        document: where everything of it stands.
        policy: what it says.
    """

    document: Document
    policy: ScalingPolicy

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.policy.metadata.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """What starts residents, as far as somebody has said it.

    Attributes:
        containers: by policy, the container that holds its resident.
        commands: by policy, program and arguments that the launcher starts.
    """

    containers: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that the pod template says otherwise than it should.

    Attributes:
        edit: what to write.
        what: what it is, in words.
        before: what stands there: text, a list of residents, or nothing.
        after: what shall stand there.
    """

    edit: Edit
    what: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What a manifest needs.

    Attributes:
        workload: the fleet's workload in it.
        residents: what each seat shall have, in the order of the annotation.
        changes: what to change; empty where the manifest says it already.
        notes: what whoever applies the manifest should know.
    """

    workload: Workload
    residents: Sequence[SeatResident]
    changes: Sequence[Change]
    notes: Sequence[str]

    def apply(self, text: str) -> str:
        """Write the changes into the manifest's text, which keeps its form in everything else.

        Raises:
            PolicyError: the manifest has a form in which they can't be made.
        """
        document = self.workload.document
        try:
            return edited(text, document.index, [change.edit for change in self.changes])
        except EditRefused as error:
            raise PolicyError((document.fault(error.path, str(error), error.hint),)) from error


def template(fleet: Fleet, policies: Sequence[Written], workload: Workload, starts: Starts) -> Template:
    """Work out what a fleet's manifest needs.

    Args:
        fleet: the fleet.
        policies: the policies that name it, the most important first; at least one.
        workload: its workload.
        starts: what somebody has said about how residents start.

    Raises:
        PolicyError: with all that keeps the pods from being seats: a resident that nobody knows how to start, a port that
            two of them want, a wrong number of GPUs, probes on containers that hold engines.
        ResidentsInvalid: a command is none.
    """
    before = _listed(workload)
    finder = _Finder(
        fleet.metadata.name, workload, starts, before, gpus=fleet.spec.seat.gpus, alone=len(policies) == 1
    )
    residents, faults, assumed = _residents(finder, _in_order(policies, before))
    engines = finder.engines(residents, all_known=not faults)
    faults += [
        *_selector_faults(fleet, workload),
        *_gpu_faults(fleet, engines),
        *probe_faults(engines),
        *_port_faults(_in_order(policies, before), before),
        *(list(_form_faults(residents, workload)) or _engine_port_faults(residents, workload)),
    ]
    if faults:
        raise PolicyError(tuple(faults))
    changes = [
        *_label_change(fleet, workload),
        *_residents_change(residents, before, workload),
        *_memory_change(fleet, workload),
        *_health_change(fleet, workload),
        *_gate_change(workload),
    ]
    notes = [*assumed, *_notes(engines, workload), *_memory_notes(fleet, engines)]
    return Template(workload=workload, residents=residents, changes=changes, notes=notes)


# ------------------------------------------------------------------ residents


def _listed(workload: Workload) -> dict[str, SeatResident]:
    """Read the residents that the annotation lists at present, by policy, in its order."""
    if workload.at(_ANNOTATION) is None:
        return {}
    return {each.policy: each for each in residents_at(workload.document, _ANNOTATION)}


def _in_order(policies: Sequence[Written], before: Mapping[str, SeatResident]) -> list[Written]:
    """Keep the order of residents that are listed already.

    A new pod template replaces all seats, and the order in which residents start when nothing else decides is not worth
    that.
    """
    order = list(before)
    return sorted(policies, key=lambda each: order.index(each.name) if each.name in order else len(order))


def _residents(
    finder: "_Finder", policies: Sequence[Written]
) -> tuple[list[SeatResident], list[PolicyFault], list[str]]:
    """Find the residents, what keeps some from being found, and what was assumed of those that were."""
    residents: list[SeatResident] = []
    faults: list[PolicyFault] = []
    assumed: list[str] = []
    for written in policies:
        try:
            resident, assumption = finder.resident(written)
        except PolicyError as error:
            faults += error.faults
        else:
            residents.append(resident)
            assumed += [assumption] if assumption else []
    return residents, faults, assumed


_MUCH_MORE: Final = 4
"""What is listed is left as it is while it isn't so many times what the policy asks for now: it was warmed up for that as well."""


def _target(written: Written, fleet: str) -> int:
    """Return the requests that one resident of a policy is to hold on a fleet."""
    return next(share.target_in_flight for share in written.policy.spec.fleets if share.name == fleet)


def _in_flight(target: int, before: SeatResident | None) -> int:
    """Return what is listed of it: what was listed before, where warm-up went far enough already."""
    listed = None if before is None else before.target_in_flight
    return target if listed is None or not target <= listed <= _MUCH_MORE * target else listed


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds out how residents start: from what was said, from the annotation, from the containers, in this order.

    Attributes:
        fleet: the fleet's name.
        workload: the fleet's workload.
        starts: what was said.
        before: what the annotation lists, by policy.
        gpus: GPUs of one seat.
        alone: whether there is one resident only.
    """

    fleet: str
    workload: Workload
    starts: Starts
    before: Mapping[str, SeatResident]
    _: KW_ONLY
    gpus: int
    alone: bool

    def resident(self, written: Written) -> tuple[SeatResident, str]:
        """Make the resident of a policy; say what was assumed of it, or nothing.

        Raises:
            PolicyError: nobody says how it starts, or at which port it is reached.
            ResidentsInvalid: its command is none.
        """
        engine, before = written.policy.spec.engine, self.before.get(written.name)
        port = _port(written, before)
        missing = () if port is not None else (_no_port(written),)
        try:
            container, command = self._start(written.name)
        except PolicyError as error:
            raise PolicyError((*error.faults, *missing)) from error
        if port is None:
            raise PolicyError(missing)
        line = " ".join(command) if command else container.line if container else ""
        listens = _listens(line, engine.type, before)
        assumption = "" if before else _assumption(written, line, listens or port)
        known = {
            "policy": written.name,
            "container": container.name if container else None,
            "command": list(command) if command else None,
            "port": port,
            "enginePort": None if listens == port else listens,
            "pausedMiB": engine.paused_mib or (before.paused_mib if before else None),
            "kvMiB": engine.kv_mib or (before.kv_mib if before else None),
            "activationMiB": engine.activation_mib or (before.activation_mib if before else None),
            "proof": engine.proof.model_dump(mode="json", by_alias=True, exclude_defaults=True) or None,
            "targetInFlight": _in_flight(_target(written, self.fleet), before),
            "graphCapture": None if engine.graph_capture is GraphCapture.AT_START else "WhilePaused",
            "warmup": engine.warmup.told() or None,
        }
        said = {key: value for key, value in known.items() if value is not None}
        return parse_residents(json.dumps([said]))[0], assumption

    def _start(self, policy: str) -> tuple[Container | None, tuple[str, ...] | None]:
        """Return the container that holds a policy's resident, or the command that starts it."""
        if policy in self.starts.commands:
            return None, self.starts.commands[policy]
        if policy in self.starts.containers:
            return self._container(policy, self.starts.containers[policy], _CONTAINERS), None
        before = self.before.get(policy)
        if before is not None and before.command is not None:
            return None, before.command
        if before is not None and before.container is not None:
            return self._container(policy, before.container, _ANNOTATION), None
        if (found := self.workload.container(policy)) is not None:
            return found, None
        holders = self.holders()
        if self.alone and len(holders) == 1:
            return holders[0], None
        message = f"nothing says how the resident of {policy} starts: no container is called {policy}"
        hint = (
            f"--command {policy}='PROGRAM ARGUMENTS' where one container holds all engines,"
            f" --container {policy}=NAME where each has its own"
        )
        raise PolicyError((self.workload.fault(_CONTAINERS, message, hint),))

    def _container(self, policy: str, name: str, path: Path) -> Container:
        found = self.workload.container(name)
        if found is None:
            names = ", ".join(each.name for each in self.workload.containers)
            message = f"there is no container {name}, which should hold the resident of {policy}"
            hint = f"there are: {names or 'none'}; say which one it is with --container {policy}=NAME"
            raise PolicyError((self.workload.fault(path, message, hint),))
        return found

    def holders(self) -> Sequence[Container]:
        """List the containers that may hold engines: those with GPUs, or all where none has any."""
        containers = self.workload.containers
        with_gpus = [each for each in containers if each.claims or each.gpus] if self.gpus else []
        return with_gpus or containers

    def engines(self, residents: Sequence[SeatResident], *, all_known: bool) -> list[Container]:
        """List the containers that hold engines.

        Args:
            residents: those of which it is known how they start.
            all_known: these are all; if not, the others are in the containers with GPUs, or in the only one.
        """
        own = {each.container for each in residents}
        shared = self.holders() if any(each.command for each in residents) else ()
        if not shared and not all_known:
            likely = [each for each in self.holders() if each.claims or each.gpus]
            shared = likely or (self.workload.containers if len(self.workload.containers) == 1 else ())
        return [each for each in self.workload.containers if each.name in own or each in shared]


def _port(written: Written, before: SeatResident | None) -> int | None:
    """Return the port of a policy's residents: its own, or what the annotation says; None where neither does."""
    return written.policy.spec.engine.port or (before.port if before else None)


def _no_port(written: Written) -> PolicyFault:
    message = "is missing: the residents of a seat are told apart by their ports"
    hint = "choose one that no other policy of its fleets has, such as 8001"
    return written.document.fault(_ENGINE_PORT, message, hint)


def _listens(line: str, engine: EngineType, before: SeatResident | None) -> int | None:
    """Return the port at which an engine listens, as far as its command line, the annotation or its defaults say it."""
    found = _PORT_FLAG.search(line)
    if found is not None and found.group(1).isdecimal():
        return int(found.group(1))
    if before is not None:
        return before.engine_port
    return _OWN_PORTS.get(engine) if found is None else None


def _assumption(written: Written, line: str, listens: int) -> str:
    """Say where an engine is taken to listen that no command line tells it in digits; nothing where one does."""
    found, engine = _PORT_FLAG.search(line), written.policy.spec.engine.type
    if found is not None and found.group(1).isdecimal():
        return ""
    why = "is not told its port here" if found is None else f"is told its port as {found.group(1)}"
    own = f", as {_NAMES[engine]} does by default" if found is None and engine in _NAMES else ""
    inside = "" if own else ", the resident's own, with the guard inside the engine"
    return (
        f"the engine of {written.name} {why}: it is taken to listen on port {listens}{own}{inside}; if it listens elsewhere,"
        " say so with --port N in its command or its container's args, or as enginePort in the annotation"
    )


# ------------------------------------------------------------------ what must not be


def _selector_faults(fleet: Fleet, workload: Workload) -> Iterator[PolicyFault]:
    path = ("spec", "selector", "matchLabels", FLEET_LABEL)
    selected = workload.at(path)
    if selected is not None and selected != fleet.metadata.name:
        message = (
            f"selects pods of fleet {selected}, and the pods will be those of fleet {fleet.metadata.name}"
        )
        yield workload.fault(
            path, message, "a selector can't be changed: leave the label out in a new workload"
        )


def _form_faults(residents: Sequence[SeatResident], workload: Workload) -> Iterator[PolicyFault]:
    """Yield what is wrong with who is started where: engines share one container, or each has its own."""
    own = [each for each in residents if each.container is not None]
    by_command = [each for each in residents if each.command is not None]
    if own and by_command:
        message = (
            f"the resident of {own[0].policy} has a container of its own, that of {by_command[0].policy} a command:"
            " engines either share one container, or each has its own"
        )
        hint = f"say what starts {own[0].policy}, too: --command {own[0].policy}='PROGRAM ARGUMENTS'"
        yield workload.fault(_CONTAINERS, message, hint)
    first: dict[str | None, str] = {}
    for each in own:
        other = first.setdefault(each.container, each.policy)
        if other != each.policy:
            message = f"container {each.container} would hold the residents of {other} and {each.policy}"
            hint = f"say what starts each: --command {other}='…' --command {each.policy}='…'; or give each its own"
            yield workload.fault(_CONTAINERS, message, hint)


def _gpu_faults(fleet: Fleet, engines: Sequence[Container]) -> Iterator[PolicyFault]:
    """Yield what is wrong with GPUs: their number, and whether all residents use the same ones."""
    gpus = fleet.spec.seat.gpus
    for each in engines:
        if not each.claims and each.gpus != gpus:
            message = (
                f"container {each.name} has {_gpus(each.gpus)}, a seat of fleet {fleet.metadata.name} {gpus}"
            )
            hint = (
                f"set the limit nvidia.com/gpu to {gpus}, or seat.gpus of the fleet to what the engines need"
            )
            yield each.document.fault((*each.path, "resources", "limits", "nvidia.com/gpu"), message, hint)
    holders = [each for each in engines if each.claims or each.gpus]
    claims = {each.claims for each in holders}
    if gpus and len(holders) > 1 and (len(claims) > 1 or () in claims):
        names = " and ".join(each.name for each in holders)
        message = f"containers {names} get GPUs of their own, but the residents of a seat share its GPUs"
        hint = "let one container hold all engines (--command), or give all the same ResourceClaim"
        yield holders[1].document.fault(holders[1].path, message, hint)


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs" if count else "no GPU"


def _port_faults(policies: Sequence[Written], before: Mapping[str, SeatResident]) -> Iterator[PolicyFault]:
    """Yield the ports of policies that two residents of a seat would have, however these start."""
    taken: dict[int, str] = {}
    for each in policies:
        port = _port(each, before.get(each.name))
        other = each.name if port is None else taken.setdefault(port, each.name)
        if other != each.name:
            message = f"port {port} is taken by the resident of {other}, and both listen on the same pods"
            hint = "give each policy of a fleet a port of its own"
            yield each.document.fault(_ENGINE_PORT, message, hint)


def _engine_port_faults(residents: Sequence[SeatResident], workload: Workload) -> Iterator[PolicyFault]:
    """Yield the ports of engines that something else on the pod has."""
    taken = {each.port: f"the resident of {each.policy}" for each in residents}
    for each in residents:
        if each.engine_port is None:
            continue
        engine = f"the engine of {each.policy}"
        other = taken.setdefault(each.engine_port, engine)
        if other != engine:
            message = f"{engine} listens on port {each.engine_port}, which is taken by {other}"
            yield workload.fault(_CONTAINERS, message, f"start {engine} with another --port")


# ------------------------------------------------------------------ what changes


def _label_change(fleet: Fleet, workload: Workload) -> Iterator[Change]:
    before, name = workload.at(_LABEL), fleet.metadata.name
    if before != name:
        yield Change(
            edit=Edit(path=_LABEL, value=name), what=f"label {FLEET_LABEL}", before=before, after=name
        )


def _residents_change(
    residents: Sequence[SeatResident], before: Mapping[str, SeatResident], workload: Workload
) -> Iterator[Change]:
    if list(before.values()) == list(residents):
        return
    after = [entry_of(each) for each in residents]
    lines = [json.dumps(each) for each in after]
    text = f"[{lines[0]}]" if len(lines) == 1 else "[\n  " + ",\n  ".join(lines) + "\n]"
    listed = [entry_of(each) for each in before.values()]
    yield Change(
        edit=Edit(path=_ANNOTATION, value=text),
        what=f"annotation {RESIDENTS_ANNOTATION}",
        before=None if workload.at(_ANNOTATION) is None else listed,
        after=after,
    )


def _memory_change(fleet: Fleet, workload: Workload) -> Iterator[Change]:
    """Yield what the seats' memory is to be, where the fleet or the manifest says anything of it."""
    seat, before = fleet.spec.seat, workload.at(_MEMORY)
    said = {
        "deviceMiB": seat.memory_mib,
        "hostMiB": fleet.spec.spare.parked.host_memory_mib or None,
        "kvWhenPaused": None if seat.kv_when_paused is None else str(seat.kv_when_paused),
    }
    after = json.dumps({key: value for key, value in said.items() if value is not None})
    if before != after and (before is not None or after != "{}"):
        yield Change(
            edit=Edit(path=_MEMORY, value=after),
            what=f"annotation {MEMORY_ANNOTATION}",
            before=before,
            after=after,
        )


def _health_change(fleet: Fleet, workload: Workload) -> Iterator[Change]:
    """Yield what agents are to do about GPUs' health, where the manifest says otherwise than the fleet."""
    before, after = workload.at(_HEALTH), str(fleet.spec.gpu_health.mode)
    if before != after and (before is not None or fleet.spec.gpu_health.mode is not HealthMode.ENFORCE):
        yield Change(
            edit=Edit(path=_HEALTH, value=after),
            what=f"annotation {HEALTH_ANNOTATION}",
            before=before,
            after=after,
        )


def _memory_notes(fleet: Fleet, engines: Sequence[Container]) -> Iterator[str]:
    """Say it where parked weights don't fit into what a container may take of the host."""
    host = fleet.spec.spare.parked.host_memory_mib
    for each in engines:
        limit = each.memory_mib
        if host and limit is not None and limit <= host:
            yield (
                f"container {each.name} may take {limit:.0f} MiB of memory, and {host} MiB are for parked weights alone"
                " (spare.parked.hostMemoryMiB): raise its limit to that and what the engines need beside it"
            )


def entry_of(resident: SeatResident) -> dict[str, Any]:
    """Return a resident as the annotation has it, without what isn't known."""
    return resident.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _gate_change(workload: Workload) -> Iterator[Change]:
    gates = workload.at(_GATES)
    gates = [] if gates is None else gates
    if not isinstance(gates, list):
        hint = "write it as Kubernetes documents it"
        raise PolicyError((workload.fault(_GATES, f"must be a list, is {show(gates)}", hint),))
    if {"conditionType": ADMITTED_GATE} not in gates:
        edit = Edit(path=(*_GATES, len(gates)), value={"conditionType": ADMITTED_GATE})
        yield Change(edit=edit, what="readiness gate", before=None, after=ADMITTED_GATE)


def _notes(engines: Sequence[Container], workload: Workload) -> Iterator[str]:
    for each in engines:
        if each.claims:
            yield (
                f"container {each.name} has its GPUs through a ResourceClaim, which doesn't say here how many:"
                " their number was not checked"
            )
    for each in [*workload.containers, *workload.sidecars]:
        if each not in engines and each.probes:
            probes = " and ".join(each.probes)
            yield f"container {each.name} has a {probes}: while it fails, the whole seat may count as not ready"
    replicas = workload.at(("spec", "replicas"))
    if replicas is not None:
        yield (
            f"spec.replicas is {replicas}: applying the manifest resets the number of seats to that;"
            " leave it out, since the fleet is resized by its policies"
        )
