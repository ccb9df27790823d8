"""What the node's stage daemon takes of the seat's GPUs: its contexts, and the copies of checkpoints that it holds there.

Residents can't have that memory, whether they are attached to such a copy or not; who is attached takes nothing for it himself. Where no daemon
listens nothing is taken. One that doesn't answer may still hold all that it held, so what it said last goes on counting, and is told.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_LOG = logging.getLogger(__name__)

_NO_DAEMON: Final = (FileNotFoundError, ConnectionRefusedError)
_STEP_SECONDS: Final = 0.5
"""How long the daemon may take for each step of an answer before a question is given up, which nobody waits for any more by then."""


class _Use(NamedTuple):
    device: str
    taken_bytes: int


class _Held(NamedTuple):
    device: str
    checkpoint: str


@dataclass(frozen=True, slots=True)
class _Answer:
    uses: Sequence[_Use] = ()
    held: frozenset[_Held] = frozenset()
    reason: str = ""


class StageDaemon:
    """Asks a stage daemon, one question at a time: a daemon that hangs keeps one thread, and delays one order.

    Args:
        socket: where it listens.

    Attributes:
        reason: why what it takes isn't known, or isn't known anew; empty if it is.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._uses: Sequence[_Use] = ()
        self._held: frozenset[_Held] = frozenset()
        self._question: asyncio.Future[_Answer] | None = None
        self.reason = "the stage daemon has not been asked yet"

    @property
    def has_devices(self) -> bool:
        """Whether it said that it has memory of any GPU."""
        return any(use.taken_bytes for use in self._uses)

    def taken_bytes(self, gpus: Iterable[str]) -> int:
        """Return what it takes of these GPUs, by what it said last, in bytes.

        Args:
            gpus: their UUIDs, in whatever form.
        """
        if not self._uses:
            return 0
        from loader.cuda.nvml import plain_id  # noqa: PLC0415 - only agents whose node has a stage daemon pay for the loader

        ours = {plain_id(gpu) for gpu in gpus}
        return sum(use.taken_bytes for use in self._uses if plain_id(use.device) in ours)

    def lacks(self, checkpoint: str, gpus: Iterable[str]) -> bool:
        """Whether it is known to hold no copy of a checkpoint on one of these GPUs, by what it said last.

        An engine on several is attached on each of them.

        Args:
            checkpoint: its directory; empty stands for whatever it may hold there.
            gpus: their UUIDs, in whatever form.
        """
        if self.reason:
            return False
        if not self._held:
            return True
        from loader.cuda.nvml import plain_id  # noqa: PLC0415 - as above

        ours, path = {plain_id(gpu) for gpu in gpus}, os.path.realpath(checkpoint) if checkpoint else ""
        there = {plain_id(each.device) for each in self._held if path in {"", each.checkpoint}}
        return not (there >= ours if ours else there)

    async def ask(self, *, seconds: float) -> None:
        """Ask it anew. What isn't answered within `seconds` counts from the next time on."""
        if self._question is None:
            loop = asyncio.get_running_loop()
            self._question = loop.run_in_executor(None, _ask, self._socket)
        elif not self._question.done():
            return
        question = self._question
        await asyncio.wait({question}, timeout=seconds)
        if not question.done():
            self._tell(f"the stage daemon at {self._socket} doesn't answer; what it said last counts")
            return
        self._question = None
        answer = question.result()
        if not answer.reason:
            self._uses, self._held = answer.uses, answer.held
        self._tell(answer.reason)

    def _tell(self, reason: str) -> None:
        if reason and reason != self.reason:
            _LOG.warning("%s", reason)
        self.reason = reason


def _ask(socket: Path) -> _Answer:
    from loader.errors import LoaderError  # noqa: PLC0415 - as above
    from loader.stage.connection import StageClient  # noqa: PLC0415 - as above

    try:
        with StageClient(socket, timeout_seconds=_STEP_SECONDS) as client:
            held = frozenset(_Held(str(row.get("device")), str(row.get("path"))) for row in client.held())
            return _Answer([_Use(use.device, use.taken_bytes) for use in client.devices()], held)
    except LoaderError as error:
        if isinstance(error.__cause__, _NO_DAEMON):
            return _Answer()
        return _Answer(reason=f"{error.what}; what the stage daemon said last counts")
