"""What a start leaves to the first clients: warm-up that doesn't go as far as the policy sends, or further than the engine takes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from scaler.policy.command_line import has, value_of
from scaler.policy.lint.arguments import started_with
from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import Finding, Place, Severity
from scaler.policy.lint.subject import Subject
from scaler.policy.scaling_policy import EngineType, GraphCapture, ScalingPolicy

_AT_ONCE: Final[Mapping[EngineType, str]] = {
    EngineType.REFERENCE: "--max-num-seqs",
    EngineType.VLLM: "--max-num-seqs",
    EngineType.SGLANG: "--max-running-requests",
}
"""By engine, the argument that says how many sequences it computes at once."""
_LENGTH: Final[Mapping[EngineType, str]] = {
    EngineType.REFERENCE: "--max-model-len",
    EngineType.VLLM: "--max-model-len",
    EngineType.SGLANG: "--context-length",
}
"""By engine, the argument that says how many tokens a sequence may have."""
_ANSWER: Final = 8
"""Tokens that a warm-up request is answered with where nobody says it (`warmpool.agent.config.Warmup`)."""


def starting_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is to be said of every policy's warm-up."""
    for policy in subject.policies.policies.values():
        yield from _falls_short(policy)
        yield from _refused(subject, policy)
        yield from _graphs(subject, policy)


def _falls_short(policy: ScalingPolicy) -> Iterator[Finding]:
    sizes = policy.spec.engine.warmup.batch_sizes
    if sizes is None:
        return
    largest = max(sizes, default=1)
    share = max(policy.spec.fleets, key=lambda each: each.target_in_flight)
    if largest < share.target_in_flight:
        yield Finding(
            code=Code.WARM_UP_FALLS_SHORT,
            severity=Severity.WARNING,
            place=Place.of(policy, "spec", "engine", "warmup", "batchSizes"),
            message=(
                f"a resident on {share.name} holds up to {share.target_in_flight} requests, and more than {largest} at once are"
                " computed for the first time in front of clients"
            ),
            hint=f"add {share.target_in_flight}, or leave batchSizes out: they then go as far as targetInFlight does",
        )


def _refused(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    engine = policy.spec.engine
    if engine.type not in _LENGTH:
        return
    warmup, words = engine.warmup, _words(subject, policy)
    answer = _ANSWER if warmup.max_tokens is None else warmup.max_tokens
    longest = max(warmup.prompt_tokens) + answer if warmup.prompt_tokens else 0
    largest = max(warmup.batch_sizes or (), default=0)
    for flag, wanted, path, what in (
        (_LENGTH[engine.type], longest, "promptTokens", f"a prompt and its answer come to {longest} tokens"),
        (_AT_ONCE[engine.type], largest, "batchSizes", f"{largest} requests are sent at once"),
    ):
        most = _whole(value_of(words, flag))
        if most is not None and wanted > most:
            yield Finding(
                code=Code.WARM_UP_EXCEEDS_ENGINE,
                severity=Severity.WARNING,
                place=Place.of(policy, "spec", "engine", "warmup", path),
                message=f"{what}, and the engine is started with {flag} {most}: that is never computed so",
                hint=f"ask for no more than {flag} allows, or raise that",
            )


def _graphs(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """A wish to capture graphs later where the engine can't, or captures none at all."""
    engine = policy.spec.engine
    if engine.graph_capture is not GraphCapture.WHILE_PAUSED:
        return
    message = ""
    if engine.type is not EngineType.REFERENCE:
        message = f"{engine.type} captures its graphs before it is ready, or with --enforce-eager never: that can't be undone while it runs"
    elif has(_words(subject, policy), "--enforce-eager"):
        message = "it is started with --enforce-eager, so that there are no graphs to capture, now or later"
    if message:
        yield Finding(
            code=Code.GRAPHS_AT_START,
            severity=Severity.WARNING,
            place=Place.of(policy, "spec", "engine", "graphCapture"),
            message=message,
            hint="leave graphCapture away; a shared compile cache makes such starts shorter",
        )


def _words(subject: Subject, policy: ScalingPolicy) -> Sequence[str]:
    """Return what is known of an engine's command: the policy's arguments, and the first pod template's that is shown."""
    known = [started_with(subject, policy, fleet) for fleet in subject.fleets_of(policy)]
    return next((each.words for each in known if each.whole), policy.spec.engine.args)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
