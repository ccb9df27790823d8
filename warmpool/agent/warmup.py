"""Warm-up: real requests, so that kernels are compiled and caches filled before anyone waits for them.

Which routine a library takes depends on how long a prompt is and how many sequences are computed at once, and it is loaded when it is
first needed. So both are gone through as the policy will see them, before the proof.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from warmpool.agent.config import Warmup
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Engine, Prompt
from warmpool.errors import EngineRejected

_LOG = logging.getLogger(__name__)

_FIRST_TOKEN = 10
_TOKENS = 180
"""Ids from `_FIRST_TOKEN` on that every vocabulary has: special tokens come before them in most, single bytes are among them."""


class Shape(NamedTuple):
    """Requests that are sent at once.

    Attributes:
        tokens: length of each prompt.
        requests: how many.
    """

    tokens: int
    requests: int


def shapes(warmup: Warmup) -> Iterator[Shape]:
    """Yield what is sent beside the prompts that are given as text: lengths alone, then batches, the smallest first. PURE.

    Batches are of the shortest prompt, for what they change is the steps after it; the largest one comes with the longest prompt as
    well, which is the most that the engine will ever hold.
    """
    lengths, batches = sorted(set(warmup.prompt_tokens)), sorted(set(warmup.batch_sizes) - {1})
    for tokens in lengths:
        yield Shape(tokens, 1)
    for requests in batches if lengths else ():
        yield Shape(lengths[0], requests)
    if batches and len(lengths) > 1:
        yield Shape(lengths[-1], batches[-1])


def prompts(shape: Shape, number: int) -> list[list[int]]:
    """Return a shape's prompts, as ids of tokens. PURE.

    No two begin alike, so that nothing that was computed before can be taken instead.

    Args:
        shape: how long and how many.
        number: which shape of a warm-up, from 0.
    """
    made = []
    for place in range(shape.requests):
        head, seed = divmod(number * 1009 + place, _TOKENS)
        made.append(
            [
                _FIRST_TOKEN + (seed if at == 0 else head + at * (place + 7)) % _TOKENS
                for at in range(shape.tokens)
            ]
        )
    return made


async def warm_up(
    engine: Engine, warmup: Warmup, took: Callable[[float], None], *, deadline: Deadline
) -> None:
    """Send each prompt alone, then all of them at once, then prompts of all lengths and batches of all sizes.

    A length or a batch that the engine refuses (it takes no ids of tokens, or has no room) is left out, and said in the log.

    Args:
        engine: the engine.
        warmup: what is sent.
        took: is told the seconds that each request took that was sent alone.
        deadline: by when all of it has to be over.

    Raises:
        EngineError: the engine didn't answer one of them.
    """
    clock = asyncio.get_running_loop().time
    for prompt in warmup.prompts:
        began = clock()
        await engine.complete(prompt, tokens=warmup.max_tokens, deadline=deadline)
        took(clock() - began)
    if len(warmup.prompts) > 1:  # one request is no batch
        await _at_once(engine, warmup.prompts, warmup.max_tokens, deadline)
    for number, shape in enumerate(shapes(warmup)):
        began = clock()
        try:
            await _at_once(engine, prompts(shape, number), warmup.max_tokens, deadline)
        except EngineRejected as error:
            _LOG.warning(
                "warm-up leaves out %d requests of %d tokens: %s", shape.requests, shape.tokens, error
            )
        else:
            if shape.requests == 1:
                took(clock() - began)


async def _at_once(engine: Engine, asked: Sequence[Prompt], tokens: int, deadline: Deadline) -> None:
    try:
        async with asyncio.TaskGroup() as batch:
            for prompt in asked:
                batch.create_task(engine.complete(prompt, tokens=tokens, deadline=deadline))
    except ExceptionGroup as failures:
        raise next(_leaves(failures)) from failures


def _leaves(failures: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the errors of a group, those first that no other request can have caused."""
    return itertools.chain(
        (each for each in failures.exceptions if not isinstance(each, EngineRejected)), failures.exceptions
    )
