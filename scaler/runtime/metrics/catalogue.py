"""Every metric family of the controller, as data. What isn't declared here isn't exposed.

Names follow Prometheus' practice: base units, one unit a family, labels whose values are bounded. No label ever holds
the name of a pod or a seat: those come and go by the thousand.
"""

from scaler.core.model import Mode, Quality, ReasonCode
from warmpool.metric_families import Family, Kind, Label, listed
from warmpool.seats import Operation, SeatValue
from warmpool.states import ResidentState
from warmpool.timeline import OTHER_TIER, PHASES, TIERS

POLICY = Label("policy", "the policies in force")
FLEET = Label("fleet", "the fleets in force")
SIGNAL = Label("signal", "the signals of the policies in force; each policy has 20 at most")

CAUSES = ("start", "sample", "cluster", "action ended", "policies", "deadline", "other")
"""What may wake the loop; a cause that isn't listed counts as `other`."""
PROMOTIONS = (Operation.PROMOTE, Operation.SWITCH, Operation.RECALL)
PROMOTION_OUTCOMES = ("Promoted", "Failed")
STAGES = ("decision", "claimed", "resumed", "canary", "rotation", "first_token")
"""Stages of a promotion, in order; each lasts from the end of the one before it, the first from the sample."""
DEMOTION_OUTCOMES = ("Demoted", "Recalled", "Released", "Failed")
MOVES = (Operation.PARK, Operation.UNPARK)
MOVE_OUTCOMES = ("Moved", "Overtaken", "Failed")
"""How a parking or unparking ends; Overtaken is one that a promotion cut short. Most are overtaken in silence: they end well."""
SOURCES = ("gateway", "engines", "backlog", "late_share")
"""What a policy's load is made of, as the law sees it: several signals may say the same part."""
INTAKE_OUTCOMES = ("Accepted", "Rejected")
SAMPLE_WAYS = ("Http", "Redis")
SAMPLE_OUTCOMES = (
    *("Accepted", "Rejected", "TooLarge", "TooOften", "TooMuchOfSource", "TooMuchOfPusher", "TooMuchOfAll"),
    *("NotAllowed", "NameTaken", "Unauthorized"),
)
"""What became of a pushed sample. Rejected is malformed, of another time, or not after the last one; TooOften is one too many of its
instance; TooMuchOf… wasn't read, because of what its source, its pusher, or all together had pushed already; NotAllowed says what
its pusher may not say, and NameTaken what only another pusher's instance says."""
READING_OUTCOMES = ("Read", "Failed", "Spoilt")
"""What came of reading a signal; Spoilt counts numbers that were none (NaN, negative), which changed nothing."""
READ_TYPES = ("EngineMetrics", "Prometheus", "RedisList", "RedisStream", "RedisSortedSet")
"""Types of signals that the controller reads itself."""
RELOAD_OUTCOMES = ("Loaded", "Unchanged", "Rejected", "Failed")
"""How an attempt to reload the policies ends; see `scaler.runtime.reload.Outcome`."""
CONTEXTS = ("New", "Reused")
CACHE_OUTCOMES = ("Hit", "Miss")
SUPPLIES = ("Serving", "Promoting", "Draining", "Promotable", "Switchable", "Parked")
DEPTHS = ("Paused", "Parked")
"""Depths that a supply tells apart: what is given back beside the weights differs by fleet, not from moment to moment."""
COUNTED_VALUES = tuple(value for value in SeatValue if value is not SeatValue.PROMOTING)
"""Values of seats in the cost of warmth, where a promoting seat counts as serving, as in a fleet's total."""

_MODE = listed("mode", Mode, "modes of the law")
_OPERATION = listed("operation", PROMOTIONS, "the operations that end in rotation")
_SECONDS_5MS_5S = (
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
)
_SECONDS_10MS_30MIN = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1800.0),
)
_TIER = Label("tier", f"where weights came from: {', '.join((*TIERS, OTHER_TIER))}")


def _gauge(name: str, text: str, unit: str, *labels: Label) -> Family:
    return Family(name=f"emberpool_{name}", kind=Kind.GAUGE, help=text, unit=unit, labels=labels)


def _counter(name: str, text: str, unit: str, *labels: Label) -> Family:
    return Family(name=f"emberpool_{name}_total", kind=Kind.COUNTER, help=text, unit=unit, labels=labels)


# ------------------------------------------------------------------ the process and its loop

BUILD_INFO = _gauge(
    "build_info",
    "Always 1; its labels say what runs.",
    "info",
    Label("version", "one value a process"),
    Label("python", "one value a process"),
)
LEADER = _gauge(
    "leader",
    "1 while this process leads and acts, 0 while it stands by: then it shows no series of policies and fleets, which are the leader's.",
    "boolean",
)
TICK_DURATION = Family(
    name="emberpool_tick_duration_seconds",
    kind=Kind.HISTOGRAM,
    help="One tick, from the snapshot to begun actions.",
    unit="seconds",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0),
)
TICK_LAST_SUCCESS = _gauge(
    "tick_last_success_timestamp_seconds", "Unix time of the last tick; 0 before the first.", "seconds"
)
TICK_WAKEUPS = _counter(
    "tick_wakeups",
    "What woke the loop. Causes that come while it is busy are counted and answered together.",
    "wake-ups",
    listed("cause", CAUSES, "causes of the loop"),
)
DECISIONS = _counter(
    "decisions", "Decisions made for a policy, by the mode that it was in.", "decisions", POLICY, _MODE
)
AGENT_REPORTS = _counter(
    "agent_reports",
    "Reports of agents, by whether they were taken.",
    "reports",
    listed("outcome", INTAKE_OUTCOMES, "taken or not"),
)

# ------------------------------------------------------------------ policies

RELOAD_SUCCESS = _gauge(
    "policy_reload_success",
    "1 if the policies in force are those in the files, 0 since an attempt to reload them that failed.",
    "boolean",
)
LAST_RELOAD = _gauge(
    "policy_last_reload_timestamp_seconds",
    "Unix time at which the files were last read and could be used; at first that of the start.",
    "seconds",
)
RELOADS = _counter(
    "policy_reloads",
    "Attempts to reload the policies, by how they ended.",
    "attempts",
    listed("outcome", RELOAD_OUTCOMES, "how it ended"),
)

# ------------------------------------------------------------------ signals

SIGNAL_SAMPLES = _counter(
    "signal_samples",
    "Samples that gateways and others pushed, by the way they came and by whether they were taken.",
    "samples",
    listed("way", SAMPLE_WAYS, "ways to push"),
    listed("outcome", SAMPLE_OUTCOMES, "taken, or why not"),
)
SIGNAL_CHANNEL = _gauge(
    "signal_channel_connected",
    "1 while samples over Redis are listened to; absent without --redis.",
    "boolean",
)
SIGNAL_READINGS = _counter(
    "signal_readings",
    "Readings of a signal by how they ended, and numbers in them that were none. Signals that are pushed aren't read.",
    "readings",
    POLICY,
    SIGNAL,
    listed("outcome", READING_OUTCOMES, "how it ended"),
)
SIGNAL_LAST_READING = _gauge(
    "signal_last_reading_timestamp_seconds",
    "Unix time at which a signal's newest number was true; 0 before the first.",
    "seconds",
    POLICY,
    SIGNAL,
)
SOURCE_RESTARTS = _counter(
    "signal_source_restarts",
    "Sources of signals that crashed and began anew: each is a fault of this program.",
    "restarts",
    listed("type", READ_TYPES, "types of signals that are read"),
)
_SOURCE = listed("source", SOURCES, "where readings come from")
SIGNAL_AGE = _gauge(
    "signal_age_seconds",
    "Age of what a source says of a policy, at the last tick; absent while the reading is Missing.",
    "seconds",
    POLICY,
    _SOURCE,
)
SIGNAL_QUALITY = _gauge(
    "signal_quality",
    "1 for how far a source's reading can be believed. All but the gateway are shown from their first reading on.",
    "boolean",
    POLICY,
    _SOURCE,
    listed("quality", Quality, "qualities of a reading"),
)

# ------------------------------------------------------------------ what a policy needs and gets

DEMAND = _gauge(
    "demand_requests",
    "Requests that wait or are in flight, each counted once; absent while unknown.",
    "requests",
    POLICY,
)
NEEDED = _gauge(
    "needed_requests", "Capacity that the law asks for, in requests in flight.", "requests", POLICY
)
CAPACITY = _gauge(
    "capacity_requests",
    "Requests in flight that serving and promoting residents can hold.",
    "requests",
    POLICY,
)
POLICY_MODE = _gauge("policy_mode", "1 for the mode that the policy is in.", "boolean", POLICY, _MODE)
POLICY_REASON = _gauge(
    "policy_reason",
    "1 for each reason of the last decision; a reason that no longer holds is absent.",
    "boolean",
    POLICY,
    listed("code", ReasonCode, "reasons of the law"),
)
OBJECTIVE_TTFT = _gauge(
    "objective_ttft_seconds", "Time to first token that the policy promises.", "seconds", POLICY
)
TARGET_IN_FLIGHT = _gauge(
    "target_in_flight_requests",
    "Requests in flight that one seat of the fleet holds for the policy.",
    "requests",
    POLICY,
    FLEET,
)
SERVING_MIN = _gauge("policy_min_residents", "Residents that always serve (the floor).", "residents", POLICY)
SERVING_MAX = _gauge("policy_max_residents", "Residents that serve at most.", "residents", POLICY)
WANTED = _gauge(
    "wanted_residents",
    "Residents that should serve, whether or not there are seats for them.",
    "residents",
    POLICY,
    FLEET,
)
SERVING = _gauge(
    "serving_residents",
    "Residents that shall serve now: what existing seats can give.",
    "residents",
    POLICY,
    FLEET,
)
UNFILLED = _gauge(
    "unfilled_residents",
    "Wanted residents beyond those that existing seats can give.",
    "residents",
    POLICY,
    FLEET,
)
WARM = _gauge(
    "warm_residents",
    "Residents that shall stand paused, and not parked, beside those that serve.",
    "residents",
    POLICY,
    FLEET,
)
SUPPLY = _gauge(
    "supply_residents",
    "What the fleet has for the policy: in rotation, on the way in or out, promotable at once or by a switch; Parked counts "
    "those of the promotable whose weights are in host memory.",
    "residents",
    POLICY,
    FLEET,
    listed("supply", SUPPLIES, "kinds of supply"),
)

# ------------------------------------------------------------------ what a fleet is and shall be

SEATS = _gauge(
    "seats", "Seats by what they are worth.", "seats", FLEET, listed("value", SeatValue, "values of a seat")
)
FLEET_TOTAL = _gauge(
    "fleet_total_seats", "Seats that the workload is asked for by the last decision.", "seats", FLEET
)
FLEET_REPLICAS = _gauge(
    "fleet_replicas", "Seats that the workload is asked for at present.", "replicas", FLEET
)
FLEET_MAX = _gauge("fleet_max_seats", "Seats that the fleet may have at most.", "seats", FLEET)
FLEET_SERVING = _gauge(
    "fleet_serving_seats",
    "Seats that serve or are wanted to serve. More than the total where seats can't be had for all that is wanted.",
    "seats",
    FLEET,
)
FLEET_SPARE_TARGET = _gauge(
    "fleet_spare_target_seats", "Spare seats that the fleet should have.", "seats", FLEET
)
FLEET_HELD = _gauge(
    "fleet_held_seats", "Seats that take a replica and can serve nobody: a part of the total.", "seats", FLEET
)
FLEET_UNREACHABLE = _gauge(
    "fleet_unreachable_seats",
    "Seats whose agent hasn't reported lately, whatever they are worth; terminating ones aside.",
    "seats",
    FLEET,
)
FLEET_REASON = _gauge(
    "fleet_reason",
    "1 for each reason of the last decision; a reason that no longer holds is absent.",
    "boolean",
    FLEET,
    listed("code", ReasonCode, "reasons of the law"),
)
FLEET_MODE = _gauge(
    "fleet_mode",
    "1 for the fleet's mode: Enforce acts, Observe decides and writes nothing.",
    "boolean",
    FLEET,
    listed("mode", ("Enforce", "Observe"), "modes of a fleet"),
)

# ------------------------------------------------------------------ residents

RESIDENTS = _gauge(
    "residents",
    "Residents by state, all fleets together, as their agents last reported them.",
    "residents",
    POLICY,
    listed("state", ResidentState, "states of a resident"),
)
RESIDENT_RESTARTS = _counter(
    "resident_restarts",
    "Engines restarted on their seats, as far as this process has seen.",
    "restarts",
    POLICY,
)

# ------------------------------------------------------------------ promotions and what follows

PROMOTIONS_TOTAL = _counter(
    "promotions",
    "Claims that should end in rotation, by how they ended.",
    "promotions",
    POLICY,
    _OPERATION,
    listed("outcome", PROMOTION_OUTCOMES, "how it ended"),
)
PROMOTION_DURATION = Family(
    name="emberpool_promotion_duration_seconds",
    kind=Kind.HISTOGRAM,
    help="Stages of promotions that succeeded, each from the end of the one before, the first from the sample; "
    "first_token only where a request waited. With more than 55 policies series begin with the first promotion.",
    unit="seconds",
    labels=(POLICY, _OPERATION, listed("stage", STAGES, "stages of a promotion")),
    buckets=_SECONDS_5MS_5S,
)
PROMOTION_TO_ROTATION = Family(
    name="emberpool_promotion_to_rotation_seconds",
    kind=Kind.HISTOGRAM,
    help="From the sample that asked for a promotion to the resident in rotation: all stages but first_token, together.",
    unit="seconds",
    labels=(POLICY,),
    buckets=_SECONDS_5MS_5S,
)
PROMOTION_TO_FIRST_TOKEN = Family(
    name="emberpool_promotion_to_first_token_seconds",
    kind=Kind.HISTOGRAM,
    help="From the sample that asked for a promotion to the promoted resident's first content, where a request waited.",
    unit="seconds",
    labels=(POLICY,),
    buckets=_SECONDS_5MS_5S,
)
DEMOTIONS_TOTAL = _counter(
    "demotions",
    "Residents taken out of rotation, by how it ended: a recalled one went back, a released one was dead.",
    "demotions",
    POLICY,
    listed("outcome", DEMOTION_OUTCOMES, "how it ended"),
)
MOVES_TOTAL = _counter(
    "moves",
    "Residents moved between device and host memory on a spare seat, ahead of any need, by how it ended.",
    "moves",
    POLICY,
    listed("operation", MOVES, "which way"),
    listed("outcome", MOVE_OUTCOMES, "how it ended"),
)
WAKE = _gauge(
    "wake_seconds",
    "Time from an order until a resident of this depth serves: the median of the last promotions from there. Absent before "
    "the first.",
    "seconds",
    POLICY,
    FLEET,
    listed("depth", DEPTHS, "depths that promotions start from"),
)
REPLACEMENTS = _counter("replacements", "Seats deleted because they can serve nobody.", "seats", FLEET)
SEAT_RESTS = _counter(
    "seat_rests", "Times that a seat was left alone after a failed promotion.", "rests", FLEET
)

# ------------------------------------------------------------------ starts

STARTUP_PHASE = Family(
    name="emberpool_startup_phase_seconds",
    kind=Kind.HISTOGRAM,
    help="What each phase of a resident's completed start took. With scheduled and image, which its seat's first starts have, they "
    "add up to the time from the pod's creation; Kubernetes tells those two to a second.",
    unit="seconds",
    labels=(POLICY, FLEET, listed("phase", PHASES, "phases of a start")),
    buckets=_SECONDS_10MS_30MIN,
)
WEIGHT_LOAD_DURATION = Family(
    name="emberpool_weight_load_duration_seconds",
    kind=Kind.HISTOGRAM,
    help="How long the weights of a resident took to come at its start, by where they came from.",
    unit="seconds",
    labels=(POLICY, _TIER),
    buckets=_SECONDS_10MS_30MIN,
)
WEIGHT_LOAD_RATE = Family(
    name="emberpool_weight_load_rate_bytes_per_second",
    kind=Kind.HISTOGRAM,
    help="How fast they came. Engines that don't tell how many bytes they are have none.",
    unit="bytes per second",
    labels=(POLICY, _TIER),
    buckets=(1e8, 2.5e8, 5e8, 1e9, 2e9, 4e9, 8e9, 1.6e10, 2.4e10, 3.2e10, 4e10, 4.8e10, 5.6e10, 1e11, 4e11),
)
FIRST_REQUEST_DURATION = Family(
    name="emberpool_first_request_duration_seconds",
    kind=Kind.HISTOGRAM,
    help="What the first request to an engine took, a warm-up's: what a client would have waited for without it.",
    unit="seconds",
    labels=(POLICY,),
    buckets=_SECONDS_10MS_30MIN,
)
ENGINE_CONTEXTS = _counter(
    "engine_contexts",
    "Ways to come to serve: a start makes a New context on its device, a promotion has one Reused. Reused of all is the reuse ratio.",
    "contexts",
    POLICY,
    listed("outcome", CONTEXTS, "made or reused"),
)
COMPILE_CACHE = _counter(
    "compile_cache_lookups",
    "What starting engines found in their compile caches, and what they had to compile; engines that don't tell have none.",
    "lookups",
    POLICY,
    listed("outcome", CACHE_OUTCOMES, "found or compiled"),
)

AILING = _gauge(
    "fleet_ailing_seats",
    "Seats whose engines don't start as they should, by selfHealing, and on which nobody computes.",
    "seats",
    FLEET,
)
CRASH_LOOPS = _gauge(
    "fleet_crash_looping_seats",
    "Seats of those above whose engine, or a container of which, ends again and again, or can't be started at all.",
    "seats",
    FLEET,
)
HELD_BACK = _gauge(
    "fleet_healing_held_back",
    "1 while such seats aren't replaced because replacements before them brought no sound start.",
    "boolean",
    FLEET,
)

# ------------------------------------------------------------------ the cost of warmth

SEAT_SECONDS = _counter(
    "seat_seconds",
    "Time that seats were held, by what they were worth meanwhile; promoting counts as serving.",
    "seconds",
    FLEET,
    listed("value", COUNTED_VALUES, "values of a seat"),
)
GPU_SECONDS = _counter(
    "gpu_seconds",
    "The same times the GPUs of a seat; the part with value Spare is what warmth costs. 0 on a machine without GPUs.",
    "seconds",
    FLEET,
    listed("value", COUNTED_VALUES, "values of a seat"),
)

FAMILIES: tuple[Family, ...] = tuple(found for found in list(globals().values()) if isinstance(found, Family))
"""All of them, in the order in which they are declared and shown."""

# ------------------------------------------------------------------ the gateway as a process of its own

FIRST_TOKENS_DROPPED = _counter(
    "gateway_first_tokens_dropped",
    "First tokens that no controller took. Not with `emberpool local`, where none goes over the network.",
    "first tokens",
)
ROUTES_CONNECTED = _gauge(
    "gateway_routes_connected",
    "1 while the controller's stream of routes is open. Not with `emberpool local`, where routes need no stream.",
    "boolean",
    Label("controller", "the controllers in the gateway's settings"),
)
PODS_SYNCED = _gauge(
    "gateway_pods_synced",
    "1 once the pods of all fleets have been seen. With --kubernetes only, as all that says pods.",
    "boolean",
)
PODS_AGE = _gauge(
    "gateway_pods_age_seconds",
    "Seconds since the API server last said something of the pods: it does each minute. Absent before their first list.",
    "seconds",
)
PODS_SEATS = _gauge("gateway_pods_seats", "Seats among the pods.", "seats")
PODS_WITHOUT_PORT = _gauge(
    "gateway_pods_residents_without_port",
    "Residents that their pods' labels put in rotation and that can't be reached, for the pods name no port for them.",
    "residents",
)
PODS_RESTARTS = _counter(
    "gateway_pods_watch_restarts",
    "Lists and watches of pods that began anew; a watch that works ends every few minutes.",
    "restarts",
)
GATEWAY_RELOAD_SUCCESS = _gauge(
    "gateway_policy_reload_success",
    "1 if the policies that the gateway goes by are those in its files, 0 since an attempt to reload them that failed. With "
    "--kubernetes only.",
    "boolean",
)
GATEWAY_LAST_RELOAD = _gauge(
    "gateway_policy_last_reload_timestamp_seconds",
    "Unix time at which the gateway's files were last read and could be used; at first that of the start.",
    "seconds",
)
GATEWAY_RELOADS = _counter(
    "gateway_policy_reloads",
    "Attempts to reload the gateway's policies, by how they ended.",
    "attempts",
    listed("outcome", RELOAD_OUTCOMES, "how it ended"),
)
POD_FAMILIES: tuple[Family, ...] = (PODS_SYNCED, PODS_AGE, PODS_SEATS, PODS_WITHOUT_PORT, PODS_RESTARTS)
"""What a gateway exposes of the pods that it watches."""
GATEWAY_PROCESS_FAMILIES: tuple[Family, ...] = (
    *(FIRST_TOKENS_DROPPED, ROUTES_CONNECTED),
    *POD_FAMILIES,
    *(GATEWAY_RELOAD_SUCCESS, GATEWAY_LAST_RELOAD, GATEWAY_RELOADS),
)
"""What the gateway's process exposes beside the gateway itself."""
