"""What a bench ran on: the card, the software, and how much of the card's memory is taken, by whomever.

It asks `nvidia-smi`, so that nothing has to be installed and a hanging driver hangs another process.
"""

import asyncio
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("torch", "triton", "numpy", "safetensors", "aiohttp", "pydantic")
_QUERY = "name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max"
_ANSWER_SECONDS = 60.0
"""`nvidia-smi` initialises the driver when nothing holds it open, which takes seconds."""


class NoAnswer(Exception):
    """`nvidia-smi` isn't there, or doesn't say what it was asked."""


def machine() -> dict[str, object]:
    """Describe the card and the software."""
    try:
        card = _smi(_QUERY, "csv,noheader")
    except NoAnswer as error:
        card = str(error)
    return {
        "card": card,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "versions": {package: _version(package) for package in _PACKAGES},
    }


def gpu_uuids() -> list[str]:
    """Return the UUIDs of the cards.

    Raises:
        NoAnswer: they can't be told.
    """
    return _smi("uuid", "csv,noheader").split()


def used_mebibytes() -> int:
    """Return how much memory of all cards together is taken, in MiB.

    Raises:
        NoAnswer: it can't be told.
    """
    text = _smi("memory.used", "csv,noheader,nounits")
    try:
        return sum(int(line) for line in text.split())
    except ValueError as error:
        raise NoAnswer(f"nvidia-smi says {text!r} of the memory that is taken") from error


async def device_mebibytes(device: str) -> int | None:
    """Return the taken memory of the cards in MiB; None where engines don't run on any.

    Raises:
        NoAnswer: it can't be told.
    """
    return await asyncio.to_thread(used_mebibytes) if device == "cuda" else None


def _smi(query: str, form: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={query}", f"--format={form}"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"nvidia-smi: {error}") from error
    if said.returncode != 0:
        raise NoAnswer(
            said.stderr.strip() or said.stdout.strip() or f"nvidia-smi ended with {said.returncode}"
        )
    return said.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
