"""Weights that are brought into the node's memory before the engine that needs them is started.

Residents of a seat start one after the other, and reading weights from disk or over the network takes longer than all else. So the agent has the
node's stage daemon read them ahead: those of its own residents that wait for their start, in the order of need, and then what the
controller says the node will need. What is read is leased for as long as it is needed, so that nothing that is needed more gives
way to it; whatever finds no room in the daemon's budget is left out, and told. One checkpoint is read at a time, for two share what the disk gives.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warmpool.agent.board import Record
from warmpool.states import ResidentState

if TYPE_CHECKING:
    from loader.stage.connection import StageClient

_LOG = logging.getLogger(__name__)

_STEP_SECONDS: Final = 1.0
"""How long the daemon may take for a step of an answer. Reading takes longer, and goes on at the daemon when nobody waits any more."""
PENDING_SECONDS: Final = 1.0
"""How soon it is looked again while something is on its way."""
LOOK_SECONDS: Final = 30.0
"""How soon it is looked again while nothing is: a daemon that was started anew has nothing."""


class Place(StrEnum):
    """What has become of a checkpoint that is wanted in the node's memory."""

    STAGED = "Staged"
    """It is there, and stays for as long as it is wanted."""
    STAGING = "Staging"
    """It is being read."""
    WAITS = "Waits"
    """Another one is being read first."""
    HELD = "Held"
    """The daemon holds a copy in device memory, which is nearer still."""
    LEFT_OUT = "LeftOut"
    """It isn't to be had there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """One checkpoint that is wanted.

    Attributes:
        checkpoint: its path.
        place: what has become of it.
        reason: why it isn't to be had; empty if it is.
    """

    checkpoint: str
    place: Place
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Render it."""
        return {"checkpoint": self.checkpoint, "place": str(self.place), "reason": self.reason}


def wanted(by_need: Sequence[Record], told: Sequence[str]) -> tuple[str, ...]:
    """Return the checkpoints that are wanted, the most needed first: of residents that wait for their start, then those told of. PURE.

    Who starts already reads its weights itself if they aren't there, and reading them twice at once helps nobody.
    """
    busy = any(record.process is not None for record in by_need)
    own = [record.checkpoint for record in by_need if _waits_for_its_start(record, busy=busy)]
    return tuple(dict.fromkeys(each for each in (*own, *told) if each))


def _waits_for_its_start(record: Record, *, busy: bool) -> bool:
    """Whether a resident is still to be started, and not at once: others start before it, or something is in its way."""
    if record.process is not None or record.state is ResidentState.TERMINATING:
        return False
    return busy or bool(record.waiting)


class Stager:
    """Has a stage daemon keep what is wanted. Each question to it is short, on one thread of its own.

    Args:
        socket: where it listens.

    Attributes:
        found: what has become of each that is wanted.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._leases: dict[str, StageClient] = {}
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stage-ahead")
        self.found: tuple[Ahead, ...] = ()

    @property
    def pending(self) -> bool:
        """Whether something is on its way, or waits for its turn."""
        return any(each.place in {Place.STAGING, Place.WAITS} for each in self.found)

    async def keep(self, checkpoints: Sequence[str]) -> bool:
        """Have these kept, the most needed first, and let go of all others; return whether anything has changed."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._thread, self._keep, tuple(checkpoints))
        changed, self.found = found != self.found, found
        return changed

    def close(self) -> None:
        """Let go of everything, once the question that is out has been answered; that isn't waited for."""
        if not self._closed:
            self._closed = True
            self._thread.submit(self._let_go)
            self._thread.shutdown(wait=False)

    # ------------------------------------------------------------------ on its thread

    def _let_go(self) -> None:
        while self._leases:
            self._leases.popitem()[1].close()

    def _keep(self, checkpoints: Sequence[str]) -> tuple[Ahead, ...]:
        from loader.errors import LoaderError  # noqa: PLC0415 - only agents whose node has a stage daemon pay for the loader

        for checkpoint in self._leases.keys() - set(checkpoints):
            self._leases.pop(checkpoint).close()
        if not checkpoints:
            return ()
        try:
            return self._look(checkpoints)
        except LoaderError as error:
            _LOG.info("nothing can be staged ahead: %s", error.what)
            return tuple(
                Ahead(checkpoint=each, place=Place.LEFT_OUT, reason=error.what) for each in checkpoints
            )

    def _look(self, checkpoints: Sequence[str]) -> tuple[Ahead, ...]:
        """Look what is there, lease it, and have the first one that isn't read.

        Raises:
            LoaderError: the daemon doesn't answer.
        """
        with self._connection() as client:
            reading = {str(each.get("path")) for each in client.statuses() if each.get("state") == "Staging"}
            held = {str(each.get("path")) for each in client.held()}
        self._forget_broken()
        found = []
        for checkpoint in checkpoints:
            path = os.path.realpath(checkpoint)  # as the daemon tells it
            if checkpoint in self._leases:
                found.append(Ahead(checkpoint=checkpoint, place=Place.STAGED))
            elif path in held:
                found.append(Ahead(checkpoint=checkpoint, place=Place.HELD))
            elif reading:
                place = Place.STAGING if path in reading else Place.WAITS
                found.append(Ahead(checkpoint=checkpoint, place=place))
            else:
                found.append(self._take(checkpoint))
                if found[-1].place is Place.STAGING:
                    reading = {path}
        return tuple(found)

    def _forget_broken(self) -> None:
        """Forget leases of a daemon that has ended: the next one knows nothing of them."""
        from loader.errors import LoaderError  # noqa: PLC0415 - as above

        for checkpoint, client in tuple(self._leases.items()):
            try:
                client.statuses()
            except LoaderError:
                client.close()
                del self._leases[checkpoint]

    def _take(self, checkpoint: str) -> Ahead:
        """Lease a checkpoint, which has it read where it isn't there; then the lease is taken once it is."""
        from loader.errors import LoaderError, StageUnreachable  # noqa: PLC0415 - as above

        client = self._connection()
        try:
            shards = client.take(checkpoint)
        except StageUnreachable as error:
            client.close()
            if isinstance(error.__cause__, TimeoutError):
                return Ahead(checkpoint=checkpoint, place=Place.STAGING)
            raise
        except LoaderError as error:
            client.close()
            return Ahead(checkpoint=checkpoint, place=Place.LEFT_OUT, reason=error.what)
        for descriptor, _ in shards.values():
            os.close(descriptor)
        self._leases[checkpoint] = client
        return Ahead(checkpoint=checkpoint, place=Place.STAGED)

    def _connection(self) -> "StageClient":
        from loader.stage.connection import StageClient  # noqa: PLC0415 - as above

        return StageClient(self._socket, timeout_seconds=_STEP_SECONDS)
