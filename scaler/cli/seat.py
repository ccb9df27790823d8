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
from warmpool.states import PROMOTABLE, ResidentState

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
        Column("CLAIM", lambda seat, _: _claim_short(seat.claim), wide=True),
        Column("VERDICT", lambda seat, _: str(seat.verdict), wide=True),
        Column("NODE", lambda seat, _: seat.node, wide=True),
        Column("GPUS", lambda seat, _: ",".join(seat.gpus) or NOTHING, wide=True),
        Column("MEMORY", lambda seat, _: _memory(seat.residents), wide=True),
        Column("AGE", lambda seat, now: age(now - seat.created_at)),
    ),
)


def _ready(seat: Seat) -> str:
    failed = sum(resident.state is ResidentState.FAILED for resident in seat.residents)
    ready = sum(resident.state in _READY for resident in seat.residents)
    return f"{ready}/{len(seat.residents)}" + (f" ({failed} failed)" if failed else "")


def _claim_short(claim: Claim | None) -> str:
    return NOTHING if claim is None else f"{claim.operation}:{claim.policy}"


def _memory(residents: Sequence[Resident]) -> str:
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
    """Show one seat: its claim, its health, and each resident with its state, age, memory and start-up times."""
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
    left = claim.deadline - now
    deadline = f"{duration(left)} left" if left >= 0 else f"overdue by {duration(-left)}"
    since = duration(max(0.0, now - claim.since))
    return f"{claim.operation} {claim.policy}{leaving}, by {claim.holder} (epoch {claim.epoch}) since {since}, {deadline}"


def _resident(resident: Resident, now: float, *, in_rotation: bool) -> list[tuple[str, str]]:
    process = "no process" if resident.pid is None else f"pid {resident.pid}"
    proven = "never" if resident.proven_at is None else f"{age(now - resident.proven_at)} ago"
    lines = [
        ("State", f"{resident.state} for {age(now - resident.since)}"),
        ("In rotation", "yes" if in_rotation else "no"),
        ("In flight", str(resident.in_flight)),
        ("Address", resident.address or NOTHING),
        ("Process", f"{process}, {plural(resident.restarts, 'restart')}"),
        ("Memory", size(resident.memory_bytes) + (", KV released" if resident.kv_released else "")),
        ("Proven", proven),
        ("Phases", listed([f"{phase} {duration(seconds)}" for phase, seconds in resident.phases.items()])),
        *_engine(resident),
    ]
    return [*lines, ("Failure", resident.failure)] if resident.failure else lines


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
