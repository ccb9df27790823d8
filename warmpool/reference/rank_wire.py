"""What rank 0 of a tensor-parallel group and the others say to each other: lines of JSON over a pair of sockets.

Rank 0 gives orders, in their order; each has an `op`. A rank answers those that ask for an answer, in the same order, with `done` and what
there is to tell, or with `error`. It tells its figures with every answer, and unasked when they change.
"""

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from warmpool.reference import errors
from warmpool.reference.errors import CannotStart, NotEnoughHostMemory, RankLost, ReferenceEngineError
from warmpool.reference.options import ModelOptions

Message = Mapping[str, Any]

MAX_LINE_BYTES: Final = 8 << 20
"""A prompt of a million tokens is as long."""
_RECEIVE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank's place in its group.

    Attributes:
        rank: its number.
        size: how many there are.
        meeting: descriptor of the memory file through which they find each other.
    """

    rank: int
    size: int
    meeting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Memory of one rank.

    Attributes:
        kv_taken_bytes: KV memory that is there now.
        weights_taken_bytes: device memory that its weights take now.
        parked_bytes: host memory that a copy of them takes.
    """

    kv_taken_bytes: int = 0
    weights_taken_bytes: int = 0
    parked_bytes: int = 0

    @classmethod
    def of(cls, told: Message) -> Self:
        """Read them from a message."""
        return cls(**{name: int(told[name]) for name in cls.__dataclass_fields__})

    def as_json(self) -> Message:
        """Render them."""
        return asdict(self)


class Lines:
    """One end of a pair of sockets. Any thread may send; one receives.

    Args:
        connection: this end.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._received = b""

    def fileno(self) -> int:
        """Return its descriptor, for whoever waits for several."""
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            OSError: the other end is gone, or takes nothing in for as long as the socket's timeout.
        """
        self.send_now(lambda: message)

    def send_now(self, message: Callable[[], Message]) -> None:
        """Send a message that is made when its turn has come: what it tells isn't older than what others have said before.

        Raises:
            OSError: as `send`.
        """
        with self._sending:
            self._connection.sendall(json.dumps(message(), separators=(",", ":")).encode() + b"\n")

    def receive(self) -> list[Message]:
        """Wait for messages; none once the other end is gone.

        Raises:
            OSError: what came is no message.
        """
        while b"\n" not in self._received:
            try:
                more = self._connection.recv(_RECEIVE_BYTES)
            except ConnectionResetError:
                more = b""
            if not more:
                return []
            self._received += more
            if len(self._received) > MAX_LINE_BYTES:
                raise OSError(f"a message of more than {MAX_LINE_BYTES} bytes")
        *lines, self._received = self._received.split(b"\n")
        return [_parsed(line) for line in lines]

    def close(self) -> None:
        """Close this end, which the other one sees."""
        self._connection.close()


def _parsed(line: bytes) -> Message:
    try:
        told = json.loads(line)
    except ValueError as error:
        raise OSError(f"a message that isn't one: {error}") from error
    if not isinstance(told, dict):
        raise OSError("a message that isn't one: no JSON object")
    return told


def options_to_json(options: ModelOptions) -> Message:
    """Render what a rank is to load, and how."""
    told = asdict(options)
    return told | {"checkpoint": str(options.checkpoint), "stage": options.stage and str(options.stage)}


def options_from_json(told: Message) -> ModelOptions:
    """Read it."""
    stage = told["stage"]
    return ModelOptions(
        **{**told, "checkpoint": Path(told["checkpoint"]), "stage": None if stage is None else Path(stage)}
    )


def error_to_json(error: Exception) -> Message:
    """Render what went wrong at a rank."""
    return {"type": type(error).__name__, "message": str(error), "hint": getattr(error, "hint", "")}


def error_from_json(told: Message, rank: int) -> ReferenceEngineError:
    """Return what went wrong at a rank as the error that rank 0 raises: of the same kind where that is one of this engine's."""
    kind = getattr(errors, str(told.get("type")), None)
    what = f"rank {rank}: {told.get('message')}"
    if not (isinstance(kind, type) and issubclass(kind, ReferenceEngineError)):
        return RankLost(f"{what} ({told.get('type')})")
    if issubclass(kind, CannotStart | NotEnoughHostMemory):
        return kind(what, hint=str(told.get("hint")))
    return kind(what)
