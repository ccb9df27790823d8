"""What residents must answer: recorded per checkpoint by a computation that shares nothing with serving.

`python -m warmpool.reference expect` runs the plain forward pass, without batching, KV memory or pausing, in a process of
its own; its answer is kept beside the checkpoint (or in the state directory where that is read-only) and made anew when
the checkpoint's files change.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaler.errors import UserError
from warmpool.seats import PolicyName

_FILE = "emberpool.proof.json"
_RECORD_VERSION = 2
"""Raised when `expect` computes something else, so that records of an older one are made anew."""
_DEADLINE_SECONDS = 1800.0
"""A 70B checkpoint on a slow disk; a tiny one takes as long as importing torch."""


async def expectations(
    directories: Mapping[PolicyName, Path], fallback: Path, devices: Mapping[PolicyName, str]
) -> dict[PolicyName, Any]:
    """Return each policy's proof, made where it isn't there yet; one checkpoint is computed at a time.

    Args:
        directories: checkpoint directory by policy.
        fallback: where records go whose checkpoint's directory is read-only.
        devices: per policy `cpu` or `cuda`: tokens are recorded on the kind of device that will serve them.

    Raises:
        UserError: a checkpoint can't be computed; the message quotes why.
    """
    made: dict[tuple[Path, str], Any] = {}
    for policy, directory in directories.items():
        key = (directory, devices[policy])
        if key not in made:
            made[key] = await _expectation(directory, fallback / f"{policy}.proof.json", devices[policy])
    return {policy: made[directory, devices[policy]] for policy, directory in directories.items()}


async def _expectation(directory: Path, fallback: Path, device: str) -> dict[str, Any]:
    fingerprint = await asyncio.to_thread(_fingerprint, directory, device)
    for path in (directory / _FILE, fallback):
        known = await asyncio.to_thread(_read, path)
        if known is not None and known.get("fingerprint") == fingerprint:
            return {"prompts": known["prompts"]}
    record = {"fingerprint": fingerprint, **await _compute(directory, device)}
    await asyncio.to_thread(_write, (directory / _FILE, fallback), json.dumps(record))
    return {"prompts": record["prompts"]}


async def _compute(directory: Path, device: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "warmpool.reference",
        "expect",
        "--checkpoint",
        str(directory),
        "--device",
        device,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    if process.returncode != 0:
        message, _, hint = errors.decode(errors="replace").strip().partition("hint: ")
        last = message.strip().splitlines()[-1] if message.strip() else f"exit code {process.returncode}"
        raise UserError(
            f"the checkpoint {directory} can't be used: {last.removeprefix('error: ')}",
            hint=hint.strip() or "`python -m loader verify DIR` lists what is wrong with a checkpoint",
        )
    answer: dict[str, Any] = json.loads(output)
    return {"prompts": answer["prompts"]}


def _fingerprint(directory: Path, device: str) -> str:
    """Identify the checkpoint's files by name, size and time: reading 16 GB to hash them would cost more than the proof."""
    digest = hashlib.sha256(f"{_RECORD_VERSION}:{device};".encode())
    for path in sorted([*directory.glob("*.safetensors"), *directory.glob("config.json")]):
        stat = path.stat()
        digest.update(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("prompts") else None


def _write(paths: tuple[Path, ...], text: str) -> None:
    for path in paths:
        try:
            temporary = path.with_suffix(".partial")
            temporary.write_text(text, "utf-8")
            temporary.replace(path)
        except OSError:
            continue
        return
