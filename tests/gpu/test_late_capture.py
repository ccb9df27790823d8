"""Graphs that are captured while the engine runs already: the tokens are those of before, and those of an engine that captured at its start."""

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.gpu.rig import WAIT_SECONDS, Batch, build_runner
from warmpool.reference.errors import WrongEngineState
from warmpool.reference.graphs import Graphs
from warmpool.reference.runner import TorchRunner
from warmpool.reference.scheduler import PauseMode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def state(runner: TorchRunner) -> Graphs:
    """What has become of its graphs by now."""
    return runner.graphs


def test_graphs_that_come_later_change_no_token(made: Callable[[str], Path]) -> None:
    chance = random.Random(1)
    prompts = [[chance.randrange(10, 200) for _ in range(length)] for length in (3, 40, 300)]
    counts = [24] * len(prompts)
    runner = build_runner(made("llama-1b"), defer_capture=True)
    assert state(runner) is Graphs.PENDING
    batch = Batch(runner)
    eager = [[each.token for each in outputs] for outputs in batch.outputs(prompts, counts)]
    engine = batch.engine
    engine.pause(PauseMode.WAIT).result(WAIT_SECONDS)
    engine.give_back_kv().result(WAIT_SECONDS)
    with pytest.raises(WrongEngineState):
        engine.capture().result(WAIT_SECONDS)
    engine.wake_up().result(WAIT_SECONDS)
    began = time.monotonic()
    engine.capture().result(WAIT_SECONDS)
    sys.stdout.write(f"late capture: {time.monotonic() - began:.3f} s, {runner.facts['graphs']}\n")
    assert state(runner) is Graphs.CAPTURED
    assert [[each.token for each in outputs] for outputs in batch.outputs(prompts, counts)] == eager
    at_start = build_runner(made("llama-1b"))
    assert state(at_start) is Graphs.CAPTURED
    assert at_start.facts["graphs"] == runner.facts["graphs"]
