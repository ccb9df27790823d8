"""Comparing tokens."""

import random
from collections.abc import Mapping

import pytest

from warmpool.agent.config import Expectation
from warmpool.agent.proof import Prover
from warmpool.engines.deadline import Deadline
from warmpool.engines.vllm import VllmEngine
from warmpool.errors import ProofFailed

RECORDED = {f"prompt {number}": (number, number + 1, number + 2) for number in range(6)}


class Parrot(VllmEngine):
    """Answers without a network: what `answers` says."""

    def __init__(self, answers: Mapping[str, tuple[int, ...]]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, int]] = []

    async def complete(self, prompt: str, *, tokens: int, deadline: Deadline) -> tuple[int, ...]:
        assert deadline.left_seconds > 0
        self.asked.append((prompt, tokens))
        return self.answers[prompt][:tokens]


def prover(seed: int = 0) -> Prover:
    recorded = [Expectation(prompt=prompt, tokens=tokens) for prompt, tokens in RECORDED.items()]
    return Prover(recorded, random.Random(seed))


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
    recorded = [Expectation(prompt="p", tokens=(0, 1, 2))]
    with pytest.raises(ProofFailed, match=words):
        await Prover(recorded, random.Random(0)).prove(
            Parrot({"p": answer}), prompts=1, deadline=Deadline.after(1)
        )


async def test_an_observer_hears_how_each_question_ended() -> None:
    heard: list[tuple[str, str]] = []
    recorded = (Expectation(prompt="one", tokens=(1, 2)),)
    asks = Prover(recorded, random.Random(0), lambda check, verdict: heard.append((check, verdict)))
    await asks.canary(Parrot({"one": (1, 2)}), deadline=Deadline.after(1))
    with pytest.raises(ProofFailed):
        await asks.prove(Parrot({"one": (1, 3)}), prompts=1, deadline=Deadline.after(1))
    assert heard == [("canary", "Passed"), ("proof", "WrongTokens")]
