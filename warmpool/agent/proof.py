"""Proof and canary: an engine answers a known prompt, and its tokens are compared one by one.

The expectation was recorded elsewhere: a resident never proves itself against its own record. Which prompts are asked varies
within the recorded set, so that a cached answer proves nothing for long.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

from warmpool.agent.config import Expectation
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Engine
from warmpool.errors import EngineError, ProofFailed


class Check(StrEnum):
    """What kind of question was asked."""

    PROOF = "proof"
    """All recorded tokens of some prompts."""
    CANARY = "canary"
    """The first token of one prompt, in a promotion."""


class Verdict(StrEnum):
    """How it was answered."""

    PASSED = "Passed"
    WRONG_TOKENS = "WrongTokens"
    NO_ANSWER = "NoAnswer"


Observer = Callable[[Check, Verdict], None]
"""Hears how each question ended; one that was cut short by something else is not told."""


class Prover:
    """Asks one resident's recorded prompts.

    Args:
        expectations: the recorded set, not empty.
        chance: where the choice comes from.
        observer: hears how each question ended.
    """

    def __init__(
        self, expectations: Sequence[Expectation], chance: random.Random, observer: Observer = lambda *_: None
    ) -> None:
        self._expectations = tuple(expectations)
        self._chance = chance
        self._observer = observer

    @contextmanager
    def _observed(self, check: Check) -> Iterator[None]:
        try:
            yield
        except ProofFailed:
            self._observer(check, Verdict.WRONG_TOKENS)
            raise
        except EngineError:
            self._observer(check, Verdict.NO_ANSWER)
            raise
        self._observer(check, Verdict.PASSED)

    async def prove(self, engine: Engine, *, prompts: int, deadline: Deadline) -> None:
        """Compare all recorded tokens of up to `prompts` prompts.

        Raises:
            ProofFailed: it answered with other tokens.
            EngineError: it didn't answer.
        """
        count = min(prompts, len(self._expectations))
        with self._observed(Check.PROOF):
            for expectation in self._chance.sample(self._expectations, count):
                await _compare(engine, expectation.prompt, expectation.tokens, deadline)

    async def canary(self, engine: Engine, *, deadline: Deadline) -> None:
        """Compare the first token of one prompt.

        Raises:
            ProofFailed: it answered with another token.
            EngineError: it didn't answer.
        """
        expectation = self._chance.choice(self._expectations)
        with self._observed(Check.CANARY):
            await _compare(engine, expectation.prompt, expectation.tokens[:1], deadline)


async def _compare(engine: Engine, prompt: str, expected: tuple[int, ...], deadline: Deadline) -> None:
    answered = await engine.complete(prompt, tokens=len(expected), deadline=deadline)
    if answered == expected:
        return
    differs = next(
        (place for place, (got, wanted) in enumerate(zip(answered, expected, strict=False)) if got != wanted),
        min(len(answered), len(expected)),
    )
    got = answered[differs] if differs < len(answered) else "nothing"
    wanted = expected[differs] if differs < len(expected) else "nothing"
    raise ProofFailed(
        f"prompt {prompt[:40]!r}: token {differs} is {got} where {wanted} was recorded "
        f"({len(answered)} tokens came, {len(expected)} were expected)"
    )
