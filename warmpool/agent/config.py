"""The agent's config file: read once, checked whole, every error named by its key."""

import json
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from warmpool.agent.annotations import laid_over, read_annotations
from warmpool.engines.kinds import EngineKind
from warmpool.engines.port import KvWhenPaused
from warmpool.errors import StartFailed
from warmpool.expectations import Answer, Ownership

_Name = Annotated[str, StringConstraints(min_length=1, max_length=63)]
_Container = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]
_Prompt = Annotated[str, StringConstraints(min_length=1)]
_TokenId = Annotated[int, Field(ge=0)]
_URL = TypeAdapter(HttpUrl)
_UNIX = "unix:///"
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


def untold(placeholders: Sequence[str], command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the first placeholder that neither an argument nor a variable contains; empty if none is missing."""
    given = (*command, *environment.values())
    return next((each for each in placeholders if not any(each in text for text in given)), "")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class Expectation(_Strict):
    """A prompt and the tokens that a sound engine answers it with, greedily.

    Attributes:
        prompt: the prompt's text.
        tokens: the expected token ids, in order; none where residents are to agree on them.
        logprobs: the log-probability of each of them; empty if it wasn't recorded.
    """

    prompt: _Prompt
    tokens: tuple[_TokenId, ...] = ()
    logprobs: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _logprobs_belong_to_tokens(self) -> Self:
        if self.logprobs and len(self.logprobs) != len(self.tokens):
            raise ValueError(
                f"logprobs: {len(self.logprobs)} for {len(self.tokens)} tokens; it takes one for each"
            )
        return self

    def answer(self) -> Answer:
        """Return it as what is compared."""
        return Answer(prompt=self.prompt, tokens=self.tokens, logprobs=self.logprobs)


class Owner(_Strict):
    """What an expectation was recorded with. What is left out is not compared.

    Attributes:
        weights_digest: hash of the weights.
        engine_version: version of the engine, as that tells it.
        dtype: number format of the weights.
        tensor_parallel_size: over how many devices each tensor is split.
    """

    weights_digest: str = ""
    engine_version: str = ""
    dtype: str = ""
    tensor_parallel_size: int | None = Field(default=None, ge=1)

    def ownership(self) -> Ownership:
        """Return it as what is compared."""
        return Ownership(
            weights_digest=self.weights_digest,
            engine_version=self.engine_version,
            dtype=self.dtype,
            tensor_parallel_size=self.tensor_parallel_size or 0,
        )


class Proof(_Strict):
    """What a resident has to answer before it may serve; recorded elsewhere, never by the resident itself.

    Attributes:
        prompts: the recorded set; a proof takes some of them at random.
        agree: nobody has recorded tokens; what two residents answer alike is what all have to answer.
        max_tokens: tokens that each prompt is answered with where residents are to agree.
        ownership: what it was recorded with.
        tolerance: how much a token's log-probability may differ, where it was recorded and the engine tells it.
    """

    prompts: tuple[Expectation, ...] = Field(min_length=1)
    agree: bool = False
    max_tokens: int = Field(default=16, ge=1, le=4096)
    ownership: Owner = Owner()
    tolerance: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _has_tokens_or_will(self) -> Self:
        for place, prompt in enumerate(self.prompts):
            if self.agree and prompt.tokens:
                raise ValueError(
                    f"prompts[{place}].tokens: residents agree on them (agree: true), so none are given"
                )
            if not self.agree and not prompt.tokens:
                raise ValueError(
                    f"prompts[{place}].tokens: at least one, or agree: true to have residents agree on them"
                )
        return self


class Warmup(_Strict):
    """Requests that run before a resident counts as warm.

    Attributes:
        prompts: their prompts.
        prompt_tokens: lengths of further prompts, in tokens, which are made up; left out, they follow from what the engine takes.
        batch_sizes: how many of those are computed at once; left out, they follow from the resident's `targetInFlight`.
        max_tokens: tokens that each of them generates.
    """

    prompts: tuple[_Prompt, ...] = ()
    prompt_tokens: tuple[Annotated[int, Field(ge=1, le=1 << 20)], ...] | None = Field(
        default=None, max_length=32
    )
    batch_sizes: tuple[Annotated[int, Field(ge=1, le=4096)], ...] | None = Field(default=None, max_length=32)
    max_tokens: int = Field(default=8, ge=1, le=4096)


class GuardForm(StrEnum):
    """What keeps clients from an engine that has no guard of its own."""

    PORT = "Port"
    """A port of the agent's, on which requests are passed on; the engine listens on `{controlPort}`."""
    MIDDLEWARE = "Middleware"
    """`guard_middleware.Guard` inside the engine, which listens on `{port}`; the guard's control side is `{controlPort}`."""


class GraphCapture(StrEnum):
    """When an engine captures its CUDA graphs."""

    AT_START = "AtStart"
    """Before it is ready."""
    WHILE_PAUSED = "WhilePaused"
    """Once it could be promoted, whenever nobody has the seat: until then it computes operation by operation."""


class ResidentConfig(_Strict):
    """One engine of the seat.

    Attributes:
        policy: the policy that it belongs to.
        model: the name that its completions route knows it by.
        checkpoint: directory of its weights, by the path that the node's stage daemon knows; left out, as its command has it.
        container: the pod's container in which its engine runs, where that has a launcher of its own.
        command: program and arguments; `{host}`, `{port}` and `{controlPort}` are filled in at each start. Left out, what its
            launcher was given.
        environment: variables set beside the agent's own; the same is filled in there.
        type: which adapter speaks to it.
        guard: what keeps clients from it; the reference engine has a guard of its own.
        proof: what it has to answer.
        warmup: requests that run before the first proof.
        graph_capture: when its engine captures its CUDA graphs.
        target_in_flight: requests that it is to hold at once, as its policy says; left out, warm-up sends only what it is told.
        port: at which clients reach it; left out, one that is free. The pod's template says it, and Services aim at it.
        memory_mib: device memory that it holds while it is paused and its KV memory is given back, in MiB. What is measured
            counts more.
        kv_mib: KV memory that it takes to compute, in MiB. What the engine tells counts more.
        activation_mib: what it takes beside that while it computes, in MiB.
    """

    policy: _Name
    model: _Name
    checkpoint: str = ""
    container: _Container = ""
    command: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    type: EngineKind = EngineKind.REFERENCE
    guard: GuardForm = GuardForm.PORT
    proof: Proof
    warmup: Warmup = Warmup()
    graph_capture: GraphCapture = GraphCapture.AT_START
    target_in_flight: int | None = Field(default=None, ge=1, le=100_000)
    port: int | None = Field(default=None, ge=1, le=65535)
    memory_mib: int | None = Field(default=None, ge=1, alias="memoryMiB")
    kv_mib: int | None = Field(default=None, ge=0, alias="kvMiB")
    activation_mib: int | None = Field(default=None, ge=0, alias="activationMiB")

    @model_validator(mode="after")
    def _is_told_its_ports(self) -> Self:
        if self.command and (placeholder := untold(self.placeholders, self.command, self.environment)):
            raise ValueError(
                f"command: neither an argument nor a variable contains {placeholder}: the agent chooses the port and has "
                "to tell the engine"
            )
        return self

    @property
    def placeholders(self) -> tuple[str, ...]:
        """What the engine has to be told. With the agent's port in front of it, it listens on `{controlPort}` alone."""
        if self.type is not EngineKind.REFERENCE and self.guard is GuardForm.PORT:
            return ("{controlPort}",)
        return ("{port}", "{controlPort}")


class Memory(_Strict):
    """What a seat may take.

    Attributes:
        device_mib: device memory of the seat, in MiB, where less than all of its GPUs' or where nothing measures that.
        host_mib: host memory for the weights of parked residents, in MiB; 0 lets none be parked.
    """

    device_mib: int | None = Field(default=None, ge=1, alias="deviceMiB")
    host_mib: int = Field(default=0, ge=0, alias="hostMiB")


CONTAINER: Final = "{container}"
"""Placeholder in `launcher` for the name of a resident's container: each of them has a launcher of its own."""


class GpuHealth(StrEnum):
    """What the node's word on the seat's GPUs does."""

    ENFORCE = "Enforce"
    """Nobody is promoted onto a GPU that is Suspect or Bad."""
    OBSERVE = "Observe"
    """Nothing."""


class AgentConfig(_Strict):
    """One seat.

    Attributes:
        seat: the seat's name.
        fleet: the fleet that it belongs to.
        uid: the seat's identity; a new seat of the same name has another.
        host: address on which the agent and its engines listen.
        port: the agent's port; 0 picks a free one, which every push tells.
        controllers: base URLs to which the state is pushed.
        gpus: UUIDs or indices of the seat's GPUs.
        log_directory: where engines' logs go; a launcher's engines log through the launcher, and it may be left out.
        launcher: socket of the launcher that starts the engines; with `{container}` in it each container has one. Without one
            the agent starts them itself.
        node_agent: where the node's memory is asked for: `unix:///run/…`, or `http://` on loopback. Empty: nobody is asked.
        stage_daemon: where the node's stage daemon is asked what it takes of the GPUs: `unix:///run/…`. Empty: nobody is asked.
        gpu_health: whether what the node says of the seat's GPUs keeps residents from being promoted there.
        compile_cache: directory in which engines keep what they compile, for the next start to find; the same path where they run.
            Left out, each keeps it where it does anyway.
        memory: what the seat may take.
        kv_when_paused: what becomes of the KV memory of a paused resident; if left out it is kept by one that is alone.
        exclusive: one resident computes at a time.
        start_deadline_seconds: how long an engine may take from its start until its weights are loaded.
        residents: the engines, in the order in which they start when nobody says otherwise.
    """

    seat: _Name
    fleet: _Name
    uid: str
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    controllers: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    log_directory: Path | None = None
    launcher: Path | None = None
    node_agent: str = ""
    stage_daemon: str = ""
    gpu_health: GpuHealth = GpuHealth.ENFORCE
    compile_cache: Path | None = None
    memory: Memory = Memory()
    kv_when_paused: KvWhenPaused | None = None
    exclusive: bool = True
    start_deadline_seconds: float = Field(default=900, gt=0)
    residents: tuple[ResidentConfig, ...] = Field(min_length=1)

    @field_validator("controllers")
    @classmethod
    def _are_urls(cls, controllers: tuple[str, ...]) -> tuple[str, ...]:
        for url in controllers:
            _URL.validate_python(url)
        return tuple(url.rstrip("/") for url in controllers)

    @field_validator("node_agent")
    @classmethod
    def _is_local(cls, node_agent: str) -> str:
        if node_agent and not node_agent.startswith(_UNIX):
            host = _URL.validate_python(node_agent).host
            if host not in _LOOPBACK:
                raise ValueError(
                    f"{host} is another machine: unix:///PATH, or http:// with a loopback address"
                )
        return node_agent.rstrip("/")

    @field_validator("stage_daemon")
    @classmethod
    def _is_a_socket(cls, stage_daemon: str) -> str:
        if stage_daemon and not stage_daemon.startswith(_UNIX):
            raise ValueError(f"{stage_daemon} is no socket of this machine: unix:///PATH")
        return stage_daemon

    @field_validator("compile_cache")
    @classmethod
    def _is_the_same_everywhere(cls, compile_cache: Path | None) -> Path | None:
        if compile_cache is not None and not compile_cache.is_absolute():
            raise ValueError(
                f"{compile_cache} is relative; it takes a path that is the same in every container"
            )
        return compile_cache

    @model_validator(mode="after")
    def _has_a_place_for_logs(self) -> Self:
        if self.log_directory is None and self.launcher is None:
            raise ValueError("logDirectory: without a launcher the engines' logs have to go somewhere")
        return self

    @model_validator(mode="after")
    def _is_known_how_each_is_started(self) -> Self:
        for place, resident in enumerate(self.residents):
            if self.launcher is None and not resident.command:
                raise ValueError(
                    f"residents[{place}].command: missing; only a launcher can have been given it in its place"
                )
            if self.apart and not resident.container:
                raise ValueError(
                    f"residents[{place}].container: missing; launcher has {CONTAINER} in it, so each resident needs one"
                )
        return self

    @model_validator(mode="after")
    def _policies_differ(self) -> Self:
        policies = [resident.policy for resident in self.residents]
        twice = sorted({policy for policy in policies if policies.count(policy) > 1})
        if twice:
            raise ValueError(
                f"residents: more than one of policy {', '.join(twice)}; a seat has one resident of a policy"
            )
        return self

    @property
    def apart(self) -> bool:
        """Whether containers have launchers of their own."""
        return self.launcher is not None and CONTAINER in str(self.launcher)

    def socket_of(self, resident: ResidentConfig) -> Path | None:
        """Return the socket of the launcher that starts a resident's engine; None where the agent does."""
        if self.launcher is None:
            return None
        return Path(str(self.launcher).replace(CONTAINER, resident.container))

    @property
    def stage_socket(self) -> Path | None:
        """The stage daemon's socket; None where nobody is asked."""
        return Path(self.stage_daemon.removeprefix("unix://")) if self.stage_daemon else None

    @property
    def shared(self) -> bool:
        """Whether several residents live on the seat."""
        return len(self.residents) > 1

    @property
    def kv(self) -> KvWhenPaused:
        """What becomes of the KV memory of a paused resident: one that shares its seat gives it back unless told otherwise."""
        if self.kv_when_paused is not None:
            return self.kv_when_paused
        return KvWhenPaused.RELEASE if self.shared else KvWhenPaused.KEEP


SEAT_VARIABLE: Final = "EMBERPOOL_SEAT"
"""Environment variable that names the seat, where its config is all its fleet's: the pod's name."""
POD_VARIABLE: Final = "EMBERPOOL_POD_UID"
"""Environment variable with the UID of the agent's pod: by it a node agent knows whose memory it is asked for, and it is the seat's
identity where its config has none."""
NODE_VARIABLE: Final = "EMBERPOOL_NODE_AGENT"
"""Environment variable that says where the node's memory is asked for, where a config doesn't."""

STAGE_VARIABLE: Final = "EMBERPOOL_STAGE"
"""Environment variable that says where the node's stage daemon listens, where a config doesn't; engines read it, too."""


def load_config(path: Path, annotations: Path | None = None) -> AgentConfig:
    """Read and check a config file.

    Args:
        path: the file.
        annotations: the downward API's file of the pod's annotations, which are laid over it.

    Raises:
        StartFailed: it can't be read, or something in it is wrong; the message names each key and what is wrong with it.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartFailed(f"{path}: can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise StartFailed(f"{path}: not JSON: {error}") from error
    if isinstance(raw, dict):
        named = {
            "seat": os.environ.get(SEAT_VARIABLE),
            "uid": os.environ.get(POD_VARIABLE),
            "nodeAgent": os.environ.get(NODE_VARIABLE),
            "stageDaemon": os.environ.get(STAGE_VARIABLE),
        }
        raw = {**{key: value for key, value in named.items() if value}, **raw}
        raw = raw if annotations is None else laid_over(raw, read_annotations(annotations))
    try:
        return AgentConfig.model_validate(raw)
    except ValidationError as error:
        raise StartFailed("\n".join(_complaints(path, error))) from error


def _complaints(path: Path, error: ValidationError) -> list[str]:
    return [
        f"{path}: {_key(complaint['loc'])}: {complaint['msg'].removeprefix('Value error, ')}"
        for complaint in error.errors()
    ]


def _key(location: tuple[int | str, ...]) -> str:
    key = ""
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
    return key.removeprefix(".") or "the file"
