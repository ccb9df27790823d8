"""Warm-up: real requests, so that kernels are compiled and caches filled before anyone waits for them."""

import asyncio

from warmpool.agent.config import Warmup
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Engine


async def warm_up(engine: Engine, warmup: Warmup, *, deadline: Deadline) -> None:
    """Send each prompt alone, then all of them at once: a batch takes other kernels than a single request.

    Raises:
        EngineError: the engine didn't answer one of them.
    """
    for prompt in warmup.prompts:
        await engine.complete(prompt, tokens=warmup.max_tokens, deadline=deadline)
    if len(warmup.prompts) < 2:  # noqa: PLR2004 (one request is no batch)
        return
    try:
        async with asyncio.TaskGroup() as batch:
            for prompt in warmup.prompts:
                batch.create_task(engine.complete(prompt, tokens=warmup.max_tokens, deadline=deadline))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
