"""`emberpool gateway` as a process of its own, which can be killed."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

NOBODY = "http://127.0.0.1:9"
BARE = {name: value for name, value in os.environ.items() if not name.startswith("EMBERPOOL_")}


@asynccontextmanager
async def process(
    *options: str, controllers: Sequence[str] = (NOBODY,), **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    named = [part for each in controllers for part in ("--controller", each)]
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scaler", "gateway", *named, *options),
        env={**BARE, "EMBERPOOL_SIGNAL_TOKEN": "secret", **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield made
    finally:
        if made.returncode is None:
            made.kill()
        await made.communicate()
