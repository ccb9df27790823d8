"""The bench of wake-up times on the CPU, with a real engine process; and what it makes of a neighbour's tokens."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from warmpool.reference.bench.depths import Plan, Results, Watch, measure
from warmpool.reference.bench.figures import Spread, nearest_rank
from warmpool.reference.bench.questions import Question
from warmpool.reference.expect import answers
from warmpool.reference.options import ModelOptions
from warmpool.states import Depth

CYCLES = 3


@pytest.fixture(scope="module")
def results(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    """One process goes through every depth; one of its two prompts is held against a wrong record."""
    out = tmp_path_factory.mktemp("depths")
    options = ModelOptions(checkpoint=tiny, device="cpu", max_num_seqs=2, max_model_len=128)
    prompts = [[256, 65 + number, 66, 67] for number in range(4)]
    known = answers(options, prompts, 3)
    right = next(Question(prompt, answer) for prompt, answer in zip(prompts, known, strict=True) if answer)
    wrong = Question(right.prompt, [right.answer[0] ^ 1])
    results = Results()
    asyncio.run(measure(options, [[right, wrong]], Plan(CYCLES, CYCLES, watched=False), results, out))
    return results, out


def test_every_depth_is_measured_and_written(results: tuple[Results, Path]) -> None:
    measured, out = results
    assert list(measured.depths) == list(Depth)
    written = json.loads((out / "depths.json").read_text())
    assert set(written["depths"]) == {"Paused", "KvReleased", "Parked"}


def test_wrong_answers_are_counted_in_each_depth(results: tuple[Results, Path]) -> None:
    counts = [entry["wrong"] for entry in results[0].depths.values()]
    assert all(0 < count < CYCLES for count in counts)
    assert results[0].wrong == sum(counts)


def test_only_from_parking_weights_come_back(results: tuple[Results, Path]) -> None:
    unparking = {depth: entry["unparkSeconds"]["p50"] for depth, entry in results[0].depths.items()}
    assert unparking[Depth.PARKED] > 1e-3 > unparking[Depth.KV_RELEASED]
    setting = results[0].setting
    assert setting["parkedBytes"] >= setting["weightsBytes"] > 0


def test_gaps_between_tokens_are_told_by_what_went_on_meanwhile() -> None:
    watch = Watch(None, [])  # type: ignore[arg-type]
    watch._at = [[0.0, 1.0, 1.1, 1.2], [5.0, 5.1]]
    gaps: Any = watch.gaps(1.05, 1.3)
    assert gaps["tokens"] == 2
    assert gaps["gapSeconds"]["max"] == pytest.approx(0.1)
    assert watch.gaps(2.0, 3.0)["gapSeconds"] is None


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2), (0.99, 4), (0.75, 3), (0.0, 1)])
def test_a_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert nearest_rank([3, 1, 4, 2], share) == expected


def test_a_spread_is_of_all_values() -> None:
    assert Spread.of([0.2, 0.1, 0.4]) == Spread(p50=0.2, p99=0.4, max=0.4)
