"""Warm-up: real requests, so that kernels are compiled and caches filled before anyone waits for them.

Which routine a library takes depends on how long a prompt is and how many sequences are computed at once, and it is loaded when it is
first needed. So both are gone through as the policy will see them, before the proof.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from warmpool.agent.config import Warmup
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Engine, Prompt
from warmpool.errors import EngineRejected
from warmpool.timeline import WarmUp

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


class Sizes(NamedTuple):
    """What is sent.

    Attributes:
        prompts: prompts that are given as text.
        lengths: lengths of prompts that are made up, in tokens, the shortest first.
        batches: how many of those are sent at once, the fewest first.
        max_tokens: tokens that each request is answered with.
        most_tokens: tokens that the prompts of a batch may have together; None where nobody bounds them.
    """

    prompts: Sequence[str] = ()
    lengths: Sequence[int] = ()
    batches: Sequence[int] = ()
    max_tokens: int = 8
    most_tokens: int | None = None


_LENGTHS: Final = (8, 32, 128, 512, 2048)
"""Lengths of prompts where nobody says any. Longer ones are computed in pieces of about the last one's size: vLLM and SGLang take 2048
to 8192 tokens into a step."""
_MOST_TOKENS: Final = 65_536
"""Where nobody says any, what the prompts of one batch come to: a few seconds on a large model. It is bounded, or a policy that takes many
requests in flight would be warmed up for minutes."""


def sizes_of(warmup: Warmup, *, in_flight: int | None, longest: int | None) -> Sizes:
    """Return what is sent: what is told, and where that leaves something out, what follows from policy and engine. PURE.

    Args:
        warmup: what is told.
        in_flight: requests that the resident is to hold at once; None if nobody says it, and then only what is told is sent.
        longest: tokens that one sequence may have; None if the engine doesn't tell.
    """
    lengths, batches = warmup.prompt_tokens, warmup.batch_sizes
    return Sizes(
        prompts=warmup.prompts,
        lengths=sorted(set(_lengths(in_flight, longest, warmup.max_tokens) if lengths is None else lengths)),
        batches=sorted(set(_batches(in_flight) if batches is None else batches) - {1}),
        max_tokens=warmup.max_tokens,
        most_tokens=None if lengths is not None and batches is not None else _MOST_TOKENS,
    )


def _lengths(in_flight: int | None, longest: int | None, answer: int) -> Sequence[int]:
    if in_flight is None:
        return ()
    most = _LENGTHS[-1] if longest is None else min(_LENGTHS[-1], longest - answer)
    within = [each for each in _LENGTHS if each < most]
    return [*within, most] if most > 0 else ()


def _batches(in_flight: int | None) -> Sequence[int]:
    if in_flight is None:
        return ()
    return [*(1 << power for power in range(in_flight.bit_length())), in_flight]


def shapes(sizes: Sizes) -> Iterator[Shape]:
    """Yield what is sent beside the prompts that are given as text: lengths alone, then batches, the smallest first. PURE.

    Batches are of the shortest prompt, for what they change is the steps after it; the largest one comes with the longest prompt as
    well, which is the most that the engine will ever hold.
    """
    lengths, batches = sizes.lengths, sizes.batches
    for tokens in lengths:
        yield Shape(tokens, 1)
    for requests in batches if lengths else ():
        yield Shape(lengths[0], requests)
    if batches and len(lengths) > 1:
        most = batches[-1] if sizes.most_tokens is None else sizes.most_tokens // lengths[-1]
        yield Shape(lengths[-1], max(1, min(batches[-1], most)))


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
    engine: Engine, sizes: Sizes, took: Callable[[float], None], *, deadline: Deadline
) -> WarmUp:
    """Send each prompt alone, then all of them at once, then prompts of all lengths and batches of all sizes.

    A length or a batch that the engine refuses (it takes no ids of tokens, or has no room) is left out, and said in the log.

    Args:
        engine: the engine.
        sizes: what is sent.
        took: is told the seconds that each request took that was sent alone.
        deadline: by when all of it has to be over.

    Returns:
        What was computed.

    Raises:
        EngineError: the engine didn't answer one of them.
    """
    clock = asyncio.get_running_loop().time
    for prompt in sizes.prompts:
        began = clock()
        await engine.complete(prompt, tokens=sizes.max_tokens, deadline=deadline)
        took(clock() - began)
    if len(sizes.prompts) > 1:  # one request is no batch
        await _at_once(engine, sizes.prompts, sizes.max_tokens, deadline)
    done: list[Shape] = []
    left_out = 0
    for number, shape in enumerate(shapes(sizes)):
        began = clock()
        try:
            await _at_once(engine, prompts(shape, number), sizes.max_tokens, deadline)
        except EngineRejected as error:
            left_out += 1
            _LOG.warning(
                "warm-up leaves out %d requests of %d tokens: %s", shape.requests, shape.tokens, error
            )
        else:
            done.append(shape)
            if shape.requests == 1:
                took(clock() - began)
    return WarmUp(
        prompt_tokens=tuple(sorted({each.tokens for each in done})),
        batch_sizes=tuple(sorted({each.requests for each in done})),
        max_tokens=sizes.max_tokens,
        left_out=left_out,
    )


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
