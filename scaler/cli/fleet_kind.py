"""Fleets as tables show them."""

from scaler.cli import answers
from scaler.cli.answers import FleetAnswer
from scaler.cli.human import NOTHING, age, number
from scaler.cli.show import Column, Kind
from warmpool.seats import SeatValue

FLEETS: Kind[FleetAnswer] = Kind(
    noun="fleet",
    plural="fleets",
    read=answers.fleet,
    columns=(
        Column("NAME", lambda fleet, _: fleet.name),
        Column("MODE", lambda fleet, _: fleet.mode or NOTHING),
        Column("SERVING", lambda fleet, _: str(fleet.count(SeatValue.SERVING, SeatValue.PROMOTING))),
        Column("SPARE", lambda fleet, _: f"{fleet.count(SeatValue.SPARE)}/{number(fleet.spare_target)}"),
        Column("STARTING", lambda fleet, _: str(fleet.count(SeatValue.STARTING))),
        Column("TOTAL", lambda fleet, _: number(fleet.total)),
        Column("MAX", lambda fleet, _: number(fleet.max_seats)),
        Column("DRAINING", lambda fleet, _: str(fleet.count(SeatValue.DRAINING)), wide=True),
        Column("HELD", lambda fleet, _: str(fleet.count(SeatValue.HELD)), wide=True),
        Column("REPLICAS", lambda fleet, _: number(fleet.replicas), wide=True),
        Column("POLICIES", lambda fleet, _: ",".join(fleet.policies) or NOTHING, wide=True),
        Column("AGE", lambda fleet, now: age_of(fleet.created_at, now)),
    ),
)


def age_of(created_at: float | None, now: float) -> str:
    """Write how old a fleet is; nothing while it has no seat."""
    return NOTHING if created_at is None else age(now - created_at)
