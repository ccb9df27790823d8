"""The drill scenario that people write: models, stages, faults, thresholds (`kind: DrillScenario`).

Integers with their unit in the name, no unknown keys, all faults at once with file, line and column.
"""

from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from scaler.policy.base import (
    Broken,
    Envelope,
    Metadata,
    Name,
    PolicyModel,
    Unsound,
    as_far_as_sound,
    integer,
    key,
    sound_entries,
    text,
)
from scaler.policy.document import Path
from scaler.policy.repeated import repeated
from scaler.policy.wording import did_you_mean

_DAY: Final = 86_400
_MANY: Final = 1_000_000

Percent = Annotated[int, integer("percent", 0, 100, example=80)]
Tokens = Annotated[int, integer("tokens", 1, 131_072, example=32)]
Seed = Annotated[int, integer("seed of random numbers", 0, 2**53, example=1)]
Requests = Annotated[int, integer("requests", 0, _MANY, example=0)]
Milliseconds = Annotated[int, integer("milliseconds", 1, 3_600_000, example=250)]


class Device(StrEnum):
    """Where engines run."""

    AUTO = "Auto"
    """On GPUs for fleets whose seats ask for them, if there are any; else on the CPU."""
    CPU = "Cpu"
    """On the CPU."""
    CUDA = "Cuda"
    """On GPUs; without one the drill doesn't start."""


class Process(StrEnum):
    """The process that requests arrive by."""

    CONSTANT = "Constant"
    """All gaps are equal."""
    POISSON = "Poisson"
    """Gaps are distributed exponentially, as those of many independent users are."""
    GAMMA = "Gamma"
    """Gaps are distributed by a gamma distribution, burstier or smoother than Poisson."""


class SizeType(StrEnum):
    """How a number of tokens is found."""

    FIXED = "Fixed"
    """It is `value`."""
    UNIFORM = "Uniform"
    """It is drawn from `min` to `max`, each as likely."""


class Shape(StrEnum):
    """Shape of a checkpoint with random weights."""

    TINY = "tiny"
    """Two layers of 64: for tests."""
    SMALL = "small"
    """15 million parameters: quick on one core, and long enough at work to be seen."""
    LLAMA_1B = "llama-1b"
    """1.2 billion parameters in the shape of Llama 3.2 1B."""
    LLAMA_8B = "llama-8b"
    """8 billion parameters in the shape of Llama 3.1 8B."""


SHAPES: Final[tuple[str, ...]] = tuple(Shape)
"""The shapes that checkpoints are made in, from the smallest."""


class Ramp(StrEnum):
    """How a stage's rate is reached."""

    STEP = "Step"
    """It holds from the stage's start."""
    LINEAR = "Linear"
    """It is reached at the stage's end, in a straight line."""


class StageKind(StrEnum):
    """What a stage is for."""

    WARMUP = "Warmup"
    """It isn't judged."""
    BASELINE = "Baseline"
    """The everyday load."""
    BURST = "Burst"
    """A load steps up."""
    HOLD = "Hold"
    """It stays up."""
    DECAY = "Decay"
    """It goes down again."""


class FaultType(StrEnum):
    """What is broken on purpose."""

    KILL_ENGINE = "KillEngine"
    """The process of one engine gets a SIGKILL."""


class Victim(StrEnum):
    """Which engine a fault takes."""

    SERVING = "Serving"
    """Of those in rotation, the one with most requests in flight."""


class DrillMetadata(Metadata):
    """Who the scenario is; report folders are called after its name."""

    description: Annotated[
        str, text("a sentence", pattern="", longest=500, example="a burst of one model takes the spare seat")
    ] = ""
    """What it rehearses, in a sentence for the report."""


PolicyFile = Annotated[
    str, text("a path", pattern=r"^[^\x00]+$", longest=4096, example="default-policies.yaml")
]


class Policies(PolicyModel):
    """Where the fleets and scaling policies of the drill stand."""

    files: list[PolicyFile] = Field(default_factory=list)
    """Policy files, relative to the scenario's own folder."""
    documents: list[dict[str, Any]] = Field(default_factory=list)
    """`Fleet` and `ScalingPolicy` documents, written right here."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that there is something to drill."""
        if not self.files and not self.documents:
            yield Broken(
                path=(), message="no policies are given", hint="name files: [FILE], or write documents: here"
            )


class Engine(PolicyModel):
    """How the reference engines of the drill run, the same in both arms."""

    max_num_seqs: Annotated[int, integer("requests", 1, 1024, example=8)] = 8
    """Requests that one engine computes at once; more wait in the engine."""
    max_model_len: Annotated[int, integer("tokens", 16, 131_072, example=512)] = 512
    """Tokens of prompt and answer together that a request may have."""
    max_tokens_per_second: Annotated[int, integer("tokens per second", 1, _MANY, example=25)] | None = 25
    """Pace of each answer, so that a small model answers as slowly as a large one does; null for none."""
    threads: Annotated[int, integer("threads", 1, 256, example=1)] = 1
    """Compute threads of each engine."""


class Fit(PolicyModel):
    """How much of this machine the load may take: answers get shorter and slower, for what a request costs is measured first.

    An answer takes as long as before, so as many are in flight. Rates stay.
    """

    cpu_percent: Annotated[int, integer("percent", 1, 100, example=65)] = 65
    """Processor time that the busiest Hold stage is to take at most, `emberpool local` and the drill together, in percent of the
    machine. The default leaves a third free: a promotion that waits for a processor is none of the product's time."""
    min_length_percent: Annotated[int, integer("percent", 1, 100, example=25)] = 25
    """No answer gets shorter than this share of its length. Where that is still too much for the machine, the drill warns and goes
    on."""


class Machine(PolicyModel):
    """How `emberpool local` uses this machine, the same in both arms."""

    device: Device = Device.AUTO
    """Where engines run. `Auto` takes GPUs for fleets whose seats ask for them, if there are any."""
    seats_per_gpu: Annotated[int, integer("seats", 1, 64, example=3)] = 1
    """Seats that share one GPU, so that a drill with several seats fits on a machine with one."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that nothing is said of GPUs that aren't used."""
        if self.device is Device.CPU and self.given("seats_per_gpu"):
            yield _idle("seatsPerGpu", "device Auto or Cuda", "device is Cpu", "set device: Auto")


class Arrivals(PolicyModel):
    """The process that a model's requests arrive by."""

    process: Process = Process.POISSON
    """Constant gaps, exponential gaps (Poisson), or gamma-distributed ones."""
    burstiness_percent: Annotated[int, integer("percent", 1, 10_000, example=50)] = 100
    """Gamma only: 100 is Poisson, below is burstier, above is smoother."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that nothing is said of another process."""
        if self.process is not Process.GAMMA and self.given("burstiness_percent"):
            process = f"process is {self.process}"
            yield _idle("burstinessPercent", "process Gamma", process, "set process: Gamma")


class Size(PolicyModel):
    """A number of tokens: fixed, or drawn uniformly."""

    type: SizeType = SizeType.FIXED
    """Which of the two."""
    value: Tokens = 32
    """Fixed only: the number."""
    min: Tokens = 16
    """Uniform only: the smallest."""
    max: Tokens = 64
    """Uniform only: the largest."""

    @property
    def largest(self) -> int:
        """The largest number that can be drawn."""
        return self.value if self.type is SizeType.FIXED else self.max

    @property
    def smallest(self) -> int:
        """The smallest number that can be drawn."""
        return self.value if self.type is SizeType.FIXED else self.min

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rules that bounds are in order, and that nothing is said of the other type."""
        yield from as_far_as_sound(self._bounds(), self._of_the_other_type())

    def _bounds(self) -> Iterator[Broken]:
        if self.type is SizeType.UNIFORM and self.min > self.max:
            yield Broken(
                path=("min",), message=f"must be ≤ max ({self.min} > {self.max})", hint="swap the two"
            )

    def _of_the_other_type(self) -> Iterator[Broken]:
        uniform = self.type is SizeType.UNIFORM
        other = SizeType.FIXED if uniform else SizeType.UNIFORM
        for name in ("value",) if uniform else ("min", "max"):
            if self.given(name):
                yield _idle(name, f"type {other}", f"type is {self.type}", f"set type: {other}")


class Model(PolicyModel):
    """One model of the drill: its checkpoint and its baseline load."""

    policy: Name
    """Name of its ScalingPolicy."""
    shape: Shape = Shape.SMALL
    """Shape of the checkpoint with random weights that is made for it, once."""
    seed: Seed = 1
    """Seed of those weights."""
    requests_per_minute: Annotated[int, integer("requests per minute", 1, _MANY, example=60)]
    """The baseline: what 100 percent means in the stages."""
    arrivals: Arrivals = Arrivals()
    """How requests arrive."""
    prompt_tokens: Size = Size()
    """Length of prompts (reckoned in bytes, which are the tokens of the checkpoints that the drill makes)."""
    output_tokens: Size = Size()
    """Length of answers; the end-of-sequence token is ignored and the length checked."""
    stream_percent: Percent = 100
    """Share of requests that ask for a stream. TTFT is known of streamed answers only."""


class Load(PolicyModel):
    """How fast one model's requests arrive in a stage: give `percent` or `requestsPerMinute`."""

    policy: Name
    """The model's policy."""
    percent: Annotated[int, integer("percent", 0, 100_000, example=300)] | None = None
    """In percent of its baseline."""
    requests_per_minute: Annotated[int, integer("requests per minute", 0, _MANY, example=180)] | None = None
    """Or absolutely."""
    ramp: Ramp = Ramp.STEP
    """How the rate is reached. The default is `Step`."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that the rate is given once."""
        if self.percent is None and self.requests_per_minute is None:
            names = ("percent", "requestsPerMinute")
            name, other = names[::-1] if self.given("requests_per_minute") else names
            hint = "percent: 300 is three times the model's baseline"
            yield Broken(path=(name,), message=f"is missing, and so is {other}", hint=hint)
        elif self.percent is not None and self.requests_per_minute is not None:
            yield Broken(
                path=("requestsPerMinute",),
                message="is given, and percent as well",
                hint="keep one of the two",
            )


class Stage(PolicyModel):
    """A part of the load."""

    name: Name
    """Unique in the scenario."""
    kind: StageKind
    """Warmup isn't judged; Burst is where a load steps up; Hold keeps it up; Decay lets it down."""
    seconds: Annotated[int, integer("seconds", 1, _DAY, example=20)]
    """How long it lasts."""
    loads: list[Load] = Field(default_factory=list)
    """Models that are not named run at 100 percent of their baseline."""


class Fault(PolicyModel):
    """Something that is broken on purpose."""

    type: FaultType
    """What is broken."""
    at_seconds: Annotated[int, integer("seconds", 0, 365 * _DAY, example=30)]
    """When, in seconds after the start of the load."""
    policy: Name
    """Whose engine."""
    which: Victim = Victim.SERVING
    """Which of its engines."""


class Thresholds(PolicyModel):
    """What the verdict asks for. A check that isn't named isn't made; a check that can't be measured fails."""

    max_failures: Requests = 0
    """Requests that may fail, in each arm; interrupted streams are counted apart."""
    max_interrupted_streams: Annotated[int, integer("streams", 0, _MANY, example=0)] = 0
    """Streams that may end in mid-answer with a clear error event, in each arm (an engine was killed on purpose)."""
    burst_ttft_p99_milliseconds: Milliseconds | None = None
    """Warm arm: p99 of the bursting models' TTFT over all Burst stages."""
    promotion_p99_milliseconds: Milliseconds | None = None
    """Warm arm: p99 of sample → first token over all promotions onto a spare seat."""
    label_p99_milliseconds: Milliseconds | None = None
    """Warm arm: p99 of claim → rotation over all promotions onto a spare seat."""
    switch_p99_milliseconds: Milliseconds | None = None
    """Warm arm: the same over all switches, whose drain counts."""
    min_promotions: Annotated[int, integer("promotions", 0, _MANY, example=1)] | None = None
    """Warm arm: promotions, switches and recalls that must take place during the load."""
    recovery_seconds: Annotated[int, integer("seconds", 0, _DAY, example=5)] | None = None
    """Warm arm: time from the start of each burst until all requests keep the objective."""
    warm_vs_cold_burst_ttft_ratio: Annotated[int, integer("ratio", 1, _MANY, example=5)] | None = None
    """Cold arm's p99 of the bursting models' TTFT over all Burst stages must be at least so many times the warm arm's."""
    replacement_seconds: Annotated[int, integer("seconds", 1, _DAY, example=30)] | None = None
    """Each killed engine must be replaced within this time, and its neighbours on the seat must go on."""
    cpu_percent: Percent = 85
    """Warning only: mean CPU of the whole machine in the Hold stages."""
    generator_lag_p99_milliseconds: Milliseconds = 20
    """Warning only: p99 of how late the load generator itself sent its requests."""


_MEASURED_IN: Final = {
    StageKind.BURST: (
        "burst_ttft_p99_milliseconds",
        "recovery_seconds",
        "warm_vs_cold_burst_ttft_ratio",
    ),
    StageKind.HOLD: ("cpu_percent",),
}
"""Thresholds by the kind of the stages that they are measured in (`scaler.drill.checks`)."""


class Spec(PolicyModel):
    """What the drill does."""

    seed: Seed = 1
    """Seed of arrivals, prompts and lengths."""
    policies: Policies
    """The fleets and scaling policies that are drilled."""
    machine: Machine = Machine()
    """How this machine is used."""
    engine: Engine = Engine()
    """The engines."""
    fit: Fit | None = None
    """How much of this machine the load may take. What a request costs is measured first, and answers get fewer tokens at a slower
    pace, so that each takes as long. Without `fit` they are as long as is said here, whatever that takes."""
    models: Annotated[list[Model], Field(min_length=1)]
    """The models and their baseline."""
    stages: Annotated[list[Stage], Field(min_length=1)]
    """The load, stage after stage."""
    faults: list[Fault] = Field(default_factory=list)
    """What is broken on purpose."""
    thresholds: Thresholds = Thresholds()
    """What the verdict asks for."""
    request_timeout_seconds: Annotated[int, integer("seconds", 1, 3600, example=60)] = 60
    """A request that has no whole answer after this time has failed."""

    @property
    def seconds(self) -> int:
        """How long the load lasts."""
        return sum(stage.seconds for stage in self.stages)

    def broken_rules(self) -> Iterator[Broken]:
        """Yield what is wrong between the models, the stages, the faults and the thresholds."""
        yield from as_far_as_sound(
            repeated(("models",), self.models, "policy"),
            self._too_long(),
            repeated(("stages",), self.stages, "name"),
            self._loads(),
            self._faults_of_nobody(),
            self._faults_too_late(),
            self._without_faults(),
            self._without_stages(),
            self._fit_without_pace(),
            self._fit_without_hold(),
        )

    def _too_long(self) -> Iterator[Broken]:
        limit = self.engine.max_model_len
        for index, model in sound_entries(self.models):
            with suppress(Unsound):
                # one token more than the text: tokenizers put a begin-of-sequence token in front
                whole = model.prompt_tokens.largest + 1 + model.output_tokens.largest
                if whole > limit:
                    yield Broken(
                        path=("models", index),
                        message=f"prompt and answer can have {whole} tokens, more than engine.maxModelLen ({limit})",
                        hint="raise spec.engine.maxModelLen or shorten promptTokens or outputTokens",
                    )

    def _loads(self) -> Iterator[Broken]:
        for index, stage in sound_entries(self.stages):
            with suppress(Unsound):
                path = ("stages", index, "loads")
                yield from repeated(path, stage.loads, "policy")
                for number, load in sound_entries(stage.loads):
                    yield from as_far_as_sound(self._unknown((*path, number, "policy"), load))

    def _faults_of_nobody(self) -> Iterator[Broken]:
        for index, fault in sound_entries(self.faults):
            yield from as_far_as_sound(self._unknown(("faults", index, "policy"), fault))

    def _faults_too_late(self) -> Iterator[Broken]:
        seconds = self.seconds
        for index, fault in sound_entries(self.faults):
            with suppress(Unsound):
                if fault.at_seconds >= seconds:
                    yield Broken(
                        path=("faults", index, "atSeconds"),
                        message=f"the load is over after {seconds} s",
                        hint="choose a time within the stages",
                    )

    def _without_faults(self) -> Iterator[Broken]:
        """A check that is never made looks like one that passes."""
        if self.thresholds.replacement_seconds is not None and not self.faults:
            yield _unmeasured("replacementSeconds", "spec.faults is empty", "add a fault of type KillEngine")

    def _without_stages(self) -> Iterator[Broken]:
        kinds = {stage.kind for stage in self.stages}
        for kind, names in _MEASURED_IN.items():
            for name in names if kind not in kinds else ():
                if self.thresholds.given(name) and getattr(self.thresholds, name) is not None:
                    yield _unmeasured(key(name), f"no stage has kind {kind}", f"give a stage kind: {kind}")

    def _fit_without_pace(self) -> Iterator[Broken]:
        if self.fit is not None and self.engine.max_tokens_per_second is None:
            message = (
                "shorter answers keep their time by a slower pace, and engine.maxTokensPerSecond is null"
            )
            hint = "set engine.maxTokensPerSecond, or remove fit"
            yield Broken(path=("fit",), message=message, hint=hint)

    def _fit_without_hold(self) -> Iterator[Broken]:
        if self.fit is not None and StageKind.HOLD not in {stage.kind for stage in self.stages}:
            message = "there is nothing that the load is fitted to: no stage has kind Hold"
            hint = "give a stage kind: Hold, or remove fit"
            yield Broken(path=("fit",), message=message, hint=hint)

    def _unknown(self, path: Path, of: Load | Fault) -> Iterator[Broken]:
        names = [model.policy for model in self.models]
        if of.policy not in names:
            message = f"no model of this drill has policy {of.policy}"
            hint = did_you_mean(of.policy, names) or f"known: {', '.join(names)}"
            yield Broken(path=path, message=message, hint=hint)


def _idle(name: str, needs: str, found: str, mend: str) -> Broken:
    """Say of a key that nothing looks at it, because of what another key says."""
    return Broken(path=(name,), message=f"is for {needs}, and {found}", hint=f"{mend}, or remove {name}")


def _unmeasured(name: str, why: str, mend: str) -> Broken:
    """Say of a threshold that nothing is held against it."""
    message = f"nothing is measured for it: {why}"
    return Broken(path=("thresholds", name), message=message, hint=f"{mend}, or remove {name}")


class Scenario(Envelope):
    """A rehearsed burst: the models, the load stage by stage, and what the verdict asks for."""

    kind: Literal["DrillScenario"]
    """Which format the document has."""
    metadata: DrillMetadata
    """Name and description."""
    spec: Spec
    """What it does."""
