"""Seats as tables show them."""

from collections.abc import Sequence
from typing import Final

from scaler.cli import answers
from scaler.cli.answers import SeatAnswer
from scaler.cli.human import NOTHING, age, size
from scaler.cli.show import Column, Kind
from warmpool.seats import UNKNOWN, Resident, Seat, Verdict
from warmpool.states import COMPUTING, PROMOTABLE, ResidentState
from warmpool.tiers import Budget

_READY: Final = PROMOTABLE | {ResidentState.SERVING, ResidentState.PROMOTING, ResidentState.DRAINING}

SEATS: Kind[SeatAnswer] = Kind(
    noun="seat",
    plural="seats",
    read=answers.seat,
    columns=(
        Column("NAME", lambda row, _: row.seat.name),
        Column("FLEET", lambda row, _: row.seat.fleet),
        Column("VALUE", lambda row, _: row.value),
        Column("SERVING", lambda row, _: ",".join(sorted(row.seat.serving)) or NOTHING),
        Column("RESIDENTS", lambda row, _: _ready(row)),
        Column("IN-FLIGHT", lambda row, _: _if_reported(row, str(_in_flight(row.seat)))),
        Column("TIERS", lambda row, _: _tiers(row.seat), wide=True),
        Column("CLAIM", lambda row, _: _claim_short(row), wide=True),
        Column("VERDICT", lambda row, _: gpu_verdict(row) or NOTHING, wide=True),
        Column("NODE", lambda row, _: row.seat.node or NOTHING, wide=True),
        Column("GPUS", lambda row, _: ",".join(row.seat.gpus) or NOTHING, wide=True),
        Column("MEMORY", lambda row, _: _held(row.seat.residents), wide=True),
        Column("FREE", lambda row, _: _free(row.seat.memory), wide=True),
        Column("AGE", lambda row, now: age(now - row.seat.created_at)),
    ),
)


def gpu_verdict(row: SeatAnswer) -> str:
    """Say what is said of a seat's GPUs; empty where it has none, or that isn't known.

    Where nobody says anything it is Unknown, which excludes the seat from nothing: only what is acted on takes it to be Ok.
    """
    seat = row.seat
    if not row.told.reported or (seat.verdict is Verdict.OK and not (seat.gpus or seat.gpu_words)):
        return ""
    words = {word.word for word in seat.gpu_words}
    if seat.verdict is Verdict.OK and (not words or UNKNOWN in words):
        return UNKNOWN
    return str(seat.verdict)


def _if_reported(row: SeatAnswer, text: str) -> str:
    return text if row.told.reported else NOTHING


def _in_flight(seat: Seat) -> int:
    return sum(resident.in_flight for resident in seat.residents)


def _ready(row: SeatAnswer) -> str:
    residents = row.seat.residents
    known = max(len(residents), len(row.told.declared))
    if not row.told.reported:
        return f"?/{known}"
    failed = sum(resident.state is ResidentState.FAILED for resident in residents)
    ready = sum(resident.state in _READY for resident in residents)
    return f"{ready}/{known}" + (f" ({failed} failed)" if failed else "")


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


def _claim_short(row: SeatAnswer) -> str:
    claim = row.seat.claim
    if claim is None:
        return "unreadable" if row.told.unreadable else NOTHING
    return f"{claim.operation}:{claim.policy}"


def _free(memory: Budget | None) -> str:
    return size(None if memory is None else memory.free_bytes)


def _held(residents: Sequence[Resident]) -> str:
    known = [resident.memory_bytes for resident in residents if resident.memory_bytes is not None]
    return size(sum(known) if known else None)
