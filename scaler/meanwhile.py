"""Something that goes on beside a block, for as long as the block lasts."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager


@asynccontextmanager
async def meanwhile(work: Coroutine[None, None, None], name: str) -> AsyncIterator[None]:
    """Have work go on until the block ends, which cancels it; what the block raises goes on as it is and not as a group.

    Args:
        work: what goes on.
        name: of its task.

    Raises:
        ExceptionGroup: the work failed, and the block was cancelled.
    """
    failure: Exception | None = None
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work, name=name)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised again outside of the group
            failure = error
        finally:
            task.cancel()
    if failure is not None:
        raise failure
