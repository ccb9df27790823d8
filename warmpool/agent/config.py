"""The agent's config file: read once, checked whole, every error named by its key."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

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

from warmpool.engines.kinds import EngineKind
from warmpool.errors import StartFailed

_Name = Annotated[str, StringConstraints(min_length=1, max_length=63)]
_Prompt = Annotated[str, StringConstraints(min_length=1)]
_TokenId = Annotated[int, Field(ge=0)]
_URL = TypeAdapter(HttpUrl)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class Expectation(_Strict):
    """A prompt and the tokens that a sound engine answers it with, greedily.

    Attributes:
        prompt: the prompt's text.
        tokens: the expected token ids, in order.
    """

    prompt: _Prompt
    tokens: tuple[_TokenId, ...] = Field(min_length=1)


class Proof(_Strict):
    """What a resident has to answer before it may serve; recorded elsewhere, never by the resident itself.

    Attributes:
        prompts: the recorded set; a proof takes some of them at random.
    """

    prompts: tuple[Expectation, ...] = Field(min_length=1)


class Warmup(_Strict):
    """Requests that run before a resident counts as warm.

    Attributes:
        prompts: their prompts.
        max_tokens: tokens that each of them generates.
    """

    prompts: tuple[_Prompt, ...] = ()
    max_tokens: int = Field(default=8, ge=1, le=4096)


class GuardForm(StrEnum):
    """What keeps clients from an engine that has no guard of its own."""

    PORT = "Port"
    """A port of the agent's, on which requests are passed on; the engine listens on `{controlPort}`."""
    MIDDLEWARE = "Middleware"
    """`guard_middleware.Guard` inside the engine, which listens on `{port}`; the guard's control side is `{controlPort}`."""


class ResidentConfig(_Strict):
    """One engine of the seat.

    Attributes:
        policy: the policy that it belongs to.
        model: the name that its completions route knows it by.
        command: program and arguments; `{host}`, `{port}` and `{controlPort}` are filled in at each start.
        environment: variables set beside the agent's own.
        type: which adapter speaks to it.
        guard: what keeps clients from it; the reference engine has a guard of its own.
        proof: what it has to answer.
        warmup: requests that run before the first proof.
        memory_mib: device memory that it is expected to hold while paused, in MiB; shown, not enforced.
    """

    policy: _Name
    model: _Name
    command: tuple[str, ...] = Field(min_length=1)
    environment: dict[str, str] = {}
    type: EngineKind = EngineKind.REFERENCE
    guard: GuardForm = GuardForm.PORT
    proof: Proof
    warmup: Warmup = Warmup()
    memory_mib: int | None = Field(default=None, ge=1, alias="memoryMiB")

    @field_validator("command")
    @classmethod
    def _has_ports(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        for placeholder in ("{port}", "{controlPort}"):
            if not any(placeholder in argument for argument in command):
                raise ValueError(
                    f"no argument contains {placeholder}: the agent chooses the ports and has to tell the engine"
                )
        return command


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
        log_directory: where engines' logs go; a launcher's engines log through the launcher.
        launcher: socket of the launcher that starts the engines; without one the agent starts them itself.
        exclusive: one resident computes at a time.
        start_deadline_seconds: how long an engine may take from its start until its weights are loaded.
        residents: the engines, in the order in which they start.
    """

    seat: _Name
    fleet: _Name
    uid: str
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    controllers: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    log_directory: Path
    launcher: Path | None = None
    exclusive: bool = True
    start_deadline_seconds: float = Field(default=900, gt=0)
    residents: tuple[ResidentConfig, ...] = Field(min_length=1)

    @field_validator("controllers")
    @classmethod
    def _are_urls(cls, controllers: tuple[str, ...]) -> tuple[str, ...]:
        for url in controllers:
            _URL.validate_python(url)
        return tuple(url.rstrip("/") for url in controllers)

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
    def shared(self) -> bool:
        """Whether several residents live on the seat, so that a paused one has to give its KV memory back."""
        return len(self.residents) > 1


def load_config(path: Path) -> AgentConfig:
    """Read and check a config file.

    Raises:
        StartFailed: it can't be read, or something in it is wrong; the message names each key and what is wrong with it.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartFailed(f"{path}: can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise StartFailed(f"{path}: not JSON: {error}") from error
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
