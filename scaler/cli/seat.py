"""`emberpool seat`: which pods there are, who lives on them, and how they are."""

import time
from types import MappingProxyType
from typing import Final

from rich.text import Text

from scaler.cli import seat_orders, seat_timeline, show
from scaler.cli.answers import SeatAnswer
from scaler.cli.failures import OK
from scaler.cli.human import NOTHING, age, duration, listed, plural, size
from scaler.cli.kube_options import Target, whom
from scaler.cli.options import Format, OptionalName, Output, RequiredName, Watch, examples, group
from scaler.cli.output import emit, pairs
from scaler.cli.seat_kind import SEATS, gpu_verdict
from scaler.cli.show import View, asked
from warmpool.seats import Claim, Resident
from warmpool.states import ResidentState
from warmpool.tiers import Budget

_STAGES: Final = MappingProxyType(
    {
        "Staged": "staged in the node's host memory",
        "Staging": "being read into the node's host memory",
        "Waits": "wait until others have been read into the node's host memory",
        "Held": "held in device memory, to be attached to",
        "LeftOut": "not to be had ahead",
        "Absent": "not in the node's host memory, and not wanted there now",
    }
)
"""What the agent says of a resident's weights, in words; what a newer one says is shown as it is."""

app = group("Seats: pods with their residents, one of which serves at a time.")


@app.command(
    "get",
    epilog=examples(
        "emberpool seat get",
        "emberpool seat get -o wide",
        "emberpool seat get --watch",
        "emberpool seat get -o name",
        "emberpool seat get -n serving --context prod",
        "kubectl emberpool seat get -A",
    ),
)
@whom
def get(
    name: OptionalName = None,
    output: Format = Output.TABLE,
    watch: Watch = False,
    *,
    target: Target,
) -> int:
    """List seats with what they are worth and who serves there.

    RESIDENTS is how many of the seat's residents serve or could be promoted now, of all that live there. Of a cluster whose
    controller isn't reached it is `?`, with what else only agents know.
    """
    return show.get(SEATS, name, View(source=asked(target), output=output, watch=watch))


@app.command(
    "describe",
    epilog=examples("emberpool seat describe shared-0", "emberpool seat describe spares-7d4-x2 -n serving"),
)
@whom
def describe(name: RequiredName, *, target: Target) -> int:
    """Show one seat: its claim, its health, its memory, and each resident with its state, age, memory, wakes and start-up times.

    A wake is the time from an order until the resident serves, by how deep it slept: Paused with its KV memory, KvReleased
    without it, Parked with its weights in host memory.
    """
    row, _ = show.describe(SEATS, name, asked(target))
    seat, now = row.seat, time.time()
    emit(
        pairs(
            [
                ("Name", seat.name),
                *([("Namespace", row.told.namespace)] if row.told.namespace else []),
                ("Fleet", seat.fleet),
                ("Value", row.value),
                ("Serving", listed(sorted(seat.serving)) + (" (lent)" if seat.lent else "")),
                ("Node", seat.node or NOTHING),
                ("GPUs", listed(seat.gpus)),
                ("Age", age(now - seat.created_at)),
                ("Health", _health(row)),
                ("Agent", seat.agent or NOTHING),
                ("Claim", row.told.unreadable or _claim(seat.claim, now)),
                *_memory(seat.memory),
            ]
        )
    )
    emit(Text("Residents:"))
    for resident in seat.residents:
        emit(f"  {resident.policy}:")
        emit(pairs(_resident(resident, now, in_rotation=resident.policy in seat.serving), indent=4))
    known = {resident.policy for resident in seat.residents}
    for policy in (each for each in row.told.declared if each not in known):
        emit(f"  {policy}: {'not started' if row.told.reported else 'unknown, its agent is not heard here'}")
    if not seat.residents and not row.told.declared:
        emit("  none")
    return OK


def _memory(memory: Budget | None) -> list[tuple[str, str]]:
    """Say what a seat's residents take of its memory, and what is left."""
    if memory is None:
        return []
    free = memory.free_bytes
    left = "" if free is None else f", {size(free)} free" if free >= 0 else f", {size(-free)} too little"
    stage = f" {size(memory.stage_bytes)} stage daemon," if memory.stage_bytes else ""
    taken = (
        f"{size(memory.paused_bytes)} held, {size(memory.largest_compute_bytes)} for computing,"
        f"{stage} {size(memory.reserve_bytes)} reserve, of {size(memory.device_bytes)}{left}"
    )
    lines = [
        ("Memory", taken),
        *_each_gpu(memory),
        ("Measured", "yes" if memory.verified else "no, or not all of it"),
    ]
    if memory.stage_reason:
        lines.append(("Stage daemon", memory.stage_reason))
    if memory.host_bytes or memory.parked_bytes:
        lines.append(
            ("Host memory", f"{size(memory.parked_bytes)} of {size(memory.host_bytes)} for parked weights")
        )
    return lines


def _each_gpu(memory: Budget) -> list[tuple[str, str]]:
    """Say how much of each GPU is left, where there are several: what fits together needn't fit on each."""
    return [
        (
            f"GPU {number}",
            f"{each.gpu} {size(each.paused_bytes)} held, {size(each.free_bytes)} free"
            if each.free_bytes is None or each.free_bytes >= 0
            else f"{each.gpu} {size(each.paused_bytes)} held, {size(-each.free_bytes)} too little",
        )
        for number, each in enumerate(memory.gpus)
    ]


def _health(row: SeatAnswer) -> str:
    seat = row.seat
    reports = "agent reports" if seat.reachable else "agent is silent"
    verdict = gpu_verdict(row)
    facts = [
        *([f"GPU verdict {verdict}"] if verdict else []),
        *([f"pod {row.told.phase}"] if row.told.phase else []),
        "ready" if seat.ready else "not ready",
        "admitted" if seat.admitted else "not admitted",
        *([reports] if row.told.reported else []),
    ]
    facts += [f"{each.uuid} {each.word}: {each.reason}" for each in seat.gpu_words if each.reason]
    if seat.health_observed:
        facts.append("verdicts on GPUs are shown and not acted on")
    if seat.drained:
        facts.append("drained by order")
    if seat.ailing:
        facts.append(f"being replaced: {seat.ailing}")
    facts += [
        f"a pre-flight keeps {resident.policy} from starting"
        for resident in seat.residents
        if resident.refused
    ]
    if seat.crash is not None:
        facts.append(str(seat.crash))
    if seat.node_leaving:
        facts.append(f"node is being emptied ({seat.node_leaving})")
    return ", ".join([*facts, "terminating"] if seat.terminating else facts)


def _claim(claim: Claim | None, now: float) -> str:
    if claim is None:
        return NOTHING
    leaving = f" in place of {claim.leaving}" if claim.leaving else ""
    leaving += f", which may park {listed(claim.displace)}" if claim.displace else ""
    left = claim.deadline - now
    deadline = f"{duration(left)} left" if left >= 0 else f"overdue by {duration(-left)}"
    since = duration(max(0.0, now - claim.since))
    return f"{claim.operation} {claim.policy}{leaving}, by {claim.holder} (epoch {claim.epoch}) since {since}, {deadline}"


def _resident(resident: Resident, now: float, *, in_rotation: bool) -> list[tuple[str, str]]:
    process = "no process" if resident.pid is None else f"pid {resident.pid}"
    proven = "never" if resident.proven_at is None else f"{age(now - resident.proven_at)} ago"
    wakes = [f"{depth} {duration(seconds)}" for depth, seconds in sorted(resident.wake_seconds.items())]
    warm_up = seat_timeline.warm_up_in_words(resident)
    lines = [
        ("State", f"{resident.state} for {age(now - resident.since)}"),
        ("In rotation", "yes" if in_rotation else "no"),
        ("In flight", str(resident.in_flight)),
        ("Address", resident.address or NOTHING),
        ("Process", f"{process}, {plural(resident.restarts, 'restart')}"),
        ("Memory", _memory_of(resident)),
        *([("Stage", _ahead(resident))] if resident.stage else []),
        ("Proven", proven),
        *([("Wakes", ", ".join(wakes))] if wakes else []),
        ("Phases", listed([f"{phase} {duration(seconds)}" for phase, seconds in resident.phases.items()])),
        *([("Warm-up", warm_up)] if warm_up else []),
        *_engine(resident),
    ]
    reasons = (("Waiting", resident.waiting), ("Failure", resident.failure))
    return [*lines, *(reason for reason in reasons if reason[1])]


def _memory_of(resident: Resident) -> str:
    """Say what a resident holds, and where its weights are."""
    parts = [size(resident.memory_bytes)]
    if resident.state is ResidentState.PARKED:
        parts.append("weights parked")
    elif resident.kv_released:
        parts.append("KV released")
    if resident.parked_bytes:
        parts.append(f"{size(resident.parked_bytes)} of host memory")
    return ", ".join(parts)


def _ahead(resident: Resident) -> str:
    """Say where its weights are in the memory of its node's stage daemon, from which another start would have them soon."""
    words = _STAGES.get(resident.stage, resident.stage)
    return f"{words}: {resident.stage_reason}" if resident.stage_reason else words


def _engine(resident: Resident) -> list[tuple[str, str]]:
    """Say what the engine was found to be able to do, one line for each thing, and what it said of its last change."""
    lines = []
    found = resident.capabilities
    if found is not None:
        lines.append(("Engine", f"{found.kind} {found.version}".strip()))
        lines += [
            (str(capability), f"{'yes' if finding.granted else 'no'}, {finding.ground}: {finding.reason}")
            for capability, finding in sorted(found.findings.items())
        ]
    if resident.verification is not None:
        lines.append(("Last change", str(resident.verification)))
    return lines


seat_orders.register(app)
seat_timeline.register(app)
