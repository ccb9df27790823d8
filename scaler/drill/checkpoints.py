"""The checkpoints that the drill's engines serve: made once per shape and seed, kept in a folder."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaler.drill.child import environment
from scaler.drill.scenario import Model
from scaler.errors import ScalerError, UserError

_MAKE_SECONDS = 900.0
"""The largest shape has 16 GB to write."""


class CheckpointFailed(ScalerError):
    """A checkpoint can't be made; the message quotes what its maker said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """How checkpoints are made.

    Attributes:
        command: the command that takes `--shape S --seed N DIR`.
        cache: the folder that they are kept in.
        given: per policy, a checkpoint that the user brings along.
    """

    command: Sequence[str]
    cache: Path
    given: Mapping[str, Path]


async def prepare(models: Sequence[Model], maker: Maker, tell: Callable[[str], None]) -> dict[str, Path]:
    """Return a checkpoint per policy; make those that aren't there.

    Raises:
        UserError: a checkpoint that was brought along is no folder, or belongs to no model.
        CheckpointFailed: one can't be made.
    """
    known = [model.policy for model in models]
    for policy, directory in maker.given.items():
        if policy not in known:
            raise UserError(
                f"--checkpoint {policy}: no such model in the scenario", hint=f"known: {', '.join(known)}"
            )
        if not (directory / "config.json").is_file():
            hint = "name a checkpoint's folder, the one with config.json and *.safetensors"
            raise UserError(f"--checkpoint {policy}: {directory} holds no config.json", hint=hint)
    result = {}
    for model in models:
        if model.policy in maker.given:
            result[model.policy] = maker.given[model.policy].resolve()
        else:
            result[model.policy] = await _made(model, maker, tell)
    return result


def checkpoint_name(model: Model) -> str:
    """Name of the folder of a checkpoint that is made."""
    return f"{model.shape}-seed{model.seed}"


async def _made(model: Model, maker: Maker, tell: Callable[[str], None]) -> Path:
    """Make into a temporary folder beside the final one and rename it: a final folder is always whole."""
    final = (maker.cache / checkpoint_name(model)).resolve()
    if final.is_dir():
        return final
    tell(f"making checkpoint {final.name} (once; kept in {maker.cache})")
    await asyncio.to_thread(maker.cache.mkdir, parents=True, exist_ok=True)
    partial = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=f".{final.name}-", dir=maker.cache))
    try:
        content = partial / "checkpoint"
        await _run(
            [*maker.command, "--shape", model.shape, "--seed", str(model.seed), str(content)], final.name
        )
        try:
            content.rename(final)
        except OSError:
            if not final.is_dir():  # else another drill was faster
                raise
    finally:
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
    return final


async def _run(command: Sequence[str], name: str) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=environment(),
        )
    except OSError as error:
        raise CheckpointFailed(f"can't start {command[0]}: {error.strerror or error}") from error
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _MAKE_SECONDS)
    except TimeoutError as error:
        raise CheckpointFailed(f"checkpoint {name} is not there after {_MAKE_SECONDS:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        tail = "\n".join(f"  {line}" for line in output.decode("utf-8", "replace").splitlines()[-10:])
        raise CheckpointFailed(f"making checkpoint {name} ended with exit code {process.returncode}:\n{tail}")
