"""Proof and canary: an engine answers a known prompt, and its tokens are compared one by one, with their log-probabilities.

The expectation was recorded elsewhere: a resident never proves itself against its own record. Which prompts are asked varies
within the recorded set, so that a cached answer proves nothing for long. Where nobody has recorded any tokens, a resident tells what
it answers and waits until another has answered alike (`warmpool.expectations`).
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

from warmpool.agent.config import Proof
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Engine
from warmpool.errors import EngineError, EngineUnfit, NeedsWitness, ProofFailed, WrongState
from warmpool.expectations import Answer, Ownership, Recording, Statement, difference, objection


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
    """Asks one resident what it has to answer.

    Args:
        proof: what its config says of that.
        uid: identity of its seat, by which it is known as a witness.
        chance: where the choice of prompts comes from.

    Attributes:
        observer: hears how each question ended.
        recording: what residents have agreed on, where the config has no tokens; None until somebody has told it.
        statement: what this resident answers, where it was asked; None before.
    """

    def __init__(self, proof: Proof, uid: str, chance: random.Random) -> None:
        self._proof = proof
        self._uid = uid
        self._chance = chance
        self.observer: Observer = lambda *_: None
        self.recording: Recording | None = None
        self.statement: Statement | None = None

    @property
    def expected(self) -> Sequence[Answer]:
        """What its engine has to answer; empty while nobody knows."""
        if not self._proof.agree:
            return [expectation.answer() for expectation in self._proof.prompts]
        return () if self.recording is None else self.recording.answers

    @property
    def owner(self) -> Ownership:
        """What the config says that its proof belongs to."""
        return self._proof.ownership.ownership()

    @property
    def missing(self) -> str:
        """Why there is nothing to compare with; empty if there is."""
        if self.expected:
            return ""
        return "NeedsWitness: no other resident is known to answer as this one does"

    def identity(self, running: Ownership) -> str:
        """Return what stands for an engine and what it has to answer: equal where the same is asked of the same.

        Args:
            running: what the engine runs with.
        """
        asked = [(answer.prompt, answer.tokens) for answer in self.expected]
        return hashlib.sha256(repr((asked, running)).encode()).hexdigest()[:32]

    def require_known(self) -> Sequence[Answer]:
        """Return what its engine has to answer.

        Raises:
            NeedsWitness: nobody knows.
        """
        expected = self.expected
        if not expected:
            raise NeedsWitness(self.missing)
        return expected

    def accept(self, recording: Recording, running: Ownership) -> None:
        """Compare with a recording from now on.

        Args:
            recording: what residents have agreed on.
            running: what the engine runs with.

        Raises:
            NeedsWitness: this resident is its only witness.
            WrongState: the config has tokens, or the recording belongs to another engine.
        """
        if not self._proof.agree:
            raise WrongState("the config has recorded tokens, and nothing else is compared with")
        reason = objection(recording, self._uid, running)
        if reason and recording.witnesses <= {self._uid}:
            raise NeedsWitness(f"the recording can't be used: {reason}")
        if reason:
            raise WrongState(f"the recording can't be used: {reason}")
        self.recording = recording

    def require_owner(self, running: Ownership) -> None:
        """See that what is expected belongs to the engine that runs, as far as both are known.

        What residents agreed on with another engine is forgotten: they have to agree anew.

        Raises:
            EngineUnfit: it doesn't, so that other tokens would prove nothing.
        """
        if self.recording is not None and self.recording.ownership.differences(running):
            self.recording = None
        differs = self.owner.differences(running)
        if differs:
            raise EngineUnfit(_unfit("; ".join(differs), other_weights=self.owner.other_weights(running)))

    async def state_answers(self, engine: Engine, running: Ownership, *, deadline: Deadline) -> None:
        """Ask all prompts, and keep what is answered.

        Raises:
            EngineError: it didn't answer.
        """
        answers = [
            await _ask(engine, expectation.prompt, self._proof.max_tokens, deadline)
            for expectation in self._proof.prompts
        ]
        self.statement = Statement(uid=self._uid, ownership=running, answers=tuple(answers))

    async def prove(self, engine: Engine, *, prompts: int, deadline: Deadline) -> None:
        """Compare all recorded tokens of up to `prompts` prompts.

        Raises:
            NeedsWitness: nobody knows what it has to answer.
            ProofFailed: it answered otherwise.
            EngineError: it didn't answer.
        """
        expected = self.require_known()
        with self._observed(Check.PROOF):
            for answer in self._chance.sample(expected, min(prompts, len(expected))):
                await self._compare(engine, answer, deadline)

    async def canary(self, engine: Engine, *, deadline: Deadline) -> None:
        """Compare the first token of one prompt.

        Raises:
            NeedsWitness: nobody knows what it has to answer.
            ProofFailed: it answered otherwise.
            EngineError: it didn't answer.
        """
        answer = self._chance.choice(self.require_known())
        first = Answer(prompt=answer.prompt, tokens=answer.tokens[:1], logprobs=answer.logprobs[:1])
        with self._observed(Check.CANARY):
            await self._compare(engine, first, deadline)

    async def _compare(self, engine: Engine, expected: Answer, deadline: Deadline) -> None:
        answered = await _ask(engine, expected.prompt, len(expected.tokens), deadline)
        differs = difference(expected, answered, self._proof.tolerance)
        if differs:
            raise ProofFailed(differs)

    @contextmanager
    def _observed(self, check: Check) -> Iterator[None]:
        try:
            yield
        except ProofFailed:
            self.observer(check, Verdict.WRONG_TOKENS)
            raise
        except EngineError:
            self.observer(check, Verdict.NO_ANSWER)
            raise
        self.observer(check, Verdict.PASSED)


def _unfit(differs: str, *, other_weights: bool) -> str:
    """Say whose the proof is. Other weights may be damaged ones, and a new record would bless them."""
    if other_weights:
        return (
            f"the weights aren't those recorded ({differs}): compare the checkpoint with its source "
            "(`python -m loader verify PATH --values`), and record the proof anew only if the change was meant"
        )
    return f"the proof belongs to another engine ({differs}); record it anew with the one that runs"


async def _ask(engine: Engine, prompt: str, tokens: int, deadline: Deadline) -> Answer:
    answered = await engine.complete(prompt, tokens=tokens, deadline=deadline)
    return Answer(prompt=prompt, tokens=tuple(answered), logprobs=answered.logprobs)
