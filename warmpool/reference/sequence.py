"""One request on its way through the engine: what it asked for, what it has so far, what comes out of it."""

from dataclasses import dataclass, field
from enum import StrEnum

from warmpool.reference.tokenizer import TextStream


class FinishReason(StrEnum):
    """Why a sequence ended, as vLLM's `finished_reason` label and OpenAI's `finish_reason` spell it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        max_tokens: at most so many are generated.
        temperature: 0 takes the most likely token.
        top_p: only the most likely tokens that together reach this probability are drawn from.
        seed: with the token's number it decides every draw, so a request with a seed repeats exactly, in any batch.
        stop: strings that end the sequence and aren't shown.
        ignore_eos: go on past the model's end-of-sequence token.
        logprobs: how many most likely tokens are reported beside the chosen one; None for no report.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities, before temperature.

    Attributes:
        chosen: of the token that was taken.
        top: token id and value of the most likely ones, best first.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One chosen token."""

    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True, kw_only=True)
class Sequence:
    """A request's state while it waits and runs. Only the compute thread touches it after it was submitted.

    Attributes:
        key: unique per engine.
        prompt: token ids.
        sampling: how tokens are chosen.
        text: turns its tokens into text.
        arrived: when it was submitted, in seconds of the engine's clock.
        generated: token ids so far.
        due: the tick from which its next token may be computed.
        started: when its prompt was begun, in seconds of the engine's clock; None before.
    """

    key: int
    prompt: list[int]
    sampling: Sampling
    text: TextStream
    arrived: float
    generated: list[int] = field(default_factory=list)
    due: int = 0
    started: float | None = None

    @property
    def tokens(self) -> list[int]:
        """Prompt and generated tokens."""
        return self.prompt + self.generated

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return len(self.prompt) + len(self.generated)

    @property
    def most(self) -> int:
        """How many tokens it may come to have."""
        return len(self.prompt) + self.sampling.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one step brought one sequence.

    Attributes:
        key: the sequence's.
        token: the new token; None when it ended without one.
        text: what may be shown now.
        logprobs: if they were asked for.
        finish: why it ended, if it did.
        stop_reason: the stop string that ended it, if one did.
        error: what went wrong, if `finish` is an error.
    """

    key: int
    token: int | None = None
    text: str = ""
    logprobs: TokenLogprobs | None = None
    finish: FinishReason | None = None
    stop_reason: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the engine is after a step.

    Attributes:
        running: sequences that have KV memory.
        waiting: sequences that wait for a place; 0 while paused, when nothing waits for a place.
        kv_usage: share of the KV memory's positions that hold a token, 0 to 1.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
