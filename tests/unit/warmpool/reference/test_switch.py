"""The switch bench on the CPU, with real engine processes."""

import asyncio
import json
from pathlib import Path

import pytest

from warmpool.reference.bench.questions import Question
from warmpool.reference.bench.switch import Outcome, run
from warmpool.reference.expect import answers
from warmpool.reference.options import ModelOptions


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def outcome(tiny: Path, logs: Path) -> Outcome:
    """Six switches from one engine to another and back, where the second one's answers are held against a wrong record."""
    options = ModelOptions(checkpoint=tiny, device="cpu", max_num_seqs=4, max_model_len=256)
    prompts = [[256, 65 + number, 66, 67] for number in range(8)]
    known = [
        Question(prompt, answer)
        for prompt, answer in zip(prompts, answers(options, prompts, 3), strict=True)
        if answer
    ]
    doubtful = [Question(entry.prompt, [entry.answer[0] ^ 1]) for entry in known]
    return asyncio.run(run(options, [known, doubtful], 6, 1, logs))


def test_wrong_answers_are_counted(outcome: Outcome) -> None:
    assert [entry.right for entry in outcome.switches] == [False, True] * 3
    assert outcome.wrong == 3


def test_the_steps_add_up_to_the_whole(outcome: Outcome) -> None:
    for entry in outcome.switches:
        assert entry.drain + entry.release + entry.take + entry.first == pytest.approx(entry.total)
        assert 0 < entry.first < entry.total <= entry.whole


@pytest.mark.long
def test_a_ready_engine_does_not_look_through_its_start_for_garbage(outcome: Outcome, logs: Path) -> None:
    # Doing so stopped an engine for a tenth of a second, once in a while and in the middle of a promotion.
    del outcome
    said = [json.loads(line) for line in (logs / "model-0.log").read_text().splitlines()]
    ready = next(entry for entry in said if entry["phase"] == "ready")
    assert ready["frozenObjects"] > 50_000
