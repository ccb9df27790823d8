"""Where an engine's weights come from: the fastest tier that is there.

Attached to a copy that the stage daemon holds on the device, from one that it holds on another device of the host to which a direct link
leads, from the daemon's host memory, from the files wherever those are: tried in this order, and what was passed over is told with its reason.
Without a stage daemon's socket only the files are tried.

It is the daemon that copies from another device: an engine sees its own devices alone, and makes no context on somebody else's. One rank of
several has its parts of matrices that are cut by columns from the files or the daemon's host memory, since they are too many short runs to
ask for one by one.
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
from loader.control import Control
from loader.errors import DeviceUnavailable, LoaderError, LoadError
from loader.loading import Run
from loader.sources.files import FILES
from loader.sources.port import Source, Tier
from loader.stage.client import StageClient, StageSource, lease_held, taken
from loader.stage.layout import Move, joined
from warmpool.reference.attached import STEP_SECONDS, AttachedWeights, Attachment, FixedDevice, require_dtype
from warmpool.reference.handed import Chunk, left_by, moves_into

ATTACHED: Final = "Attached"
STAGED: Final = "Staged"
SIBLING: Final = str(Tier.SIBLING)
_ON_CPU: Final = "WeightsTurned"
_NOT_STAGED: Final = "NotStaged"
_NO_SIBLING: Final = "NoSibling"
_NOT_HANDED_OVER: Final = "NotHandedOver"
_HELD: Final = "Held"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """A tier that was tried in vain.

    Attributes:
        tier: which.
        code: why, in one word: the loader's error, or `NoSibling`, `NotHandedOver`,
            `NotStaged` or `WeightsTurned`.
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
        bytes_per_second: cap on what comes through host memory; None for none. With one the engine reads the daemon's host memory by
            itself, for the daemon copies as fast as it can.
        passed: the tiers that were tried in vain, in this order.
    """

    checkpoint: Checkpoint
    socket: Path | None
    lender: Lender | None = None
    bytes_per_second: float | None = None
    passed: list[PassedOver] = field(default_factory=list)
    _attach_seconds: float = 0.0
    _is_attached: bool = False

    @property
    def hands_over(self) -> bool:
        """Whether memory for the weights may be handed to the daemon: there is one to ask, and they aren't attached."""
        return self.socket is not None and not self._is_attached

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
        self._is_attached = True
        return found

    def adopt(self, weights: AttachedWeights) -> Supplied:
        """Make an attached copy a model's weights."""
        began = time.perf_counter()
        copied = weights.fill()
        seconds = {"Attach": self._attach_seconds, "Copy": time.perf_counter() - began}
        nbytes = weights.attached_bytes + copied
        return Supplied(tier=ATTACHED, nbytes=nbytes, seconds=sum(seconds.values()), steps=seconds)

    def load(self, parameters: Mapping[str, Tensor]) -> Supplied:
        """Load into memory of the engine's own: from another device, from the daemon's host memory, or else from the files.

        Raises:
            LoaderError: the files can't be loaded.
        """
        if self.socket is None:
            return self._load(self.checkpoint, parameters, FILES)
        try:
            with StageClient(self.socket, timeout_seconds=STEP_SECONDS) as client:
                staged = self._is_staged(client)
                rest: Source = StageSource(client) if staged else FILES
                if filled := self._from_sibling(client, parameters, rest):
                    return filled
                if staged:
                    capped = self.bytes_per_second is not None
                    filled = None if capped else self._handed(client, parameters, rest)
                    return filled or self._load(self.checkpoint, parameters, rest)
            self._pass_over(
                STAGED, _NOT_STAGED, "the stage daemon doesn't have this checkpoint in its memory"
            )
        except LoadError as error:
            if SIBLING not in {each.tier for each in self.passed}:
                self._fail(SIBLING, error)
            self._fail(STAGED, error)
        finally:
            if self.lender is not None:
                self.lender.stop_sharing()
        return self._load(self.checkpoint, parameters, FILES)

    def _from_sibling(
        self, client: StageClient, parameters: Mapping[str, Tensor], rest: Source
    ) -> Supplied | None:
        """Have the daemon copy from another device into this engine's memory; None where that isn't to be had."""
        lender = self.lender
        if lender is None:
            why = "this engine's weights lie in memory that can't be handed to the stage daemon"
            self._pass_over(SIBLING, _NOT_HANDED_OVER, why)
            return None
        try:
            holders = self._holders(client)
        except LoaderError as error:
            self._fail(SIBLING, error)
            return None
        if not holders:
            self._pass_over(SIBLING, _NO_SIBLING, "the stage daemon holds this checkpoint on no device")
        for holder in sorted(holders, key=lambda uuid: uuid != lender.uuid):  # its own is nearest
            if filled := self._handed(client, parameters, rest, holder):
                return filled
        return None

    def _holders(self, client: StageClient) -> list[str]:
        """Ids of the devices on which the daemon holds this checkpoint."""
        path = os.path.realpath(self.checkpoint.path)
        return [
            str(row.get("device"))
            for row in client.held()
            if row.get("path") == path and row.get("state") == _HELD
        ]

    def _handed(
        self,
        client: StageClient,
        parameters: Mapping[str, Tensor],
        rest: Source,
        sibling: str | None = None,
    ) -> Supplied | None:
        """Have the daemon copy into this engine's memory; None where it can't, and then the engine copies by itself.

        Args:
            client: a connection to the daemon.
            parameters: where to.
            rest: where those parts come from whose bytes lie apart.
            sibling: the device whose held copy they come from; None for the daemon's host memory.
        """
        tier = STAGED if sibling is None else SIBLING
        if self.lender is None:
            return None
        if self.lender.refused:
            self._pass_over(tier, DeviceUnavailable.__name__, self.lender.refused)
            return None
        together = [name for name, entry in self.checkpoint.tensors.items() if entry.runs is None]
        began = time.perf_counter()
        try:
            require_dtype(self.checkpoint, next(iter(parameters.values())).dtype)
            if sibling is None:
                with taken(client, self.checkpoint):
                    pass  # the very version that was opened, leased from here on
            else:
                lease_held(client, self.checkpoint, sibling)  # likewise
            left = self._fill(client, together, parameters, sibling)
        except LoaderError as error:
            self._fail(tier, error)
            return None
        if left:
            raise AssertionError("weights lie outside the memory that was taken for them")
        seconds = time.perf_counter() - began
        steps = {"Copy": seconds}
        apart = self.checkpoint.tensors.keys() - set(together)
        if apart:
            others = self.checkpoint.only(sorted(apart))
            steps["Apart"] = self._load(others, {name: parameters[name] for name in apart}, rest).seconds
        nbytes = sum(entry.nbytes for entry in self.checkpoint.tensors.values())
        return Supplied(tier=tier, nbytes=nbytes, seconds=sum(steps.values()), steps=steps)

    def _fill(
        self,
        client: StageClient,
        names: Sequence[str],
        parameters: Mapping[str, Tensor],
        sibling: str | None,
    ) -> list[Move]:
        """Have tensors copied into the memory that can be handed over; what of them lies elsewhere."""
        assert self.lender is not None
        entries = (self.checkpoint.tensors[name] for name in names)
        moves: list[Move] = [
            (entry.file, entry.begin, entry.nbytes, parameters[entry.name].data_ptr()) for entry in entries
        ]
        for chunk in self.lender.chunks:
            parts = list(joined(moves_into(chunk, moves)))
            on = (self.lender.uuid, chunk.nbytes)
            client.copy(self.checkpoint.path, parts, chunk.descriptor, on, sibling=sibling)
            moves = list(left_by(chunk, moves))
        return moves

    def _load(self, checkpoint: Checkpoint, parameters: Mapping[str, Tensor], source: Source) -> Supplied:
        run = Run(source=source, control=Control(bytes_per_second=self.bytes_per_second))
        result = loader.load(checkpoint, into=parameters, convert=True, run=run)
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
