"""Who may prove itself against what: an expectation belongs to what it was computed with, and nobody is its own witness.

Tokens differ between engine versions, dtypes and ways to split a model without anything being wrong, so an expectation says
which of those it was recorded with, and is compared with nothing else. One that no manifest gives is made by residents that
agree: each tells what it answers (a statement), and what two of them answer alike is a recording. A resident that alone has
witnessed a recording would only find that it is itself, so it stays unproven. PURE: no I/O, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

PROMPTS: Final = (
    "The quick brown fox",
    "In the beginning",
    "def main():",
    "Once upon a time",
    "Q: What is the capital of France?\nA:",
    "3.14159",
    "To be, or not to be",
    "SELECT name FROM",
)
"""What is asked where nobody says it: short and unlike each other, so that they cross different embeddings; a proof takes some of
them at random."""
LEAST_WITNESSES: Final = 2
"""Residents that must agree before what they answer counts as right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What an expectation belongs to, or what an engine runs with. What isn't known is empty, and agrees with everything.

    Attributes:
        weights_digest: hash of the weights, as whoever recorded it made it.
        engine_version: version of the engine, as that tells it.
        dtype: number format of the weights.
        tensor_parallel_size: over how many devices each tensor is split; 0 if unknown.
    """

    weights_digest: str = ""
    engine_version: str = ""
    dtype: str = ""
    tensor_parallel_size: int = 0

    def differences(self, running: "Ownership") -> Sequence[str]:
        """Say in words in what an engine differs from what this belongs to, as far as both are known."""
        pairs = (
            ("weights digest", self.weights_digest, running.weights_digest),
            ("engine version", self.engine_version, running.engine_version),
            ("dtype", self.dtype, running.dtype),
            ("tensor parallel size", self.tensor_parallel_size, running.tensor_parallel_size),
        )
        return tuple(
            f"{what} {there} where {here} was recorded"
            for what, here, there in pairs
            if here and there and here != there
        )

    def other_weights(self, running: "Ownership") -> bool:
        """Whether an engine has other weights than were recorded, where nothing else explains another digest.

        Digests are of the weights as each device has them, so another dtype or another split changes them, too.
        """
        form = Ownership(dtype=self.dtype, tensor_parallel_size=self.tensor_parallel_size)
        digest = Ownership(weights_digest=self.weights_digest)
        return bool(digest.differences(running)) and not form.differences(running)

    def completed(self, other: "Ownership") -> "Ownership":
        """Return it with what only the other one knows."""
        return Ownership(
            weights_digest=self.weights_digest or other.weights_digest,
            engine_version=self.engine_version or other.engine_version,
            dtype=self.dtype or other.dtype,
            tensor_parallel_size=self.tensor_parallel_size or other.tensor_parallel_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine answers a prompt with, greedily.

    Attributes:
        prompt: the prompt's text.
        tokens: ids of the tokens, in order.
        logprobs: log-probability of each of them; empty if it wasn't told.
    """

    prompt: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one resident answers.

    Attributes:
        uid: identity of its seat.
        ownership: what it runs with.
        answers: its answers.
    """

    uid: str
    ownership: Ownership
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """An expectation that residents have made.

    Attributes:
        ownership: what it belongs to.
        answers: what is expected.
        witnesses: identities of the seats whose residents answered so.
    """

    ownership: Ownership
    answers: tuple[Answer, ...]
    witnesses: frozenset[str]


def difference(expected: Answer, answered: Answer, tolerance: float | None = None) -> str:
    """Say in words where an answer is another than expected; nothing if it is as expected.

    Args:
        expected: the expectation.
        answered: the answer; its prompt isn't looked at.
        tolerance: how much a token's log-probability may differ, where both are known; None lets it differ.
    """
    for place, (wanted, got) in enumerate(_pairs(expected.tokens, answered.tokens)):
        if wanted != got:
            return (
                f"prompt {expected.prompt[:40]!r}: token {place} is {_shown(got)} where {_shown(wanted)} was recorded "
                f"({len(answered.tokens)} tokens came, {len(expected.tokens)} were expected)"
            )
    if tolerance is None:
        return ""
    for place, (then, now) in enumerate(zip(expected.logprobs, answered.logprobs, strict=False)):
        if not abs(then - now) <= tolerance:
            return (
                f"prompt {expected.prompt[:40]!r}: log-probability of token {place} is {now:.4g} where {then:.4g} was "
                f"recorded, which is more than {tolerance:g} apart"
            )
    return ""


def _pairs(expected: Sequence[int], answered: Sequence[int]) -> Iterable[tuple[int | None, int | None]]:
    for place in range(max(len(expected), len(answered))):
        yield (
            expected[place] if place < len(expected) else None,
            answered[place] if place < len(answered) else None,
        )


def _shown(token: int | None) -> str:
    return "nothing" if token is None else str(token)


def objection(recording: Recording, uid: str, running: Ownership) -> str:
    """Say in words why a resident may not prove itself against a recording; nothing if it may.

    Args:
        recording: what residents have answered.
        uid: identity of the resident's seat.
        running: what the resident runs with.
    """
    if not recording.witnesses - {uid}:
        return "its only witness is this resident itself"
    differs = recording.ownership.differences(running)
    return f"it belongs to another engine: {'; '.join(differs)}" if differs else ""


def agreed(statements: Iterable[Statement], tolerance: float | None = None) -> Recording | None:
    """Return what most residents answer alike, if at least two do and no others are as many; else None.

    Who comes first doesn't matter. Of one seat only one statement counts, and those that differ in what they run with, or were
    asked other prompts, never agree.
    """
    camps: list[list[Statement]] = []
    for statement in sorted({each.uid: each for each in statements}.values(), key=lambda each: each.uid):
        camp = next(
            (camp for camp in camps if all(_agree(each, statement, tolerance) for each in camp)), None
        )
        if camp is None:
            camps.append([statement])
        else:
            camp.append(statement)
    camps.sort(key=len, reverse=True)
    if not camps or len(camps[0]) < LEAST_WITNESSES:
        return None
    if len(camps) > 1 and len(camps[1]) == len(camps[0]):
        return None
    return _recorded(camps[0])


def _agree(one: Statement, other: Statement, tolerance: float | None) -> bool:
    if one.ownership.differences(other.ownership):
        return False
    here, there = _by_prompt(one), _by_prompt(other)
    return here.keys() == there.keys() and not any(
        difference(answer, there[prompt], tolerance) for prompt, answer in here.items()
    )


def _by_prompt(statement: Statement) -> Mapping[str, Answer]:
    return {answer.prompt: answer for answer in statement.answers}


def _recorded(camp: Sequence[Statement]) -> Recording:
    ownership = Ownership()
    for statement in camp:
        ownership = ownership.completed(statement.ownership)
    return Recording(
        ownership=ownership, answers=camp[0].answers, witnesses=frozenset(each.uid for each in camp)
    )
