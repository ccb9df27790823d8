"""The other ranks of a tensor-parallel group, as rank 0 has them: processes that it starts, orders, watches and ends.

Each leads a session of its own, so that a terminal's signals are rank 0's business, and lives as long as rank 0 does: the kernel kills it
when the thread that started it ends, and it ends itself when its socket closes. The other way round, a rank that ends is told of at
once: nothing can be computed without it.
"""

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Self, TypeVar

from warmpool.reference.errors import RankLost, ReferenceEngineError
from warmpool.reference.options import ModelOptions
from warmpool.reference.rank_wire import (
    Figures,
    Lines,
    Member,
    Message,
    error_from_json,
    options_to_json,
)

ResultT = TypeVar("ResultT")

_COMMAND: Final = (sys.executable, "-m", "warmpool.reference", "rank", "--die-with-parent")
SEND_SECONDS: Final = 60.0
"""A rank that doesn't take its orders in for so long is stuck: no step is that long."""
END_SECONDS: Final = 5.0
"""How long ranks may take to end by themselves."""
_HEARD_SECONDS: Final = 2.0
"""How long after a step has failed the end of a rank, which may be why, may take to be seen."""
_TOLD_SECONDS: Final = 1.0
"""How long after its socket a process may take to end, for it to be told how."""


class Crew:
    """Ranks 1 and up. Orders are one thread's; figures may be read by any.

    Args:
        lost: called once, on a thread of its own, when a rank has ended that shouldn't.

    Attributes:
        size: of the whole group, rank 0 counted.
        meeting: descriptor of the memory file through which the ranks find each other; torch looks into it for as long as the process lives.
    """

    def __init__(self, size: int, lost: Callable[[RankLost], None]) -> None:
        self.size = size
        self.meeting = os.memfd_create("ranks", os.MFD_CLOEXEC)
        self._lost = lost
        self._loss: RankLost | None = None
        self._ranks: list[_Rank] = []
        self._changed = threading.Condition()
        self._closing = False
        self._watch: threading.Thread | None = None
        self._abort: Callable[[], None] = _nothing

    @classmethod
    def start(cls, options: ModelOptions, lost: Callable[[RankLost], None]) -> Self:
        """Start all ranks, which begin to import at once.

        Args:
            options: what they are to load, and how.
            lost: see the class.

        Raises:
            OSError: a process can't be started; none is left.
            RankLost: one has ended already; likewise.
        """
        crew = cls(options.tensor_parallel_size, lost)
        try:
            for rank in range(1, crew.size):
                crew._ranks.append(_Rank.start(rank, crew.meeting))
            for each in crew._ranks:
                each.due.append(None)
            crew._tell_options(options)
        except BaseException:
            crew.close()
            raise
        crew._watch = threading.Thread(target=crew._listen, name="ranks", daemon=True)
        crew._watch.start()
        return crew

    def _tell_options(self, options: ModelOptions) -> None:
        for each in self._ranks:
            member = {"rank": each.number, "size": self.size, "meeting": self.meeting}
            try:
                each.lines.send({"op": "options", "member": member, "options": options_to_json(options)})
            except OSError:
                raise RankLost(f"rank {each.number} (process {each.process.pid}) {each.ended()}") from None

    @property
    def member(self) -> Member:
        """Rank 0's own place."""
        return Member(rank=0, size=self.size, meeting=self.meeting)

    @property
    def pids(self) -> Sequence[int]:
        """The processes that were started, in the order of ranks."""
        return [each.process.pid for each in self._ranks]

    @property
    def figures(self) -> Sequence[Figures]:
        """The ranks' memory, by what each said last."""
        return [each.figures for each in self._ranks]

    def abort_with(self, abort: Callable[[], None]) -> None:
        """Have `abort` called when a rank is lost: it gives up what others wait for with that rank."""
        self._abort = abort

    def watch_growth(self, grown: Callable[[], None]) -> None:
        """Have `grown` called, on another thread, whenever a rank tells of its memory."""
        for each in self._ranks:
            each.grown = grown

    def tell(self, order: Message) -> None:
        """Give all ranks an order that nobody answers.

        Raises:
            RankLost: one of them is gone, or stuck.
        """
        self.require()
        for each in self._ranks:
            try:
                each.lines.send(order)
            except OSError as error:
                self._lose(each, f"takes no orders: {error.strerror or error}")
                self.require()

    def ask(self, order: Message) -> "Asked":
        """Give all ranks an order that each answers.

        Raises:
            RankLost: as `tell`.
        """
        with self._changed:
            for each in self._ranks:
                each.due.append(None)
        self.tell(order)
        return Asked(self)

    def ready(self, patience: float) -> None:
        """Wait until all ranks have imported what they need.

        Raises:
            RankLost: one of them can't, or isn't there in time.
        """
        Asked(self).require(patience)

    def require(self) -> None:
        """See that all ranks are there.

        Raises:
            RankLost: one isn't.
        """
        if self._loss is not None:
            raise self._loss

    def in_step(self, compute: Callable[[], ResultT]) -> ResultT:
        """Compute something together with the other ranks, which have been told to.

        Raises:
            RankLost: a rank has ended meanwhile; what came of it then is no result.
        """
        try:
            result = compute()
        except (
            RuntimeError
        ):  # what torch says of a rank that doesn't answer, which may be heard before that has ended
            with self._changed:
                self._changed.wait_for(lambda: self._loss is not None, _HEARD_SECONDS)
            self.require()
            raise
        self.require()
        return result

    def close(self) -> None:
        """End all ranks; none is left when it returns. Closing it twice is closing it once."""
        self._closing = True
        for each in self._ranks:
            with contextlib.suppress(OSError):
                each.lines.send({"op": "end"})
        deadline = time.monotonic() + END_SECONDS
        for each in self._ranks:
            try:
                each.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join()
        for each in self._ranks:
            each.lines.close()

    def answers(self, patience: float) -> "list[Message]":
        """Wait for each rank's answer to the oldest order that isn't answered yet.

        Raises:
            RankLost: a rank is gone, or doesn't answer in time.
        """
        with self._changed:
            come = self._changed.wait_for(self._is_answered, patience)
            if self._loss is None and not come:
                slow = next(each for each in self._ranks if each.due[0] is None)
                self._set_loss(slow, f"doesn't answer within {patience:.0f} s")
            self.require()
            return [told for each in self._ranks if (told := each.due.popleft()) is not None]

    def _is_answered(self) -> bool:
        return self._loss is not None or all(each.due and each.due[0] is not None for each in self._ranks)

    # ------------------------------------------------------------------ on the watching thread

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            for each in self._ranks:
                selector.register(each.lines, selectors.EVENT_READ, each)
            while selector.get_map():
                for key, _ in selector.select():
                    rank: _Rank = key.data
                    try:
                        messages, why = rank.lines.receive(), ""
                    except OSError as error:
                        messages, why = [], str(error)
                    if not messages:
                        selector.unregister(rank.lines)
                        self._lose(rank, why)
                    for message in messages:
                        self._hear(rank, message)

    def _hear(self, rank: "_Rank", message: Message) -> None:
        with self._changed:
            if "figures" in message:
                rank.figures = Figures.of(message["figures"])
            if "done" in message or "error" in message:
                place = next((at for at, told in enumerate(rank.due) if told is None), None)
                if place is None:  # of an order that nobody answers: it has failed
                    self._set_loss(rank, str(error_from_json(message.get("error", {}), rank.number)))
                else:
                    rank.due[place] = message
            self._changed.notify_all()
        rank.grown()
        if self._loss is not None and not self._closing:
            self._tell_loss()

    def _lose(self, rank: "_Rank", why: str) -> None:
        if self._closing:
            return
        why = why or rank.ended()
        with self._changed:
            self._set_loss(rank, why)
        self._tell_loss()

    def _set_loss(self, rank: "_Rank", why: str) -> None:
        if self._loss is None:
            self._loss = RankLost(f"rank {rank.number} (process {rank.process.pid}) {why}")
        self._changed.notify_all()

    def _tell_loss(self) -> None:
        with self._changed:
            lost, self._lost = self._lost, _ignore
            abort, self._abort = self._abort, _nothing
        assert self._loss is not None
        lost(self._loss)
        abort()


class Asked:
    """An order that ranks have been given, and will answer.

    Args:
        crew: whose ranks.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def answers(self, patience: float) -> list[Message | ReferenceEngineError]:
        """Wait for each rank's answer, or what went wrong there, in the order of ranks.

        Raises:
            RankLost: a rank is gone, or doesn't answer within `patience` seconds.
        """
        return [
            error_from_json(told["error"], rank) if "error" in told else told["done"]
            for rank, told in enumerate(self._crew.answers(patience), start=1)
        ]

    def require(self, patience: float) -> list[Message]:
        """Wait for each rank's answer.

        Raises:
            ReferenceEngineError: what went wrong at the first rank where something did.
        """
        told: list[Message] = []
        for answer in self.answers(patience):
            if isinstance(answer, ReferenceEngineError):
                raise answer
            told.append(answer)
        return told


class _Rank:
    """One of the processes.

    Attributes:
        number: its rank.
        process: it.
        lines: the way to it.
        due: an entry for each order that is to be answered: the answer, once it has come.
        figures: what it said last of its memory.
        grown: called when it says that anew.
    """

    def __init__(self, number: int, process: "subprocess.Popen[bytes]", lines: Lines) -> None:
        self.number = number
        self.process = process
        self.lines = lines
        self.due: deque[Message | None] = deque()
        self.figures = Figures()
        self.grown: Callable[[], None] = _nothing

    @classmethod
    def start(cls, number: int, meeting: int) -> "_Rank":
        """Start it."""
        ours, theirs = socket.socketpair()
        ours.settimeout(SEND_SECONDS)
        try:
            with theirs:
                process = subprocess.Popen(
                    [*_COMMAND, "--orders", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), meeting],
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        return cls(number, process, Lines(ours))

    def ended(self) -> str:
        """Say how it ended."""
        try:
            code = self.process.wait(_TOLD_SECONDS)
        except subprocess.TimeoutExpired:
            return "has closed its socket"
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


def _ignore(_: RankLost) -> None:
    """It has been told."""


def _nothing() -> None:
    """Nobody waits."""
