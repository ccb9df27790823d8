"""`emberpool fleet`: what there is."""

import time

from rich.text import Text

from scaler.cli import answers, fleet_template, show
from scaler.cli.answers import FleetAnswer
from scaler.cli.failures import OK
from scaler.cli.human import NOTHING, age, listed, number
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
from scaler.cli.seat import SEATS
from scaler.cli.show import Column, Kind, View
from warmpool.seats import SeatValue

app = group("Fleets: the seats that there are.")

FLEETS: Kind[FleetAnswer] = Kind(
    noun="fleet",
    plural="fleets",
    read=answers.fleet,
    columns=(
        Column("NAME", lambda fleet, _: fleet.name),
        Column("MODE", lambda fleet, _: fleet.mode),
        Column("SERVING", lambda fleet, _: str(fleet.count(SeatValue.SERVING, SeatValue.PROMOTING))),
        Column("SPARE", lambda fleet, _: f"{fleet.count(SeatValue.SPARE)}/{number(fleet.spare_target)}"),
        Column("STARTING", lambda fleet, _: str(fleet.count(SeatValue.STARTING))),
        Column("TOTAL", lambda fleet, _: number(fleet.total)),
        Column("MAX", lambda fleet, _: number(fleet.max_seats)),
        Column("DRAINING", lambda fleet, _: str(fleet.count(SeatValue.DRAINING)), wide=True),
        Column("HELD", lambda fleet, _: str(fleet.count(SeatValue.HELD)), wide=True),
        Column("REPLICAS", lambda fleet, _: number(fleet.replicas), wide=True),
        Column("POLICIES", lambda fleet, _: ",".join(fleet.policies) or NOTHING, wide=True),
        Column("AGE", lambda fleet, now: _age(fleet.created_at, now)),
    ),
)


def _age(created_at: float | None, now: float) -> str:
    return NOTHING if created_at is None else age(now - created_at)


@app.command(
    "get",
    epilog=examples(
        "emberpool fleet get",
        "emberpool fleet get spares -o wide",
        "emberpool fleet get --watch",
        "emberpool fleet get -o json | jq '.items[].total'",
    ),
)
def get(
    name: OptionalName = None,
    server: Server = DEFAULT_SERVER,
    output: Format = Output.TABLE,
    watch: Watch = False,
) -> int:
    """List fleets with the worth of their seats.

    SERVING counts seats with a resident in rotation or on its way there. SPARE is how many stand ready, of how many
    there should be. TOTAL is how many seats the fleet is asked to have.
    """
    return show.get(FLEETS, name, View(server=server, output=output, watch=watch))


@app.command("describe", epilog=examples("emberpool fleet describe spares"))
def describe(name: RequiredName, server: Server = DEFAULT_SERVER) -> int:
    """Show one fleet: its size, why it has that size, and its seats."""
    fleet, controller = show.describe(FLEETS, name, server)
    seats = [item for item in controller.items(SEATS.plural) if item.get("fleet") == name]
    now = time.time()
    emit(
        pairs(
            [
                ("Name", fleet.name),
                ("Mode", fleet.mode),
                ("Total", f"{number(fleet.total)} seats wanted, at most {number(fleet.max_seats)}"),
                ("Replicas", f"{number(fleet.replicas)} asked for at present"),
                ("Spare", f"{fleet.count(SeatValue.SPARE)} of {number(fleet.spare_target)}"),
                ("Seats", listed([f"{count} {value}" for value, count in fleet.seats.items()])),
                ("Policies", listed(fleet.policies)),
                ("Age", _age(fleet.created_at, now)),
            ]
        )
    )
    emit(show.reasons(fleet.reasons))
    emit(Text("Seat list:"))
    emit(show.indented(SEATS.table(seats, now, wide=False)) if seats else "  none")
    return OK


fleet_template.register(app)
