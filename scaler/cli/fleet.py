"""`emberpool fleet`: what there is."""

import time

from rich.text import Text

from scaler.cli import fleet_freeze, fleet_template, show
from scaler.cli.answers import Conditions, FleetAnswer, FleetCondition, parse
from scaler.cli.client import Source
from scaler.cli.failures import OK, Failed
from scaler.cli.fleet_kind import FLEETS, age_of
from scaler.cli.human import NOTHING, listed, number
from scaler.cli.kube_options import Target, whom
from scaler.cli.options import Format, OptionalName, Output, RequiredName, Watch, examples, group
from scaler.cli.output import emit, pairs
from scaler.cli.seat_kind import SEATS
from scaler.cli.show import View, asked
from warmpool.seats import SeatValue

app = group("Fleets: the seats that there are.")


@app.command(
    "get",
    epilog=examples(
        "emberpool fleet get",
        "emberpool fleet get spares -o wide",
        "emberpool fleet get --watch",
        "emberpool fleet get -o json | jq '.items[].total'",
        "emberpool fleet get -A --context prod",
        "kubectl emberpool fleet get -n serving",
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
    """List fleets with the worth of their seats.

    SERVING counts seats with a resident in rotation or on its way there. SPARE is how many stand ready, of how many
    there should be. TOTAL is how many seats the fleet is asked to have. Of a cluster seats are counted by their pods; what only
    its controller knows is `-` where that isn't reached.
    """
    return show.get(FLEETS, name, View(source=asked(target), output=output, watch=watch))


@app.command(
    "describe",
    epilog=examples("emberpool fleet describe spares", "emberpool fleet describe spares -n serving"),
)
@whom
def describe(name: RequiredName, *, target: Target) -> int:
    """Show one fleet: its size, why it has that size, and its seats."""
    source = asked(target)
    fleet, _ = show.describe(FLEETS, name, source)
    seats = [
        item
        for item in source.items(SEATS.plural)
        if item.get("fleet") == name and item.get("namespace", fleet.namespace) == fleet.namespace
    ]
    now = time.time()
    emit(
        pairs(
            [
                ("Name", fleet.name),
                *([("Namespace", fleet.namespace)] if fleet.namespace else []),
                *([("Workload", fleet.workload)] if fleet.workload else []),
                ("Mode", fleet.mode or NOTHING),
                ("Total", f"{number(fleet.total)} seats wanted, at most {number(fleet.max_seats)}"),
                ("Replicas", f"{number(fleet.replicas)} asked for at present"),
                ("Spare", f"{fleet.count(SeatValue.SPARE)} of {number(fleet.spare_target)}"),
                ("Seats", listed([f"{count} {value}" for value, count in fleet.seats.items()])),
                ("Policies", listed(fleet.policies)),
                ("Age", age_of(fleet.created_at, now)),
            ]
        )
    )
    emit(show.reasons(fleet.reasons))
    if conditions := _conditions(source, fleet):
        emit(Text("\n".join(["Conditions:", *(f"  - {each.text}" for each in conditions)])))
    emit(Text("Seat list:"))
    emit(show.indented(SEATS.table(seats, now, wide=False)) if seats else "  none")
    return OK


def _conditions(source: Source, fleet: FleetAnswer) -> list[FleetCondition]:
    """Return what its controller says of a fleet beside its numbers; nothing where it isn't reached, or is older."""
    try:
        told = parse(Conditions.model_validate, source.ask("/v1/policies/status", fleet.namespace))
    except Failed:
        return []
    return [each for each in told.conditions if each.fleet == fleet.name]


fleet_template.register(app)
fleet_freeze.register(app)
