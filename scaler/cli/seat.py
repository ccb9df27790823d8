"""`emberpool seat`: which pods there are, who lives on them, and how they are."""

import time
from collections.abc import Sequence

from rich.text import Text

from scaler.cli import answers, show
from scaler.cli.failures import OK
from scaler.cli.human import NOTHING, age, duration, listed, plural, size
from scaler.cli.options import (
    DEFAULT_SERVER,
    Format,
    OptionalName,
    Output,
    RequiredName,
    Server,
    Watch,
    examples,
    group,
)
from scaler.cli.output import emit, pairs
from scaler.cli.show import Column, Kind, View
from warmpool.seats import Claim, Resident, Seat
from warmpool.states import COMPUTING, PROMOTABLE, ResidentState
from warmpool.tiers import Budget

app = group("Seats: pods with their residents, one of which serves at a time.")

_READY = PROMOTABLE | {ResidentState.SERVING, ResidentState.PROMOTING, ResidentState.DRAINING}

SEATS: Kind[Seat] = Kind(
    noun="seat",
    plural="seats",
    read=answers.seat,
    columns=(
        Column("NAME", lambda seat, _: seat.name),
        Column("FLEET", lambda seat, _: seat.fleet),
        Column("VALUE", lambda seat, _: answers.value_of(seat)),
        Column("SERVING", lambda seat, _: ",".join(sorted(seat.serving)) or NOTHING),
        Column("RESIDENTS", lambda seat, _: _ready(seat)),
        Column("IN-FLIGHT", lambda seat, _: str(sum(resident.in_flight for resident in seat.residents))),
        Column("TIERS", lambda seat, _: _tiers(seat), wide=True),
        Column("CLAIM", lambda seat, _: _claim_short(seat.claim), wide=True),
        Column("VERDICT", lambda seat, _: str(seat.verdict), wide=True),
        Column("NODE", lambda seat, _: seat.node, wide=True),
        Column("GPUS", lambda seat, _: ",".join(seat.gpus) or NOTHING, wide=True),
        Column("MEMORY", lambda seat, _: _held(seat.residents), wide=True),
        Column(
            "FREE", lambda seat, _: size(None if seat.memory is None else seat.memory.free_bytes), wide=True
        ),
        Column("AGE", lambda seat, now: age(now - seat.created_at)),
    ),
)


def _ready(seat: Seat) -> str:
    failed = sum(resident.state is ResidentState.FAILED for resident in seat.residents)
    ready = sum(resident.state in _READY for resident in seat.residents)
    return f"{ready}/{len(seat.residents)}" + (f" ({failed} failed)" if failed else "")


def _tiers(seat: Seat) -> str:
    """Count residents by how far they are from serving: those with an engine that is awake, paused, parked, and all others."""
    states = [resident.state for resident in seat.residents]
    counts = {
        "awake": sum(state in COMPUTING for state in states),
        "paused": states.count(ResidentState.PAUSED),
        "parked": states.count(ResidentState.PARKED),
    }
    counts["cold"] = len(states) - sum(counts.values())
    return ",".join(f"{count} {tier}" for tier, count in counts.items() if count) or NOTHING


def _claim_short(claim: Claim | None) -> str:
    return NOTHING if claim is None else f"{claim.operation}:{claim.policy}"


def _held(residents: Sequence[Resident]) -> str:
    known = [resident.memory_bytes for resident in residents if resident.memory_bytes is not None]
    return size(sum(known) if known else None)


@app.command(
    "get",
    epilog=examples(
        "emberpool seat get",
        "emberpool seat get -o wide",
        "emberpool seat get --watch",
        "emberpool seat get -o name",
    ),
)
def get(
    name: OptionalName = None,
    server: Server = DEFAULT_SERVER,
    output: Format = Output.TABLE,
    watch: Watch = False,
) -> int:
    """List seats with what they are worth and who serves there.

    RESIDENTS is how many of the seat's residents serve or could be promoted now, of all that live there.
    """
    return show.get(SEATS, name, View(server=server, output=output, watch=watch))


@app.command("describe", epilog=examples("emberpool seat describe shared-0"))
def describe(name: RequiredName, server: Server = DEFAULT_SERVER) -> int:
    """Show one seat: its claim, its health, its memory, and each resident with its state, age, memory, wakes and start-up times.

    A wake is the time from an order until the resident serves, by how deep it slept: Paused with its KV memory, KvReleased
    without it, Parked with its weights in host memory.
    """
    seat, _ = show.describe(SEATS, name, server)
    now = time.time()
    emit(
        pairs(
            [
                ("Name", seat.name),
                ("Fleet", seat.fleet),
                ("Value", answers.value_of(seat)),
                ("Serving", listed(sorted(seat.serving)) + (" (lent)" if seat.lent else "")),
                ("Node", seat.node),
                ("GPUs", listed(seat.gpus)),
                ("Age", age(now - seat.created_at)),
                ("Health", _health(seat)),
                ("Agent", seat.agent or NOTHING),
                ("Claim", _claim(seat.claim, now)),
                *_memory(seat.memory),
            ]
        )
    )
    emit(Text("Residents:"))
    for resident in seat.residents:
        emit(f"  {resident.policy}:")
        emit(pairs(_resident(resident, now, in_rotation=resident.policy in seat.serving), indent=4))
    if not seat.residents:
        emit("  none")
    return OK


def _memory(memory: Budget | None) -> list[tuple[str, str]]:
    """Say what a seat's residents take of its memory, and what is left."""
    if memory is None:
        return []
    free = memory.free_bytes
    left = "" if free is None else f", {size(free)} free" if free >= 0 else f", {size(-free)} too little"
    taken = (
        f"{size(memory.paused_bytes)} held, {size(memory.largest_compute_bytes)} for computing,"
        f" {size(memory.reserve_bytes)} reserve, of {size(memory.device_bytes)}{left}"
    )
    lines = [("Memory", taken), ("Measured", "yes" if memory.verified else "no, or not all of it")]
    if memory.host_bytes or memory.parked_bytes:
        lines.append(
            ("Host memory", f"{size(memory.parked_bytes)} of {size(memory.host_bytes)} for parked weights")
        )
    return lines


def _health(seat: Seat) -> str:
    facts = [
        f"GPU verdict {seat.verdict}",
        "ready" if seat.ready else "not ready",
        "admitted" if seat.admitted else "not admitted",
        "agent reports" if seat.reachable else "agent is silent",
    ]
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
    lines = [
        ("State", f"{resident.state} for {age(now - resident.since)}"),
        ("In rotation", "yes" if in_rotation else "no"),
        ("In flight", str(resident.in_flight)),
        ("Address", resident.address or NOTHING),
        ("Process", f"{process}, {plural(resident.restarts, 'restart')}"),
        ("Memory", _memory_of(resident)),
        ("Proven", proven),
        *([("Wakes", ", ".join(wakes))] if wakes else []),
        ("Phases", listed([f"{phase} {duration(seconds)}" for phase, seconds in resident.phases.items()])),
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
