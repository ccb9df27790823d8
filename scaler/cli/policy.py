"""`emberpool policy`: checking policy files, and what the controller makes of them."""

from rich.text import Text

from scaler.cli import (
    answers,
    policy_diff,
    policy_explain,
    policy_lint,
    policy_new,
    policy_schema,
    policy_status,
    policy_validate,
    show,
)
from scaler.cli.answers import PolicyAnswer
from scaler.cli.failures import OK
from scaler.cli.human import NOTHING, duration, listed, number
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
from scaler.cli.output import emit, pairs, table
from scaler.cli.show import Column, Kind, View

app = group("Policies: what each model needs.")


def _wait(policy: PolicyAnswer) -> str:
    return NOTHING if policy.oldest_wait_seconds is None else duration(policy.oldest_wait_seconds)


def _requests(count: float | None) -> str:
    return "unknown" if count is None else f"{number(count)} requests in flight"


def _per_fleet(policy: PolicyAnswer) -> str:
    return ",".join(f"{fleet}={count}" for fleet, count in policy.serving.items()) or NOTHING


POLICIES: Kind[PolicyAnswer] = Kind(
    noun="policy",
    plural="policies",
    read=answers.policy,
    columns=(
        Column("NAME", lambda policy, _: policy.name),
        Column("MODE", lambda policy, _: policy.mode),
        Column("DEMAND", lambda policy, _: number(policy.demand)),
        Column("NEEDED", lambda policy, _: number(policy.needed)),
        Column("CAPACITY", lambda policy, _: number(policy.capacity)),
        Column("SERVING", lambda policy, _: f"{sum(policy.serving.values())}/{sum(policy.wanted.values())}"),
        Column("QUEUED", lambda policy, _: number(policy.queued)),
        Column("IN-FLIGHT", lambda policy, _: number(policy.in_flight)),
        Column("OLDEST", lambda policy, _: _wait(policy)),
        Column("FLEETS", lambda policy, _: _per_fleet(policy), wide=True),
        Column("SIGNALS", lambda policy, _: policy.signals or NOTHING, wide=True),
        Column("MODELS", lambda policy, _: ",".join(policy.models) or NOTHING, wide=True),
    ),
)


@app.command(
    "get",
    epilog=examples(
        "emberpool policy get",
        "emberpool policy get chat -o wide",
        "emberpool policy get --watch",
    ),
)
def get(
    name: OptionalName = None,
    server: Server = DEFAULT_SERVER,
    output: Format = Output.TABLE,
    watch: Watch = False,
) -> int:
    """List policies with their load and what they get.

    DEMAND, NEEDED and CAPACITY are in requests in flight. SERVING is how many residents shall serve now, of how many
    the load asks for.
    """
    return show.get(POLICIES, name, View(server=server, output=output, watch=watch))


@app.command("describe", epilog=examples("emberpool policy describe chat"))
def describe(name: RequiredName, server: Server = DEFAULT_SERVER) -> int:
    """Show one policy: its load, what it needs, where it serves, and why, in sentences."""
    policy, _ = show.describe(POLICIES, name, server)
    waits = f"; the oldest waits for {_wait(policy)}" if policy.queued else ""
    load = f"queued {number(policy.queued)}, in flight {number(policy.in_flight)}{waits}"
    emit(
        pairs(
            [
                ("Name", policy.name),
                ("Models", listed(policy.models)),
                ("Mode", policy.mode),
                ("Signals", policy.signals or NOTHING),
                ("Load", load),
                ("Demand", _requests(policy.demand)),
                ("Needed", _requests(policy.needed)),
                ("Capacity", _requests(policy.capacity)),
            ]
        )
    )
    emit(Text("Fleets:"))
    fleets = list(policy.wanted | policy.serving) if isinstance(policy.wanted, dict) else []
    rows = [[fleet, str(policy.serving.get(fleet, 0)), str(policy.wanted.get(fleet, 0))] for fleet in fleets]
    emit(show.indented(table(["FLEET", "SERVING", "WANTED"], rows)) if rows else "  none")
    emit(show.reasons(policy.reasons))
    return OK


policy_validate.register(app)
policy_status.register(app)
policy_schema.register(app)
policy_lint.register(app)
policy_diff.register(app)
policy_explain.register(app)
policy_new.register(app)
