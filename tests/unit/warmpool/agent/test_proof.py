"""Comparing tokens."""

import random
from collections.abc import Mapping

import pytest

from warmpool.agent.config import Proof
from warmpool.agent.proof import Prover
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Completion, Prompt
from warmpool.engines.vllm import VllmEngine
from warmpool.errors import EngineUnfit, NeedsWitness, ProofFailed, WrongState
from warmpool.expectations import Answer, Ownership, Recording

RECORDED = {f"prompt {number}": (number, number + 1, number + 2) for number in range(6)}


class Parrot(VllmEngine):
    """Answers without a network: what `answers` says."""

    def __init__(self, answers: Mapping[str, tuple[int, ...]], logprobs: tuple[float, ...] = ()) -> None:
        self.answers = answers
        self.logprobs = logprobs
        self.asked: list[tuple[str, int]] = []

    async def complete(self, prompt: Prompt, *, tokens: int, deadline: Deadline) -> Completion:
        assert deadline.left_seconds > 0
        assert isinstance(prompt, str)
        self.asked.append((prompt, tokens))
        return Completion(self.answers[prompt][:tokens], self.logprobs[:tokens])


def proof(*prompts: tuple[str, tuple[int, ...]], **others: object) -> Proof:
    return Proof.model_validate({"prompts": [{"prompt": p, "tokens": t} for p, t in prompts], **others})


def prover(seed: int = 0) -> Prover:
    return Prover(proof(*RECORDED.items()), "me", random.Random(seed))


async def test_a_proof_asks_for_all_tokens_of_some_prompts_without_repeats() -> None:
    engine = Parrot(RECORDED)
    await prover().prove(engine, prompts=4, deadline=Deadline.after(1))
    assert len({prompt for prompt, _ in engine.asked}) == 4
    assert {count for _, count in engine.asked} == {3}
    await prover().prove(engine, prompts=100, deadline=Deadline.after(1))
    assert len(engine.asked) == 10


async def test_prompts_vary_within_the_recorded_set() -> None:
    engine, asks = Parrot(RECORDED), prover()
    for _ in range(60):
        await asks.canary(engine, deadline=Deadline.after(1))
    assert {prompt for prompt, _ in engine.asked} == RECORDED.keys()
    assert {count for _, count in engine.asked} == {1}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param((9, 9, 9), "token 0 is 9 where 0 was recorded", id="first"),
        pytest.param((0, 1, 9), "token 2 is 9 where 2 was recorded", id="last"),
        pytest.param((0, 1), "token 2 is nothing where 2 was recorded", id="too short"),
        pytest.param((), "token 0 is nothing", id="nothing"),
    ],
)
async def test_any_other_token_fails_the_proof(answer: tuple[int, ...], words: str) -> None:
    asks = Prover(proof(("p", (0, 1, 2))), "me", random.Random(0))
    with pytest.raises(ProofFailed, match=words):
        await asks.prove(Parrot({"p": answer}), prompts=1, deadline=Deadline.after(1))


async def test_an_observer_hears_how_each_question_ended() -> None:
    heard: list[tuple[str, str]] = []
    asks = Prover(proof(("one", (1, 2))), "me", random.Random(0))
    asks.observer = lambda check, verdict: heard.append((check, verdict))
    await asks.canary(Parrot({"one": (1, 2)}), deadline=Deadline.after(1))
    with pytest.raises(ProofFailed):
        await asks.prove(Parrot({"one": (1, 3)}), prompts=1, deadline=Deadline.after(1))
    assert heard == [("canary", "Passed"), ("proof", "WrongTokens")]


@pytest.mark.parametrize(
    ("now", "tolerance", "passes"),
    [((-0.5, -1.0), 0.01, True), ((-0.5, -1.1), 0.01, False), ((-0.5, -1.1), None, True), ((), 0.01, True)],
)
async def test_log_probabilities_are_compared_where_the_engine_tells_them(
    now: tuple[float, ...],
    tolerance: float | None,
    passes: bool,  # noqa: FBT001 (a row of the table)
) -> None:
    recorded = {
        "prompts": [{"prompt": "p", "tokens": [1, 2], "logprobs": [-0.5, -1.0]}],
        "tolerance": tolerance,
    }
    asks = Prover(Proof.model_validate(recorded), "me", random.Random(0))
    asking = asks.prove(Parrot({"p": (1, 2)}, now), prompts=1, deadline=Deadline.after(1))
    if passes:
        await asking
    else:
        with pytest.raises(ProofFailed, match=r"log-probability of token 1 is -1.1 where -1 was recorded"):
            await asking


# -------------------------------------------------------------------- whose expectation it is


def test_a_proof_of_another_engine_is_told_apart_from_wrong_tokens() -> None:
    asks = Prover(
        proof(("p", (1,)), ownership={"engineVersion": "0.32", "dtype": "bfloat16"}), "me", random.Random(0)
    )
    asks.require_owner(Ownership(dtype="bfloat16"))  # what it doesn't tell is not compared
    with pytest.raises(EngineUnfit, match=r"another engine \(engine version 0.33 where 0.32 was recorded\)"):
        asks.require_owner(Ownership(engine_version="0.33", dtype="bfloat16"))


@pytest.mark.parametrize(
    ("running", "said"),
    [
        pytest.param(
            Ownership(weights_digest="b", dtype="x", tensor_parallel_size=2),
            r"^the weights aren't those recorded \(weights digest b where a was recorded\): compare the checkpoint with its source "
            r"\(`python -m loader verify PATH --values`\), and record the proof anew only if",
            id="weights",
        ),
        pytest.param(
            Ownership(weights_digest="b", engine_version="2"),
            r"^the weights aren't those recorded \(weights digest .*; engine version 2 where 1",
            id="a-version-explains-no-digest",
        ),
        pytest.param(
            Ownership(weights_digest="b", dtype="y"), "^the proof belongs to another engine", id="dtype"
        ),
        pytest.param(
            Ownership(weights_digest="b", tensor_parallel_size=1),
            "^the proof belongs to another engine",
            id="split",
        ),
        pytest.param(
            Ownership(weights_digest="a", engine_version="2"), "; record it anew with", id="version-alone"
        ),
    ],
)
def test_other_weights_are_to_be_looked_into_before_they_are_recorded(running: Ownership, said: str) -> None:
    recorded = {"weightsDigest": "a", "engineVersion": "1", "dtype": "x", "tensorParallelSize": 2}
    asks = Prover(proof(("p", (1,)), ownership=recorded), "me", random.Random(0))
    with pytest.raises(EngineUnfit, match=said):
        asks.require_owner(running)


def recording(*witnesses: str, dtype: str = "") -> Recording:
    return Recording(
        ownership=Ownership(dtype=dtype),
        answers=(Answer(prompt="p", tokens=(1, 2)),),
        witnesses=frozenset(witnesses),
    )


def agreeing() -> Prover:
    return Prover(proof(("p", ()), agree=True, maxTokens=2), "me", random.Random(0))


async def test_what_residents_agreed_on_is_compared_with() -> None:
    asks = agreeing()
    assert "NeedsWitness" in asks.missing
    with pytest.raises(NeedsWitness):
        await asks.canary(Parrot({"p": (1, 2)}), deadline=Deadline.after(1))
    asks.accept(recording("me", "other"), Ownership())
    assert asks.missing == ""
    await asks.prove(Parrot({"p": (1, 2)}), prompts=1, deadline=Deadline.after(1))
    with pytest.raises(ProofFailed):
        await asks.prove(Parrot({"p": (1, 3)}), prompts=1, deadline=Deadline.after(1))


async def test_a_statement_is_what_it_answers_to_all_prompts() -> None:
    asks = agreeing()
    await asks.state_answers(Parrot({"p": (7, 8, 9)}), Ownership(dtype="x"), deadline=Deadline.after(1))
    assert asks.statement is not None
    assert (asks.statement.uid, asks.statement.ownership.dtype) == ("me", "x")
    assert asks.statement.answers == (Answer(prompt="p", tokens=(7, 8)),)
    assert asks.missing  # it is no witness of itself


def test_a_recording_that_proves_nothing_is_refused() -> None:
    with pytest.raises(NeedsWitness, match="its only witness is this resident itself"):
        agreeing().accept(recording("me"), Ownership())
    with pytest.raises(WrongState, match="another engine"):
        agreeing().accept(recording("other", dtype="x"), Ownership(dtype="y"))
    with pytest.raises(WrongState, match="the config has recorded tokens"):
        prover().accept(recording("other"), Ownership())


def test_what_residents_agreed_on_with_another_engine_is_forgotten() -> None:
    asks = agreeing()
    asks.accept(recording("other", dtype="x"), Ownership())
    asks.require_owner(Ownership(dtype="y"))
    assert asks.missing
