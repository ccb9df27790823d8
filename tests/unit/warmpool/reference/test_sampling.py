from collections import Counter

import pytest
import torch

from warmpool.reference.sampling import sample
from warmpool.reference.sequence import Sampled, Sampling, Sequence
from warmpool.reference.tokenizer import ByteTokenizer, TextStream

LOGITS = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))


def _sequence(
    *, number: int = 0, temperature: float = 1, top_p: float = 1, seed: int = 0, logprobs: int | None = None
) -> Sequence:
    sampling = Sampling(max_tokens=9999, temperature=temperature, top_p=top_p, seed=seed, logprobs=logprobs)
    text = TextStream(ByteTokenizer().decoder())
    return Sequence(key=1, prompt=[1], sampling=sampling, text=text, arrived=0, generated=[0] * number)


def _tokens(count: int, **settings: float) -> Counter[int]:
    drawn = (sample(LOGITS, [_sequence(number=number, **settings)])[0] for number in range(count))  # type: ignore[arg-type]
    return Counter(sampled.token for sampled in drawn if sampled is not None)


def test_temperature_zero_takes_the_most_likely() -> None:
    assert _tokens(20, temperature=0) == {0: 20}


def test_draws_follow_the_probabilities() -> None:
    drawn = _tokens(2000)
    assert [drawn[token] / 2000 for token in range(4)] == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.04)


def test_top_p_leaves_the_tail_out() -> None:
    assert set(_tokens(300, top_p=0.8)) == {0, 1}
    assert set(_tokens(300, top_p=0.81)) == {0, 1, 2}
    assert set(_tokens(50, top_p=0.01)) == {0}


def test_low_temperature_sharpens() -> None:
    assert _tokens(300, temperature=0.1)[0] > 285


def test_a_seed_repeats_and_another_differs() -> None:
    def draws(seed: int) -> list[int]:
        return [sample(LOGITS, [_sequence(number=n, seed=seed)])[0].token for n in range(40)]  # type: ignore[union-attr]

    assert draws(5) == draws(5)
    assert draws(5) != draws(6)


def test_rows_that_are_not_due_get_nothing() -> None:
    got = sample(LOGITS.repeat(2, 1), [None, _sequence(temperature=0)])
    assert got[0] is None
    assert got[1] is not None


def test_log_probabilities_come_best_first_with_the_chosen_one() -> None:
    sampled = sample(LOGITS, [_sequence(temperature=0, logprobs=2)])[0]
    assert sampled is not None
    assert sampled.logprobs is not None
    assert [token for token, _ in sampled.logprobs.top] == [0, 1]
    assert sampled.logprobs.chosen == pytest.approx(-0.6931, abs=1e-4)
    assert sampled.logprobs.top[1][1] == pytest.approx(-1.2040, abs=1e-4)


def test_each_sequence_is_sampled_by_its_own_settings() -> None:
    logits = LOGITS.repeat(5, 1)  # the last row only fills the batch up
    drawn = _sequence(number=3, seed=5)
    got = sample(logits, [_sequence(temperature=0), drawn, None, _sequence(temperature=0, logprobs=1)])
    alone = sample(LOGITS, [drawn])[0]
    assert got[2] is None
    assert (got[0], got[1]) == (Sampled(0), alone)
    assert got[3] is not None
    assert got[3].logprobs is not None
    assert [token for token, _ in got[3].logprobs.top] == [0]
