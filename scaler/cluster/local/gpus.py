"""Which GPUs this machine has, without creating a context on any of them."""

import asyncio
import shutil
from dataclasses import dataclass

_LIST_TIMEOUT_SECONDS = 30.0
"""nvidia-smi initialises the driver when nothing holds it open, which takes seconds on large machines."""
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver lists it.

    Attributes:
        uuid: its identity; what CUDA_VISIBLE_DEVICES takes.
        name: the product's name.
        memory_bytes: its memory.
    """

    uuid: str
    name: str
    memory_bytes: int


async def find_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that the driver lists; empty where there is no driver, no GPU, or no answer in time."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    process = await asyncio.create_subprocess_exec(
        program,
        "--query-gpu=uuid,name,memory.total",
        "--format=csv,noheader,nounits",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_LIST_TIMEOUT_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return ()
    if process.returncode != 0:
        return ()
    return parse_list(output.decode(errors="replace"))


def parse_list(text: str) -> tuple[Gpu, ...]:
    """Read nvidia-smi's lines of `uuid, name, MiB`; lines of another form are skipped."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[0].startswith("GPU-") and fields[2].isdigit():  # noqa: PLR2004 - uuid, name, MiB
            gpus.append(Gpu(uuid=fields[0], name=fields[1], memory_bytes=int(fields[2]) * _MIB))
    return tuple(gpus)
