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
from scaler.cli.kube_options import Target, whom
from scaler.cli.options import Format, OptionalName, Output, RequiredName, Watch, examples, group
from scaler.cli.output import emit, pairs, table
from scaler.cli.show import Column, Kind, View, asked

app = group("Policies: what each model needs.")


def _wait(policy: PolicyAnswer) -> str:
    return NOTHING if policy.oldest_wait_seconds is None else duration(policy.oldest_wait_seconds)


def _requests(count: float | None) -> str:
    return "unknown" if count is None else f"{number(count)} requests in flight"


def _wanted(policy: PolicyAnswer) -> str:
    return NOTHING if policy.wanted is None else str(sum(policy.wanted.values()))


def _per_fleet(policy: PolicyAnswer) -> str:
    return ",".join(f"{fleet}={count}" for fleet, count in policy.serving.items()) or NOTHING


POLICIES: Kind[PolicyAnswer] = Kind(
    noun="policy",
    plural="policies",
    read=answers.policy,
    columns=(
        Column("NAME", lambda policy, _: policy.name),
        Column("MODE", lambda policy, _: policy.mode or NOTHING),
        Column("DEMAND", lambda policy, _: number(policy.demand)),
        Column("NEEDED", lambda policy, _: number(policy.needed)),
        Column("CAPACITY", lambda policy, _: number(policy.capacity)),
        Column("SERVING", lambda policy, _: f"{sum(policy.serving.values())}/{_wanted(policy)}"),
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
        "emberpool policy get -n serving --context prod",
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
    """List policies with their load and what they get.

    DEMAND, NEEDED and CAPACITY are in requests in flight. SERVING is how many residents shall serve now, of how many
    the load asks for. Of a cluster whose controller isn't reached it is how many are in rotation, by their pods.
    """
    return show.get(POLICIES, name, View(source=asked(target), output=output, watch=watch))


@app.command(
    "describe", epilog=examples("emberpool policy describe chat", "emberpool policy describe chat -n serving")
)
@whom
def describe(name: RequiredName, *, target: Target) -> int:
    """Show one policy: its load, what it needs, where it serves, and why, in sentences."""
    policy, _ = show.describe(POLICIES, name, asked(target))
    waits = f"; the oldest waits for {_wait(policy)}" if policy.queued else ""
    load = f"queued {number(policy.queued)}, in flight {number(policy.in_flight)}{waits}"
    emit(
        pairs(
            [
                ("Name", policy.name),
                ("Models", listed(policy.models)),
                ("Mode", policy.mode or NOTHING),
                ("Signals", policy.signals or NOTHING),
                ("Load", load),
                ("Demand", _requests(policy.demand)),
                ("Needed", _requests(policy.needed)),
                ("Capacity", _requests(policy.capacity)),
            ]
        )
    )
    emit(Text("Fleets:"))
    emit(show.indented(_where(policy)))
    emit(show.reasons(policy.reasons))
    return OK


def _where(policy: PolicyAnswer) -> Text:
    """Lay out where a policy's residents serve, by fleet; of a cluster also how many its pods show in rotation."""
    wanted, rotation = policy.wanted or {}, policy.in_rotation
    fleets = list({**wanted, **policy.serving, **(rotation or {})})
    if not fleets:
        return Text("none")
    header = ["FLEET", "SERVING", "WANTED"]
    rows = [
        [
            fleet,
            str(policy.serving.get(fleet, 0)),
            NOTHING if policy.wanted is None else str(wanted.get(fleet, 0)),
        ]
        for fleet in fleets
    ]
    if rotation is not None:
        header = [*header, "IN-ROTATION"]
        rows = [[*row, str(rotation.get(fleet, 0))] for row, fleet in zip(rows, fleets, strict=True)]
    return table(header, rows)


policy_validate.register(app)
policy_status.register(app)
policy_schema.register(app)
policy_lint.register(app)
policy_diff.register(app)
policy_explain.register(app)
policy_new.register(app)
