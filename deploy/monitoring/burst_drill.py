# ruff: noqa: INP001 - deploy/ holds files for other programs; it is no package
"""The dashboard "Burst drill": a burst from its first waiting request to what the spares cost, on one page.

    python -m deploy.monitoring.burst_drill            # writes dashboards/burst-drill.json

Gauges of the controller are aggregated with `max`, because every replica may expose them; what gateways and agents
expose adds up. `min`, `max` and `sum` name every label that they keep, so that a label of the scraping side changes no
picture.
"""

import json
import sys
from pathlib import Path

from deploy.monitoring.grafana import (
    SCHEMA_VERSION,
    Json,
    Panel,
    Query,
    Row,
    Unit,
    data_source_variable,
    label_variable,
    lay_out,
    query_annotation,
    tag_annotation,
)

PATH = Path(__file__).parent / "dashboards" / "burst-drill.json"
UID = "emberpool-burst-drill"
"""Stable: links to the dashboard go by it."""

SCRAPED = 'namespace=~"$namespace", job=~"$job"'
JOB = f'{SCRAPED}, arm=~"$arm"'
"""Whatever an arm of a drill exposes has the arm's label; outside of drills it is empty, which only All matches."""
BOTH_ARMS = f'{SCRAPED}, arm=~"$arm|both|"'
"""What a drill says of both arms together."""
POLICY = f'{JOB}, policy=~"$policy"'
FLEET = f'{JOB}, fleet=~"$fleet"'
BOTH = f'{JOB}, policy=~"$policy", fleet=~"$fleet"'
WINDOW = "$__rate_interval"

GOOD = "Completed|ClientError|Abandoned|Stalled|Invalid"
"""Outcomes of requests that are no fault of ours: answered, or ended by the client's doing."""
REFUSED = "Overloaded|Draining"
"""Outcomes of requests that a gateway refuses before it knows their model."""
NO_POLICY = f'{JOB}, policy=~"$policy|"'
"""Selects what is under no policy too, whichever policies are picked."""
REQUESTS = "emberpool_gateway_requests_total"


def rate(counter: str, selector: str, by: str, window: str = WINDOW) -> str:
    """How fast a counter rises, per second and per value of the labels `by`."""
    return f"sum by ({by}) (rate({counter}{{{selector}}}[{window}]))"


def rise(counter: str, selector: str, by: str, window: str = WINDOW) -> str:
    """How much a counter rose within a window, per value of the labels `by`."""
    return f"sum by ({by}) (increase({counter}{{{selector}}}[{window}]))"


def largest(gauge: str, selector: str, by: str) -> str:
    """A gauge of the controller, per value of the labels `by`; replicas that expose it too change nothing."""
    return f"max by ({by}) ({gauge}{{{selector}}})"


def quantile(share: float, histogram: str, selector: str, by: str, window: str = WINDOW) -> str:
    """A quantile of what was measured within a window, per value of the labels `by`."""
    return (
        f"histogram_quantile({share:g}, sum by ({by}, le) (rate({histogram}_bucket{{{selector}}}[{window}])))"
    )


def failures(by: str, window: str = WINDOW) -> str:
    """Requests that failed within a window; 0 where requests are counted and none failed, nothing where none are known."""
    failed = rise(REQUESTS, f'{POLICY}, outcome!~"{GOOD}"', by, window)
    return f"{failed} or 0 * {rise(REQUESTS, POLICY, by, window)}"


def refusals(window: str = WINDOW) -> str:
    """Requests that gateways refused before they knew the model, within a window: they are under no policy."""
    return rise(REQUESTS, f'{NO_POLICY}, outcome=~"{REFUSED}"', "outcome", window)


MODES = {0: ("Stable", "green"), 1: ("Burst", "orange"), 2: ("Hold", "red")}
QUALITIES = {0: ("Fresh", "green"), 1: ("Stale", "orange"), 2: ("Missing", "red")}
IN_FORCE = {1: ("in force", "blue")}
RUNNING = {1: ("running", "purple")}
VERDICTS = {0: ("Failed", "red"), 1: ("Passed", "green")}
STREAMS = {0: ("broken", "red"), 1: ("open", "green")}
FILES = {0: ("have a fault", "red"), 1: ("in force", "green")}
LEADERS = {0: ("stands by", "text"), 1: ("leads", "green")}
SEAT_COLOURS = {
    "/.*Serving$/": "blue",
    "/.*Promoting$/": "purple",
    "/.*Draining$/": "yellow",
    "others and silent": "dark-red",
    "Spare": "green",
    "Lent": "light-green",
    "Starting": "orange",
    "Held": "red",
    "Doomed": "text",
}

IN_BURST = largest("emberpool_policy_mode", f'{POLICY}, mode="Burst"', "policy")
ON_HOLD = largest("emberpool_policy_mode", f'{POLICY}, mode="Hold"', "policy")
MODE = f"{IN_BURST} + 2 * {ON_HOLD}"
SPARE = f'sum by (fleet) (max by (fleet, value) (emberpool_seats{{{FLEET}, value=~"Spare|Lent"}}))'
BUSY_SEATS = largest("emberpool_seats", f'{FLEET}, value=~"Serving|Promoting|Draining|Lent"', "fleet, value")
BUSY_FOR_POLICIES = largest(
    "emberpool_supply_residents", f'{BOTH}, supply=~"Serving|Promoting|Draining"', "policy, fleet, supply"
)
TTFT = "emberpool_gateway_time_to_first_token_seconds"
STAGES = "emberpool_promotion_duration_seconds"
AGENT_MEMORY = "emberpool_agent_resident_memory_bytes"

# ------------------------------------------------------------------ at a glance

GLANCE = Row(
    "At a glance",
    (
        Panel(
            title="Mode",
            text="What rules each policy now. Stable: the long window. Burst: the short window rules and nothing scales down. "
            "Hold: its signals are missing, so it goes neither up nor down.",
            unit=Unit.COUNT,
            queries=(Query(MODE, "{{policy}}"),),
            kind="stat",
            width=4,
            height=5,
            states=MODES,
        ),
        Panel(
            title="TTFT p99 against the objective",
            text="The 99th percentile of the time to first token, as a share of what the policy promises. "
            "Red: users wait longer than promised.",
            unit=Unit.SHARE,
            queries=(
                Query(
                    f"{quantile(0.99, TTFT, POLICY, 'policy', '$__range')} / on (policy) "
                    f"{largest('emberpool_objective_ttft_seconds', POLICY, 'policy')}",
                    "{{policy}}",
                ),
            ),
            kind="stat",
            width=4,
            height=5,
            warn_above=1.0,
        ),
        Panel(
            title="Failed requests",
            text="Requests within the time range that failed by our doing, those included whose clients gave up after a longer wait than "
            "promised, and those that gateways refused before their model was known (Overloaded, Draining). A burst should cost none.",
            unit=Unit.COUNT,
            queries=(
                Query(failures("policy", "$__range"), "{{policy}}"),
                Query(refusals("$__range"), "{{outcome}}"),
            ),
            kind="stat",
            width=4,
            height=5,
            warn_above=0.5,
        ),
        Panel(
            title="Promotions",
            text="Promotions, switches and recalls within the time range, by how they ended.",
            unit=Unit.COUNT,
            queries=(
                Query(rise("emberpool_promotions_total", POLICY, "outcome", "$__range"), "{{outcome}}"),
            ),
            kind="stat",
            width=4,
            height=5,
        ),
        Panel(
            title="Sample to rotation, p99",
            text="From the sample that asked for a promotion to the resident in rotation, over the whole time range.",
            unit=Unit.SECONDS,
            queries=(
                Query(
                    quantile(0.99, "emberpool_promotion_to_rotation_seconds", POLICY, "policy", "$__range"),
                    "{{policy}}",
                ),
            ),
            kind="stat",
            width=4,
            height=5,
        ),
        Panel(
            title="Spares missing",
            text="Spare seats that a fleet lacks of its target. Lent seats count as spare. In a burst that is what spares are "
            "for; afterwards it must return to 0.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    f"clamp_min({largest('emberpool_fleet_spare_target_seats', FLEET, 'fleet')} - {SPARE}, 0)",
                    "{{fleet}}",
                ),
            ),
            kind="stat",
            width=4,
            height=5,
            warn_above=1.0,
        ),
    ),
)

# ------------------------------------------------------------------ the drill's own view

DRILL_TTFT = "emberpool_drill_ttft_seconds"
DRILL_REQUESTS = "emberpool_drill_requests_total"

DRILL = Row(
    "The drill, as its load saw it",
    (
        Panel(
            title="Stage",
            text="The stage that the load of an arm is in. The arms play the same requests one after another: warm with the policies "
            "as they are, cold without spares. Empty where no drill is scraped (`emberpool drill run FILE --metrics-port N`).",
            unit=Unit.COUNT,
            queries=(
                Query(f"{largest('emberpool_drill_stage', JOB, 'arm, stage')} == 1", "{{arm}}: {{stage}}"),
            ),
            kind="state-timeline",
            height=7,
            states=RUNNING,
        ),
        Panel(
            title="Time to first token by stage, p99, both arms",
            text="From the time at which a request was due to its first token, over the whole time range, so that both arms stand beside "
            "each other. The warm arm's burst should be as low as its baseline.",
            unit=Unit.SECONDS,
            queries=(
                Query(
                    quantile(0.99, DRILL_TTFT, POLICY, "arm, policy, stage", "$__range"),
                    "{{arm}} {{policy}} {{stage}}",
                ),
            ),
            kind="bargauge",
            height=7,
        ),
        Panel(
            title="Time to first token of the load",
            text="The same over time. It counts from the time at which a request was due, so a wait can't hide the requests behind it.",
            unit=Unit.SECONDS,
            queries=(
                Query(quantile(0.5, DRILL_TTFT, POLICY, "arm, policy"), "{{arm}} {{policy}} p50"),
                Query(quantile(0.99, DRILL_TTFT, POLICY, "arm, policy"), "{{arm}} {{policy}} p99"),
                Query(
                    largest("emberpool_drill_objective_seconds", f'{BOTH_ARMS}, policy=~"$policy"', "policy"),
                    "{{policy}} objective",
                ),
            ),
            colours={"/ objective$/": "red"},
            dashed=("/ objective$/",),
        ),
        Panel(
            title="Load as intended",
            text="Requests per second that leave by the schedule, whatever is answered.",
            unit=Unit.REQUESTS_PER_SECOND,
            queries=(
                Query(largest("emberpool_drill_intended_rate", POLICY, "arm, policy"), "{{arm}} {{policy}}"),
            ),
            width=6,
        ),
        Panel(
            title="Open requests of the load",
            text="Requests that are sent and haven't ended.",
            unit=Unit.COUNT,
            queries=(
                Query(largest("emberpool_drill_in_flight", POLICY, "arm, policy"), "{{arm}} {{policy}}"),
            ),
            width=6,
            axis="requests",
        ),
        Panel(
            title="Answers of the load by outcome",
            text="Requests within the time range by how they ended, both arms. Anything but Ok is a failure that a user would have seen.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    f"{rise(DRILL_REQUESTS, POLICY, 'arm, outcome', '$__range')} > 0", "{{arm}} {{outcome}}"
                ),
            ),
            kind="bargauge",
            height=7,
        ),
        Panel(
            title="Verdict",
            text="The drill's checks, once it has ended. The report has what was measured and what was asked for.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    f"last_over_time(emberpool_drill_check_passed{{{BOTH_ARMS}}}[$__range])",
                    "{{arm}}: {{check}}",
                ),
            ),
            kind="stat",
            height=7,
            states=VERDICTS,
        ),
    ),
    collapsed=True,
)

# ------------------------------------------------------------------ demand and capacity

DEMAND = Row(
    "Demand and capacity",
    (
        Panel(
            title="Demand against capacity: $policy",
            text="Requests that wait or are in flight (demand), what serving and promoting residents can hold (capacity) and what "
            "the law asks for (needed). Demand above capacity waits. A gap in demand means unknown, not zero.",
            unit=Unit.COUNT,
            queries=(
                Query(largest("emberpool_demand_requests", POLICY, "policy"), "{{policy}} demand"),
                Query(largest("emberpool_capacity_requests", POLICY, "policy"), "{{policy}} capacity"),
                Query(largest("emberpool_needed_requests", POLICY, "policy"), "{{policy}} needed"),
            ),
            width=24,
            axis="requests in flight",
            colours={"/ demand$/": "orange", "/ capacity$/": "blue", "/ needed$/": "red"},
            dashed=("/ (capacity|needed)$/",),
            repeat="policy",
        ),
        Panel(
            title="Mode over time",
            text="Which window rules each policy. Burst should begin within a second of the step and end one stable window after it.",
            unit=Unit.COUNT,
            queries=(Query(MODE, "{{policy}}"),),
            kind="state-timeline",
            height=6,
            states=MODES,
        ),
        Panel(
            title="Residents wanted and given",
            text="Wanted: what the law asks for. Serving: what existing seats can give. Unfilled: what has to wait for new seats; "
            "in a burst with enough spares it stays at 0. In rotation: what serves now, which must not stay below the floor.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    f"sum by (policy) ({largest('emberpool_wanted_residents', BOTH, 'policy, fleet')})",
                    "{{policy}} wanted",
                ),
                Query(
                    f"sum by (policy) ({largest('emberpool_serving_residents', BOTH, 'policy, fleet')})",
                    "{{policy}} serving",
                ),
                Query(
                    f"sum by (policy) ({largest('emberpool_unfilled_residents', BOTH, 'policy, fleet')})",
                    "{{policy}} unfilled",
                ),
                Query(
                    "sum by (policy) (max by (policy, fleet) "
                    f'(emberpool_supply_residents{{{BOTH}, supply="Serving"}}))',
                    "{{policy}} in rotation",
                ),
                Query(largest("emberpool_policy_min_residents", POLICY, "policy"), "{{policy}} floor"),
            ),
            height=6,
            axis="residents",
            colours={"/ unfilled$/": "red"},
            dashed=("/ (wanted|floor)$/",),
        ),
        Panel(
            title="Reasons in force, policies",
            text="Why each policy gets what it gets. `emberpool policy describe NAME` says the same in sentences.",
            unit=Unit.COUNT,
            queries=(
                Query(largest("emberpool_policy_reason", POLICY, "policy, code"), "{{policy}}: {{code}}"),
            ),
            kind="state-timeline",
            states=IN_FORCE,
        ),
        Panel(
            title="Reasons in force, fleets",
            text="Why each fleet has the size that it has. `emberpool fleet describe NAME` says the same in sentences.",
            unit=Unit.COUNT,
            queries=(Query(largest("emberpool_fleet_reason", FLEET, "fleet, code"), "{{fleet}}: {{code}}"),),
            kind="state-timeline",
            states=IN_FORCE,
        ),
    ),
)

# ------------------------------------------------------------------ what users feel

USERS = Row(
    "What users feel",
    (
        Panel(
            title="Time to first token: $policy",
            text="From the request received whole to its first content, queueing included, and what the policy promises. "
            "Percentiles are interpolated within a bucket, so they are as exact as the buckets are fine.",
            unit=Unit.SECONDS,
            queries=(
                Query(quantile(0.5, TTFT, POLICY, "policy"), "{{policy}} p50"),
                Query(quantile(0.9, TTFT, POLICY, "policy"), "{{policy}} p90"),
                Query(quantile(0.99, TTFT, POLICY, "policy"), "{{policy}} p99"),
                Query(largest("emberpool_objective_ttft_seconds", POLICY, "policy"), "{{policy}} objective"),
            ),
            width=24,
            colours={"/ objective$/": "red", "/ p50$/": "green", "/ p90$/": "yellow", "/ p99$/": "orange"},
            dashed=("/ objective$/",),
            repeat="policy",
        ),
        Panel(
            title="Time to first token, all requests",
            text="How many requests had which time to first token. A burst that was met leaves no second band above.",
            unit=Unit.SECONDS,
            queries=(Query(f"sum by (le) (increase({TTFT}_bucket{{{POLICY}}}[{WINDOW}]))", "{{le}}"),),
            kind="heatmap",
        ),
        Panel(
            title="Queue",
            text="Requests that wait at the gateways, and those that were sent to an engine and aren't finished.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    f"sum by (policy) (emberpool_gateway_queue_requests{{{POLICY}}})", "{{policy}} waiting"
                ),
                Query(
                    f"sum by (policy) (emberpool_gateway_in_flight_requests{{{POLICY}}})",
                    "{{policy}} in flight",
                ),
            ),
            axis="requests",
            colours={"/ waiting$/": "orange"},
        ),
        Panel(
            title="Bytes of bodies",
            text="Bodies of the requests that wait at the gateways, by policy; all that each gateway holds, those included that it still "
            "receives or has sent and that have no content yet; and what it may hold. Beyond the limit of a policy's queue requests "
            "end as Refused, beyond that of a gateway as Overloaded.",
            unit=Unit.BYTES,
            queries=(
                Query(f"sum by (policy) (emberpool_gateway_queue_bytes{{{POLICY}}})", "{{policy}} waiting"),
                Query(largest("emberpool_gateway_held_bytes", JOB, "instance"), "{{instance}} held"),
                Query(largest("emberpool_gateway_max_held_bytes", JOB, "instance"), "{{instance}} limit"),
            ),
            colours={"/ limit$/": "red"},
            dashed=("/ limit$/",),
            width=8,
        ),
        Panel(
            title="Age of the queue",
            text="How long the oldest waiting request has waited, and how long requests had waited that got a first token. "
            "In a stall the histogram goes silent and the age rises: believe the age.",
            unit=Unit.SECONDS,
            queries=(
                Query(
                    f"max by (policy) (emberpool_gateway_queue_age_seconds{{{POLICY}}})", "{{policy}} oldest"
                ),
                Query(
                    quantile(0.99, "emberpool_gateway_queue_wait_seconds", POLICY, "policy"),
                    "{{policy}} wait p99",
                ),
            ),
            width=8,
        ),
        Panel(
            title="Time between tokens",
            text="Time between pieces of content of one stream. It says whether residents that serve are overfull.",
            unit=Unit.SECONDS,
            queries=(
                Query(
                    quantile(0.5, "emberpool_gateway_inter_token_latency_seconds", POLICY, "policy"),
                    "{{policy}} p50",
                ),
                Query(
                    quantile(0.99, "emberpool_gateway_inter_token_latency_seconds", POLICY, "policy"),
                    "{{policy}} p99",
                ),
            ),
            width=8,
        ),
        Panel(
            title="Requests",
            text="Requests that ended, per second, by how they ended; below them those that never got as far as their model, "
            "clients' invalid ones among them.",
            unit=Unit.REQUESTS_PER_SECOND,
            queries=(
                Query(rate(REQUESTS, POLICY, "policy, outcome"), "{{policy}} {{outcome}}"),
                Query(rate(REQUESTS, f'{NO_POLICY}, outcome=~"{REFUSED}|Invalid"', "outcome"), "{{outcome}}"),
            ),
            stacked=True,
        ),
        Panel(
            title="Failures by outcome",
            text="Requests that failed by our doing within the last rate interval, by outcome: refused or expired in the queue, failed "
            "by engines, cut in mid-stream, or given up by clients after a longer wait than promised (AbandonedWaiting). Overloaded and "
            "Draining come before the model is known and so are under no policy.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    rise(REQUESTS, f'{POLICY}, outcome!~"{GOOD}"', "policy, outcome") + " > 0",
                    "{{policy}} {{outcome}}",
                ),
                Query(failures("policy"), "{{policy}} all"),
                Query(refusals(), "{{outcome}}"),
            ),
            axis="requests",
            colours={"/ all$/": "red"},
        ),
    ),
)

# ------------------------------------------------------------------ seats

SEATS = Row(
    "Seats",
    (
        Panel(
            title="Seats by what they serve",
            text="Every seat once: by the policy that it serves, promotes or drains, else by what it is worth. Others and silent: busy "
            "seats of policies that aren't picked or no longer in force, and those that served when their agents fell silent. "
            "A burst shows as Spare turning into a policy's colour, without new seats.",
            unit=Unit.COUNT,
            queries=(
                Query(f"sum by (policy, supply) ({BUSY_FOR_POLICIES})", "{{policy}} {{supply}}"),
                Query(
                    f"clamp_min(sum({BUSY_SEATS}) - sum({BUSY_FOR_POLICIES}), 0)",
                    "others and silent",
                ),
                Query(
                    "sum by (value) (max by (fleet, value) "
                    f'(emberpool_seats{{{FLEET}, value=~"Spare|Starting|Held|Doomed"}}))',
                    "{{value}}",
                ),
            ),
            axis="seats",
            stacked=True,
            colours={key: colour for key, colour in SEAT_COLOURS.items() if key != "/.*Serving$/"},
        ),
        Panel(
            title="Size of the fleets",
            text="Seats that a fleet is asked for now (replicas), by the last decision (total), and at most.",
            unit=Unit.COUNT,
            queries=(
                Query(largest("emberpool_fleet_replicas", FLEET, "fleet"), "{{fleet}} replicas"),
                Query(largest("emberpool_fleet_total_seats", FLEET, "fleet"), "{{fleet}} total"),
                Query(largest("emberpool_fleet_max_seats", FLEET, "fleet"), "{{fleet}} max"),
            ),
            axis="seats",
            colours={"/ max$/": "red"},
            dashed=("/ (total|max)$/",),
        ),
        Panel(
            title="Spare seats against their target",
            text="Spare seats, lent ones included, and how many there should be. The time below the target after a burst is the time "
            "during which a second burst would find fewer.",
            unit=Unit.COUNT,
            queries=(
                Query(SPARE, "{{fleet}} spare"),
                Query(largest("emberpool_fleet_spare_target_seats", FLEET, "fleet"), "{{fleet}} target"),
            ),
            axis="seats",
            colours={"/ target$/": "red"},
            dashed=("/ target$/",),
        ),
        Panel(
            title="Residents by state",
            text="Every resident once, as its agent last reported it. Paused ones can be promoted in milliseconds.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    f"{largest('emberpool_residents', POLICY, 'policy, state')} > 0", "{{policy}} {{state}}"
                ),
            ),
            axis="residents",
            stacked=True,
            colours={"/ Failed$/": "red", "/ Quarantined$/": "dark-red"},
        ),
        Panel(
            title="Seats that can't be used",
            text="Held: takes a replica and can serve nobody. Unreachable: its agent is silent; it "
            "takes no promotion and gets no new requests. A spare seat whose agent is silent is both, one that served counts as "
            "Serving or Draining until it is heard again.",
            unit=Unit.COUNT,
            queries=(
                Query(largest("emberpool_seats", f'{FLEET}, value="Held"', "fleet"), "{{fleet}} held"),
                Query(largest("emberpool_fleet_unreachable_seats", FLEET, "fleet"), "{{fleet}} unreachable"),
            ),
            axis="seats",
            colours={"/ held$/": "orange", "/ unreachable$/": "red"},
        ),
        Panel(
            title="Memory of the engines",
            text="What the largest engine of each policy holds on a seat (device memory, host memory without a GPU), and all engines of "
            "the fullest seat together. Paused ones keep their weights and give their KV memory back. Agents say it; they want "
            "their token from whoever scrapes.",
            unit=Unit.BYTES,
            queries=(
                Query(largest(AGENT_MEMORY, POLICY, "policy"), "{{policy}}"),
                Query(f"max(sum by (job, instance) ({AGENT_MEMORY}{{{POLICY}}}))", "fullest seat"),
            ),
            colours={"fullest seat": "red"},
            dashed=("fullest seat",),
        ),
    ),
)

# ------------------------------------------------------------------ promotions

PROMOTIONS = Row(
    "Promotions and switches",
    (
        Panel(
            title="Promotions by operation and outcome",
            text="Claims that ended within the last rate interval. Promote: a paused resident. Switch: another one had to leave its seat "
            "first. Recall: one that was leaving came back.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    rise("emberpool_promotions_total", POLICY, "operation, outcome"),
                    "{{operation}} {{outcome}}",
                ),
            ),
            axis="promotions",
            colours={"/ Failed$/": "red"},
        ),
        Panel(
            title="From the sample to the first token",
            text="From the sample that asked for a promotion to the resident in rotation, and to its first content where a request "
            "waited for it.",
            unit=Unit.SECONDS,
            queries=tuple(
                Query(quantile(share, f"emberpool_promotion_to_{end}_seconds", POLICY, "policy"), legend)
                for end, name in (("rotation", "rotation"), ("first_token", "first token"))
                for share, legend in (
                    (0.5, f"{{{{policy}}}} {name} p50"),
                    (0.99, f"{{{{policy}}}} {name} p99"),
                )
            ),
        ),
        *(
            Panel(
                title=f"Stages of promotions, {name}",
                text="How long each stage took, from the end of the one before it: the decision from the sample on, the claim, the "
                "resume, the canary request, the way into rotation, the first token. Percentiles of stages don't add up.",
                unit=Unit.SECONDS,
                queries=(
                    Query(quantile(share, STAGES, POLICY, "operation, stage"), "{{operation}} {{stage}}"),
                ),
            )
            for share, name in ((0.5, "p50"), (0.99, "p99"))
        ),
        Panel(
            title="Demotions",
            text="Residents taken out of rotation within the last rate interval, by how it ended. Recalled: it was wanted back before it "
            "had left.",
            unit=Unit.COUNT,
            queries=(
                Query(rise("emberpool_demotions_total", POLICY, "policy, outcome"), "{{policy}} {{outcome}}"),
            ),
            axis="demotions",
        ),
        Panel(
            title="Steps of agents' orders, p99",
            text="What an agent spends an order's time on: the same promotions and demotions seen from the seat.",
            unit=Unit.SECONDS,
            queries=(
                Query(
                    quantile(0.99, "emberpool_agent_order_phase_seconds", JOB, "kind, phase"),
                    "{{kind}} {{phase}}",
                ),
            ),
        ),
        Panel(
            title="Proofs and canaries",
            text="Known prompts asked of residents within the last rate interval, by how they answered. A proof asks in full while a seat is "
            "spare, a canary for one token in each promotion. Anything but Passed keeps the resident out of rotation.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    rise("emberpool_agent_proofs_total", POLICY, "policy, check, outcome") + " > 0",
                    "{{policy}} {{check}} {{outcome}}",
                ),
                Query(rise("emberpool_agent_proofs_total", POLICY, "check"), "{{check}}, all"),
            ),
            axis="answers",
            colours={"/ (WrongTokens|NoAnswer)$/": "red"},
            width=8,
        ),
        Panel(
            title="Steps of engines' starts",
            text="How long the last start of an engine took until it was paused, step by step, on the slowest seat: what a burst "
            "without a spare would wait for.",
            unit=Unit.SECONDS,
            queries=(
                Query(
                    largest("emberpool_agent_startup_phase_seconds", POLICY, "policy, phase"),
                    "{{policy}} {{phase}}",
                ),
            ),
            kind="bargauge",
            width=8,
        ),
        Panel(
            title="What broke",
            text="Engines restarted on their seats, seats deleted because they can serve nobody, seats left alone after a failed "
            "promotion, and attempts of the gateways that failed and were repeated; within the last rate interval.",
            unit=Unit.COUNT,
            queries=(
                Query(rise("emberpool_resident_restarts_total", POLICY, "policy"), "{{policy}} restarts"),
                Query(rise("emberpool_replacements_total", FLEET, "fleet"), "{{fleet}} replacements"),
                Query(rise("emberpool_seat_rests_total", FLEET, "fleet"), "{{fleet}} rests"),
                Query(rise("emberpool_gateway_retries_total", POLICY, "policy"), "{{policy}} retries"),
            ),
            axis="events",
            width=8,
        ),
    ),
)

# ------------------------------------------------------------------ what it costs

COST = Row(
    "What the spares cost",
    (
        Panel(
            title="GPUs held, by what they were worth",
            text="GPU-seconds per second, so GPUs. The part Spare is what being ready costs; a burst turns it into Serving. 0 on "
            "machines without GPUs.",
            unit=Unit.COUNT,
            queries=(Query(rate("emberpool_gpu_seconds_total", FLEET, "value"), "{{value}}"),),
            width=8,
            axis="GPUs",
            stacked=True,
            colours=SEAT_COLOURS,
        ),
        Panel(
            title="GPU time in this range",
            text="GPU-seconds within the time range, by what the seats were worth meanwhile.",
            unit=Unit.SECONDS,
            queries=(Query(rise("emberpool_gpu_seconds_total", FLEET, "value", "$__range"), "{{value}}"),),
            kind="bargauge",
            width=8,
        ),
        Panel(
            title="Seat time in this range",
            text="The same for seats, whatever hardware they have.",
            unit=Unit.SECONDS,
            queries=(Query(rise("emberpool_seat_seconds_total", FLEET, "value", "$__range"), "{{value}}"),),
            kind="bargauge",
            width=8,
        ),
    ),
)

# ------------------------------------------------------------------ the controller itself

CONTROLLER = Row(
    "The controller itself",
    (
        Panel(
            title="Quality of signals",
            text="How far each source's reading can be believed. Stale never scales down; Missing holds the policy where it is.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    largest("emberpool_signal_quality", f'{POLICY}, quality="Stale"', "policy, source")
                    + " + 2 * "
                    + largest("emberpool_signal_quality", f'{POLICY}, quality="Missing"', "policy, source"),
                    "{{policy}} {{source}}",
                ),
            ),
            kind="state-timeline",
            height=7,
            states=QUALITIES,
        ),
        Panel(
            title="Age of signals",
            text="Age of each source's reading at the last tick. A gap means Missing.",
            unit=Unit.SECONDS,
            queries=(
                Query(
                    largest("emberpool_signal_age_seconds", POLICY, "policy, source"), "{{policy}} {{source}}"
                ),
            ),
            height=7,
        ),
        Panel(
            title="Duration of ticks",
            text="From the snapshot to begun actions. It is part of every promotion.",
            unit=Unit.SECONDS,
            queries=tuple(
                Query(
                    f"histogram_quantile({share}, sum by (le) (rate(emberpool_tick_duration_seconds_bucket{{{JOB}}}[{WINDOW}])))",
                    name,
                )
                for share, name in ((0.5, "p50"), (0.99, "p99"))
            ),
            width=8,
            height=7,
        ),
        Panel(
            title="What woke the loop",
            text="Wake-ups per second by cause. A loop that nothing wakes sleeps until its next deadline.",
            unit=Unit.EVENTS_PER_SECOND,
            queries=(Query(rate("emberpool_tick_wakeups_total", JOB, "cause"), "{{cause}}"),),
            width=8,
            height=7,
            stacked=True,
        ),
        Panel(
            title="Decisions by mode",
            text="Decisions per second of all policies together, by the mode that each was in: one a policy and tick.",
            unit=Unit.EVENTS_PER_SECOND,
            queries=(Query(rate("emberpool_decisions_total", POLICY, "mode"), "{{mode}}"),),
            width=8,
            height=7,
            stacked=True,
            colours=dict(MODES.values()),
        ),
        Panel(
            title="Time since the last tick",
            text="More than a minute means that nothing is decided.",
            unit=Unit.SECONDS,
            queries=(
                Query(
                    f"time() - max by (job) (emberpool_tick_last_success_timestamp_seconds{{{JOB}}})",
                    "{{job}}",
                ),
            ),
            width=8,
            height=7,
        ),
        Panel(
            title="Samples and reports",
            text="What gateways and agents pushed to the controller, per second, by whether it was taken.",
            unit=Unit.EVENTS_PER_SECOND,
            queries=(
                Query(rate("emberpool_signal_samples_total", JOB, "outcome"), "samples {{outcome}}"),
                Query(rate("emberpool_agent_reports_total", JOB, "outcome"), "reports {{outcome}}"),
                Query(
                    rate("emberpool_gateway_samples_total", JOB, "controller, outcome"),
                    "pushed to {{controller}}: {{outcome}}",
                ),
            ),
            height=7,
            colours={"/ (Rejected|Failed)$/": "red"},
            width=16,
        ),
        Panel(
            title="Routes of the gateways",
            text="Whether each gateway follows the routes of each controller. One that doesn't goes on with the last routes, so promotions "
            "don't reach it. Empty with `emberpool local`, where routes need no stream.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    f"max by (instance, controller) (emberpool_gateway_routes_connected{{{JOB}}})",
                    "{{instance}} from {{controller}}",
                ),
            ),
            kind="state-timeline",
            width=8,
            height=7,
            states=STREAMS,
        ),
        Panel(
            title="Policy files",
            text="Whether each controller, and each gateway that has files of its own, has in force what is in its policy files. A file "
            "with a fault changes nothing; `emberpool policy status`, or a gateway's `/v1/gateway`, says what is wrong with it.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    largest("emberpool_policy_reload_success", JOB, "job, instance"), "{{job}} {{instance}}"
                ),
                Query(
                    largest("emberpool_gateway_policy_reload_success", JOB, "job, instance"),
                    "{{job}} {{instance}} of a gateway",
                ),
            ),
            kind="stat",
            width=8,
            height=7,
            states=FILES,
        ),
        Panel(
            title="Who leads",
            text="Which controller leads and acts. The others stand by.",
            unit=Unit.COUNT,
            queries=(Query(largest("emberpool_leader", JOB, "instance"), "{{instance}}"),),
            kind="state-timeline",
            width=8,
            height=7,
            states=LEADERS,
        ),
        Panel(
            title="Residents of the gateways",
            text="Residents in rotation as the gateways know them: those that get requests, those that are left alone for a while after "
            "failures, and those that pods' labels put in rotation without naming a port.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    largest("emberpool_gateway_endpoints", POLICY, "instance, policy, state"),
                    "{{instance}} {{policy}} {{state}}",
                ),
                Query(
                    largest("emberpool_gateway_pods_residents_without_port", JOB, "instance"),
                    "{{instance}} without a port",
                ),
            ),
            axis="residents",
            height=7,
            colours={"/ LeftAlone$/": "orange", "/ without a port$/": "red"},
            width=8,
        ),
        Panel(
            title="Connections of the gateways",
            text="Clients' connections that are open at each gateway, and those that it refused within the time between two points "
            "because there were as many as may be.",
            unit=Unit.COUNT,
            queries=(
                Query(largest("emberpool_gateway_connections", JOB, "instance"), "{{instance}} open"),
                Query(
                    rise("emberpool_gateway_refused_connections_total", JOB, "instance"),
                    "{{instance}} refused",
                ),
            ),
            axis="connections",
            height=7,
            colours={"/ refused$/": "red"},
            width=8,
        ),
        Panel(
            title="Age of the gateways' pods",
            text="How long ago the API server last said something of the pods to each gateway that watches them. It does so each minute; "
            "after 100 s a gateway believes a controller that it hears instead.",
            unit=Unit.SECONDS,
            queries=(Query(largest("emberpool_gateway_pods_age_seconds", JOB, "instance"), "{{instance}}"),),
            height=7,
            width=8,
        ),
        Panel(
            title="Versions",
            text="What runs.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    largest("emberpool_build_info", JOB, "job, instance, version"),
                    "{{job}} {{instance}} {{version}}",
                ),
            ),
            kind="table",
            width=24,
            height=6,
            columns=("job", "instance", "version"),
        ),
    ),
    collapsed=True,
)

ROWS = (GLANCE, DRILL, DEMAND, USERS, SEATS, PROMOTIONS, COST, CONTROLLER)


def dashboard() -> Json:
    """Return the dashboard as Grafana reads it."""
    return {
        "uid": UID,
        "title": "Emberpool / Burst drill",
        "description": "A burst from its first waiting request to what the spares cost: what users feel, what was decided and why, "
        "what was promoted and how fast. For drills and for the real thing.",
        "tags": ["emberpool", "drill"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "refresh": "5s",
        "timepicker": {"refresh_intervals": ["1s", "5s", "10s", "30s", "1m", "5m"]},
        "fiscalYearStartMonth": 0,
        "weekStart": "",
        "links": [],
        "templating": {"list": _variables()},
        "annotations": {"list": _annotations()},
        "panels": lay_out(ROWS),
    }


def _variables() -> list[Json]:
    return [
        data_source_variable(),
        label_variable(
            "namespace",
            "Namespace",
            'label_values({__name__=~"emberpool_.+"}, namespace)',
            "Namespaces, and none: outside of Kubernetes only drills have one. Policies and fleets of one name in several namespaces "
            "are drawn as one, so pick one.",
            everything=".*",
        ),
        label_variable(
            "job",
            "Job",
            'label_values({__name__=~"emberpool_.+", namespace=~"$namespace"}, job)',
            "Scrape jobs of controllers, gateways and agents.",
        ),
        label_variable(
            "arm",
            "Arm",
            f"label_values(emberpool_drill_info{{{SCRAPED}}}, arm)",
            "Arms of a drill, warm and cold. Picking one leaves out whatever isn't that arm's, all that is no drill included.",
            everything=".*",
        ),
        label_variable(
            "policy",
            "Policy",
            f"label_values(emberpool_objective_ttft_seconds{{{JOB}}}, policy)",
            "Policies: one a model.",
        ),
        label_variable(
            "fleet", "Fleet", f"label_values(emberpool_fleet_max_seats{{{JOB}}}, fleet)", "Fleets of seats."
        ),
    ]


def _annotations() -> list[Json]:
    burst = Query(f"{IN_BURST} == 1", "{{policy}} bursts")
    return [
        tag_annotation("Drill stages", ("emberpool", "drill"), "purple"),
        query_annotation("Bursts", burst, "policy", "orange"),
    ]


def rendered() -> str:
    """Return the committed file's text."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(rendered(), encoding="utf-8")
    sys.stderr.write(f"wrote {PATH}\n")
