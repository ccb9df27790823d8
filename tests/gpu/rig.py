"""What tests on a device share: engines on the compute thread, prompts, and a checkpoint of each size."""

import queue
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from warmpool.reference.engine import Engine
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.runner import TorchRunner, build
from warmpool.reference.scheduler import Limits, Scheduler
from warmpool.reference.sequence import Load, Output, Sampling, Sequence
from warmpool.reference.startup import Startup
from warmpool.reference.tokenizer import TextStream

WAIT_SECONDS = 60.0


def build_runner(directory: Path, **settings: Any) -> TorchRunner:
    told: dict[str, Any] = {"device": "cuda", "max_num_seqs": 8, "max_model_len": 2048} | settings
    options = ModelOptions(checkpoint=directory, **told)
    return build(open_model(options), options, Startup())


@contextmanager
def filled(left_bytes: int) -> Iterator[None]:
    """Leave only so much free on the device, what torch keeps for itself counted as free; all of it is back afterwards, come what may.

    A test that fails keeps its frames, and with them its tensors: the storage itself is given up.
    """
    torch.cuda.empty_cache()
    ballast = torch.empty(torch.cuda.mem_get_info()[0] - left_bytes, dtype=torch.uint8, device="cuda")
    try:
        yield
    finally:
        ballast.untyped_storage().resize_(0)
        torch.cuda.empty_cache()


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

    def outputs(self, prompts: list[list[int]], counts: list[int], **settings: Any) -> list[list[Output]]:
        for key, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
            sampling = Sampling(max_tokens=count, ignore_eos=True, **{"temperature": 0} | settings)
            text = TextStream(self._runner.tokenizer.decoder())
            self.engine.submit(Sequence(key=key, prompt=prompt, sampling=sampling, text=text, arrived=0))
        outputs: list[list[Output]] = [[] for _ in prompts]
        ended = 0
        while ended < len(prompts):
            output = self._outputs.get(timeout=WAIT_SECONDS)
            assert output.token is not None
            outputs[output.key].append(output)
            ended += output.finish is not None
        return outputs

    def tokens(self, prompts: list[list[int]], counts: list[int], **settings: Any) -> list[list[int]]:
        return [
            [output.token for output in part if output.token is not None]
            for part in self.outputs(prompts, counts, **settings)
        ]


def some_prompts(count: int) -> tuple[list[list[int]], list[int]]:
    choose = random.Random(3)
    lengths = (1, 2, 5, 17, 60, 63, 64, 128, 129, 300, 700, 1500)
    prompts = [
        [256, *(choose.randrange(32, 127) for _ in range(choose.choice(lengths)))] for _ in range(count)
    ]
    return prompts, [choose.randrange(1, 120) for _ in prompts]
