"""Where an engine's weights come from: the fastest tier that is there.

Attached to a copy that the stage daemon holds on the device, from the daemon's host memory, from the files wherever those are: tried in
this order, and what was passed over is told with its reason. Without a stage daemon's socket only the files are tried.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor

import loader
from loader.checkpoint import Checkpoint
from loader.errors import DeviceUnavailable, LoaderError, LoadError
from loader.loading import Run
from loader.sources.files import FILES
from loader.sources.port import Source
from loader.stage.client import StageClient, StageSource, taken
from loader.stage.layout import joined
from warmpool.reference.attached import STEP_SECONDS, AttachedWeights, Attachment, FixedDevice, require_dtype
from warmpool.reference.handed import Chunk, left_by, moves_into

ATTACHED: Final = "Attached"
STAGED: Final = "Staged"
_ON_CPU: Final = "WeightsTurned"
_NOT_STAGED: Final = "NotStaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """A tier that was tried in vain.

    Attributes:
        tier: which.
        code: why, in one word: the loader's error, or `NotStaged` or `WeightsTurned`.
        reason: why, in words.
    """

    tier: str
    code: str
    reason: str

    def as_json(self) -> Mapping[str, str]:
        """Render it."""
        return {"tier": self.tier, "code": self.code, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Supplied:
    """How weights came.

    Attributes:
        tier: where from.
        nbytes: how many bytes.
        seconds: how long that took.
        steps: the same by step.
    """

    tier: str
    nbytes: int
    seconds: float
    steps: Mapping[str, float]


class Lender(Protocol):
    """The engine's own device memory, as far as others may be given descriptors of it."""

    @property
    def uuid(self) -> str:
        """The device's id, in hexadecimal."""

    @property
    def chunks(self) -> Sequence[Chunk]:
        """What can be handed over."""

    @property
    def refused(self) -> str:
        """Why nothing can; empty if it can."""

    def stop_sharing(self) -> None:
        """Close all descriptors."""


@dataclass(slots=True)
class Supply:
    """One start's search.

    Attributes:
        checkpoint: with the tensors that the model wants.
        socket: the stage daemon's; None where none is to be asked.
        lender: gives out descriptors of the memory that is to be filled; None where the daemon can't fill it.
        passed: the tiers that were tried in vain, in this order.
    """

    checkpoint: Checkpoint
    socket: Path | None
    lender: Lender | None = None
    passed: list[PassedOver] = field(default_factory=list)
    _attach_seconds: float = 0.0

    def attach(self, device: torch.device, dtype: torch.dtype) -> Attachment | None:
        """Attach to a copy that the daemon holds on the device; None if that isn't to be had."""
        if self.socket is None:
            return None
        if device.type != "cuda":
            self._pass_over(
                ATTACHED, _ON_CPU, "on the CPU weights are laid out anew, and so are the engine's own"
            )
            return None
        began = time.perf_counter()
        try:
            require_dtype(self.checkpoint, dtype)
            found = Attachment(self.checkpoint, FixedDevice(device.index or 0), self.socket)
        except LoaderError as error:
            self._fail(ATTACHED, error)
            return None
        self._attach_seconds = time.perf_counter() - began
        return found

    def adopt(self, weights: AttachedWeights) -> Supplied:
        """Make an attached copy a model's weights."""
        began = time.perf_counter()
        copied = weights.fill()
        if self.lender is not None:
            self.lender.stop_sharing()
        seconds = {"Attach": self._attach_seconds, "Copy": time.perf_counter() - began}
        nbytes = weights.attached_bytes + copied
        return Supplied(tier=ATTACHED, nbytes=nbytes, seconds=sum(seconds.values()), steps=seconds)

    def load(self, parameters: Mapping[str, Tensor]) -> Supplied:
        """Load into memory of the engine's own: from the daemon's host memory, or else from the files.

        Raises:
            LoaderError: the files can't be loaded.
        """
        if self.socket is None:
            return self._load(parameters, FILES)
        try:
            with StageClient(self.socket, timeout_seconds=STEP_SECONDS) as client:
                if self._is_staged(client):
                    filled = self._handed(client, parameters)
                    return filled or self._load(parameters, StageSource(client))
            self._pass_over(
                STAGED, _NOT_STAGED, "the stage daemon doesn't have this checkpoint in its memory"
            )
        except LoadError as error:
            self._fail(STAGED, error)
        finally:
            if self.lender is not None:
                self.lender.stop_sharing()
        return self._load(parameters, FILES)

    def _handed(self, client: StageClient, parameters: Mapping[str, Tensor]) -> Supplied | None:
        """Have the daemon copy into this engine's memory; None where it can't, and then the engine copies by itself."""
        if self.lender is None:
            return None
        if self.lender.refused:
            self._pass_over(STAGED, DeviceUnavailable.__name__, self.lender.refused)
            return None
        began = time.perf_counter()
        try:
            require_dtype(self.checkpoint, next(iter(parameters.values())).dtype)
            with taken(client, self.checkpoint):
                pass  # the very version that was opened, leased from here on
            moves = [
                (entry.file, entry.begin, entry.nbytes, parameters[name].data_ptr())
                for name, entry in self.checkpoint.tensors.items()
            ]
            for chunk in self.lender.chunks:
                parts = list(joined(moves_into(chunk, moves)))
                client.copy(self.checkpoint.path, parts, chunk.descriptor, (self.lender.uuid, chunk.nbytes))
                moves = list(left_by(chunk, moves))
        except LoaderError as error:
            self._fail(STAGED, error)
            return None
        if moves:
            raise AssertionError("weights lie outside the memory that was taken for them")
        seconds = time.perf_counter() - began
        nbytes = sum(entry.nbytes for entry in self.checkpoint.tensors.values())
        return Supplied(tier=STAGED, nbytes=nbytes, seconds=seconds, steps={"Copy": seconds})

    def _load(self, parameters: Mapping[str, Tensor], source: Source) -> Supplied:
        result = loader.load(self.checkpoint, into=parameters, convert=True, run=Run(source=source))
        steps = {str(step): seconds for step, seconds in result.seconds_by_step.items()}
        return Supplied(tier=str(result.tier), nbytes=result.nbytes, seconds=result.seconds, steps=steps)

    def _is_staged(self, client: StageClient) -> bool:
        return any(
            status.get("path") == os.path.realpath(self.checkpoint.path) and status.get("state") == STAGED
            for status in client.statuses()
        )

    def _fail(self, tier: str, error: LoaderError) -> None:
        self._pass_over(tier, type(error).__name__, " ".join(str(error).partition("\n\nhint: ")[0].split()))

    def _pass_over(self, tier: str, code: str, reason: str) -> None:
        self.passed.append(PassedOver(tier=tier, code=code, reason=reason))
