"""What engines are started with, against what they must be started with to share a seat (`warmpool.engines.arguments`).

A policy's `engine.args` are added to a command that stands elsewhere: in the pod template, or in an agent's configuration.
Where no template is shown, what the policy lacks may stand there, and is only a note.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from scaler.policy.command_line import has, value_of
from scaler.policy.fleet import Fleet
from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import Finding, Place, Severity, Term
from scaler.policy.lint.memory import SeatMemory, seat_memory
from scaler.policy.lint.subject import Subject
from scaler.policy.residents import SeatResident
from scaler.policy.scaling_policy import EngineType, ScalingPolicy
from warmpool.engines.arguments import KNOWN_VERSIONS, Need, Setting, settings_for
from warmpool.engines.kinds import EngineKind

_KINDS: Final = {EngineType.VLLM: EngineKind.VLLM, EngineType.SGLANG: EngineKind.SGLANG}
"""Engines whose arguments are known; the reference engine's are the agent's own business."""
_UTILIZATION: Final = "--gpu-memory-utilization"
_MOST_UTILIZATION: Final = 0.5
"""Where nobody said what neighbours hold, more than half of a shared device is no modest wish."""
_UNFIT: Final[Mapping[EngineType, Mapping[str, str]]] = {
    EngineType.VLLM: {
        "--api-key": "the agent sends no key, and can't tell the engine anything",
        "--kv-transfer-config": "beside a KV connector neither a release of KV memory nor parking is done, and neighbours need both",
    },
    EngineType.SGLANG: {
        "--api-key": "the agent sends no key, and can't tell the engine anything",
        "--admin-api-key": "the agent sends no key, and can't tell the engine anything",
        "--speculative-algorithm": "beside speculative decoding the release of KV memory is refused, which neighbours need",
    },
}
"""Arguments that don't go with a seat, and why (`warmpool.engines.arguments`, its notes)."""
_ALWAYS_UNFIT: Final = frozenset({"--api-key", "--admin-api-key"})
_OPEN_HOSTS: Final = frozenset({"0.0.0.0", "::", "[::]"})  # noqa: S104 -- recognised, not bound


@dataclass(frozen=True, slots=True)
class Started:
    """What a resident is started with, as far as it is known.

    Attributes:
        words: its command line: the policy's own arguments, and those of the template.
        environment: the variables that the template sets.
        whole: the template is known, so that nothing else is.
    """

    words: Sequence[str]
    environment: Mapping[str, str]
    whole: bool


def argument_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is to be said of the arguments of every policy's engine, for each fleet where it is."""
    for policy in subject.policies.policies.values():
        kind = _KINDS.get(policy.spec.engine.type)
        if kind is None:
            continue
        seen: set[str] = set()
        for fleet in subject.fleets_of(policy):
            for finding in _on_fleet(subject, policy, fleet, kind):
                if finding.message not in seen:  # what holds on all fleets is said once
                    seen.add(finding.message)
                    yield finding


def _on_fleet(subject: Subject, policy: ScalingPolicy, fleet: Fleet, kind: EngineKind) -> Iterator[Finding]:
    shares = len(subject.policies_on(fleet)) > 1
    parks = fleet.spec.spare.parked.host_memory_mib > 0
    started = started_with(subject, policy, fleet)
    seat = seat_memory(subject, fleet)
    if shares or parks:
        need = replace(_need(policy, fleet, kind, seat), shared=shares, parked=parks)
        yield from _lacking(policy, fleet, started, need)
    if shares:
        yield from _greedy(policy, fleet, started, seat)
    for flag, why in _UNFIT[policy.spec.engine.type].items():
        if has(started.words, flag) and (shares or parks or flag in _ALWAYS_UNFIT):
            yield _unfit(policy, f"{flag}: {why}", f"leave {flag} away")
    if parks and value_of(started.words, "--mm-encoder-tp-mode") == "data":
        message = "--mm-encoder-tp-mode data: beside it a sleep has answered 200 and left memory, so it is never parked"
        yield _unfit(policy, message, "leave it away, or hostMemoryMiB of the fleet")
    host = value_of(started.words, "--host")
    if host in _OPEN_HOSTS:
        message = f"--host {host}: its control routes are on the listener of /v1, and whoever reaches it can stop it"
        yield _unfit(policy, message, "--host 127.0.0.1, behind the guard's port")


def started_with(subject: Subject, policy: ScalingPolicy, fleet: Fleet) -> Started:
    """Put together what is known of a resident's command and environment on a fleet."""
    own = policy.spec.engine.args
    for template in subject.templates:
        if not template.belongs_to(fleet):
            continue
        for resident in template.residents or ():
            if resident.policy == policy.metadata.name:
                containers = [each for _, each in template.containers()]
                return Started(
                    words=(*_command(resident, containers), *own),
                    environment=_environment(resident, containers),
                    whole=True,
                )
    return Started(words=own, environment={}, whole=False)


def _command(resident: SeatResident, containers: Sequence[dict[str, Any]]) -> list[str]:
    if resident.command is not None:
        return list(resident.command)
    parts = [
        each.get(key)
        for each in containers
        if each.get("name") == resident.container
        for key in ("command", "args")
    ]
    return [str(word) for part in parts if isinstance(part, list) for word in part]


def _environment(resident: SeatResident, containers: Sequence[dict[str, Any]]) -> Mapping[str, str]:
    """Return the variables of the container that holds a resident; those of a command's are its container's, whichever it is."""
    found: dict[str, str] = {}
    for each in containers:
        listed = each.get("env")
        if resident.container in {None, each.get("name")} and isinstance(listed, list):
            found |= {
                str(entry.get("name")): str(entry.get("value")) for entry in listed if isinstance(entry, dict)
            }
    return found


def _need(policy: ScalingPolicy, fleet: Fleet, kind: EngineKind, seat: SeatMemory | None) -> Need:
    engine, gpus = policy.spec.engine, max(1, fleet.spec.seat.gpus)
    memory = None if seat is None else seat.memory
    return Need(
        kind=kind,
        kv_mib=None if engine.kv_mib is None else engine.kv_mib // gpus,
        weights_mib=None if engine.paused_mib is None else engine.paused_mib // gpus,
        gpu_mib=None if memory is None else memory // gpus,
    )


def _lacking(policy: ScalingPolicy, fleet: Fleet, started: Started, need: Need) -> Iterator[Finding]:
    """What sharing and parking ask for beyond what an engine needs anyway."""
    settings, alone = settings_for(need), settings_for(Need(kind=need.kind, shared=False))
    anyway = {each.name for each in alone.arguments}
    missing: list[Setting] = [
        each for each in settings.arguments if each.name not in anyway and not has(started.words, each.name)
    ]
    missing += [each for each in settings.environment if started.environment.get(each.name) != each.value]
    if not missing:
        return
    shown = ", ".join(
        f"{each.name}{'=' if each.name.isupper() else ' '}{each.value}".rstrip() for each in missing
    )
    yield Finding(
        code=Code.ENGINE_LACKS_ARGUMENTS,
        severity=Severity.WARNING if started.whole else Severity.INFO,
        place=_place(policy),
        message=(
            f"to {_purpose(need)} on {fleet.metadata.name} it must be started with {shown}"
            f"{'' if started.whole else ', unless what starts it says so already'}"
        ),
        hint=(
            f"`emberpool engine args --engine {need.kind}{'' if need.shared else ' --alone'}{' --parked' if need.parked else ''}`"
            f" prints them, each with its reason (known of"
            f" {need.kind} {KNOWN_VERSIONS[need.kind]})"
        ),
    )


def _purpose(need: Need) -> str:
    purposes = (("share seats", need.shared), ("be parked", need.parked))
    return " and ".join(purpose for purpose, wanted in purposes if wanted)


def _greedy(
    policy: ScalingPolicy, fleet: Fleet, started: Started, seat: SeatMemory | None
) -> Iterator[Finding]:
    """An engine that refuses to start unless more of the device is free than its neighbours leave."""
    wanted = _share(value_of(started.words, _UTILIZATION))
    if wanted is None or policy.spec.engine.type is not EngineType.VLLM:
        return
    others = (
        [] if seat is None else [r.footprint for r in seat.rooms if r.footprint.name != policy.metadata.name]
    )
    held = [each.paused for each in others]
    memory = None if seat is None else seat.memory
    known = memory is not None and held and all(size is not None for size in held)
    most = 1.0 - sum(size or 0 for size in held) / memory if known and memory else _MOST_UTILIZATION
    if wanted <= most:
        return
    neighbours = f"its neighbours leave {most:.0%}" if known else "its neighbours hold part of it"
    yield Finding(
        code=Code.ENGINE_ARGUMENT_CONFLICTS,
        severity=Severity.WARNING,
        place=_place(policy),
        message=(
            f"{_UTILIZATION} {json.dumps(wanted)}: it starts only while that share of the device is free, and on"
            f" {fleet.metadata.name} {neighbours}"
        ),
        hint=f"{_UTILIZATION} 0.05 with --kv-cache-memory-bytes, which sizes the KV memory by itself",
        terms=tuple(
            Term(
                name=f"{each.name} paused",
                value=None if each.paused is None else float(each.paused),
                unit="MiB",
                origin=f"engine.pausedMiB of {each.name}",
            )
            for each in others
        ),
    )


def _share(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _unfit(policy: ScalingPolicy, message: str, hint: str) -> Finding:
    return Finding(
        code=Code.ENGINE_ARGUMENT_CONFLICTS,
        severity=Severity.WARNING,
        place=_place(policy),
        message=message,
        hint=hint,
    )


def _place(policy: ScalingPolicy) -> Place:
    return Place.of(policy, "spec", "engine", *(("args",) if policy.spec.engine.args else ()))
