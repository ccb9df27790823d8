"""The report as data: every figure of a drill, versioned, written as report.json and read back to draw it again.

Times in series and windows are seconds after the start of the arm's load, latencies milliseconds, CPU percent of the
whole machine (100 is all its cores busy). README.md beside this module describes each field.
"""

from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

REPORT_VERSION: Final = 1
"""Raised when a field changes its meaning or goes away; new fields alone don't raise it."""


class _Figures(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="ignore",  # a newer report stays readable
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )


class Quantiles(_Figures):
    """A distribution of latencies, by nearest rank: p99 of fewer than 100 values is the largest."""

    count: int
    """How many values."""
    p50: float
    """Median, milliseconds."""
    p90: float
    """90th percentile, milliseconds."""
    p99: float
    """99th percentile, milliseconds."""
    max: float
    """The largest, milliseconds."""


class StageInfo(_Figures):
    """A stage of the scenario on the clock of the load."""

    name: str
    """Its name."""
    kind: str
    """Warmup, Baseline, Burst, Hold or Decay."""
    start: float
    """Start, seconds."""
    end: float
    """End, seconds."""
    rates: dict[str, tuple[float, float]]
    """Per policy, intended requests per second at the start and at the end."""
    bursting: list[str]
    """Policies whose burst it belongs to."""


class PolicyInfo(_Figures):
    """A policy's settings that decide what the drill shows."""

    name: str
    """Its name."""
    shape: str | None = None
    """Shape of the checkpoint with random weights that its engines served; null where one was brought along."""
    checkpoint: str = ""
    """Name of that checkpoint's folder."""
    objective_milliseconds: float
    """The TTFT objective."""
    target_in_flight: dict[str, int]
    """Per fleet, requests in flight that one seat holds."""
    serving_min: int
    """Residents that always serve."""
    serving_max: int
    """Residents that serve at most."""
    burst_window_seconds: float
    """The burst window."""
    stable_window_seconds: float
    """The stable window."""
    demote_after_seconds: float
    """How long a smaller answer must hold before a resident is paused."""
    threshold_percent: int
    """Burst begins when demand reaches this share of the capacity."""


class FleetInfo(_Figures):
    """A fleet's settings."""

    name: str
    """Its name."""
    max_seats: int
    """Seats at most."""
    spare_min: int
    """Spare seats that it keeps."""
    scale_down_window_seconds: float
    """How long a smaller total must hold before seats are deleted."""


class ScenarioInfo(_Figures):
    """What was drilled."""

    name: str
    """Name of the scenario."""
    description: str
    """Its description."""
    seed: int
    """Seed of the load."""
    seconds: float
    """Length of the load."""
    stages: list[StageInfo]
    """The stages."""
    engine: dict[str, int | None]
    """Engine settings, the same in all arms."""


class FitInfo(_Figures):
    """How long answers were so that the load fits the machine, and what that rests on: measured before the first arm."""

    cpu_percent: int
    """What the busiest Hold stage was to take at most."""
    stage: str
    """Name of that stage."""
    idle_percent: float
    """What product and drill took without any request."""
    others_percent: float
    """What other programs took meanwhile; it isn't reckoned with."""
    request_seconds: float
    """Processor seconds of a request whose answer has one token, in the mean over the models."""
    token_seconds: float
    """Processor seconds of each further token."""
    answer_seconds: float
    """Processor seconds of a request with the answer that was chosen, in the mean over that stage."""
    whole_percent: float
    """What the stage would take with answers as long as the scenario says; over 100 it can't keep up."""
    expected_percent: float
    """What it is expected to take with those that were chosen."""
    tokens_per_second: tuple[int, int]
    """Pace of the scenario, and the one that was chosen."""
    whole_answers: dict[str, tuple[int, int]]
    """Per policy, tokens of the shortest and of the longest answer in the scenario."""
    answers: dict[str, tuple[int, int]]
    """Per policy, the same of those that were chosen, for all arms."""
    enough: bool
    """Whether that is expected to leave the machine as much air as was asked for."""


class HostInfo(_Figures):
    """Where it ran."""

    cores: int
    """CPU cores that the drill may use."""
    memory_bytes: int
    """Memory of the machine."""
    python: str
    """Version of Python."""
    system: str
    """Kernel and architecture."""


class StageFigures(_Figures):
    """One stage and one policy. A request belongs to the stage of its intended time."""

    stage: str
    """Name of the stage."""
    kind: str
    """Its kind."""
    policy: str
    """The policy."""
    bursting: bool
    """Whether the stage is part of this policy's burst."""
    requests: int
    """Requests that were due."""
    requests_per_second: float
    """The same as a rate."""
    ok: int
    """Whole answers."""
    failures: dict[str, int]
    """Failed requests by kind."""
    ttft: Quantiles | None
    """Time from the intended sending to the first token, of streamed requests; null without any."""
    itl: Quantiles | None
    """Time between tokens, from a histogram with 2 % wide buckets; null without any."""
    tokens_per_second: float
    """Tokens of whole answers, as a rate over the stage."""
    goodput_percent: float | None
    """Share of all requests with a whole answer and, where streamed, a TTFT within the objective; null without requests."""
    goodput_per_second: float
    """The same as a rate."""


class BurstFigures(_Figures):
    """One policy's burst: a Burst stage and the Hold stages right after it."""

    policy: str
    """The policy that bursts."""
    stage: str
    """Name of the Burst stage."""
    start: float
    """Start of the Burst stage, seconds."""
    end: float
    """End of the last Hold stage, seconds."""
    ttft: Quantiles | None
    """TTFT of the policy's requests in the Burst stage alone."""
    whole_ttft: Quantiles | None
    """TTFT of the policy's requests from start to end."""
    recovery_seconds: float | None
    """From the start until every request to the end of the burst is whole and keeps the objective; 0 if all do; null if
    the last ones don't."""
    first_added_seconds: float | None
    """From the start until the first further resident of the policy came into rotation, be it after the burst; null if none
    did before the policy's next burst."""


class PromotionFigures(_Figures):
    """One promotion, switch or recall during the load."""

    claim: str
    """Id of its claim."""
    operation: str
    """Promote, Switch or Recall."""
    policy: str
    """Who was promoted."""
    fleet: str
    """On which fleet."""
    seat: str
    """On which seat."""
    outcome: str
    """Promoted or Failed."""
    error: str
    """Why it failed; empty otherwise."""
    sample: float
    """When the sample that caused it was taken, seconds."""
    waiting: int
    """Requests that waited at the gateway when the resident came into rotation."""
    steps: dict[str, float]
    """Milliseconds after the sample at which each step was done: decision, claimed, resumed, canary, rotation, firstToken."""
    basis: str
    """How firstToken was reckoned: Waited (first content of a request that waited, minus the sample), Composed (sample to
    rotation plus dispatch to first content of the first request routed there), None (no request came)."""
    phases: dict[str, float]
    """What the agent took for each phase, milliseconds."""


class PromotionSummary(_Figures):
    """All promotions of one operation."""

    operation: str
    """Promote, Switch or Recall."""
    count: int
    """Those that succeeded."""
    failed: int
    """Those that didn't."""
    waited: int
    """Those whose first token is of a request that waited."""
    composed: int
    """Those whose first token is reckoned from two intervals."""
    steps: dict[str, Quantiles]
    """Per step, milliseconds after the sample."""
    claim_to_rotation: Quantiles | None = None
    """From the claim until the resident was in rotation."""


class SeatSpan(_Figures):
    """A seat in one state for a while."""

    start: float
    """From, seconds."""
    end: float
    """To, seconds."""
    value: str
    """The seat's value: Serving, Promoting, Draining, Spare, Lent, Starting, Held, Doomed."""
    serves: str | None
    """The policy whose resident has or gets the seat."""


class SeatBand(_Figures):
    """One seat over time."""

    seat: str
    """Its name."""
    fleet: str
    """Its fleet."""
    spans: list[SeatSpan]
    """What it was, without gaps while it existed."""


class LoadPoint(_Figures):
    """What the controller knew of a policy's load at one moment."""

    at: float
    """When, seconds."""
    queued: float
    """Requests that the gateway held."""
    in_flight: float
    """Requests that it had sent and that weren't finished."""
    oldest_wait_seconds: float
    """How long the oldest held request had waited."""
    capacity: float | None
    """Requests in flight that usable residents hold; null when the source doesn't say."""
    mode: str
    """Stable, Burst or Hold."""


class RequestPoint(_Figures):
    """One request, for the scatter plots."""

    at: float
    """Intended time, seconds."""
    policy: str
    """Its policy."""
    ttft: float | None
    """TTFT, milliseconds; null without a first token."""
    outcome: str
    """Ok or the kind of its failure."""


class CpuFigures(_Figures):
    """CPU in one stage."""

    stage: str
    """Name of the stage."""
    kind: str
    """Its kind."""
    mean_percent: float | None
    """Mean over the stage of the whole machine, other programs included; null if no sample fell into the stage."""
    max_percent: float | None
    """The busiest second."""
    product_percent: float | None
    """Mean of `emberpool local` with all its engines."""
    drill_percent: float | None
    """Mean of the drill itself."""


class GeneratorFigures(_Figures):
    """How punctual the load generator was: sending minus intended time."""

    requests: int
    """Requests in the schedule."""
    lag: Quantiles | None
    """Lateness, milliseconds; null if nothing was sent."""


class NeighbourFigures(_Figures):
    """A resident on the same seat as a killed engine."""

    policy: str
    """Its policy."""
    pid: int
    """Its process."""
    survived: bool
    """Whether the same process still was the resident at the end of the load."""


class FaultFigures(_Figures):
    """Something that was broken on purpose."""

    type: str
    """KillEngine."""
    policy: str
    """Whose engine."""
    seat: str
    """On which seat; empty if nothing could be hit."""
    pid: int | None
    """The process that was killed; null if nothing could be hit."""
    at: float
    """When, seconds."""
    error: str
    """Why nothing could be hit; empty otherwise."""
    noticed_seconds: float | None
    """From the kill until the resident was reported as Failed; null if it never was."""
    capacity_back_seconds: float | None
    """From the kill until another resident of the policy came into rotation; null if none did."""
    replaced_seconds: float | None
    """From the kill until the seat's resident was Paused or Serving again in another process; null if it never was."""
    neighbours: list[NeighbourFigures]
    """The other residents of the seat."""


class ArmFigures(_Figures):
    """One arm: the whole scenario played once."""

    arm: str
    """warm, cold or cold-zygote."""
    seat_budget: int | None
    """Seats that all fleets together could have; null for no such limit."""
    fleets: list[FleetInfo]
    """The fleets of the arm."""
    start_seconds: float
    """From the start of the child until it was ready."""
    load_started_at: float
    """Unix time of the start of the load: 0 on the clock of all series."""
    load_seconds: float
    """From there until the last request had ended."""
    stages: list[StageFigures]
    """Per stage and policy."""
    bursts: list[BurstFigures]
    """Per burst and policy."""
    burst_ttft: Quantiles | None
    """TTFT of the bursting policies over all Burst stages."""
    promotions: list[PromotionFigures]
    """Each promotion, switch and recall during the load."""
    promotion_summary: list[PromotionSummary]
    """The same per operation."""
    demotions: int
    """Demotions during the load."""
    seat_seconds: dict[str, float]
    """Seat-seconds per seat value during the load."""
    served_seconds: dict[str, float]
    """Seat-seconds of value Serving per policy."""
    seats: list[SeatBand]
    """Every seat over time."""
    load: dict[str, list[LoadPoint]]
    """Per policy, queue and in flight over time."""
    requests: list[RequestPoint]
    """Every request."""
    cpu: list[CpuFigures]
    """Per stage."""
    generator: GeneratorFigures
    """The load generator's own lateness."""
    faults: list[FaultFigures]
    """What was broken on purpose."""
    scaled_down_serving: list[str] | None = None
    """Seats that a lower size took while they served; null where nobody looked (on this machine)."""
    failure_examples: list[str]
    """The first few failures in words."""
    left_processes: list[str]
    """Processes of the child that outlived it and had to be killed."""


class Status(StrEnum):
    """How a check came out."""

    PASS = "Pass"  # noqa: S105 - a verdict, no password
    FAIL = "Fail"
    WARN = "Warn"
    """A threshold that only warns was missed."""


class Check(_Figures):
    """One threshold against what was measured."""

    name: str
    """Name of the threshold in the scenario."""
    arm: str
    """The arm that it looks at, or both."""
    status: Status
    """Pass, Fail, or Warn for thresholds that only warn."""
    threshold: str
    """What was asked for, in words."""
    measured: str
    """What was measured, in words."""


class Report(_Figures):
    """A whole drill."""

    report_version: int = REPORT_VERSION
    """Version of this schema."""
    scenario: ScenarioInfo
    """What was drilled."""
    policies: list[PolicyInfo]
    """The policies' settings."""
    host: HostInfo
    """Where."""
    fit: FitInfo | None = None
    """How long answers were, and why; null where they weren't fitted."""
    started_at: float
    """Unix time of the start."""
    arms: list[ArmFigures]
    """The arms in the order in which they ran."""
    checks: list[Check] = Field(default_factory=list)
    """The verdict's parts."""
    passed: bool
    """Whether no check failed."""

    def arm(self, name: str) -> ArmFigures | None:
        """Return the arm of that name if it ran."""
        return next((arm for arm in self.arms if arm.arm == name), None)
