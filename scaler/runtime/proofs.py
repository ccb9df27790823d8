"""What residents must answer: recorded per checkpoint by a computation that shares nothing with serving.

`python -m warmpool.reference expect` runs the plain forward pass, without batching, KV memory or pausing, in a process of
its own; its answer is kept beside the checkpoint (or in the state directory where that is read-only) and made anew when
the checkpoint's files change.
"""

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaler.errors import UserError
from scaler.version import VERSION
from warmpool.seats import PolicyName

_FILE = "emberpool.proof.json"
_RECORD_VERSION = 5
"""Raised when `expect` computes something else, so that records of an older one are made anew."""
_WARNING = "warning: "
"""What the line begins with in which `expect` says what is doubtful."""
_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.5}
"""How far log-probabilities may be from the record, by number format. The record comes from whole passes, and what serves adds up in
another order: on the tiny and the small checkpoint that came to 0.00001 and to 0.07 at most (on CPU)."""
_DEADLINE_SECONDS = 1800.0
"""A 70B checkpoint on a slow disk; a tiny one takes as long as importing torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a policy's residents compute with.

    Attributes:
        directory: the checkpoint's directory.
        device: `cpu` or `cuda`: tokens are recorded on the kind of device that will serve them.
        dtype: number format, as the engine's `--dtype` takes it.
    """

    directory: Path
    device: str
    dtype: str


async def expectations(
    served: Mapping[PolicyName, Served],
    fallback: Path,
    environment: Mapping[str, str],
    tell: Callable[[str], None],
) -> dict[PolicyName, Any]:
    """Return each policy's proof, made where it isn't there yet; one checkpoint is computed at a time.

    Args:
        served: what each policy's residents compute with.
        fallback: where records go whose checkpoint's directory is read-only.
        environment: variables set beside this process's own where one is computed.
        tell: hears what is computed, how long that took, and what is doubtful of a record, whether or not it is a new one.

    Raises:
        UserError: a checkpoint can't be computed; the message quotes why.
    """
    whose: dict[Served, list[PolicyName]] = {}
    for policy, what in served.items():
        whose.setdefault(what, []).append(policy)
    recorder = _Recorder(fallback, environment, tell)
    made = {what: await recorder.record(what, policies) for what, policies in whose.items()}
    return {policy: _proof(made[what]) for policy, what in served.items()}


@dataclass(frozen=True, slots=True)
class _Recorder:
    """Finds records or makes them; see `expectations`."""

    fallback: Path
    environment: Mapping[str, str]
    tell: Callable[[str], None]

    async def record(self, served: Served, policies: Sequence[PolicyName]) -> Mapping[str, Any]:
        places = (served.directory / _FILE, self.fallback / f"{policies[0]}.proof.json")
        fingerprint = await asyncio.to_thread(_fingerprint, served)
        found = await asyncio.to_thread(_find, places, fingerprint)
        if found is None:
            found = {"fingerprint": fingerprint, **await self._computed(served, ", ".join(policies))}
            await asyncio.to_thread(_write, places, json.dumps(found))
        if found.get("doubt"):
            self.tell(f"{_WARNING}{served.directory}: {found['doubt']}")
        return found

    async def _computed(self, served: Served, whose: str) -> dict[str, Any]:
        self.tell(f"computing what {whose} must answer, from {served.directory} ({served.device})")
        began = time.monotonic()
        computed = await _compute(served, self.environment)
        self.tell(f"computed what {whose} must answer in {time.monotonic() - began:.1f} s")
        return computed


def _proof(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as an agent's configuration has it."""
    ownership = record["ownership"]
    tolerance = _TOLERANCES[ownership["dtype"]]
    return {"prompts": record["prompts"], "ownership": ownership, "tolerance": tolerance}


async def _compute(served: Served, environment: Mapping[str, str]) -> dict[str, Any]:
    directory = served.directory
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "warmpool.reference",
        "expect",
        "--checkpoint",
        str(directory),
        "--device",
        served.device,
        "--dtype",
        served.dtype,
        env={**os.environ, **environment},
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
    told = errors.decode(errors="replace").splitlines()
    doubt = next((line.removeprefix(_WARNING) for line in told if line.startswith(_WARNING)), "")
    return {"prompts": answer["prompts"], "ownership": answer["ownership"], "doubt": doubt}


def _fingerprint(served: Served) -> str:
    """Identify the checkpoint's files by name, size and time: reading 16 GB to hash them would cost more than the proof."""
    directory = served.directory
    which = f"{_RECORD_VERSION}:{VERSION}:{served.device}:{served.dtype};"
    digest = hashlib.sha256(which.encode())
    for path in sorted([*directory.glob("*.safetensors"), *directory.glob("config.json")]):
        stat = path.stat()
        digest.update(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    return digest.hexdigest()


def _find(places: Sequence[Path], fingerprint: str) -> dict[str, Any] | None:
    """Return the first record that was made of the checkpoint as it is."""
    for path in places:
        known = _read(path)
        if known is not None and known.get("fingerprint") == fingerprint:
            return known
    return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("prompts") and record.get("ownership") else None


def _write(paths: tuple[Path, ...], text: str) -> None:
    for path in paths:
        try:
            temporary = path.with_suffix(".partial")
            temporary.write_text(text, "utf-8")
            temporary.replace(path)
        except OSError:
            continue
        return
