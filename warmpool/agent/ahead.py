"""Weights that are brought into the node's memory before the engine that needs them is started.

Residents of a seat start one after the other, and reading weights from disk or over the network takes longer than all else. So the agent has the
node's stage daemon read them ahead: those of its own residents that wait for their start, in the order of need, and then what the
controller says the node will need. It is leased from the order to read it until its engine has loaded it, so that nothing that is needed less
takes its place; whatever finds no room in the daemon's budget is left out, and told. One checkpoint is read at a time, for two share what the disk
gives.
"""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
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


_BEFORE_WEIGHTS: Final = frozenset({ResidentState.STARTING, ResidentState.LOADING, ResidentState.FAILED})


class Place(StrEnum):
    """Where a checkpoint is in the node's memory, or what has become of it that is wanted there."""

    STAGED = "Staged"
    """It is there, and stays until the engine that needs it has loaded it, or it is wanted no more."""
    STAGING = "Staging"
    """It is being read."""
    WAITS = "Waits"
    """Another one is being read first."""
    HELD = "Held"
    """The daemon holds a copy in device memory, which is nearer still."""
    LEFT_OUT = "LeftOut"
    """It isn't to be had there."""
    ABSENT = "Absent"
    """It isn't there, and nobody wants it there now."""


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


def starting(by_need: Sequence[Record]) -> tuple[str, ...]:
    """Return the checkpoints of residents that start, or are about to, anew or again, and haven't loaded yet. PURE.

    They aren't read ahead any more; what is there already must stay until their engines have taken it.
    """
    return tuple(
        dict.fromkeys(
            record.checkpoint
            for record in by_need
            if record.checkpoint
            and record.state in _BEFORE_WEIGHTS
            and not (record.loaded or record.given_up)
        )
    )


def _waits_for_its_start(record: Record, *, busy: bool) -> bool:
    """Whether a resident is still to be started, and not at once: others start before it, or something is in its way."""
    if record.process is not None or record.given_up or record.state is ResidentState.TERMINATING:
        return False
    return busy or bool(record.waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class _There:
    """What a daemon has.

    Attributes:
        states: of what is in host memory or on its way there, by path.
        held: the paths of which it holds copies in device memory.
    """

    states: Mapping[str, str]
    held: frozenset[str]

    def place(self, checkpoint: str) -> Ahead:
        """Return where a checkpoint is, for whomever."""
        path = os.path.realpath(checkpoint)
        if path in self.held:
            return Ahead(checkpoint=checkpoint, place=Place.HELD)
        state = self.states.get(path, "")
        known = {str(Place.STAGED): Place.STAGED, str(Place.STAGING): Place.STAGING}
        return Ahead(checkpoint=checkpoint, place=known.get(state, Place.ABSENT))


class Stager:
    """Has a stage daemon keep what is wanted. Each question to it is short, on one thread of its own.

    Args:
        socket: where it listens.

    Attributes:
        found: what has become of each that is wanted, and of those that start as far as they are there.
        places: where each of these and of the others is that were asked for; empty before the first answer.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._leases: dict[str, StageClient] = {}
        self._coming: dict[str, StageClient] = {}
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stage-ahead")
        self.found: tuple[Ahead, ...] = ()
        self.places: Mapping[str, Ahead] = {}

    @property
    def pending(self) -> bool:
        """Whether something is on its way, or waits for its turn."""
        return any(each.place in {Place.STAGING, Place.WAITS} for each in self.found)

    async def keep(
        self, checkpoints: Sequence[str], starting: Sequence[str] = (), others: Sequence[str] = ()
    ) -> bool:
        """Have checkpoints kept, and let go of all others; return whether anything has changed.

        Args:
            checkpoints: those that are wanted, the most needed first: what isn't there is read.
            starting: those that engines are taking now: what is there, or on its way, stays.
            others: those of which it is only told where they are.
        """
        loop = asyncio.get_running_loop()
        found, places = await loop.run_in_executor(
            self._thread, self._keep, tuple(checkpoints), tuple(starting), tuple(others)
        )
        changed = (found, places) != (self.found, self.places)
        self.found, self.places = found, places
        return changed

    def close(self) -> None:
        """Let go of everything, once the question that is out has been answered; that isn't waited for."""
        if not self._closed:
            self._closed = True
            self._thread.submit(self._let_go, frozenset())
            self._thread.shutdown(wait=False)

    # ------------------------------------------------------------------ on its thread

    def _let_go(self, but: frozenset[str]) -> None:
        """Close what leases others than these; what is being read for nobody any more is read on, and can go then."""
        for leases in (self._leases, self._coming):
            for checkpoint in leases.keys() - but:
                leases.pop(checkpoint).close()

    def _keep(
        self, checkpoints: Sequence[str], starting: Sequence[str], others: Sequence[str]
    ) -> tuple[tuple[Ahead, ...], dict[str, Ahead]]:
        from loader.errors import LoaderError  # noqa: PLC0415 - only agents whose node has a stage daemon pay for the loader

        self._let_go(frozenset((*checkpoints, *starting)))
        every = dict.fromkeys((*checkpoints, *starting, *others))
        if not every:
            return (), {}
        try:
            there = self._there()
            found = self._look(checkpoints, [each for each in starting if each not in checkpoints], there)
        except LoaderError as error:
            _LOG.info("nothing can be staged ahead: %s", error.what)
            out = {each: Ahead(checkpoint=each, place=Place.LEFT_OUT, reason=error.what) for each in every}
            return tuple(out[each] for each in checkpoints), out
        known = {each.checkpoint: each for each in found}
        return found, {each: known.get(each) or there.place(each) for each in every}

    def _there(self) -> "_There":
        """Ask what is there.

        Raises:
            LoaderError: the daemon doesn't answer.
        """
        with self._connection() as client:
            return _There(
                states={str(each.get("path")): str(each.get("state")) for each in client.statuses()},
                held=frozenset(
                    str(each.get("path")) for each in client.held() if each.get("state") == str(Place.HELD)
                ),
            )

    def _look(
        self, checkpoints: Sequence[str], starting: Sequence[str], there: "_There"
    ) -> tuple[Ahead, ...]:
        """Lease what is there, and have the first one that isn't read.

        Raises:
            LoaderError: the daemon doesn't answer.
        """
        self._forget_broken()
        refused = self._arrivals()
        reading = {path for path, state in there.states.items() if state == str(Place.STAGING)}
        reading |= {os.path.realpath(each) for each in self._coming}  # as the daemon tells it
        found = []
        for checkpoint in checkpoints:
            path = os.path.realpath(checkpoint)
            if (known := self._known(checkpoint, refused)) is not None:
                found.append(known)
            elif path in there.held:
                found.append(Ahead(checkpoint=checkpoint, place=Place.HELD))
            elif reading and path not in reading:
                found.append(Ahead(checkpoint=checkpoint, place=Place.WAITS))
            else:  # what is being read for somebody else is leased, too, as soon as it is there
                found.append(self._take(checkpoint))
                if found[-1].place is Place.STAGING:
                    reading = {path}
        for checkpoint in starting:
            known = self._known(checkpoint, refused)
            if known is None and there.place(checkpoint).place is Place.STAGED:
                known = self._take(checkpoint)
            if known is not None:
                found.append(known)
        return tuple(found)

    def _known(self, checkpoint: str, refused: Mapping[str, str]) -> Ahead | None:
        """What is known of a checkpoint that was asked for before."""
        if checkpoint in self._leases:
            return Ahead(checkpoint=checkpoint, place=Place.STAGED)
        if checkpoint in self._coming:
            return Ahead(checkpoint=checkpoint, place=Place.STAGING)
        if checkpoint in refused:
            return Ahead(checkpoint=checkpoint, place=Place.LEFT_OUT, reason=refused[checkpoint])
        return None

    def _forget_broken(self) -> None:
        """Forget leases of a daemon that has ended: the next one knows nothing of them."""
        from loader.errors import LoaderError  # noqa: PLC0415 - as above

        for checkpoint, client in tuple(self._leases.items()):
            try:
                client.statuses()
            except LoaderError:
                client.close()
                del self._leases[checkpoint]

    def _arrivals(self) -> dict[str, str]:
        """Take what has been read since; why the daemon refused what it refused. What it was asked before it ended is forgotten."""
        from loader.errors import LoaderError, StageUnreachable  # noqa: PLC0415 - as above

        refused: dict[str, str] = {}
        for checkpoint in tuple(self._coming):
            try:
                self._arrive(checkpoint, 0.0)
            except StageUnreachable:
                continue
            except LoaderError as error:
                refused[checkpoint] = error.what
        return refused

    def _take(self, checkpoint: str) -> Ahead:
        """Lease a checkpoint, which has it read where it isn't there; the lease is taken at once, and known once it is there.

        Raises:
            StageUnreachable: the daemon doesn't answer.
        """
        from loader.errors import LoaderError, StageUnreachable  # noqa: PLC0415 - as above

        client = self._connection()
        self._coming[checkpoint] = client
        try:
            client.order(checkpoint)
            there = self._arrive(checkpoint, _STEP_SECONDS)
        except StageUnreachable:
            raise
        except LoaderError as error:
            return Ahead(checkpoint=checkpoint, place=Place.LEFT_OUT, reason=error.what)
        return Ahead(checkpoint=checkpoint, place=Place.STAGED if there else Place.STAGING)

    def _arrive(self, checkpoint: str, seconds: float) -> bool:
        """Wait for a checkpoint that was asked for; whether it is there now, and leased.

        Raises:
            LoaderError: it can't be had, or the daemon is gone; nothing is asked for any more.
        """
        client = self._coming[checkpoint]
        if not client.answers(seconds):
            return False
        del self._coming[checkpoint]
        try:
            for descriptor, _ in client.taken().values():
                os.close(descriptor)
        except BaseException:
            client.close()
            raise
        self._leases[checkpoint] = client
        return True

    def _connection(self) -> "StageClient":
        from loader.stage.connection import StageClient  # noqa: PLC0415 - as above

        return StageClient(self._socket, timeout_seconds=_STEP_SECONDS)
