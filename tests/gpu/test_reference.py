"""The reference engine on a CUDA device: same tokens alone and in a batch, memory really given back."""

import queue
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from warmpool.reference.checkpoints import make_checkpoint
from warmpool.reference.engine import Engine
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.runner import TorchRunner, build
from warmpool.reference.scheduler import Limits, PauseMode, Scheduler
from warmpool.reference.sequence import Load, Output, Sampling, Sequence
from warmpool.reference.startup import Startup
from warmpool.reference.tokenizer import TextStream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

WAIT_SECONDS = 60.0


def _build(directory: Path, device: str, max_model_len: int = 1024) -> TorchRunner:
    options = ModelOptions(checkpoint=directory, device=device, max_num_seqs=8, max_model_len=max_model_len)
    return build(open_model(options), options, Startup())


@pytest.fixture(scope="module", params=["tiny", "llama-1b"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint") / request.param, request.param, seed=1)


@pytest.fixture(scope="module")
def runner(checkpoint: Path) -> Iterator[TorchRunner]:
    return _build(checkpoint, "cuda")


class Batch:
    """Runs prompts together and collects their tokens."""

    def __init__(self, runner: TorchRunner) -> None:
        self._runner = runner
        self._outputs: queue.Queue[Output] = queue.Queue()
        self.engine = Engine(lambda: runner, Scheduler(limits=Limits(max_num_seqs=8)), self._report)
        self.engine.start()
        self.engine.ready.result(WAIT_SECONDS)

    def _report(self, outputs: list[Output], _load: Load) -> None:
        for output in outputs:
            self._outputs.put(output)

    def tokens(self, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
        for key, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
            sampling = Sampling(max_tokens=count, temperature=0, ignore_eos=True)
            text = TextStream(self._runner.tokenizer.decoder())
            self.engine.submit(Sequence(key=key, prompt=prompt, sampling=sampling, text=text, arrived=0))
        tokens: list[list[int]] = [[] for _ in prompts]
        ended = 0
        while ended < len(prompts):
            output = self._outputs.get(timeout=WAIT_SECONDS)
            assert output.token is not None
            tokens[output.key].append(output.token)
            ended += output.finish is not None
        return tokens


@pytest.fixture
def batch(runner: TorchRunner) -> Iterator[Batch]:
    made = Batch(runner)
    yield made
    made.engine.stop()
    assert made.engine.join(WAIT_SECONDS)


def _prompts(count: int) -> tuple[list[list[int]], list[int]]:
    choose = random.Random(3)
    lengths = (1, 2, 5, 17, 60, 128, 129, 300, 700)
    prompts = [
        [256, *(choose.randrange(32, 127) for _ in range(choose.choice(lengths)))] for _ in range(count)
    ]
    return prompts, [choose.randrange(1, 120) for _ in prompts]


def test_tokens_are_the_same_alone_and_in_batches(batch: Batch) -> None:
    prompts, counts = _prompts(24)
    alone = [batch.tokens([prompt], [count])[0] for prompt, count in zip(prompts, counts, strict=True)]
    for size in (2, 3, 8):
        for start in range(0, len(prompts), size):
            part = slice(start, start + size)
            assert batch.tokens(prompts[part], counts[part]) == alone[part]


def test_first_tokens_depend_on_the_prompt(batch: Batch) -> None:
    prompts, _ = _prompts(24)
    firsts = {tokens[0] for tokens in batch.tokens(prompts[:8], [1] * 8)}
    assert len(firsts) >= 4


def test_released_memory_goes_back_to_the_driver(batch: Batch, runner: TorchRunner) -> None:
    prompts, counts = _prompts(4)
    before = batch.tokens(prompts, counts)
    batch.engine.pause(PauseMode.WAIT).result(WAIT_SECONDS)
    with_memory = torch.cuda.mem_get_info()[0]
    batch.engine.give_back_kv().result(WAIT_SECONDS)
    assert torch.cuda.mem_get_info()[0] - with_memory >= 0.9 * runner.kv_bytes
    batch.engine.wake_up().result(WAIT_SECONDS)
    assert batch.tokens(prompts, counts) == before
