"""Proof and canary: an engine answers a known prompt, and its tokens are compared one by one.

The expectation was recorded elsewhere: a resident never proves itself against its own record. Which prompts are asked varies
within the recorded set, so that a cached answer proves nothing for long.
"""

import random
from collections.abc import Sequence

from warmpool.agent.config import Expectation
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Engine
from warmpool.errors import ProofFailed


class Prover:
    """Asks one resident's recorded prompts.

    Args:
        expectations: the recorded set, not empty.
        chance: where the choice comes from.
    """

    def __init__(self, expectations: Sequence[Expectation], chance: random.Random) -> None:
        self._expectations = tuple(expectations)
        self._chance = chance

    async def prove(self, engine: Engine, *, prompts: int, deadline: Deadline) -> None:
        """Compare all recorded tokens of up to `prompts` prompts.

        Raises:
            ProofFailed: it answered with other tokens.
            EngineError: it didn't answer.
        """
        count = min(prompts, len(self._expectations))
        for expectation in self._chance.sample(self._expectations, count):
            await _compare(engine, expectation.prompt, expectation.tokens, deadline)

    async def canary(self, engine: Engine, *, deadline: Deadline) -> None:
        """Compare the first token of one prompt.

        Raises:
            ProofFailed: it answered with another token.
            EngineError: it didn't answer.
        """
        expectation = self._chance.choice(self._expectations)
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
