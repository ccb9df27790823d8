import asyncio
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from warmpool.reference.checkpoints import make_checkpoint
from warmpool.reference.engine import Engine
from warmpool.reference.opening import open_model
from warmpool.reference.options import ModelOptions
from warmpool.reference.pacing import Pacer
from warmpool.reference.runner import TorchRunner, build
from warmpool.reference.scheduler import Limits, Scheduler
from warmpool.reference.sequence import Load, Output, Sampling, Sequence
from warmpool.reference.startup import Startup
from warmpool.reference.tokenizer import TextStream

WAIT_SECONDS = 20.0


class Drive:
    """An engine on its own thread, and what it reported, in order."""

    def __init__(self, runner: TorchRunner, limits: Limits, pacer: Pacer) -> None:
        self._runner = runner
        self._reports: queue.Queue[tuple[list[Output], Load]] = queue.Queue()
        self._key = 0
        self.on_output: Callable[[Output], None] = lambda _: None
        self.log: list[Output] = []
        self.load = Load()
        self.engine = Engine(lambda: runner, Scheduler(limits=limits, pacer=pacer), self._report)
        self.engine.start()
        self.engine.ready.result(WAIT_SECONDS)

    def _report(self, outputs: list[Output], load: Load) -> None:
        self._reports.put((outputs, load))
        for output in outputs:
            self.on_output(output)

    def submit(
        self,
        prompt: list[int],
        tokens: int,
        *,
        temperature: float = 0,
        seed: int = 0,
        stop: tuple[str, ...] = (),
        logprobs: int | None = None,
    ) -> int:
        self._key += 1
        sampling = Sampling(
            max_tokens=tokens,
            temperature=temperature,
            seed=seed,
            stop=stop,
            ignore_eos=True,
            logprobs=logprobs,
        )
        text = TextStream(self._runner.tokenizer.decoder(), stop)
        self.engine.submit(Sequence(key=self._key, prompt=prompt, sampling=sampling, text=text, arrived=0.0))
        return self._key

    def next_report(self) -> list[Output]:
        outputs, self.load = self._reports.get(timeout=WAIT_SECONDS)
        self.log += outputs
        return outputs

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.next_report()

    def ended(self, *keys: int) -> bool:
        return {output.key for output in self.log if output.finish is not None} >= set(keys)

    def tokens_of(self, key: int) -> list[int]:
        return [output.token for output in self.log if output.key == key and output.token is not None]

    def tokens(self, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
        keys = [self.submit(prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
        self.until(lambda: self.ended(*keys))
        return [self.tokens_of(key) for key in keys]


@pytest.fixture(scope="session", autouse=True)
def _closed_loop() -> Iterator[None]:
    """Give the main thread a loop that is closed in the end: Python 3.11 makes one on demand that nobody closes."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", "tiny", seed=1)


@pytest.fixture(scope="session")
def runner(tiny: Path) -> TorchRunner:
    options = ModelOptions(checkpoint=tiny, device="cpu", max_num_seqs=8, max_model_len=1024)
    return build(open_model(options), options, Startup())


@pytest.fixture
def make_drive(runner: TorchRunner) -> Iterator[Callable[..., Drive]]:
    made: list[Drive] = []

    def make(
        *, max_num_seqs: int = 8, max_queued: int = 64, tokens_per_second: float = 0, over: Any = runner
    ) -> Drive:
        limits = Limits(max_num_seqs=max_num_seqs, max_queued=max_queued)
        runner.take_kv(lambda: None)
        made.append(Drive(over, limits, Pacer(tokens_per_second)))
        return made[-1]

    yield make
    for drive in made:
        drive.engine.stop()
        assert drive.engine.join(WAIT_SECONDS)


@pytest.fixture
def drive(make_drive: Callable[..., Drive]) -> Drive:
    return make_drive()
